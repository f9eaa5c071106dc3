#!/usr/bin/env bash
# Reads test targets from standard input and counts the test cases in their results below the given folder of test logs.
# Prints 'N passed, N failed' or, if any were, ', N skipped' with it. Exit status 1 if any failed.
set -u
shopt -s nullglob
logs=$1
passed=0 failed=0 skipped=0
while read -r target; do
  package=${target#//}
  results=$logs/${package%%:*}/${target##*:}
  xml=("$results"/shard_*/test.xml)  # one per shard, if sharded
  [ -f "$results/test.xml" ] && xml=("$results/test.xml")
  if [ "${#xml[@]}" -eq 0 ]; then
    echo "$target has no result: it was not built or not run" >&2
    failed=$((failed + 1))
    continue
  fi
  # GoogleTest writes one testcase element per case; a test that is a script has one in all.
  read -r p f s < <(awk '
    /<testcase / { n++; open = 1; bad = 0
                   if ($0 ~ /result="skipped"/ || $0 ~ /status="notrun"/) skip++ }
    /<(failure|error)[ >]/ { if (open && !bad) { fail++; bad = 1 } }
    END { print n - fail - skip, fail + 0, skip + 0 }' "${xml[@]}")
  if [ "$((p + f + s))" -eq 0 ]; then
    echo "$target has no test case" >&2
    f=1
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
if [ "$skipped" -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]
