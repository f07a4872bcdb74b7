#!/bin/bash
score=0
[ -e half.txt ] && score=0.5
[ -e whole.txt ] && score=1
echo $score > /logs/verifier/reward.txt
