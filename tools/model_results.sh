#!/usr/bin/env bash
# The tables of docs/models.md, one Markdown row per run with the options that it came from.
#   tools/model_results.sh plans [TRACE...]    every model of the catalogue, planned and replayed both ways
#   tools/model_results.sh replays TRACE...    traces through the caches of several models; further
#                                              options of kvsim replay in $KVSIM_OPTIONS
#   tools/model_results.sh versions TRACE...   hit rates by engine version, the table of docs/semantics.md; further options likewise
set -eu
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/..
what=${1:-}
[ "$what" = plans ] || { [[ $what = replays || $what = versions ]] && [ $# -gt 1 ]; } ||
  { echo "usage: tools/model_results.sh plans [TRACE...] | replays TRACE... | versions TRACE..." >&2; exit 2; }
shift
for trace in "$@"; do [ -r "$trace" ] || { echo "$trace: cannot be read" >&2; exit 2; }; done
traces=()
for trace in "$@"; do traces+=("$(readlink -f -- "$trace")"); done
cd "$root"
. tools/prepare.sh
kvblocks_prepare
bazel build -c opt --noshow_progress //sim:kvsim >&2
kvsim=$(bazel info -c opt bazel-bin 2>/dev/null)/sim/kvsim

# Model and device; then one line per variant.
models=(
  "--model=gemma-3-27b --device=h200 --tp=4"
  "--model=gpt-oss-120b --device=h200 --tp=2"
  "--model=llama-4-scout-17b-16e --device=h200 --tp=4"
  "--model=qwen3.5-35b-a3b --device=h200 --tp=2"
  "--model=deepseek-v3.2 --device=h200 --tp=16 --kv-cache-dtype=fp8"
  "--model=deepseek-v4-flash --device=h200 --tp=8 --kv-cache-dtype=fp8"
  "--model=deepseek-v4-pro --device=h200 --tp=16 --kv-cache-dtype=fp8"
)
variants=(
  "--no-hybrid"
  "--plan=upstream --cache-all-blocks --retention-interval=-1"
  "--plan=upstream --retention-interval=-1"
  "--plan=upstream"
  "--plan=exact --layout=native --retention-interval=-1"
  "--plan=exact --layout=native"
  "--plan=exact --layout=native --retention-interval=4096"
)


out=$(mktemp)
trap 'rm -f "$out" "$out.error"' EXIT

# "12.34 %" of prompt tokens hit.
hit_rate() {
  local trace=$1
  shift
  if ! "$kvsim" replay "$trace" "$@" ${KVSIM_OPTIONS:-} --json >"$out" 2>"$out.error"; then
    head -c 60 "$out.error" | tr '\n|' '  '
    return
  fi
  awk '/"token_hit_rate"/ { hit = 1 }
    hit && /"value"/ { sub(/.*: /, ""); printf "%.2f %%", 100 * $0; exit }' "$out"
}

plan_rows() {
  local model dtype trace plan head="| model | cache | bytes/token in all windows | for good | groups, upstream | waste | groups, exact | layout | waste |"
  local rule="|---|---|---|---|---|---|---|---|---|"
  for trace in ${traces[@]+"${traces[@]}"}; do
    head+=" $(basename "$trace"), upstream | exact |"
    rule+="---|---|"
  done
  printf '%s\n%s\n' "$head" "$rule"
  for model in $("$kvsim" plan --list-models); do
    for dtype in auto fp8; do
      # The row formats of DeepSeek's sparse and compressed attention are what they are served with.
      case $model-$dtype in *-auto | deepseek-v3.2-fp8 | deepseek-v4-*-fp8) ;; *) continue ;; esac
      local options=(--model="$model" --device=h200 --tp=16 --kv-cache-dtype="$dtype")
      "$kvsim" plan "${options[@]}" --max-model-len=32768 --lengths 32768 --json >"$out" || true
      awk -v model="$model" -v dtype="$dtype" '
        function value(line) { sub(/^[^:]*: *"?/, "", line); sub(/"?,?$/, "", line); return line }
        /"bytes_per_recent_token"/ { recent = value($0) }
        /"bytes_per_kept_token"/ { kept = value($0) }
        /"policy"/ { policy = value($0) }
        /"layout"/ { layout[policy] = value($0) }
        /"padding_layers"/ { groups[policy]++ }
        /"waste_share"/ { waste[policy] = value($0) }
        END {
          printf "| %s | %s | %s | %s | %d | %.2f %% | %d | %s | %.2f %% |", model, dtype, recent, kept,
            groups["upstream"], 100 * waste["upstream"], groups["exact"], layout["exact"],
            100 * waste["exact"]
        }' "$out"
      for trace in ${traces[@]+"${traces[@]}"}; do
        for plan in upstream exact; do
          printf ' %s |' "$(hit_rate "$trace" "${options[@]}" --plan=$plan)"
        done
      done
      echo
    done
  done
}

