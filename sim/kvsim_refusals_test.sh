#!/bin/bash
# Options and files that make no sense: what, where, limit.
. "$(dirname "$0")/kvsim_checks.sh"

write_trace
write_evicting_trace
write_groups
write_encoder
echo '{"timestamp": 0, "input_length": 4, "output_length": 3, "block_size": 0, "hash_ids": [], "encoder_tokens": -1}' \
  >bad_speech.jsonl
echo '{"architectures": ["NoSuchModel"]}' >broken.json
echo 'prefill_replicas: 1 decode_replicas: 1' >split.textproto
head -c 17000000 /dev/zero | tr '\0' '\n' >too-long.txtpb
cp too-long.txtpb too-long.json
keep a.json replay --json --num-blocks=2000 --steps=a.csv.gz --csv=rows.csv
cp out first.json
cp out second.json
keep b.json replay --json --num-blocks=1500 --steps=again.csv
head -c 5000 a.json >cut.json
head -c 5000 again.csv >cut.csv
sed 's/"schema_version": 2,/"schema_version": 3,/' a.json >later.json

# --- Options that make no sense: what, where, limit ---
while IFS='|' read -r pattern arguments; do
  [ -z "$pattern" ] && continue
  # shellcheck disable=SC2086
  expect 2 "$pattern" $arguments
