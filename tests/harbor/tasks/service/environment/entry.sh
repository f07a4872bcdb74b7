#!/bin/bash
service.sh </dev/null >/dev/null 2>&1 &
exec "$@"
