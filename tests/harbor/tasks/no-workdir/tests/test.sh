#!/bin/bash
score=0
[ "$(cat where.txt)" = here ] && score=$((score + 1))
[ "$(pwd)" = / ] && score=$((score + 1))
[ "$(cat /root/there.txt)" = there ] && [ "$HOME" = /root ] && score=$((score + 1))
[ "$(cat /data/x/file)" = deep ] && score=$((score + 1))
echo $score > /logs/verifier/reward.txt
