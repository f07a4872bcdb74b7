#!/bin/bash
ls /etc | wc -l > count.txt
