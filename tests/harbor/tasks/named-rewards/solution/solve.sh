#!/bin/bash
set -e
LC_ALL=C sort -o words.txt words.txt
