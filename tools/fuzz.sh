#!/usr/bin/env bash
# Runs the fuzzers with libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer.
#   tools/fuzz.sh [-j JOBS] [SECONDS] [TARGET...]     e.g. tools/fuzz.sh -j 4 300 //sim/trace:convert_fuzz
# Default: 60 seconds for each fuzzer there is, one at a time. An input that takes more than a second or 512 MiB is a
# finding: no input is longer than 8 KiB. A loaded machine may need fewer JOBS than processors. Installs missing Debian packages first. Inputs found on the way and the
# findings are kept in $KVBLOCKS_FUZZ_DIR (default: ~/.cache/kvblocks_fuzz), so that the next run begins where this one
# ended. A finding that is fixed belongs into the fuzzer's corpus, under a name that says what was wrong.
# Exit status: 0 no finding, 1 findings, 2 could not be built.
set -u
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
cd "$root" || exit 2
. tools/prepare.sh
kvblocks_prepare "${kvblocks_sanitizer_packages[@]}"

jobs=1
if [ "${1:-}" = -j ]; then
  jobs=${2:-}
  if ! [[ $jobs =~ ^[1-9][0-9]*$ ]]; then
    echo "fuzz.sh: -j: got \"$jobs\", expected how many fuzzers run at a time" >&2
    exit 2
  fi
  shift 2
fi
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
kept=${KVBLOCKS_FUZZ_DIR:-$HOME/.cache/kvblocks_fuzz}

# AddressSanitizer keeps what was freed, by default 256 MB of it; with little of that the limit is for the code.
export ASAN_OPTIONS=quarantine_size_mb=16:thread_local_quarantine_size_kb=64:malloc_context_size=10:${ASAN_OPTIONS:-}

# Writes what is to be said to $kept/NAME/said and returns whether there was no finding.
fuzz_one() {
  local target=$1 path=${1#//} name file seeds log status executions
  name=${path//[:\/]/_}
  path=${path/://}
  # The corpus is the target's data; its folder is that of any of its files.
  file=${corpus_file[$target]#//}
  seeds=$(dirname -- "${file/://}")
  log=$kept/$name/log
  "$binaries/$path" -max_total_time="$seconds" -max_len=8192 -timeout=1 -rss_limit_mb=512 -malloc_limit_mb=512 \
    -print_final_stats=1 -artifact_prefix="$kept/$name/findings/" "$kept/$name/corpus" "$seeds" >"$log" 2>&1 </dev/null
  status=$?
  executions=$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")
  if [ "$status" -eq 0 ]; then
    echo "$target: no finding in ${executions:-?} executions"
    return 0
  fi
  echo "$target: FINDING, exit status $status; log $log:"
  grep -a -m 1 -A 30 -E 'ERROR|runtime error|expected|KVBLOCKS_CHECK' "$log" | head -n 40
  grep -a -E 'SUMMARY|Test unit written to' "$log"
  return 1
}

declare -A corpus_file=()
declare -A target_of=()
findings=0 ended=0
# Waits for one fuzzer and says what it found.
reap() {
  local pid status name
  wait -n -p pid "${!target_of[@]}"
  status=$?
  name=${target_of[$pid]}
  unset "target_of[$pid]"
  cat "$kept/$name/said"
  ended=$((ended + 1))
  [ "$status" -eq 0 ] || findings=$((findings + 1))
}
for target in "${targets[@]}"; do
  corpus_file[$target]=$(bazel query "labels(data, $target)" 2>/dev/null | head -n 1)
  [ "${#target_of[@]}" -lt "$jobs" ] || reap
  name=${target#//}
  name=${name//[:\/]/_}
  mkdir -p "$kept/$name/corpus" "$kept/$name/findings"
  fuzz_one "$target" >"$kept/$name/said" &
  target_of[$!]=$name
done
while [ "${#target_of[@]}" -gt 0 ]; do reap; done
echo "$ended of ${#targets[@]} fuzzers ended, $findings with findings"
[ "$findings" -eq 0 ] && [ "$ended" -eq "${#targets[@]}" ]
