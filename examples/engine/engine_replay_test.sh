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

# Masks, and chunks that are blended, are in the answers' salts: their replay has the same hits.
printf '%s\n' '{"request_id": "3", "documents": [10, 6]}' '{"request_id": "5", "documents": [20]}' \
  >"$out/masks"
check_asked() {  # NAME MODEL FILE
  local model=(--model="$models/$2/config.json" --num-blocks=2000 --no-async)
  "$engine" serve "$prompts" "${model[@]}" --requests="$3" --answers="$out/$1.jsonl" \
    --steps="$out/$1.csv" --step-requests --quiet
  "$kvsim" replay "$out/$1.jsonl" "${model[@]}" --time=recorded --step-times="$out/$1.csv" \
    --steps="$out/$1.predicted.csv" --step-requests --quiet
  cmp "$out/$1.csv" "$out/$1.predicted.csv"
}
check_asked masks gemma3 "$out/masks"
grep -c '"cache_salt": "documents' "$out/masks.jsonl" | grep -qx 2
printf '%s\n' '{"request_id": "0", "keep": true}' '{"request_id": "28", "chunks": [20]}' >"$out/chunks"
check_asked chunks qwen3 "$out/chunks"
refuses() {  # WHAT OPTION...
  if "$engine" serve "$prompts" --model="$models/llama/config.json" --num-blocks=100 "${@:2}" \
      2>"$out/refused"; then
    exit 1
  fi
  grep -q -e "$1" "$out/refused"
}
for line in '{"request_id": "3", "documents": [10' '[]' '{"documents": [1]}' '7'; do
  printf '%s\n' "$line" >"$out/bad"
  refuses 'bad: line 1: ' --requests="$out/bad"
done
printf '{"request_id": "3", "masks": []}\n' >"$out/bad"
refuses 'line 1: masks: expected one of request_id, documents' --requests="$out/bad"
printf '{"request_id": "3", "documents": [1e99]}\n' >"$out/bad"
refuses 'line 1: documents: expected a list of lengths' --requests="$out/bad"
printf '{"request_id": "3", "mask": ["1", "0"]}\n' >"$out/bad"
refuses 'request 3: mask: got 2 rows, expected one for each' --requests="$out/bad"

# Texts: a byte is a token here, and what the model answers is the same as for its tokens.
text() {
  "$engine" serve --model="$models/llama/config.json" --num-blocks=100 --quiet "$@"
}
printf '%s\n' '{"timestamp": 0, "input_length": 2, "output_length": 5, "block_size": 1,
  "hash_ids": [72, 105]}' | tr '\n' ' ' >"$out/hi.jsonl"
text "$out/hi.jsonl" --text=- >"$out/of_tokens"
text --prompt-text=Hi --max-tokens=5 >"$out/of_text"
cmp "$out/of_tokens" "$out/of_text"
grep -q '^{"request_id":"0","text":".' "$out/of_text"
text --prompt-text=Hi --prompt-text=Hi --max-tokens=5 | cut -d, -f2 | uniq | wc -l | grep -qx 1
refuses 'got it and a trace' --prompt-text=Hi
refuses 'tokenizer: has no use here' --tokenizer=f
refuses 'python: has no use here' --python=python9
# A tokenizer.json of the same kind, as a process that answers so.
printf '%s\n' '#!/bin/sh' "echo '{\"ready\": true}'" 'read a' "echo '{\"ids\": [72, 105]}'" 'read b' \
  'echo "$b" >'"$out/asked" "echo '{\"pieces\": [\"there\"]}'" 'read c' >"$out/python"
chmod +x "$out/python"
text --prompt-text=Hi --max-tokens=5 --tokenizer=f --python="$out/python" | grep -q there
grep -q '"whole":true' "$out/asked"
printf '%s\n' '#!/bin/sh' "echo '{\"ready\": true}'" 'read a' "echo '{\"ids\": [500]}'" 'read b' \
  >"$out/python"
if text --prompt-text=Hi --tokenizer=f --python="$out/python" 2>"$out/refused"; then exit 1; fi
grep -q 'request 0: got token 500, expected 0 to 127' "$out/refused"
printf '%s\n' '#!/bin/sh' "echo '{\"error\": \"no model in it\"}'" >"$out/python"
if text --prompt-text=Hi --tokenizer=f --python="$out/python" 2>"$out/refused"; then exit 1; fi
grep -q -e '--tokenizer: f: no model in it' "$out/refused"

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
