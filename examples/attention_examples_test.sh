#!/usr/bin/env bash
# attention_examples_test.sh CUSTOM_MASK BLEND UNIFIED_ATTENTION
set -u
custom_mask=$1 blend=$2 unified_attention=$3
expected='token 0 sees ###...  output 1.00
token 1 sees ###...  output 1.00
token 2 sees ###...  output 1.00
token 3 sees ####..  output 1.50
token 4 sees #####.  output 2.00
token 5 sees ######  output 2.50'
actual=$("$custom_mask") || { echo "custom_mask exits with $?"; exit 1; }
[ "$actual" = "$expected" ] || { printf 'custom_mask prints\n%s\nexpected\n%s\n' "$actual" "$expected"; exit 1; }

# Six ratios; errors fall with each, are 0 at ratio 1, and are smaller than those of tokens chosen
# blindly in between.
actual=$("$blend") || { echo "blend exits with $?"; exit 1; }
printf '%s\n' "$actual" | awk '
  $1 ~ /^[01]\.[0-9]+$/ {
    rows++
    if (rows > 1 && ($3 >= last_error || $2 <= last_tokens)) bad = "does not fall at " $1
    if ($1 > 0 && $1 < 1 && $3 >= $5) bad = "is no better than chance at " $1
    if ($1 == 1 && ($3 != 0 || $4 != 0 || $5 != 0 || $6 != 0)) bad = "is not 0 at ratio 1"
    last_error = $3; last_tokens = $2
  }
  END {
    if (rows != 6) bad = "has " rows " ratios, expected 6"
    if (bad != "") { print "the error " bad; exit 1 }
  }' || { printf '%s\n' "$actual"; exit 1; }

# Two layers in three steps: hooks around each, the prompt of 19 tokens in three pieces of 8.
actual=$("$unified_attention") || { printf 'unified_attention exits with %s after\n%s\n' "$?" "$actual"; exit 1; }
expected='step of 19: 1 request, 3 pieces
full: wait for its blocks
full: save 19 new rows
  token 18 sees 0 to 18: yes
local: wait for its blocks
local: save 19 new rows
  token 18 sees 16 to 18: yes'
[ "$(printf '%s\n' "$actual" | head -n 7)" = "$expected" ] && [ "$(printf '%s\n' "$actual" | grep -c ': yes$')" = 6 ] ||
  { printf 'unified_attention prints\n%s\nexpected to begin with\n%s\n' "$actual" "$expected"; exit 1; }
