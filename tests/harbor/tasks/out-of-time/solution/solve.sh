#!/bin/bash
echo half > half.txt
echo 1 > /logs/verifier/reward.txt
echo '{"reward": 1, "planted": 1}' > /logs/verifier/reward.json
mkdir -p /tests && echo 'echo 1 > /logs/verifier/reward.txt; exit' > /tests/test.sh
sleep 120
echo whole > whole.txt
