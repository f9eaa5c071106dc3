#!/usr/bin/env bash
# Builds tests/consumer_bazel, a workspace that depends on this one, and runs its programs.
#   tests/packaging/check_bazel.sh [bazel options]
# The last line counts: "N passed, M failed".
set -u
root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
cd "$root/tests/consumer_bazel" || exit 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
bazel test --color=no --curses=no --noshow_progress "$@" //... 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
expected=$(bazel query 'tests(//...) except attr(tags, "\bmanual\b", //...)' 2>/dev/null | wc -l)
bazel shutdown 2>/dev/null  # the server of this workspace is of no use to anything else
passed=$(grep -cE '^//:.* PASSED' "$log")
echo "$passed passed, $((expected - passed)) failed"
[ "$status" -eq 0 ] && [ "$expected" -ge 5 ] && [ "$passed" -eq "$expected" ]
