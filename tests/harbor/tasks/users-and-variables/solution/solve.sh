#!/bin/bash
umask 022
chmod 755 ~
echo "$ANSWER" > ~/answer.txt
{ id -un; pwd; tool; echo "$OF_IMAGE $SHARED $DEBIAN_FRONTEND"; echo "$HOME"; printf '%s' "$LINES"; } > facts
