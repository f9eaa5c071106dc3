#!/usr/bin/env bash
# Runs the fuzzers with libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer.
#   tools/fuzz.sh [--jobs=N] [--kept=DIR] [SECONDS] [TARGET...]    e.g. tools/fuzz.sh 300 //sim/trace:convert_fuzz
# Default: 60 seconds for each fuzzer there is, one after the other; --jobs runs several at a time. An input may take
# 1 s, and 512 MiB of memory with what the sanitizers need. Installs missing Debian packages first. Inputs found on the
# way and the findings are kept in --kept, or $KVBLOCKS_FUZZ_DIR (default: ~/.cache/kvblocks_fuzz), so that the next run
# begins where this one ended. A finding that is fixed belongs into the fuzzer's corpus, under a name that says what was
# wrong.
# Exit status: 0 no finding, 1 findings, 2 could not be built or options that cannot be.
set -u
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
cd "$root" || exit 2
. tools/prepare.sh
kvblocks_prepare "${kvblocks_sanitizer_packages[@]}"

jobs=1
kept=${KVBLOCKS_FUZZ_DIR:-$HOME/.cache/kvblocks_fuzz}
while [[ ${1:-} == --* ]]; do
  case $1 in
    --jobs=[1-9] | --jobs=[1-9][0-9]) jobs=${1#*=} ;;
    --kept=?*) kept=${1#*=} ;;
    *)
      echo "fuzz.sh: got $1, expected --jobs=N with N from 1 to 99, or --kept=DIR" >&2
      exit 2
      ;;
  esac
  shift
done
seconds=60
if [ "$#" -gt 0 ] && [[ $1 =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
if [ "${#targets[@]}" -eq 0 ]; then
  mapfile -t targets < <(bazel query 'attr(tags, "libfuzzer", //...)' 2>/dev/null)
fi
if [ "${#targets[@]}" -eq 0 ]; then
  echo "fuzz.sh: no fuzzer found: bazel query 'attr(tags, \"libfuzzer\", //...)' names none" >&2
  exit 2
fi
options=(--config=fuzz --color=no --curses=no --noshow_progress)
if ! bazel build "${options[@]}" "${targets[@]}"; then
  echo "fuzz.sh: the fuzzers could not be built" >&2
  exit 2
fi
binaries=$(bazel info "${options[@]}" bazel-bin 2>/dev/null)
mkdir -p "$kept" && kept=$(readlink -f -- "$kept") || exit 2
# Freed memory that AddressSanitizer keeps for a while counts as the fuzzer's.
export ASAN_OPTIONS=quarantine_size_mb=8:thread_local_quarantine_size_kb=64:malloc_context_size=10:allocator_may_return_null=0

# Runs one fuzzer; its last line on standard output begins with the target.
run_one() {
  local target=$1 path name file seeds log status executions
  path=${target#//}
  name=${path//[:\/]/_}
  path=${path/://}
  # The corpus is the target's data; its folder is that of any of its files.
  file=$2
  file=${file#//}
  seeds=$(dirname -- "${file/://}")
  mkdir -p "$kept/$name/corpus" "$kept/$name/findings"
  log=$kept/$name/log
  "$binaries/$path" -max_total_time="$seconds" -max_len=65536 -timeout=1 -rss_limit_mb=512 -malloc_limit_mb=512 \
    -print_final_stats=1 -artifact_prefix="$kept/$name/findings/" "$kept/$name/corpus" "$seeds" >"$log" 2>&1 </dev/null
  status=$?
  executions=$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")
  if [ "$status" -eq 0 ]; then
    echo "$target: no finding in ${executions:-?} executions"
    return 0
  fi
  echo "$target: FINDING, exit status $status; log $log:
$(grep -a -m 1 -A 30 -E 'ERROR|runtime error|expected|KVBLOCKS_CHECK' "$log" | head -n 40)
$(grep -a -E 'SUMMARY|Test unit written to' "$log")"
  return 1
}

findings=0
for target in "${targets[@]}"; do
  if [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; then
    wait -n || findings=$((findings + 1))
  fi
  run_one "$target" "$(bazel query "labels(data, $target)" 2>/dev/null | head -n 1)" &
done
while [ -n "$(jobs -p)" ]; do
  wait -n
  status=$?
  [ "$status" -eq 127 ] && break
  [ "$status" -eq 0 ] || findings=$((findings + 1))
done
echo "${#targets[@]} fuzzers, $findings with findings"
[ "$findings" -eq 0 ]
