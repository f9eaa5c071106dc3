#!/usr/bin/env bash
# examples_test.sh BINARY...: runs each example and looks at what it prints.
#
# It must be expected/NAME.txt, or satisfy expected/NAME.awk where the last digits are the machine's.
set -u
folder=${0%/*}/expected
[ $# -gt 0 ] || { echo "usage: examples_test.sh BINARY..."; exit 2; }
failed=0
fail() { echo "$1"; failed=1; }
for binary in "$@"; do
  name=${binary##*/}
  actual=$("$binary") || { fail "$name exits with $? after"$'\n'"$actual"; continue; }
  if [ -f "$folder/$name.awk" ]; then
    awk -f "$folder/$name.awk" <<< "$actual" || fail "$name prints"$'\n'"$actual"
  else
    diff "$folder/$name.txt" - <<< "$actual" || fail "$name does not print $folder/$name.txt"
  fi
done
exit $failed
