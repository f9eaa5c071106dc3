#!/bin/bash
# What the engine did, the simulator repeats: kvsim replay of its answers with the times that it
# recorded has the same steps, to the byte - batches, blocks, preemptions, hits and times.
set -euo pipefail
engine=$1 kvsim=$2
models=examples/engine/testdata
out=$TEST_TMPDIR

# 32 prompts of 20 to 120 tokens, with 4 beginnings of 40, 5 ms apart.
prompts=$models/prompts.jsonl

checks=0
check() {  # MODEL NAME OPTION...
  local model=$models/$1/config.json name=$out/$1.$2
  shift 2
  local options=(--model="$model" --block-size=4 --max-model-len=160 "$@")
  "$engine" serve "$prompts" "${options[@]}" --threads=1 --answers="$name.jsonl" \
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

for model in llama gemma3 gpt_oss deepseek_v2_lite; do
  check "$model" plain --num-blocks=2000 --no-async
  check "$model" tiers --num-blocks=72 --no-async --speedup=1000 --tier=host:2000chunks:read=1GB/s
  check "$model" drafts --num-blocks=2000 --no-async --num-draft-tokens=3
  check "$model" async --num-blocks=2000 --max-num-batched-tokens=64 --max-num-seqs=16
  check "$model" small --num-blocks=72 --no-async --speedup=1000 --kv-cache-dtype=float32
  grep -q '"loaded_tokens": [1-9]' "$out/$model.tiers.json"
  [ "$(column "$out/$model.small.steps.csv" preempted)" -gt 0 ]
  [ "$(column "$out/$model.small.steps.csv" hit_tokens)" -gt 0 ]
done
[ "$checks" = 20 ]

# The times of its requests are what kvsim calibrate fits constants to.
calibrated=(--model="$models/llama/config.json" --num-blocks=2000 --no-async)
"$engine" serve "$prompts" "${calibrated[@]}" --answers="$out/log.jsonl" \
  --request-log="$out/times.jsonl" --quiet
"$kvsim" calibrate "$out/log.jsonl" --measured="$out/times.jsonl" "${calibrated[@]}" >"$out/fitted"
grep -q '^held out, 16 requests' "$out/fitted"

# What it cannot serve it refuses, with the way out.
if "$engine" serve "$prompts" --model=llama-3.1-8b --num-blocks=10 2>"$out/refused"; then
  exit 1
fi
grep -q 'expected the path of a config.json' "$out/refused"
if "$engine" serve "$prompts" --model="$models/llama/config.json" --num-blocks=100 \
    --tensor-parallel=2 2>"$out/refused"; then
  exit 1
fi
grep -q 'its cache has 1 heads that can be read, expected 2; the engine has one rank' "$out/refused"
if "$engine" serve "$prompts" --model="$models/llama/config.json" --num-blocks=100 \
    --time=fixed 2>"$out/refused"; then
  exit 1
fi
grep -q -e '--time: got a value, expected none' "$out/refused"
