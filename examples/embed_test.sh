#!/usr/bin/env bash
# embed_test.sh BINARY SOURCE README
set -u
binary=$1 source=$2 readme=$3
expected='first: 0 tokens hit, 100 to compute, block table 1 2 3 4 5 6 7
second: 96 tokens hit, 4 to compute, block table 1 2 3 4 5 6 7'
actual=$("$binary") || { echo "the example exits with $?"; exit 1; }
[ "$actual" = "$expected" ] || { printf 'the example prints\n%s\nexpected\n%s\n' "$actual" "$expected"; exit 1; }
# The README's cpp block is this file from its first #include on.
diff <(awk '/^```cpp$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$readme") \
     <(awk '/^#include/ { on = 1 } on' "$source") || { echo "README and $source differ"; exit 1; }
