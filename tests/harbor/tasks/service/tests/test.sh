#!/bin/bash
right=0
[ "$(cat answer.txt)" = 144 ] && right=1
echo 5 > /run/service/q
for try in $(seq 100); do [ -e /run/service/a ] && break; sleep 0.1; done
[ "$(cat /run/service/a)" = 25 ] || right=0
echo $right > /logs/verifier/reward.txt
