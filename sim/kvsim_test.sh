#!/bin/bash
# Runs the kvsim command: exit status, streams, messages, and that runs repeat byte for byte. Searches, outputs and what is
# refused have tests of their own beside this one.
. "$(dirname "$0")/kvsim_checks.sh"

# --- What works ---
shows 'kvsim replay' --help
expect 0 ''
grep -q 'replay' out || fail "kvsim alone prints no help"
expect 0 '' --version
grep -qxE 'kvsim [0-9]+\.[0-9]+\.[0-9]+' out || fail "--version prints $(cat out)"
for command in replay curve plan sweep capacity point explain verify stats convert validate compare calibrate events completion; do
  shows 'Examples' $command --help
  grep -q "^Usage: kvsim $command" out || fail "$command --help names another command"
  grep -q '{false}' out && fail "$command --help shows internals"
done

# --- Help in two lengths, and completion ---
expect 0 '' replay --help
num_options=$(grep -cE '^  -' out)
[ "$num_options" -ge 20 ] && [ "$num_options" -le 25 ] || fail "replay --help lists $num_options options"
grep -q '^and [0-9]* more options (kvsim replay --help=all)' out || fail "replay --help does not say that there are more"
expect 0 '' replay --help=all
[ "$(grep -cE '^  -' out)" -gt 120 ] || fail "replay --help=all lists $(grep -cE '^  -' out) options"
shows '^and all options of replay (kvsim replay --help=all)' curve --help
grep -q -e '--watermark' out && fail "curve --help repeats the options of replay"
# completes LINE WORDS: what bash offers at the end of the line.
completes() {
  local line=$1 want=$2 got
  got=$(PATH="$(dirname "$kvsim"):$PATH" bash -c '
    source <("$1" completion bash)
    complete -p kvsim | grep -q -- "-F _kvsim" || echo "not registered"
    read -ra COMP_WORDS <<<"$(sed "s/=/ = /g" <<<"$2")"
    case $2 in *" ") COMP_WORDS+=("") ;; esac
    COMP_WORDS[0]=$1 COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _kvsim
    echo "${COMPREPLY[*]}"' completes "$kvsim" "$line")
  [ "$got" = "$want" ] || fail "bash completes '$line' with '$got', expected '$want'"
}
completes 'kvsim rep' 'replay'
completes 'kvsim replay --num-b' '--num-blocks='
completes 'kvsim replay --no-pref' '--no-prefix-caching'
completes 'kvsim replay --plan=' 'upstream exact'
completes 'kvsim replay --plan=ex' 'exact'
completes 'kvsim sweep --plan up' 'upstream'
completes 'kvsim replay --tensor-parallel=' ''
completes 'kvsim plan --lens' ''
completes 'kvsim replay ' ''
shows '^compdef _kvsim kvsim' completion zsh
expect 2 'expected one of bash, zsh, words' completion fish

shows '^hit rate .* of prompt tokens' replay
[ "$(wc -l <out)" -le 45 ] || fail "the table has more than 45 lines"
narrow "the table"
grep -q $'\033' out && fail "escapes in a pipe"
expect 0 '' replay --color=always
grep -q $'\033' out || fail "no colour with --color=always"
expect 0 '' replay --quiet
[ -s out ] && fail "--quiet prints"

# --- The same run gives the same bytes ---
keep first.json replay --json
alike first.json "two runs differ" replay --json --json-file=second.json --csv=rows.csv
cmp first.json second.json || fail "--json-file differs from --json"
head -c1 first.json | grep -q '{' || fail "--json prints no JSON"
grep -q '"time_source": "measured kernels, uncalibrated"' first.json || fail "no time source in the report"
rows=$(($(wc -l <rows.csv) - 1))
grep -q "\"requests_arrived\": $rows\b" first.json || fail "$rows rows are not all requests"
[ "$(awk -F, '{ print NF }' rows.csv | sort -u | wc -l)" -eq 1 ] || fail "ragged CSV"

