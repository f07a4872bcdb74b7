#!/bin/bash
test -e /run/service/ready || exit 1
echo 12 > /run/service/q
for try in $(seq 100); do [ -e /run/service/a ] && break; sleep 0.1; done
mv /run/service/a answer.txt
