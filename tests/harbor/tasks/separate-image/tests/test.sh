#!/bin/bash
score=0
point() { if "$@"; then score=$((score + 1)); else echo "not: $*"; fi; }
point cmp /app/out/result.txt /tests/expected.txt
point test "$(cat /app/out/link)" = ok
point test ! -e /app/out/outside
point test ! -e /app/out/stale
point test -d /app/out/inner
point test "$(cat /app/report.txt)" = done
point test "$(cat /app/big/kept/c)" = x
point test ! -e /app/big/a.tmp
point test ! -e /app/big/cache
point test "$(cat /logs/artifacts/note.txt)" = note
point test -s /app/out/collected
point test ! -e /tests-were-here
point test ! -e /app/never-made
point test "$OF_TESTS:$OF_PLACE:$OF_AGENT:$(pwd)" = "yes:the tests' own::/checks"
echo "{\"score\": $score}" > /logs/verifier/reward.json