# --- Configurations ---
keep config.textproto replay --print-config --num-blocks=300 --free-order=append_all --no-chunked-prefill \
  --slo=ttft:2s --time=fixed
alike config.textproto "--print-config does not read back" replay --config config.textproto --print-config
keep by_flags.json replay --json --num-blocks=300 --free-order=append_all --no-chunked-prefill \
  --slo=ttft:2s --time=fixed
alike by_flags.json "the printed configuration replays differently" replay --json --config config.textproto
shows '^num_blocks: 400$' replay --config config.textproto --num-blocks=400 --print-config
for policy in arc hazard; do
  shows "evicts by $policy" replay --num-blocks=300 --eviction-policy=$policy --time=fixed
done
for policy in lru priority ttl; do
  expect 0 '' replay --num-blocks=300 --eviction-policy=$policy --time=fixed \
    --retain=shared:uses=3:priority=80,all:ttl=20s --max-retained-share=0.4
  grep -q 'retained .*at most [0-9]* blocks of 119 allowed; [0-9,]* hits of retained blocks' out &&
    grep -q ' in all: .* expired, ' out && grep -q ' refused at the cap' out ||
    fail "the report does not tell what $policy retained: $(grep -A2 retained out)"
done
expect 0 '' replay --num-blocks=400 --tier=host:2GiB:read=20GB/s,disk:9GiB:read=3GB/s:store=on-evict
grep -q '^tiers .* of prompt tokens hit with them: .* loaded' out && grep -q '^host .* tokens loaded; ' out &&
  grep -q '^disk ' out || fail "the report does not tell of tiers: $(grep -A3 '^tiers' out)"
shows 'unused slots  *[0-9]' replay --num-blocks=1000 --tier=host:64GiB:read=0.2GB/s --speedup=10
grep -q 'e+03 ms' out && fail "a time has an exponent"
shows '^tiers .* loaded' explain --num-blocks=400 --tier=host:2GiB:read=20GB/s
expect 0 '' explain --num-blocks=400 --tier=host:9GiB:read=20GB/s --request=row:300
loaded=$(sed -n 's/^ *\([0-9,]*\) tokens loaded from tiers by .*/\1/p' out)
[ -n "$loaded" ] && grep -q "^ *host: $loaded loaded; of the rest" out ||
  fail "the tokens of a load are not those of its only tier: $(grep -A1 'from tiers' out)"
expect 0 '' verify --limit=100 --num-blocks=400 --load-failures=0.2 --load-failure-policy=recompute \
  --tier=host:600chunks:read=20GB/s,disk:3000chunks:read=3GB/s:store=on-evict
grep -q '^verified  *no wrong number' out && grep -q '^loaded  *[1-9]' out || fail "verify loads nothing: $(cat out)"
expect 2 'got store=on-evict in the first tier' verify --tier=host:1GiB:read=20GB/s:store=on-evict
# V-10: with tiers there are no lookahead hashes.
shows '^lookahead_hashes: false$' replay --print-config --tier=host:2GiB:read=20GB/s --drafter=eagle --num-draft-tokens=1
# Some loads fail: the same requests do in each run, and every request ends.
for policy in fail recompute; do
  keep first.json replay --num-blocks=400 --tier=host:2GiB:read=20GB/s --load-failures=0.3 --json --check-invariants \
    --load-failure-policy=$policy
  alike first.json "loads fail in another way the second time" replay --num-blocks=400 --tier=host:2GiB:read=20GB/s --load-failures=0.3 --json --check-invariants \
    --load-failure-policy=$policy
  failed=$(sed -n 's/.*"requests_failed": \([0-9]*\).*/\1/p' out)
  loads=$(sed -n 's/.*"failed_loads": \([0-9]*\).*/\1/p' out)
  finished=$(sed -n 's/.*"requests_finished": \([0-9]*\).*/\1/p' out)
  aborted=$(sed -n 's/.*"requests_aborted_with_session": \([0-9]*\).*/\1/p' out)
  [ "$loads" -gt 10 ] && [ "$((failed + aborted + finished))" = 396 ] &&
    [ "$failed" = "$([ $policy = fail ] && echo $loads || echo 0)" ] ||
    fail "$loads loads failed ($policy), $failed requests did, $finished ended"
