#!/bin/bash
pwd
if [ "$(cat whole.txt)" = "$(printf 'one\ntwo')" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
