cp "/solution/with space/ü.txt" 挨拶.txt
test ! -e /solution/ignored.txt