done
# What SM-97 promises: requests one after the other, and a tier that everything is written to for nothing. Blocks
# at the ends of prompts take room in a pool, but not in a tier, so that is a pool of one block more.
expect 0 '' curve --mode=order --sizes 400 --tiers 2001 --json
curve_hits=$(sed -n 's/.*"\(first\|inclusive\)_hits": \([0-9]*\).*/\2/p' out | head -2 | tr '\n' ' ')
expect 0 '' replay --speedup=1/1000 --num-blocks=401 --tier=host:2000chunks:read=free --json
device=$(sed -n 's/.*"device_hit_tokens": \([0-9]*\).*/\1/p' out)
loaded=$(sed -n 's/.*"loaded_tokens": \([0-9]*\).*/\1/p' out)
[ "$curve_hits" = "$((device / 16)) $(((device + loaded) / 16)) " ] ||
  fail "a replay hits $device on the device and loads $loaded, the curve has blocks $curve_hits"
shows '^engine: "vllm-0.33"$' replay --engine=vllm-main --print-config
grep -q '^retention_interval: 0$' out || fail "0.33 does not keep windows sparsely"
shows '^retention_interval: -1$' replay --engine=vllm-0.25 --print-config
grep -q '^lookahead_hashes: false$' out || fail "0.25 has lookahead hashes"
shows '^async: false$' replay --engine=vllm-0.25 --num-draft-tokens=2 --print-config
echo 'eagle: true' >eagle.textproto
expect 2 'expected drafter: "eagle"' replay --config eagle.textproto
echo 'eagle: false' >eagle.textproto
expect 0 '' replay --config eagle.textproto --print-config
grep -q eagle: out && fail "eagle is written again"

# --- Reports name the version, and limits follow the device ---
says 'engine vllm-0.33, async; at most 8,192 tokens and 1,024 requests per step, chosen as its server does on h100-sxm' replay
says 'at most 16,384 tokens and 1,024 requests' replay --entry-point=offline
says 'at most 2,048 tokens and 256 requests' replay --device=l40s --num-blocks=2000
says 'at most 64 tokens and 64 requests per step, chosen' replay --max-num-batched-tokens=64
says 'engine vllm-0.25, async; .*per step, given' replay --engine=vllm-0.25 --max-num-seqs=8 --max-num-batched-tokens=64
says '"engine": "vllm-0.25"' replay --quiet --json --engine=vllm-0.25
says '"max_num_seqs": 1024' replay --quiet --json

# --- Clocks ---
time_of() { grep -o '"time_source": "[^"]*"' out; }
expect 0 '' replay --json --num-blocks=2000 --device=rtx-4090
[ "$(time_of)" = '"time_source": "roofline, uncalibrated"' ] || fail "rtx-4090: $(time_of)"
# What was recorded takes as long again, whatever the device.
expect 0 '' replay --json --num-blocks=2000 --steps=steps.csv
grep -A4 '"ttft"' out >a.ttft
expect 0 '' replay --json --num-blocks=2000 --time=recorded --step-times=steps.csv --device=l40s \
  --max-num-batched-tokens=8192 --max-num-seqs=1024
grep -A4 '"ttft"' out >b.ttft
cmp a.ttft b.ttft || fail "recorded steps give other latencies"
# Drafts take time and memory.
says '"part": "drafts"' replay --json --num-blocks=2000 --num-draft-tokens=2 --drafter=eagle
says 'drafter.s time and memory are not counted' replay --num-blocks=2000 --num-draft-tokens=2 --drafter=dflash
says 'draft model llama-3.1-8b' replay --json --model=llama-3.1-70b --device=h200 --tensor-parallel=4 \
  --num-draft-tokens=2 --drafter=draft_model --draft-model=llama-3.1-8b --limit=20

says 'tokens; vllm-0.33' explain --num-blocks=2000
says 'engine vllm-0.33' verify --quiet --num-blocks=2000 --max-tokens=2000