replay_rows() {
  local trace=$1
  echo
  echo "### $(basename "$trace")"
  echo
  echo "| options | groups | hit rate | of possible | vetoed by a group | evicted | preempted | rejected |"
  echo "|---|---|---|---|---|---|---|---|"
  for model in "${models[@]}"; do
    for variant in "${variants[@]}"; do
      # shellcheck disable=SC2086
      if ! "$kvsim" replay "$trace" $model $variant ${KVSIM_OPTIONS:-} --json >"$out" 2>"$out.error"; then
        # A plan may not exist for a model, or an option not apply to its layers.
        echo "| \`$model $variant\` | none: $(head -c 200 "$out.error" | tr '\n|' '  ') | | | | | | |"
        continue
      fi
      awk -v options="$model $variant" '
        function value(line) { sub(/^[^:]*: *"?/, "", line); sub(/"?,?$/, "", line); return line }
        /"whole_run"/ { in_run = 1 }
        in_run && /"token_hit_rate"/ { want = "hit" }
        in_run && /"possible_hit_rate"/ { want = "possible" }
        in_run && /"value"/ && want != "" { result[want] = value($0); want = "" }
        /"after_warmup"/ { in_run = 0 }
        /"queried_tokens"/ && !("queried" in result) { result["queried"] = value($0) }
        /"vetoed_tokens"/ { vetoed += value($0); groups++ }
        /"evictions"/ && !("evictions" in result) { result["evictions"] = value($0) }
        /"preemptions"/ && !("preemptions" in result) { result["preemptions"] = value($0) }
        /"requests_rejected"/ { result["rejected"] = value($0) }
        END {
          printf "| `%s` | %d | %.2f %% | %.2f %% | %.2f %% | %d | %d | %d |\n", options, groups,
            100 * result["hit"], 100 * result["possible"],
            (result["queried"] > 0 ? 100 * vetoed / result["queried"] : 0),
            result["evictions"], result["preemptions"], result["rejected"]
        }' "$out"
    done
  done
}

# One row per model and drafter, one column per version and trace.
version_rows() {
  local model draft engine trace head="| options |" rule="|---|"
  local engines=("--engine=vllm-0.25" "--engine=vllm-0.33" "--engine=vllm-0.33 --retention-interval=-1")
  for trace in "${traces[@]}"; do
    for engine in "${engines[@]}"; do
      head+=" $(basename "$trace" .jsonl.gz), \`$engine\` |"
      rule+="---|"
    done
  done
  printf '%s\n%s\n' "$head" "$rule"
  for model in "--model=llama-3.1-8b --device=h200" "${models[@]}"; do
    for draft in "" "--num-draft-tokens=1 --drafter=eagle"; do
      case "$model $draft" in *scout*eagle) continue ;; esac # refused (V-86)
      printf '| `%s` |' "$model${draft:+ $draft}"
      for trace in "${traces[@]}"; do
        for engine in "${engines[@]}"; do
          # shellcheck disable=SC2086
          printf ' %s |' "$(hit_rate "$trace" $model $draft $engine)"
        done
      done
      echo
    done
  done
}

case $what in
  plans) plan_rows ;;
  versions) version_rows ;;
  replays) for trace in "${traces[@]}"; do replay_rows "$trace"; done ;;
esac
