#!/usr/bin/env bash
# readme_example_test.sh BINARY SOURCE README: whether the example prints what the documents say. That they quote its lines
# is checked by tests/docs/check_docs.py.
set -u
binary=$1 source=$2
case ${source##*/} in
  embed.cc)
    expected='first: 0 tokens hit, 100 to compute, block table 1 2 3 4 5 6 7
second: 96 tokens hit, 4 to compute, block table 1 2 3 4 5 6 7'
    ;;
  paged_attention.cc)
    expected='mean of tokens 2 to 5: 3.50, weights over e^1.3863'
    ;;
  *) echo "unknown example $source"; exit 1 ;;
esac
actual=$("$binary") || { echo "the example exits with $?"; exit 1; }
[ "$actual" = "$expected" ] || { printf 'the example prints\n%s\nexpected\n%s\n' "$actual" "$expected"; exit 1; }
