score=0
point() { if "$@"; then score=$((score + 1)); else echo "not: $*"; fi; }
cd "$(dirname "$0")"
point cmp données/é.txt /app/挨拶.txt
point cmp link.txt /app/挨拶.txt
point test "$(readlink link.txt)" = données/é.txt
point test -x helper
point test ! -e a.log
point test ! -e top-only.txt
point test ! -e folder/dropped.txt
point test ! -e .harborignore
point test "$(cat folder/kept.txt deep/top-only.txt deep/b.log | tr '\n' ' ')" = "kept kept kept "
point test "$(cat 'of image.txt')" = "of the image"
point test -e /app/kept
point test ! -e /app/kept-out
point touch new-file
point [ "${BASH_VERSION:+bash}" = bash ]
echo "$score" > /logs/verifier/reward.txt
