#!/usr/bin/env bash
# custom_attention_kind_test.sh EXAMPLE
set -u
expected='dilated_attention, first: 0 tokens hit, 17 of 41 blocks kept, 16384 bytes each
dilated_attention, second: 624 tokens hit, 17 of 41 blocks kept, 16384 bytes each
half_context_attention, first: 0 tokens hit, 21 of 41 blocks kept, 65536 bytes each
half_context_attention, second: 624 tokens hit, 21 of 41 blocks kept, 65536 bytes each'
actual=$("$1") || { echo "$1 exits with $?"; exit 1; }
[ "$actual" = "$expected" ] || { printf 'it prints\n%s\nexpected\n%s\n' "$actual" "$expected"; exit 1; }
