#!/usr/bin/env bash
# readme_example_test.sh BINARY SOURCE README: what the example prints, and whether the README holds the same code.
set -u
binary=$1 source=$2 readme=$3
case ${source##*/} in
  embed.cc)
    block=1
    expected='first: 0 tokens hit, 100 to compute, block table 1 2 3 4 5 6 7
second: 96 tokens hit, 4 to compute, block table 1 2 3 4 5 6 7'
    ;;
  paged_attention.cc)
    block=2
    expected='mean of tokens 2 to 5: 3.50, weights over e^1.3863'
    ;;
  *) echo "unknown example $source"; exit 1 ;;
esac
actual=$("$binary") || { echo "the example exits with $?"; exit 1; }
[ "$actual" = "$expected" ] || { printf 'the example prints\n%s\nexpected\n%s\n' "$actual" "$expected"; exit 1; }
# The README's cpp block of that number is this file from its first #include on.
diff <(awk -v block="$block" '/^```cpp$/ { ++n; next } /^```/ { if (n == block) exit } n == block' "$readme") \
     <(awk '/^#include/ { on = 1 } on' "$source") || { echo "README and $source differ"; exit 1; }
