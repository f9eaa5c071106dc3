#!/usr/bin/env bash
# Builds and runs the tests, each in one way; the last line counts test cases. Installs missing Debian packages first.
#   ./test.sh [targets]                  e.g. ./test.sh //managers/... -//tests/faults/...
#   ./test.sh BAZEL_OPTIONS [targets]    all of them in the way of these options: ./test.sh --config=asan --config=ubsan
# Without options, unit tests and fuzzers run under AddressSanitizer and UndefinedBehaviorSanitizer and with debug checks;
# property, exhaustive and recorded tests, which do much more, run optimised.
# Exit status: 0 all passed, 1 some failed, 2 could not be built.
set -u
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
cd "$root" || exit 2
. tools/prepare.sh
kvblocks_prepare "${kvblocks_sanitizer_packages[@]}"

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
common=(--keep_going --build_tests_only)
[ -t 1 ] || common+=(--color=no --curses=no --noshow_progress)
# A folder of real traces and transcripts, if there is one, enables the tests that need it.
[ -z "${KVBLOCKS_SHARED:-}" ] || common+=("--test_env=KVBLOCKS_SHARED=$KVBLOCKS_SHARED")

passed=0 failed=0 skipped=0 broken=

# run_tests TAG BAZEL_OPTIONS: the tests that have the tag (all if it is empty).
run_tests() {
  local tag=$1 tests logs status counts began=$SECONDS
  shift
  tests="tests(set(${targets[*]})) except attr(tags, '\bmanual\b', set(${targets[*]})) except set(${excluded[*]})"
  [ -z "$tag" ] || tests="attr(tags, '\b$tag\b', $tests)"
  tests=$(bazel query "$tests" 2>/dev/null)
  [ -n "$tests" ] || return 0
  # shellcheck disable=SC2086
  bazel test "${common[@]}" "$@" -- $tests
  status=$?
  case $status in
    0 | 1 | 3 | 4) ;; # done; done with failures (1: some targets did not build)
    *) broken=1 ;;
  esac
  logs=$(bazel info "$@" bazel-testlogs 2>/dev/null)
  counts=$(tools/count_tests.sh "$logs" <<<"$tests")
  if [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
  fi
  [ "$status" -eq 0 ] || [ "${BASH_REMATCH[2]:-0}" -gt 0 ] || broken=1
  echo "$*: $counts in $((SECONDS - began)) s"
}

if [ "${#options[@]}" -gt 0 ]; then
  run_tests "" -c opt "${options[@]}"
else
  run_tests optimised -c opt
  run_tests sanitized --config=sanitize
fi
[ "$passed" -gt 0 ] || [ "$failed" -gt 0 ] || broken=1

if [ "$skipped" -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ -z "$broken" ] || exit 2
[ "$failed" -eq 0 ]
