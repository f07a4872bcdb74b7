#!/bin/bash
cat parts/1.txt parts/2.txt > whole.txt
