#!/bin/bash
sorted=0
LC_ALL=C sort -c /app/words.txt && sorted=1
lines=$(wc -l < /app/words.txt)
echo 0.125 > /logs/verifier/reward.txt
printf '{"reward": %s, "lines": %s, "whole": true, "penalty": -2.5e-1}\n' "$sorted" "$lines" > /logs/verifier/reward.json
exit 3
