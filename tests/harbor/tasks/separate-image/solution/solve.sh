#!/bin/bash
mkdir -p out/inner big/cache big/kept
echo ok > out/result.txt
ln -s result.txt out/link
ln -s /etc/passwd out/outside
echo done > report.txt
echo x > big/a.tmp; echo x > big/cache/b; echo x > big/kept/c
echo note > /logs/artifacts/note.txt
echo tampered > /tests-were-here
