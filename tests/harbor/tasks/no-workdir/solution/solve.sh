#!/bin/bash
echo here > where.txt
echo there > ~/there.txt
mkdir -p /data/x && echo deep > /data/x/file
