#!/bin/bash
score=0
for claim in '$(cat made/result.txt) = ok' '$(cat given.txt) = given' '! -e elsewhere' '$OF_AGENT = yes'; do
  if eval "test $claim"; then score=$((score + 1)); else echo "not: $claim"; fi
done
echo $score > /logs/verifier/reward.txt
