#!/bin/bash
# What the engine did, the simulator repeats: kvsim replay of its answers with the times that it
# recorded has the same steps, to the byte - batches, blocks, preemptions, hits and times.
set -euo pipefail
engine=$1 kvsim=$2
models=examples/engine/testdata
out=$TEST_TMPDIR

# 40 prompts of 20 to 120 tokens, 4 beginnings of 40, 5 ms apart.
awk 'BEGIN {
  for (r = 0; r < 40; ++r) {
    n = 20 + r * 37 % 101
    printf "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, ", r * 5, n, 4 + r % 9
    printf "\"block_size\": 1, \"hash_ids\": ["
    for (i = 0; i < n; ++i) {
      printf "%s%d", i ? ", " : "", (i * i * 7 + i * 13 + (i < 40 ? r % 4 : r) * 29) % 128
    }
    print "]}"
  }
}' >"$out/prompts.jsonl"

checks=0
check() {  # MODEL NAME OPTION...
  local model=$models/$1/config.json name=$out/$1.$2
  shift 2
  local options=(--model="$model" --block-size=4 --max-model-len=256 "$@")
  "$engine" serve "$out/prompts.jsonl" "${options[@]}" --threads=1 --answers="$name.jsonl" \
    --steps="$name.steps.csv" --step-requests --json-file="$name.json" --quiet
  "$kvsim" replay "$name.jsonl" "${options[@]}" --time=recorded --step-times="$name.steps.csv" \
    --steps="$name.predicted.csv" --step-requests --quiet
  "$kvsim" compare "$name.steps.csv" "$name.predicted.csv"
  cmp "$name.steps.csv" "$name.predicted.csv"
  checks=$((checks + 1))
}
column() {  # FILE NAME: its sum
  awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) c = i }
                        NR > 1 { sum += $c } END { print sum }' "$1"
}

for folder in "$models"/*/config.json; do
  model=$(basename "$(dirname "$folder")")
  check "$model" plain --num-blocks=2000 --no-async
  check "$model" async --num-blocks=2000 --max-num-batched-tokens=64 --max-num-seqs=16
  check "$model" small --num-blocks=100 --no-async --max-num-seqs=8 --kv-cache-dtype=float32
  [ "$(column "$out/$model.small.steps.csv" preempted)" -gt 0 ]
  [ "$(column "$out/$model.small.steps.csv" hit_tokens)" -gt 0 ]
done
[ "$checks" -ge 3 ]

# What it cannot serve it refuses, with the way out.
if "$engine" serve "$out/prompts.jsonl" --model=llama-3.1-8b --num-blocks=10 2>"$out/refused"; then
  exit 1
fi
grep -q 'expected the path of a config.json' "$out/refused"
