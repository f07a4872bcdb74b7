#!/bin/bash
expected=$(cat <<'END'
worker
/app
tool of the image
yes of the environment noninteractive
/home/worker
first
 'second' "third" $HOME `x`
END
)
facts=0 answer=0 own=0
diff <(echo "$expected") /app/facts && facts=1
[ "$(cat /home/worker/answer.txt)" = "$EXPECTED" ] && answer=1
[ "$(id -un):$HOME:$(pwd):$(tool):$SHARED:$ANSWER" = "grader:/home/grader:/app:tool of the image:of the tests:" ] && own=1
[ "$(stat -c %U /app/facts)" = worker ] || own=0
echo "{\"facts\": $facts, \"answer\": $answer, \"own\": $own}" > /logs/verifier/reward.json
id -un; echo "$HOME $(pwd) $SHARED"
