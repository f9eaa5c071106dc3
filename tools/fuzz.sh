#!/usr/bin/env bash
# Runs the fuzzers with libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer.
#   tools/fuzz.sh [SECONDS] [TARGET...]     e.g. tools/fuzz.sh 300 //sim/trace:convert_fuzz
# Default: 60 seconds for each fuzzer there is. Installs missing Debian packages first. Inputs found on the way and the
# findings are kept in $KVBLOCKS_FUZZ_DIR (default: ~/.cache/kvblocks_fuzz), so that the next run begins where this one
# ended. A finding that is fixed belongs into the fuzzer's corpus, under a name that says what was wrong.
# Exit status: 0 no finding, 1 findings, 2 could not be built.
set -u
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
cd "$root" || exit 2
. tools/prepare.sh
kvblocks_prepare "${kvblocks_sanitizer_packages[@]}"

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

findings=0
for target in "${targets[@]}"; do
  path=${target#//}
  name=${path//[:\/]/_}
  path=${path/://}
  # The corpus is the target's data; its folder is that of any of its files.
  file=$(bazel query "labels(data, $target)" 2>/dev/null | head -n 1)
  file=${file#//}
  seeds=$(dirname -- "${file/://}")
  mkdir -p "$kept/$name/corpus" "$kept/$name/findings"
  log=$kept/$name/log
  "$binaries/$path" -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=3072 -print_final_stats=1 \
    -artifact_prefix="$kept/$name/findings/" "$kept/$name/corpus" "$seeds" >"$log" 2>&1 </dev/null
  status=$?
  executions=$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")
  if [ "$status" -eq 0 ]; then
    echo "$target: no finding in ${executions:-?} executions"
  else
    findings=$((findings + 1))
    echo "$target: FINDING, exit status $status; log $log:"
    grep -a -m 1 -A 30 -E 'ERROR|runtime error|expected|KVBLOCKS_CHECK' "$log" | head -n 40
    grep -a -E 'SUMMARY|Test unit written to' "$log"
  fi
done
echo "${#targets[@]} fuzzers, $findings with findings"
[ "$findings" -eq 0 ]
