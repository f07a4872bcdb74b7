#!/bin/bash
touch a c