done <<'END'
--kernel-tables: /nonexistent: cannot be opened|replay --kernel-tables=/nonexistent
--kernel-tables needs --time=auto or table (got fixed)|replay --kernel-tables=/nonexistent --time=fixed
--kernel-tables: .*: no kernel times of rtx-4090|replay --time=table --device=rtx-4090 --num-blocks=2000
--step-times needs --time=recorded|replay --step-times=first.json
--time=recorded needs --step-times=FILE|replay --time=recorded
--draft-model: got llama-3.1-8b with --drafter=ngram, expected|replay --draft-model=llama-3.1-8b
--draft-time: got "fast", expected a time with a unit|replay --draft-time=fast
--prefill-factor: got 0, expected 0.1 to 100|replay --prefill-factor=0
--measured=FILE is missing|calibrate
--link-turns: got a trace with sessions, expected block ids|stats --link-turns
B is missing, expected a second file or --measured=FILE|compare first.json
--measured stands for B|compare first.json second.json --measured=first.json
--num-blocks: got -5, expected 0 to 2147483647|replay --num-blocks=-5
--num-blocks: got "1", expected 2 or more|replay --num-blocks=1
--num-blocks: got 9999999999, expected|replay --num-blocks=9999999999
--num-blocks: got "99999999999999999999", expected a whole number|replay --num-blocks=99999999999999999999
--num-blocks: got "ten", expected a whole number|replay --num-blocks=ten
--num-blocks|replay --num-blocks
--block-size: got -1, expected 0 to|replay --block-size=-1
--plan: got "best", expected one of|replay --plan=best
--layout: got "heap", expected one of|replay --layout=heap
--eviction-policy: got "sieve", expected one of arc, hazard, lru, priority, ttl|replay --eviction-policy=sieve
--retention-interval: got -2, expected -1 to|replay --retention-interval=-2
--retention-interval: got "64", expected -1 or 0|replay --retention-interval=64
--retention-interval: got 7 tokens, expected a multiple|replay --retention-interval=7 --model=gpt-oss-20b
--retention-interval: got "64", expected -1 next to|replay --retention-interval=64 --cache-all-blocks --model=gpt-oss-20b
--max-queue-time: got 90000s, expected 0s to|replay --max-queue-time=25h
--tensor-parallel: got 3, expected a divisor|replay --tp=3
--model: "gpt-9" is none of the 30 known; the nearest are .* (kvsim plan --list-models prints all)|replay --model=gpt-9
--device: "abacus" is none of the 11 known; the nearest are a100-sxm-80gb, b200, b300 (kvsim plan --list-devices prints all)|replay --device=abacus
--device: "h2000" is none of|replay --device=h2000
--block-size|replay --model=deepseek-v4-flash --device=h200 --tp=8 --block-size=16
--max-num-seqs: got -1, expected 0 to|replay --max-num-seqs=-1
--max-num-seqs: got 300, expected at most --max-num-batched-tokens, which is 256|replay --max-num-seqs=300 --max-num-batched-tokens=256
--max-num-batched-tokens: got -1, expected 0 to|replay --max-num-batched-tokens=-1
--max-num-active-seqs: got 9, expected 0 to 8|replay --max-num-active-seqs=9 --max-num-seqs=8
--max-num-active-seqs: set for --engine=vllm-0.25, expected vllm-0.33|replay --engine=vllm-0.25 --max-num-active-seqs=4
--max-num-scheduled-tokens: set for --engine=vllm-0.25|replay --engine=vllm-0.25 --max-num-scheduled-tokens=64
--adaptive-prefill-threshold: set for --engine=vllm-0.25|replay --engine=vllm-0.25 --adaptive-prefill-threshold
--prefill-schedule-interval: set for|replay --engine=vllm-0.25 --prefill-schedule-interval=4
--prefill-schedule-interval: got 0, expected 1 to|replay --prefill-schedule-interval=0
--lookahead-hashes: set for --engine=vllm-0.25|replay --engine=vllm-0.25 --lookahead-hashes
--entry-point: got "browser", expected one of|replay --entry-point=browser
--drafter: got "tea-leaves", expected one of|replay --drafter=tea-leaves
--drafter: got mtp_modules, expected another one for vllm-0.25|replay --engine=vllm-0.25 --drafter=mtp_modules --num-draft-tokens=2
unknown option --eagle|replay --eagle
--max-model-len: got 1, expected 2 to|replay --max-model-len=1
--max-encoder-tokens: got "0", expected the longest input of the encoder|replay --kv-cache-config whisper.textproto
--max-encoder-tokens: got -1, expected 0 to|replay --max-encoder-tokens=-1
--max-encoder-tokens: got "1500", expected 0: no KV-cache group is of cross attention|replay --max-encoder-tokens=1500
--encoder-tokens: got "9", expected none: no KV-cache group is of cross attention|verify --encoder-tokens=9
--encoder-tokens: got "1501", expected at most --max-encoder-tokens, which is 1500|replay --kv-cache-config whisper.textproto --max-encoder-tokens=1500 --encoder-tokens=1501
--encoder-tokens: got -2, expected -1 to|replay --encoder-tokens=-2
--encoder-tokens: got "many", expected a whole number|replay --encoder-tokens=many
--prefix-caching: got "true", expected --no-prefix-caching with cross attention|replay --kv-cache-config whisper.textproto --max-encoder-tokens=1500 --prefix-caching
--chunked-prefill: got "true", expected --no-chunked-prefill with cross attention|replay --kv-cache-config whisper.textproto --max-encoder-tokens=1500 --chunked-prefill
--long-prefill-threshold: got "64", expected 0 with cross attention|replay --kv-cache-config whisper.textproto --max-encoder-tokens=1500 --long-prefill-threshold=64
--tier: got "host:1GiB:read=20GB/s", expected nothing with cross attention|replay --kv-cache-config whisper.textproto --max-encoder-tokens=1500 --tier=host:1GiB:read=20GB/s
got groups of cross attention, expected none: what encoders made is not transferred|replay --kv-cache-config whisper.textproto --max-encoder-tokens=1500 --prefill-replicas=1 --decode-replicas=1
--kv-cache-config: got groups of cross attention, expected none|curve --kv-cache-config whisper.textproto
bad_speech.jsonl:1: error: encoder_tokens: got -1, expected a whole number from 0 to 2147483647|replay bad_speech.jsonl
--watermark: got 1.5, expected 0 to 1|replay --watermark=1.5
--watermark: got nan|replay --watermark=nan
--memory-utilization: got 0, expected 0.01 to 1|replay --memory-utilization=0
--policy: got "lifo", expected one of fcfs, priority|replay --policy=lifo
--free-order: got "x", expected one of|replay --free-order=x
--eviction-policy: got "mru", expected one of|replay --eviction-policy=mru
--eviction-policy|replay --eviction-policy=arc --free-order=append_all
--eviction-policy|replay --eviction-policy=arc --no-prefix-caching
--eviction-policy: got "ttl", expected another one, or --retain|replay --eviction-policy=ttl
--retain: got "last", expected first:tokens=N|replay --retain=last
--retain: got "all", expected nothing with --no-prefix-caching|replay --retain=all --no-prefix-caching
--retain: got "all", expected nothing with --free-order|replay --retain=all --free-order=append_all
--max-retained-share: got "0", expected at least 0.00334448 with --retain: one block of 299|replay --retain=all --max-retained-share=0 --num-blocks=300
--max-retained-share needs --retain (got none)|replay --max-retained-share=0.25
--tier: got "host", expected NAME:SIZE:read=SPEED|replay --tier=host
--tier: tiers: two have the name|replay --tier=host:1GiB:read=free,host:1GiB:read=free
--tier: tier "host": capacity_bytes is 1, but a chunk|replay --tier=host:1B:read=free
--tier: got "host:1GiB:read=free", expected nothing with --no-prefix-caching|replay --tier=host:1GiB:read=free --no-prefix-caching
--load needs --tier (got none)|replay --load=sync
--load-if needs --tier|replay --load-if=faster
--tier: got host:1GiB:read=free, expected nothing: --tiers|curve --tier=host:1GiB:read=free
--load-failures: got "0.1", expected 0 with --load=sync|replay --tier=host:1GiB:read=free --load=sync --load-failures=0.1
--load-failures needs --tier|replay --load-failures=0.1
--load-failure-policy needs --load-failures (got 0)|replay --tier=host:1GiB:read=free --load-failure-policy=recompute
--lookahead-hashes: got true, expected --no-lookahead-hashes: engines with tiers|replay --tier=host:1GiB:read=free --lookahead-hashes
--baseline: no condition of --where compares|capacity --smallest tier=a:1GiB:read={1:9}GB/s --baseline tier= --where hit-rate>=0.5
--baseline: got "tier", expected OPTION=VALUE|capacity --smallest num-blocks=300:900 --baseline tier --where hit-rate>=baseline
--where: got "ttft-mean<=baseline", which needs --baseline|capacity --smallest num-blocks=300:900 --where ttft-mean<=baseline
--where: got "speed", expected one of|capacity --smallest num-blocks=300:900 --where speed<=1
--where: got "ttft-mean<=1", but the replay has no such figure|capacity --smallest num-blocks=300:900 --where ttft-mean<=1 --time=fixed
--where: got "slo", but no limit of --slo has a percentile|capacity --smallest num-blocks=300:900 --where slo --slo=ttft:1s
--where: none given, expected a condition|capacity --largest num-blocks=300:900 --slo=ttft:1s
--where needs --largest or --smallest|capacity --slo=ttft:1s@p99 --where hit-rate>=0.5
--csv needs --largest or --smallest|capacity --slo=ttft:1s@p99 --csv=a.csv
--smallest: got "num-blocks=900:300", expected a range|capacity --smallest num-blocks=900:300 --where hit-rate>=0.5
--largest: got "num-blocks=300", expected a range|capacity --largest num-blocks=300 --where hit-rate>=0.5
--rate: has no use with --largest or --smallest|capacity --rate=3 --largest num-blocks=300:900 --where hit-rate>=0.5
--tier-prices: needs prices of devices, too|capacity --slo=ttft:1s@p99 --tier-prices=host:1
--tier-prices: needs prices of devices, too|sweep --grid num-blocks=300 --tier-prices=host:1
--tier-prices: got "host", expected TIER:PRICE|capacity --slo=ttft:1s@p99 --devices=h100:2 --tier-prices=host
--tier-prices: got "host:1e308", expected TIER:PRICE|capacity --slo=ttft:1s@p99 --devices=h100:2 --tier-prices=host:1e308
--devices: got "h100:1e308", expected DEVICE|capacity --slo=ttft:1s@p99 --devices=h100:1e308
--where: got "ttft-mean<=baseline", expected a number: a sweep has no baseline|sweep --grid seed=1 --pareto=hit-rate --where ttft-mean<=baseline
--where: got "slo", but no point has such a figure|sweep --grid seed=1 --limit=50 --pareto=hit-rate --where slo
--where needs --pareto|sweep --grid seed=1 --where hit-rate>=0.5
--tier: tier "host": capacity_bytes is 1, but a chunk|serve --tier=host:1B:read=free
--tier: got "host:1GiB:read=free", expected nothing: only kvsim replay|replay --prefill-replicas=1 --decode-replicas=1 --tier=host:1GiB:read=free
--prefill-router: got "best", expected one of round-robin|replay --prefill-replicas=1 --decode-replicas=1 --prefill-router=best
compares cached blocks, but prefix caching is off|replay --prefill-replicas=2 --decode-replicas=1 --prefill-router=prefix --no-prefix-caching
--link-latency: .*unit|replay --prefill-replicas=1 --decode-replicas=1 --link-latency=5
--prefill-replicas needs --decode-replicas (got 0)|replay --prefill-replicas=1 --decode-replicas=0
--prefill-replicas needs --decode-replicas|replay --prefill-replicas=2
--link-scope needs --prefill-replicas|replay --link-scope=decode
--link-bandwidth: got -1, expected 0 to 1000000|replay --prefill-replicas=1 --decode-replicas=1 --link-bandwidth=-1
set next to --replicas|replay --prefill-replicas=1 --decode-replicas=1 --replicas=2
--decode-replicas needs --prefill-replicas|replay --decode-replicas=2
kvsim explain has no words|explain --prefill-replicas=1 --decode-replicas=1 --request=1
prefill_replicas and decode_replicas are for several|curve --config split.textproto
--pipeline-parallel: got 33, expected 1 to 32, the layers of llama-3.1-8b|replay --pp=33
--pipeline-parallel: got 2, expected 1 with --time=recorded|replay --pp=2 --time=recorded --step-times=rows.csv
--async with --pipeline-parallel: set for --engine=vllm-0.25|replay --pp=2 --engine=vllm-0.25 --async
--tier: got "host:1GiB:read=free", expected nothing with --pipeline-parallel|replay --pp=2 --tier=host:1GiB:read=free
--load-if: got "faster", expected always with --time=recorded|replay --tier=host:1GiB:read=free --load-if=faster --time=recorded --step-times=again.csv
--data-parallel: got "2", expected 1 with --pipeline-parallel|replay --dp=2 --pp=2
--data-parallel: got "2", expected 1 with --engine=vllm-0.25|replay --dp=2 --engine=vllm-0.25
--data-parallel: got "2", expected 1 with --time=recorded|replay --dp=2 --model=gpt-oss-20b --num-blocks=2000 --time=recorded --step-times=rows.csv
--data-parallel: requests that run one after the other|curve --dp=2
--data-parallel: got "2", expected 1: this command|serve --dp=2
--data-parallel: set next to --scale|replay --dp=2 --scale=1s:start
--expert-parallel: got "true", expected none: llama-3.1-8b has no experts|replay --expert-parallel
--tier: got "host:1GiB:read=free", expected nothing with --data-parallel|replay --dp=2 --model=gpt-oss-20b --num-blocks=2000 --tier=host:1GiB:read=free
--router: got "data-parallel", expected another|replay --replicas=2 --router=data-parallel
set next to --replicas, --replica, --data-parallel, --scale|replay --prefill-replicas=1 --decode-replicas=1 --dp=2
keeps states, expected attention only|replay --prefill-replicas=1 --decode-replicas=1 --model=qwen3.5-35b-a3b --device=h200 --tp=2
--engine|replay --engine=vllm-9
--time: got "magic", expected one of|replay --time=magic
--step-time: got "5", expected a time with a unit|replay --step-time=5
--step-time: got "0s", expected more than 0s|replay --time=fixed --step-time=0s
--tick: got "0s", expected more than 0s|replay --tick=0s
--speedup: got "0", expected a ratio|replay --speedup=0
--sample: got "2", expected at most 1|replay --sample=2
--end: got "1s", expected more than --start|replay --start=2s --end=1s
--num-draft-tokens: got "9", expected less than|replay --num-draft-tokens=9 --max-num-batched-tokens=9
--acceptance: got "iid:2"|replay --num-draft-tokens=2 --acceptance=iid:2
--acceptance: got "often"|replay --num-draft-tokens=2 --acceptance=often
--acceptance: got "xyz"|replay --acceptance=xyz
--acceptance: got "iid:2"|replay --acceptance=iid:2
--acceptance: got "fixed:-1"|replay --acceptance=fixed:-1
--acceptance: got "table:0.5,x"|replay --acceptance=table:0.5,x
--slo "ttft"|replay --slo=ttft
--warmup is "2.5", expected|replay --warmup=2.5
--cooldown is "2.5", expected|replay --cooldown=2.5
--top-prefixes: got 1001, expected 0 to 1000|replay --top-prefixes=1001
--device: |replay --device=h
--kv-cache-dtype: got "int3", expected|replay --kv-cache-dtype=int3
no room for the KV cache|replay --model=llama-3.1-405b
--color|replay --color=sometimes
unknown option --num-block; did you mean --num-blocks?|replay --num-block=5
unknown option --frobnicate|replay --frobnicate
nosuchfile|replay nosuchfile
nosuchfile|replay --config nosuchfile
nosuchfile|replay --kv-cache-config nosuchfile
nosuchfile|replay --catalogue nosuchfile
cannot create|replay --csv=/nosuchfolder/x.csv
cannot create|replay --json-file=/nosuchfolder/x.json
both want standard output|replay --json --csv=-
is what TRACE reads and would be overwritten|replay trace.jsonl --csv=trace.jsonl
is what TRACE reads and would be overwritten|replay trace.jsonl --json-file=trace.jsonl
--trace-format|replay --trace-format=csvx
--block-size: got 0|stats --block-size 0
--model: "gpt-9" is none of the|plan --model=gpt-9
--device: "abacus" is none of the|plan --device=abacus
--max-model-len: got -1, expected 0 to|plan --max-model-len=-1
--lengths: got 0, expected 1 to|plan --lengths 0
no room for the KV cache|plan --model=llama-3.1-405b
unknown option --tensor-parallell; did you mean --tensor-parallel?|plan --tensor-parallell=2
nosuchfile.json|plan --model=nosuchfile.json
broken.json|plan --model=broken.json
no request "nosuch" among the 3 that came: rows 0 to 2, lines 1 to 3|explain evicting.jsonl --request=nosuch
no request "22" .*did you mean 2?|explain evicting.jsonl --request=22
no request "row:3"|explain evicting.jsonl --request=row:3
--request: got "row:x", expected a whole number|explain --request=row:x
--request: got "id:", expected an id|explain --request=id:
--top: got -1, expected 0 to 1000|explain --top=-1
--top: got 1001, expected 0 to 1000|explain --top=1001
--num-blocks: got -5|explain --num-blocks=-5
unknown option --requests; did you mean --request?|explain --requests=5
nosuchfile|explain nosuchfile
nosuchfile|stats nosuchfile
required|convert trace.jsonl
--to: got "parquet", expected one of native, mooncake, csv|convert trace.jsonl other.x --to=parquet
too-long.txtpb: .*16777216|replay --config too-long.txtpb
too-long.txtpb: .*16777216|replay --kv-cache-config too-long.txtpb
too-long.txtpb: .*16777216|replay --catalogue too-long.txtpb
too-long.json: .*16777216|replay --model=too-long.json
/dev/zero: .*16777216|replay --catalogue /dev/zero
is what IN reads and would be overwritten|convert trace.jsonl trace.jsonl
nosuchfile|validate nosuchfile
--max-messages: got -1|validate --max-messages=-1
--reorder: got 0|validate --reorder=0
unknown option --limit|validate --limit=5
B is missing, expected a second file|compare a.json
cannot open|compare a.json nosuchfile
truncated|compare a.json cut.json
cut.csv:.*truncated|compare again.csv cut.csv
schema_version: got 3, expected 1 or 2|compare a.json later.json
expected a report of kvsim replay --json|compare a.json trace.jsonl
content: got|compare a.json rows.csv
expected two of a kind|compare a.json again.csv
are for two reports|compare a.csv.gz again.csv --tolerance=0
go together|compare a.json b.json --steps-a=a.csv.gz
expected a file of kvsim replay --steps|compare a.json b.json --steps-a=a.json --steps-b=b.json
--same-schedule needs|compare a.json b.json --same-schedule
--tolerance: got "often"|compare a.json b.json --tolerance=often
such as whole_run.token_hit_rate|compare a.json b.json --tolerance=hit_rate.token:0
given twice|compare - -
--json and --steps both want standard output|replay --json --steps=-
--json-file and --csv both want standard output|replay --json-file=- --csv=-
needs --steps|replay --step-requests
cannot create|replay --steps=/nosuchfolder/x.csv
is what TRACE reads and would be overwritten|replay trace.jsonl --steps=trace.jsonl
name two files|replay --steps=x.out --csv=x.out
--rows|verify --rows=-1
--backend|verify --backend=abacus
kvsim|frobnicate
END
[ "$(head -1 trace.jsonl | head -c 12)" = '{"timestamp"' ] || fail "the trace was overwritten"