# --- Answers in words ---
for i in $(seq 40); do
  echo "{\"timestamp\": ${i}00, \"input_length\": 900, \"output_length\": 99, \"hash_ids\": [0, $i]}"
done >burst.jsonl
says 'note overload: arrivals of 3.90 s took .* s; a request waited .* s on average before it ran' replay burst.jsonl --max-num-seqs=1
says 'a hit advances by 1024 tokens, and the trace has an id per ' replay --block-size=1024 --num-blocks=500
says ' GB per device and .* GB in all' replay --num-blocks=2000 --tp=4 --model=llama-3.1-70b --device=h200
says 'the pool takes 200.0 GB of each device, but beside the model h100-sxm has room for' replay --kv-memory=200
says 'of 16 tokens = .* tokens, 10 GB, .*; given' replay --kv-memory=10
expect 2 '--kv-memory: got "10", expected 0 where the number of blocks is given' replay --kv-memory=10 --num-blocks=99
expect 1 '' plan --model=gemma-3-27b --device=h100 --tp=2 --requests=50 --len=32768
grep -q '50 requests of 32,768 tokens: no, upstream' out || fail "no answer: $(tail -5 out)"
grep -q '^would fit' out || fail "nothing would fit"
says 'question 1 request of 131,072 tokens: yes, upstream' plan --model=llama-3.1-8b --device=h100 --requests=1
expect 2 '--len needs --requests' plan --len=100
expect 2 '--eviction-policy: got arc, expected lru' curve --eviction-policy=arc
expect 2 '--retain: got all, expected nothing' curve --retain=all
expect 2 '--prefill-factor: requests that run one after the other' curve --prefill-factor=2

# --- Drafters: lookahead hashes lose no block to the drafter, a drop does ---
dropped() { expect 0 '' replay --quiet --json --num-blocks=2000 --num-draft-tokens=1 "$@"
  tr -s '\n ' ' ' <out | grep -o '"first_admission_misses".*' | grep -o '"cause": "draft drop"[^}]*' | head -1 |
    grep -o '"tokens": [0-9]*' | grep -o '[0-9]*'; }
[ "$(dropped --drafter=eagle)" = 0 ] || fail "lookahead hashes drop blocks"
[ "$(dropped --drafter=eagle --no-lookahead-hashes)" -gt 0 ] || fail "without them no block is dropped"
[ "$(dropped --drafter=ngram)" = 0 ] || fail "n-gram drafts drop blocks"

cat >groups.textproto <<'END'
groups {
  spec { full_attention { block_size: 16 num_kv_heads: 8 head_size: 128 dtype: "bf16" } }
  num_layers: 8
}
groups {
  spec {
    sliding_window {
      block_size: 16 num_kv_heads: 8 head_size: 128 sliding_window: 128 dtype: "bf16"
    }
  }
  num_layers: 8
}
END
keep groups.json.report replay --kv-cache-config groups.textproto --num-blocks=4000 --json
grep -q '"kind": "sliding_window"' out || fail "no second group"
write_groups
alike groups.json.report "groups in JSON replay differently" replay --kv-cache-config groups.json --num-blocks=4000 --json
# A kind that only the full loader knows, and a pool sized by the device.
cat >mamba.textproto <<'END'
groups {
  spec { mamba { block_size: 64 states { shape: [16, 64] dtype: "fp32" } cache_mode: "align" } }
  num_layers: 4
}
END
shows '"kind": "mamba"' replay --kv-cache-config mamba.textproto --json
keep mamba_config.textproto replay --kv-cache-config mamba.textproto --num-blocks=500 --print-config
alike mamba_config.textproto "a configuration with groups does not read back" replay --config mamba_config.textproto --print-config
shows 'KV-cache groups' replay --model=gemma-3-27b --device=h200 --tensor-parallel=2

