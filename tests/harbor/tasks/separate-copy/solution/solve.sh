#!/bin/bash
mkdir made
echo ok > made/result.txt
echo changed > given.txt
echo x > elsewhere
