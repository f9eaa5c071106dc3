#!/usr/bin/env bash
# attention_embed_test.sh BINARY
set -u
expected='100 tokens: as plain attention
  1 tokens: as plain attention
  1 tokens: as plain attention
  1 tokens: as plain attention'
actual=$("$1") || { printf 'the example exits with %s after\n%s\n' "$?" "$actual"; exit 1; }
[ "$actual" = "$expected" ] || { printf 'the example prints\n%s\nexpected\n%s\n' "$actual" "$expected"; exit 1; }
