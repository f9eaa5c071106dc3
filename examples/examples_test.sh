#!/usr/bin/env bash
# examples_test.sh BINARY...: runs each example and compares what it prints with examples/expected/NAME.txt.
#
# Numbers with decimals may differ in the last place: instruction sets round attention differently.
set -u
folder=${0%/*}/expected
[ $# -gt 0 ] || { echo "usage: examples_test.sh BINARY..."; exit 2; }
failed=0
for binary in "$@"; do
  name=${binary##*/}
  expected=$folder/$name.txt
  [ -f "$expected" ] || { echo "$name has no $expected"; failed=1; continue; }
  actual=$(mktemp)
  "$binary" > "$actual"
  status=$?
  if [ $status -ne 0 ]; then
    echo "$name exits with $status after"
    cat "$actual"
    failed=1
  elif ! paste -d '\001' "$expected" "$actual" | awk -F '\001' '
      function near(a, b) {
        if (a == b) return 1
        if (a !~ /^[-+e^]*[0-9]*\.[0-9]+$/ || b !~ /^[-+e^]*[0-9]*\.[0-9]+$/) return 0
        gsub(/e\^/, "", a)
        gsub(/e\^/, "", b)
        return a - b <= 0.00021 && b - a <= 0.00021
      }
      {
        n = split($1, want, /[ \t]+/)
        m = split($2, got, /[ \t]+/)
        same = n == m
        for (i = 1; same && i <= n; i++) same = near(want[i], got[i])
        if (!same) { print "line " NR ":\n- " $1 "\n+ " $2; bad = 1 }
      }
      END { exit bad }'; then
    echo "$name differs from $expected"
    failed=1
  fi
  rm -f "$actual"
done
exit $failed
