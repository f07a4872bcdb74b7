#!/bin/bash
set -u
wrong=1
[ "$(cat /app/inner/count.txt)" = "$(ls /etc | wc -l)" ] && wrong=0
echo "  $((1 - wrong)).0e0  " > /logs/verifier/reward.txt