# --- Encoders ---
write_encoder
whisper='--kv-cache-config whisper.textproto --max-encoder-tokens=1500'
# shellcheck disable=SC2086
expect 0 '' replay speech.jsonl $whisper --num-blocks=400 --json
python3 - << 'END' || fail "a replay with an encoder: $(head -c 600 out)"
import json
report = json.load(open("out"))
assert int(report["totals"]["encoder_tokens"]) == 1500 + 300 + 0 + 1500
assert int(report["workload"]["encoder_tokens"]) == 300
decoder, encoder = report["groups"]
assert encoder["kind"] == "cross_attention" and int(encoder["new_blocks"]) == 94 + 19 + 94
assert int(decoder["new_blocks"]) == 3 + 2 + 1 + 2
assert not report["config"]["prefix_caching"] and not report["config"]["chunked_prefill"]
END
# shellcheck disable=SC2086
says 'encoder 1,900 tokens of its inputs entered, at most 1,500 per request' \
  replay speech.jsonl $whisper --num-blocks=400 --encoder-tokens=800
# shellcheck disable=SC2086
says '2 replicas' replay speech.jsonl $whisper --num-blocks=400 --replicas=2
# shellcheck disable=SC2086
expect 0 '' explain speech.jsonl $whisper --num-blocks=400
# shellcheck disable=SC2086
keep printed.textproto replay speech.jsonl $whisper --num-blocks=400 --print-config
alike printed.textproto "a configuration with an encoder does not read back" replay --config printed.textproto --print-config
says "the trace has encoders' inputs of 300 tokens, and the model no cross attention" replay speech.jsonl
# The second input does not fit beside the first, and waits.
# shellcheck disable=SC2086
expect 0 '' replay speech.jsonl $whisper --num-blocks=110 --json --check-invariants
# shellcheck disable=SC2086
expect 0 '' verify speech.jsonl $whisper --num-blocks=400
grep -q '1: cross_attention, rows of an encoder$' out && grep -q '^verified  *no wrong number' out &&
  grep -q '^encoder  *3,300 tokens of its inputs, [1-9][0-9,]* rows read back' out ||
  fail "verify leaves encoders out: $(cat out)"
# shellcheck disable=SC2086
expect 0 '' verify speech.jsonl $whisper --num-blocks=400 --rows=0 --json
python3 - << 'END' || fail "verify --json with an encoder: $(cat out)"
import json
found = json.load(open("out"))
assert found["good"] and [g["checks"] for g in found["groups"]] == ["attention", "attention"]
assert found["groups"][1]["name"] == "cross_attention, rows of an encoder"
tokens = [33, 23, 13, 23]  # the last output is not computed
assert int(found["tokens"]) == sum(tokens) and int(found["rows_written"]) == sum(tokens) + 3300
assert int(found["queries_checked"]) == 2 * sum(tokens) - 13  # of one with an empty input
assert int(found["encoder_rows_read"]) == 1500 * 29 + 300 * 19 + 1500 * 19
END

# --- Plans ---
expect 0 '' plan --model=gemma-3-27b --device=h200 --tp=2 --max-model-len=131072
narrow "the plan"
grep -q '^ *sliding_window  *52 ' out || fail "no line for the window layers"
shows '"policy": "upstream"' plan --model=gemma-3-27b --device=h200 --tp=2 --json
# Ten full and 52 window layers in seven tables.
[ "$(grep -c '"metadataKey"\|"metadata_key"' out)" -ge 7 ] || fail "groups are missing"
expect 1 '' plan --model=llama-3.1-70b --device=h100 --tp=4 --memory-utilization=0.57
grep -q 'does not fit.*E-11' out || fail "nothing says that it does not fit"
grep -q 'tensor-parallel=8' out || fail "nothing says what would fit"
shows '"layout": "native"' plan --model=qwen3.5-35b-a3b --device=h200 --layout=native --json
for layout in uniform slab native; do
  expect 0 '' replay --model=gpt-oss-20b --device=h100 --plan=exact --layout=$layout --json
  grep -q "\"layout\": \"$layout\"" out || fail "--layout=$layout is not in the report"
done

