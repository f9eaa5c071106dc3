#!/usr/bin/env bash
# Builds everything, optimised, and runs all tests; the last line counts test cases. Installs missing Debian packages first.
#   ./test.sh [bazel options] [targets]     e.g. ./test.sh --config=asan --config=ubsan //block_pool/... -//tests/faults/...
# Exit status: 0 all passed, 1 some failed, 2 could not be built.
set -u
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
cd "$root" || exit 2
. tools/prepare.sh
kvblocks_prepare

options=()
targets=()
excluded=()
for argument in "$@"; do
  case $argument in
    -//*) excluded+=("${argument#-}") ;;
    -*) options+=("$argument") ;;
    *) targets+=("$argument") ;;
  esac
done
[ "${#targets[@]}" -gt 0 ] || targets=(//...)
[ -t 1 ] || options+=(--color=no --curses=no --noshow_progress)
# A folder of real traces and transcripts, if there is one, enables the tests that need it.
[ -z "${KVBLOCKS_SHARED:-}" ] || options+=("--test_env=KVBLOCKS_SHARED=$KVBLOCKS_SHARED")

bazel test -c opt --keep_going "${options[@]}" -- "${targets[@]}" "${excluded[@]/#/-}"
status=$?
case $status in
  0 | 1 | 3 | 4) ;;  # done; done with failures (1: some targets did not build)
  *) exit 2 ;;
esac
logs=$(bazel info -c opt "${options[@]}" bazel-testlogs 2>/dev/null)
bazel query "tests(set(${targets[*]})) except attr(tags, '\bmanual\b', set(${targets[*]})) except set(${excluded[*]})" 2>/dev/null | tools/count_tests.sh "$logs"
counted=$?
[ "$status" -eq 0 ] || [ "$counted" -ne 0 ] || exit 2
exit "$counted"