cat >bad.textproto <<'END'
num_blocks: 100
num_blokcs: 5
END
expect 2 'bad.textproto:2:.*error' replay --config bad.textproto
echo 'groups { spec { spiral { } } }' >bad_groups.textproto
expect 2 'bad_groups.textproto:1:17: error: spec: got unsupported kind spiral, expected one of' \
  replay --kv-cache-config bad_groups.textproto
printf 'groups {\n spec { sliding_window { block_size: 16 } }\n layer_names: "a"\n}' >bad_groups.textproto
expect 2 'bad_groups.textproto:2:9: error: groups\[0\].spec.sliding_window.num_kv_heads: got nothing' \
  replay --kv-cache-config bad_groups.textproto
echo 'num_blocks: 9' >bad_groups.textproto
expect 2 'bad_groups.textproto:1:1: error: groups: got nothing, expected at least one group' \
  replay --kv-cache-config bad_groups.textproto
printf '{"kv_cache_config":\n {"groups": [{"num_layers": 0}]}}' >bad_groups.json
expect 2 'bad_groups.json:2:3: error: kv_cache_config.groups\[0\].spec: got nothing' \
  replay --config bad_groups.json
expect 2 'block-size: got "32", expected none next to --kv-cache-config' \
  replay --kv-cache-config groups.json --block-size=32
head -c 17000000 /dev/zero | tr '\0' '\n' >large.textproto
expect 2 'large.textproto: error: got more than 16777216 bytes' replay --config large.textproto
expect 2 'large.textproto: error: got more than 16777216 bytes' \
  replay --kv-cache-config large.textproto
expect 3 'all 4 requests were rejected: 4 have .*, or an input of the encoder above --max-encoder-tokens=200' \
  replay speech.jsonl --kv-cache-config whisper.textproto --num-blocks=400 --max-encoder-tokens=200 --max-model-len=4
echo '{"timestamp": 0, "input_length": -1, "output_length": 3, "hash_ids": []}' >bad.jsonl
expect 2 'bad.jsonl:1' replay bad.jsonl
expect 2 'bad.jsonl:1' stats bad.jsonl

finish