# --- Standard input, conversion, statistics ---
write_trace
"$kvsim" replay - --json <trace.jsonl >out 2>err || fail "standard input: $(cat err)"
grep -q '"hit": 512' out || fail "wrong hits from standard input"
sed 's/"name": "-"/"name": "trace.jsonl"/; s/"trace": "-"/"trace": "trace.jsonl"/' out >from_pipe
alike from_pipe "a pipe and a file differ" replay trace.jsonl --json
expect 0 'requests written' convert trace.jsonl trace.kvt
shows '"shared_tokens": 512' stats trace.kvt --json
shows 'requests' stats trace.jsonl
expect 0 '' stats
shows '^row,id,' replay trace.jsonl --csv=-
head -1 trace.jsonl >one.jsonl
shows 'no latency' replay one.jsonl --time=fixed --step-time=1s
: >empty.jsonl
expect 2 'error' replay empty.jsonl

# --- Why requests missed ---
write_evicting_trace
evicting="evicting.jsonl --block-size=512 --num-blocks=6 --time=fixed"
# shellcheck disable=SC2086
shows '^evicted  *512 ' explain $evicting
grep -q '^2  *2  *512 ' out || fail "explain lists no worst request"
# shellcheck disable=SC2086
expect 0 '' explain $evicting --top=0
grep -q 'lost most' out && fail "--top=0 lists requests"
# shellcheck disable=SC2086
shows '512 of 1,025 known tokens hit' explain $evicting --request=2
grep -q 'evicted; last used 19.980 s and 4 blocks earlier; gone since$' out || fail "explain tells no eviction: $(cat out)"
grep -q 'computed by request 0' out || fail "explain does not say who was first: $(cat out)"
# shellcheck disable=SC2086
for selector in 2 id:2 row:2 line:3; do
  shows '"row": 2' explain $evicting --request=$selector --json
done
grep -q '"first_s": 10' out || fail "explain does not say since when blocks are gone"
# The sums are those of the replay report.
expect 0 '' replay --num-blocks=2000 --json
sed -n '/^ "first_admission_misses"/,/^ }/p' out | tr -d ' ' >replayed
expect 0 '' explain --num-blocks=2000 --json
sed -n '/^  "first_admission_misses"/,/^  }/p' out | tr -d ' ' >explained
[ -s replayed ] || fail "no causes in the report"
cmp replayed explained || fail "explain and replay count differently"
cp out first.json
alike first.json "two explanations differ" explain --num-blocks=2000 --json
keep by_flags.txt explain --num-blocks=2000
keep config.textproto replay --num-blocks=2000 --print-config
alike by_flags.txt "explain reads another configuration" explain --config config.textproto
shows 'prefix caching is off' explain --no-prefix-caching
expect 3 'no progress' explain --num-blocks=20 --too-big=run

# --- With tensors ---
shows '^verified  *no wrong number' verify --limit=30 --model=gpt-oss-20b --num-blocks=600 --rows=4
grep -q '^groups .*sliding_window, window 128' out || fail "verify does not name the groups"
grep -q '^rows checked .* of .*%' out || fail "verify does not say how much it checked"
shows 'stopped by --max-tokens' verify --limit=30 --max-tokens=500 --backend=cpu_reference --no-poison
grep -q '^blocks poisoned  *none' out || fail "--no-poison poisons"
expect 0 '' verify --limit=10 --model=qwen3.5-35b-a3b --rows=2 --partial-hits --num-blocks=600
grep -q 'mamba, states (align)$' out && grep -q '^states  *[1-9].* written, [1-9].* read back' out ||
  fail "verify leaves states out: $(cat out)"
shows "^memory  *uniform layout, rows of fp32; the plan's are fp8_e4m3 (fp8_per_tensor)$" verify --limit=3 --num-blocks=600 --kv-cache-dtype=fp8
expect 0 '' verify --limit=10 --model=deepseek-v4-flash --plan=exact --layout=native --rows=2 --json --num-blocks=4000
python3 - << 'END' || fail "verify --json: $(cat out)"
import json
found = json.load(open("out"))
assert found["good"] and "failure" not in found and found["schema_version"] == 1
assert found["layout"] == "native" and {g["checks"] for g in found["groups"]} == {"attention"}
assert int(found["joint_queries_checked"]) > 0 and found["max_error"] <= found["tolerance"]
END

# --- Exit status 1, 3 ---
expect 1 '' replay --slo=ttft:1us:p50
grep -q 'goodput' out || fail "a missed objective without its report"
expect 0 '' replay --slo=ttft:1us
expect 3 'no progress: request .*--num-blocks' replay --num-blocks=20 --too-big=run

# Nothing can run: says so, and the smallest pool that takes all is that.
for options in '--num-blocks=10' '--num-blocks=40 --model=gpt-oss-20b' '--num-blocks=40 --model=gemma-3-27b --device=h200 --plan=exact --layout=native'; do
  # shellcheck disable=SC2086
  expect 3 'all 396 requests were rejected: 396 need more than the pool.s [0-9]* blocks' replay $options
  smallest=$(grep -o -e '--num-blocks=[0-9]*' err)
  others=${options#* }
  [ "$others" = "$options" ] && others=
  for command in 'explain' 'verify --rows=1'; do
    # shellcheck disable=SC2086
    expect 3 "all 396 requests were rejected.*$smallest" $command $options
  done
  # shellcheck disable=SC2086
  shows '"requests_rejected": 0' replay $others $smallest --json
  # shellcheck disable=SC2086
  expect 0 '' replay $others --num-blocks=$((${smallest#*=} - 1)) --json
  grep -q '"requests_rejected": 0' out && fail "one block less than $smallest $others rejects none"
done
expect 3 'all 396 requests were rejected: 396 have no prompt, or one that does not fit --max-model-len=2' \
  replay --max-model-len=2

# A device far larger than any: refused at once, and no report of a pool that this machine cannot hold.
echo 'device { name: "huge" bf16_tflops: 2000 memory_gb_per_s: 7000 memory_gb: 1000000 }' >huge.textproto
expect 2 'huge with 1e+06 GB holds 429144678 blocks, expected at most 67108864' replay --catalogue=huge.textproto --device=huge
expect 0 '' replay --catalogue=huge.textproto --device=huge --num-blocks=2000
expect 0 '' plan --catalogue=huge.textproto --device=huge
(
  # Sanitizers need far more addresses than this leaves.
  ulimit -v 4000000 2>/dev/null && "$kvsim" --help >/dev/null 2>&1 || exit 0
  expect 2 'out of memory\|of host memory' replay --num-blocks=100000000
  exit $failures
) || fail "no message without memory"

# Stages of a pipeline: half of two stages stands idle where nobody shares the device.
says 'h100-sxm per stage, 2 stages .*of which stages stand idle [1-9]' replay --pp=2 --speedup=10
says 'sync; .* 2 stages' replay --pp=2 --engine=vllm-0.25
says 'stage 0 of 3: h100-sxm' plan --model=llama-3.1-8b --pp=3

# Prefill and decode replicas: every request ends, and the rest of its time is where it says.
split='--prefill-replicas=1 --decode-replicas=1'
says 'hand-over, ms .* transfer, ms .* decode, ms .* throughput 61.17 s: ' replay $split --speedup=10
says '; [1-9][0-9]* requests* more computed where they decode' replay $split --speedup=10 --local-tokens=100
# Next to a connector no hash looks ahead, and the last hit block is dropped (V-10).
keep dropped.json replay $split --speedup=10 --num-draft-tokens=2 --drafter=eagle --json
alike dropped.json "hashes look ahead next to a connector" replay $split --speedup=10 --num-draft-tokens=2 --drafter=eagle --no-lookahead-hashes --json
expect 2 'lookahead-hashes: got true, .*those that send or fetch KV' replay $split --lookahead-hashes
expect 1 '' replay $split --speedup=10 --slo=ttft:1ms:p99 --quiet --json
grep -q '"requests_local": 0' out || fail "replay --json of two kinds has no totals"

finish
