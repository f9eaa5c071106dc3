#!/bin/bash
# Runs the kvsim command: exit status, streams, messages, and that runs repeat byte for byte.
set -u
kvsim="$PWD/$1"
tmp="${TEST_TMPDIR:-$(mktemp -d)}"
cd "$tmp" || exit 1
failures=0

fail() {
  echo "FAIL: $*" >&2
  failures=$((failures + 1))
}

# expect STATUS PATTERN ARGUMENT...: the exit status; PATTERN in standard error; on an error nothing
# on standard output.
expect() {
  local want=$1 pattern=$2
  shift 2
  "$kvsim" "$@" >out 2>err </dev/null
  local got=$?
  [ $got -eq "$want" ] || fail "kvsim $*: exit status $got, expected $want: $(head -c 300 err)"
  [ -z "$pattern" ] || grep -q -e "$pattern" err || fail "kvsim $*: '$pattern' is not in: $(head -c 300 err)"
  grep -qE -e '(--[a-z-]+): \1' err && fail "kvsim $*: an option is named twice: $(head -c 300 err)"
  if [ "$want" -ge 2 ] && [ -s out ]; then fail "kvsim $*: wrote to standard output"; fi
}

# --- What works ---
expect 0 '' --help
grep -q 'kvsim replay' out || fail "--help does not teach"
expect 0 ''
grep -q 'replay' out || fail "kvsim alone prints no help"
expect 0 '' --version
grep -qxE 'kvsim [0-9]+\.[0-9]+\.[0-9]+' out || fail "--version prints $(cat out)"
for command in replay curve plan sweep tune capacity point explain verify stats convert validate compare calibrate events; do
  expect 0 '' $command --help
  grep -q 'Examples' out || fail "$command --help has no examples"
  grep -q "^Usage: kvsim $command" out || fail "$command --help names another command"
  grep -q '{false}' out && fail "$command --help shows internals"
done
expect 0 '' replay
grep -q '^hit rate .* of prompt tokens' out || fail "replay prints no hit rate"
[ "$(wc -l <out)" -le 45 ] || fail "the table has more than 45 lines"
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the table is wider than 100 columns"
grep -q $'\033' out && fail "escapes in a pipe"
expect 0 '' replay --color=always
grep -q $'\033' out || fail "no colour with --color=always"
expect 0 '' replay --quiet
[ -s out ] && fail "--quiet prints"

# --- Several replicas ---
expect 0 '' replay --num-blocks=2000 --json
cp out alone.json
expect 0 '' replay --num-blocks=2000 --json --replicas=1
cmp out alone.json || fail "one replica is not what a replay is"
fleet="--num-blocks=2000 --replicas=3"
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1
cp out fleet.json
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1
cmp out fleet.json || fail "two runs of a fleet differ"
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1 --router-seed=1
cmp -s out fleet.json && fail "a router draws alike with another seed"
expect 0 '' replay $fleet --router=oracle
grep -q '^claims .* too high for 0 requests' out || fail "an oracle claims too much: $(cat out)"
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the table of a fleet is wider than 100 columns"
expect 0 '' explain $fleet --router=prefix --request=row:40
grep -q 'was sent to replica [0-2] at .* by prefix' out || fail "explain says no replica: $(cat out)"
expect 2 'needs --request' explain $fleet
expect 2 'no such request' explain $fleet --request=row:99999999
expect 2 '^kvsim replay: --router needs --replicas of at least 2' replay --router=prefix
expect 2 '^kvsim replay: --event-loss means nothing to --router=random' replay $fleet --router=random --event-loss=0.1
expect 2 '^kvsim replay: --router: got "best", expected one of round-robin' replay $fleet --router=best
expect 2 '^kvsim replay: --hit-weight: got "-1", expected a number from 0' replay $fleet --router=prefix --hit-weight=-1
expect 2 '^kvsim replay: --session-factor: got "0.5", expected 0, or' replay $fleet --router=session --session-factor=0.5
expect 2 '^kvsim replay: --router-delay: got "5", expected a time' replay $fleet --router-delay=5
expect 2 '^kvsim replay: --steps works with one replica only' replay $fleet --steps=steps.csv
expect 2 'compares cached blocks, but prefix caching is off' replay $fleet --router=prefix --no-prefix-caching

# --- KV events ---
expect 0 '' replay --num-blocks=2000 --json --events=events.kvlog.gz
cp out with_events.json
expect 0 '' replay --num-blocks=2000 --json --events=again.kvlog
cmp out with_events.json || fail "two runs with events differ"
gunzip -c events.kvlog.gz | cmp - again.kvlog || fail "two runs record other events"
expect 0 '' replay --num-blocks=2000 --json
cmp out with_events.json || fail "recording events changes the replay"
expect 0 '' events events.kvlog.gz --record=copy.kvlog
cmp copy.kvlog again.kvlog || fail "a copy of a record differs"
grep -q '^consistent .*yes' out || fail "recorded events are not consistent: $(cat out)"
expect 0 '' events again.kvlog --show --batches=1
grep -q '^#0 stored ' out || fail "--show shows nothing: $(head -3 out)"
expect 0 '' events again.kvlog --json
python3 - out <<'EOF' || fail "events --json differs from the report"
import collections, json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
kinds = collections.Counter(line["type"] for line in lines)
report = lines[-1]
assert report["type"] == "report" and kinds["report"] == 1 and report["consistent"] is True, report
batches = [line for line in lines if line["type"] == "batch"]
assert [b["sequence"] for b in batches] == list(range(report["last_sequence"] + 1)), "numbers"
events = [e for b in batches for e in b["events"]]
stored = [h for e in events if e["type"] == "BlockStored" for h in e["block_hashes"]]
removed = [h for e in events if e["type"] == "BlockRemoved" for h in e["block_hashes"]]
assert (len(batches), len(events)) == (report["batches"], report["events"])
assert (len(stored), len(removed)) == (report["stored"], report["removed"])
assert len(stored) - len(removed) == report["blocks_now"] and removed, report
assert all(len(h) == 64 for h in stored + removed)
first = events[0]
assert first["parent_block_hash"] is None and first["medium"] == "GPU" and first["group_idx"] == 0, first
assert first["token_ids"] == [] and first["block_size"] == 16, first  # the workload names blocks, not tokens
EOF
grep -v '"type":"report"' out >all_lines
expect 0 '' events again.kvlog --json --batches=2
[ "$(wc -l <out)" -eq 3 ] || fail "--json --batches=2 prints $(wc -l <out) lines, expected 3"
head -2 out | cmp - <(head -2 all_lines) || fail "--batches changes what --json prints"
expect 2 'json prints each event already' events again.kvlog --json --show
head -c 1000 again.kvlog >cut.kvlog
expect 2 'ends inside a message' events cut.kvlog
echo '{}' >no.kvlog
expect 2 'got no log of KV events' events no.kvlog
expect 2 '--source needs an endpoint' events again.kvlog --source=tcp://127.0.0.1:1
expect 2 'is the source itself' events again.kvlog --record=again.kvlog
expect 2 '--events-replay needs --events=ENDPOINT' replay --events-replay=tcp://127.0.0.1:1
expect 2 '--events-pace: got "fast"' replay --events-pace=fast
expect 2 'expected one like tcp' replay --events=http://127.0.0.1:1
# Live, with a subscriber that is there first and one that comes late.
"$kvsim" replay --num-blocks=2000 --quiet --events=ipc://live.sock --events-replay=ipc://again.sock \
  --events-subscribers=1 --events-linger=6s 2>live_err &
publisher=$!
expect 0 '' events ipc://live.sock --replay=ipc://again.sock --idle=2s --record=live.kvlog
grep -q ' 0 lost at 0 places' out || fail "a live stream lost batches: $(cat out)"
grep 'batches with' out | grep -o '^.* events' >live_count
expect 0 '' events ipc://live.sock --replay=ipc://again.sock --idle=1s
grep 'batches with' out | grep -o '^.* events' | cmp - live_count || fail "who comes late sees other events: $(cat out)"
expect 0 '' events events.kvlog.gz
grep 'batches with' out | grep -o '^.* events' | cmp - live_count || fail "live and recorded events differ: $(cat out live_count)"
wait $publisher || fail "the publishing replay failed: $(cat live_err)"

# --- The same run gives the same bytes ---
expect 0 '' replay --json
cp out first.json
expect 0 '' replay --json --json-file=second.json --csv=rows.csv
cmp first.json out || fail "two runs differ"
cmp first.json second.json || fail "--json-file differs from --json"
head -c1 first.json | grep -q '{' || fail "--json prints no JSON"
grep -q '"time_source": "measured kernels, uncalibrated"' first.json || fail "no time source in the report"
rows=$(($(wc -l <rows.csv) - 1))
grep -q "\"requests_arrived\": \"$rows\"" first.json || fail "$rows rows are not all requests"
[ "$(awk -F, '{ print NF }' rows.csv | sort -u | wc -l)" -eq 1 ] || fail "ragged CSV"

# --- Curves ---
expect 0 '' curve
grep -q '^answers .*50 % of the possible hits need' out || fail "curve answers nothing"
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the curve's table is wider than 100 columns"
expect 0 '' curve --json --csv=curve.csv
cp out curve.json
expect 0 '' curve --json-file=curve2.json --quiet --threads=1
[ -s out ] && fail "curve --quiet prints"
cmp curve.json curve2.json || fail "one thread gives another curve"
[ "$(awk -F, '{ print NF }' curve.csv | sort -u | wc -l)" -eq 1 ] || fail "ragged CSV of a curve"
awk -F, 'NR > 2 && $4 < hits { exit 1 } { hits = $4 }' curve.csv || fail "a larger pool hits less"
# A replay of one request after the other hits what the curve says.
awk 'BEGIN { for (i = 0; i < 300; i++) {
  doc = (i * i * 7 + i) % 11; length_ = 40 + (i * 37) % 300; ids = ""
  for (k = 0; k * 16 < length_; k++) ids = ids (k ? "," : "") (k < 3 ? k : k < 9 ? 100 * doc + k : 10000 + 50 * i + k)
  printf "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, \"block_size\": 16, \"hash_ids\": [%s]}\n",
    i * 1000, length_, 1 + i % 40, ids } }' >open_loop.jsonl
for pool in 40 150 400; do
  expect 0 '' curve open_loop.jsonl --sizes $pool --csv=- --points=0
  hits=$(awk -F, -v pool=$pool '$1 == pool { print $4 }' out)
  expect 0 '' replay open_loop.jsonl --num-blocks=$((pool + 1)) --max-num-seqs=1 --no-async --json
  grep -q "\"numerator\": \"$((hits * 16))\"" out || fail "the curve says $hits blocks at $pool"
done
# And in the same schedule, replays of all sizes do.
expect 0 '' curve --mode=schedule --time=fixed --max-num-batched-tokens=65536 --refine=3 --json
grep -q '"exactness": "as one replay' out || fail "this schedule does not depend on hits"
awk '/"hit_tokens"/ { gsub(/[^0-9]/, ""); real = $0 }
     /"curve_hit_tokens"/ { gsub(/[^0-9]/, ""); n++; if ($0 != real) exit 1 }
     END { if (n != 3) exit 1 }' out || fail "replays differ from the exact curve"
expect 0 '' curve --mode=schedule
grep -q 'same-schedule approximation' out || fail "an approximation is not called one"
expect 0 '' curve --model=gemma-3-27b --device=h200 --sizes 10000 20000 --json
grep -q 'no single pass is exact' out || fail "curve does not say that sizes were replayed"
expect 0 '' curve --block-sizes 16 64 --what-if=shuffled --what-if=per-session --tiers 5000 --sizes 1000
grep -q '^blocks of 64' out || fail "no row for blocks of 64"
grep -q '^two tiers' out || fail "no tiers"
expect 0 '' curve --sample-paths=0.5 --hot=32
grep -q '^sampling .*the 32 hottest always' out || fail "a sampled curve does not say so"
expect 2 'sample-paths: got 2, expected a share' curve --sample-paths=2
expect 2 'hot: needs --sample-paths' curve --hot=3
expect 2 'sample-paths: set with' curve --sample-paths=0.1 --what-if=shuffled
expect 2 'standard input can be read once' curve - --mode=schedule
expect 2 'max-num-seqs.*expected --mode=schedule' curve --max-num-seqs=3
expect 2 'what-if: got x' curve --what-if=x
expect 2 'expected one of order' curve --mode=x
expect 2 'refine.*expected --mode=schedule' curve --refine=1
expect 2 'tiers: needs --sizes' curve --tiers 5
expect 2 'no-prefix-caching' curve --no-prefix-caching
expect 2 'what-if.*need a model of full attention' curve --model=gemma-3-27b --device=h200 --what-if=shuffled
expect 2 'both want standard output' curve --json --csv=-
expect 0 '' curve --quiet --html=curve.html --block-sizes 16 64
[ -s out ] && fail "curve --quiet prints a page"
grep -q 'id="chart-4"' curve.html || fail "fewer than five charts of a curve"
expect 2 'both want standard output' curve --json --html=-
expect 2 '--csv and --html are both x' curve --csv=x --html=x
# The table of a replay has the answers of the curve.
expect 0 '' curve --json
needed=$(awk '/"share_of_possible": 0.9,/ { getline; gsub(/[^0-9]/, ""); print }' out)
expect 0 '' replay
tr -d ',' <out | grep -q "50 / 90 / 99 % of these need [0-9]* / $needed / [0-9]* blocks = " ||
  fail "replay does not say that 90 % of the possible hits need $needed blocks"
expect 0 '' replay --model=gpt-oss-20b
grep -q 'blocks for 50 / 90 / 99 % of these: n/a, windows' out || fail "no word on pools of a hybrid model"
expect 3 'no requests' curve --end=0.001s --start=0s --limit=1

# --- Sweeps ---
expect 0 '' sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --threads=1 --csv=one.csv \
  --html=one.html --pareto=hit-rate,pool-gib --results=one.jsonl
cp out one.txt
for threads in 2 8; do
  expect 0 '' sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --threads=$threads --csv=many.csv \
    --html=many.html --pareto=hit-rate,pool-gib --results=many$threads.jsonl
  cmp one.txt out && cmp one.csv many.csv && cmp one.html many.html || fail "$threads threads give another sweep"
  diff <(sort one.jsonl) <(sort many$threads.jsonl) >/dev/null || fail "$threads threads give other results"
done
grep -q 'Pareto front' one.html || fail "the page of a sweep has no front"
# Each row is what a replay says.
while IFS=, read -r index _ blocks size hit_rate _; do
  [ "$index" = index ] && continue
  "$kvsim" replay --limit=100 --num-blocks=$blocks --block-size=$size --json |
    grep -A40 '"whole_run"' | grep -m1 '"value"' | grep -qF "${hit_rate:0:12}" || fail "point $index is no replay"
done <one.csv
# Finished points are not replayed again, and a specification says the same as options.
expect 0 'has 4 finished points' sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --results=one.jsonl
expect 0 '' sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --print-spec
cp out grid.textproto
expect 0 '' point --spec=grid.textproto --list
[ "$(wc -l <out)" -eq 4 ] || fail "point --list has not 4 points"
cut -d' ' -f2 out | sort >names
cut -d'"' -f4 one.jsonl | sort | cmp - names || fail "names differ from one command to the other"
for index in 0 1 2 3; do
  expect 0 '' point --spec=grid.textproto --index=$index
  cat out >>grid.results.jsonl
done
diff <(sort one.jsonl) <(sort grid.results.jsonl) >/dev/null || fail "points differ from those of the sweep"
head -c 300 one.jsonl >>grid.results.jsonl
expect 0 'not whole and is cut off' sweep grid.textproto --pareto=hit-rate,pool-gib
cmp one.txt out || fail "the table of stored points differs"
expect 1 '' sweep --limit=100 --grid num-blocks=2,600
grep -q 'requests were rejected' out || fail "a point without figures does not say why"
expect 2 'did you mean --num-blocks' sweep --grid num-block=1
expect 2 'nothing to sweep over' sweep
expect 2 'two axes' sweep --grid seed=1,2 --grid seed=3
expect 2 'expected two metrics or more' sweep --grid seed=1 --pareto=hit-rate
expect 2 'metrics: got "x"' sweep --grid seed=1 --metrics=x
expect 2 'no such file' sweep nowhere.jsonl --grid seed=1
expect 2 'standard input can be read once' sweep - --grid seed=1
expect 2 'needs --results' sweep --grid seed=1 --retry
expect 2 'are both' sweep --grid seed=1 --csv=a.csv --html=a.csv
expect 2 'index: got 4, expected 0 to 3' point --spec=grid.textproto --index=4
expect 2 'expected --index=N or --list' point --spec=grid.textproto
# An interrupted sweep keeps what is finished, and says so.
awk 'BEGIN { for (i = 0; i < 4000; i++)
  printf "{\"timestamp\": %d, \"input_length\": 2000, \"output_length\": 100, \"hash_ids\": [%d,%d,%d,%d]}\n", i * 50, i % 97, i % 89 + 100, i, i + 1 }' \
  >long.jsonl
"$kvsim" sweep long.jsonl --grid seed=1:400:+1 --results=cut.jsonl --threads=2 >out 2>err </dev/null &
sweep=$!
for _ in $(seq 200); do [ "$(cat cut.jsonl 2>/dev/null | wc -l)" -ge 3 ] && break; sleep 0.05; done
kill -TERM $sweep  # a shell ignores SIGINT for what it puts in the background
wait $sweep
grep -q 'finished points are in cut.jsonl' err || fail "an interrupted sweep does not say what it keeps: $(cat err)"
[ "$(wc -l <cut.jsonl)" -ge 3 ] || fail "an interrupted sweep lost its points"
expect 0 '' tune --over max-num-seqs=1:512:*2 --speedup=60 --limit=150 --json
grep -q '"objective": "output-tokens-per-s"' out || fail "tune has no objective"
expect 1 '' tune --over max-num-seqs=1,2 --slo=ttft:1us:p99 --limit=50
grep -q 'no point that was tried meets --slo' out || fail "tune does not say that nothing fits"
expect 2 'nothing to tune' tune
expect 0 '' capacity --slo=ttft:500ms@p99 --num-blocks=4000 --json-file=capacity.json
speedup=$(grep -m1 -A12 '"at_highest"' capacity.json | grep -m1 '"speedup"' | cut -d'"' -f4)
expect 0 '' replay --slo=ttft:500ms:p99 --num-blocks=4000 --speedup=$speedup --quiet
speedup=$(grep -m1 -A12 '"at_failing"' capacity.json | grep -m1 '"speedup"' | cut -d'"' -f4)
expect 1 '' replay --slo=ttft:500ms:p99 --num-blocks=4000 --speedup=$speedup --quiet
expect 0 '' capacity --slo=tpot:9ms@p95 --num-blocks=3000 --devices=h100:2.5,h200:3.5 --rate=15
grep -q '^answer  *cheapest: ' out || fail "capacity names no cheapest device"
expect 1 '' capacity --slo=ttft:1us@p99 --limit=50
grep -q 'no rate meets the limits' out || fail "capacity does not say that no rate meets"
expect 1 "" capacity --slo=ttft:10s@p99 --limit=50 --rate=1000
grep -q 'more replicas than the trace has' out || fail "capacity does not say that the trace is too short"
expect 2 'no limit has a percentile' capacity --slo=ttft:1s
expect 2 'speedup: the search sets it' capacity --slo=ttft:1s@p99 --speedup=2
expect 2 'closed loop' capacity --slo=ttft:1s@p99 --concurrency=2
expect 2 'time: got fixed' capacity --slo=ttft:1s@p99 --time=fixed
expect 2 'a price for every device' capacity --slo=ttft:1s@p99 --devices=h100:2,h200

# --- Looking at every request in every step changes nothing ---
for options in '--num-blocks=2000' '--num-blocks=400 --no-async' '--num-blocks=600 --policy=priority' \
  '--num-blocks=1500 --num-draft-tokens=3' '--model=gemma-3-27b --device=h200' '--max-num-seqs=8' \
  '--num-blocks=400 --retain=shared:uses=3,all:ttl=5s' \
  '--num-blocks=400 --tier=host:2GiB:read=20GB/s:latency=50us,disk:9GiB:read=3GB/s:store=on-evict' \
  '--num-blocks=400 --tier=host:2GiB:read=20GB/s --load=layerwise --load-if=faster'; do
  expect 0 '' replay $options --json --csv=fast.csv
  grep -v '"exact_steps"' out >fast.json
  expect 0 '' replay $options --json --csv=exact.csv --exact-steps
  grep -v '"exact_steps"' out >exact.json
  cmp fast.json exact.json || fail "--exact-steps $options: another report"
  cmp fast.csv exact.csv || fail "--exact-steps $options: other rows"
done

# --- Configurations ---
expect 0 '' replay --print-config --num-blocks=300 --free-order=append_all --no-chunked-prefill \
  --slo=ttft:2s --time=fixed
cp out config.textproto
expect 0 '' replay --config config.textproto --print-config
cmp config.textproto out || fail "--print-config does not read back"
expect 0 '' replay --json --num-blocks=300 --free-order=append_all --no-chunked-prefill \
  --slo=ttft:2s --time=fixed
cp out by_flags.json
expect 0 '' replay --json --config config.textproto
cmp by_flags.json out || fail "the printed configuration replays differently"
expect 0 '' replay --config config.textproto --num-blocks=400 --print-config
grep -q '^num_blocks: 400$' out || fail "options do not win over the file"
expect 0 '' replay --engine=vllm-0.10 --print-config
grep -q '^reserve_full_isl: false$' out || fail "the preset sets nothing"
grep -q '^free_order: "append_all"$' out || fail "the preset sets nothing"
grep -q "^async: false$" out || fail "the preset is not synchronous"
expect 0 '' replay --engine=vllm-0.10 --reserve-full-isl --print-config
grep -q '^reserve_full_isl: true$' out || fail "options do not win over the preset"
for policy in arc fifo gdsf hazard lfu lirs s3fifo sieve slru w-tinylfu; do
  expect 0 '' replay --num-blocks=300 --eviction-policy=$policy --time=fixed
  grep -q "evicts by $policy" out || fail "the report does not name the policy $policy"
done
for policy in lru priority ttl; do
  expect 0 '' replay --num-blocks=300 --eviction-policy=$policy --time=fixed \
    --retain=shared:uses=3:priority=80,all:ttl=20s --max-retained-share=0.4
  grep -q 'retained .*at most [0-9]* blocks of 119 allowed; [0-9,]* hits of retained blocks' out &&
    grep -q ' in all: .* expired, ' out && grep -q ' refused at the cap' out ||
    fail "the report does not tell what $policy retained: $(grep -A2 retained out)"
done
expect 0 '' replay --num-blocks=400 --tier=host:2GiB:read=20GB/s,disk:9GiB:read=3GB/s:store=on-evict
grep -q '^tiers .* loaded (async, always)' out && grep -q '^host .* tokens loaded; ' out &&
  grep -q '^disk ' out || fail "the report does not tell of tiers: $(grep -A3 '^tiers' out)"
expect 0 '' replay --engine=vllm-main --print-config
grep -q '^engine: "vllm-0.33"$' out || fail "the newest version is not named"
grep -q '^retention_interval: 0$' out || fail "0.33 does not keep windows sparsely"
expect 0 '' replay --engine=vllm-0.25 --print-config
grep -q '^retention_interval: -1$' out || fail "0.25 is not dense"
grep -q '^lookahead_hashes: false$' out || fail "0.25 has look-ahead hashes"
expect 0 '' replay --engine=vllm-0.25 --num-draft-tokens=2 --print-config
grep -q '^async: false$' out || fail "0.25 drafts n-grams asynchronously"
echo 'eagle: true' >eagle.textproto
expect 2 'expected drafter: "eagle"' replay --config eagle.textproto
echo 'eagle: false' >eagle.textproto
expect 0 '' replay --config eagle.textproto --print-config
grep -q eagle: out && fail "eagle is written again"

# --- Reports name the version, and limits follow the device ---
says() {
  local pattern=$1
  shift
  expect 0 '' "$@"
  tr -s '\n ' ' ' <out | grep -q -e "$pattern" || fail "kvsim $*: '$pattern' is not in: $(head -c 700 out)"
}
says 'engine vllm-0.33, async; at most 8,192 tokens and 1,024 requests per step, chosen as its server does on h100-sxm' replay
says 'at most 16,384 tokens and 1,024 requests' replay --entry-point=offline
says 'at most 2,048 tokens and 256 requests' replay --device=l40s --num-blocks=2000
says 'at most 64 tokens and 64 requests per step, chosen' replay --max-num-batched-tokens=64
says 'engine vllm-0.10, sync; .*per step, given' replay --engine=vllm-0.10 --max-num-seqs=8 --max-num-batched-tokens=64
says '"engine": "vllm-0.25"' replay --quiet --json --engine=vllm-0.25
says '"max_num_seqs": "1024"' replay --quiet --json

# --- Clocks ---
time_of() { grep -o '"time_source": "[^"]*"' out; }
expect 0 '' replay --json --num-blocks=2000 --device=rtx-4090
[ "$(time_of)" = '"time_source": "roofline, uncalibrated"' ] || fail "rtx-4090: $(time_of)"
expect 0 '' replay --json --num-blocks=2000 --time=polynomial
[ "$(time_of)" = '"time_source": "polynomial of no particular device"' ] || fail "$(time_of)"
# What was recorded takes as long again, whatever the device.
expect 0 '' replay --json --num-blocks=2000 --steps=steps.csv
grep -A4 '"ttft"' out >a.ttft
expect 0 '' replay --json --num-blocks=2000 --time=recorded --step-times=steps.csv --device=l40s \
  --max-num-batched-tokens=8192 --max-num-seqs=1024
grep -A4 '"ttft"' out >b.ttft
cmp a.ttft b.ttft || fail "recorded steps give other latencies"
# A table of whole steps: 2 ms, 10 us per token, 0.1 us per token of context, 30 us per sequence.
awk 'BEGIN {
  print "tokens,context,sequences,time_us"
  for (i = 0; i < 400; ++i) {
    s = 1 + (i * 37) % 60; t = s + (i % 3 == 0) * (i * 101 % 2000); c = s * (i * 53 % 900)
    print t "," c "," s "," 2000 + 10 * t + c / 10 + 30 * s
  }
}' >taken.csv
expect 0 '' calibrate --from=taken.csv --output=whole.csv
grep -qE '^held out, the others +0\.0' out || fail "steps without noise are not met: $(cat out)"
expect 0 '' replay --json --num-blocks=2000 --time=table --step-tables=whole.csv
[ "$(time_of)" = '"time_source": "measured steps"' ] || fail "$(time_of)"
expect 2 '--from: got --model next to it' calibrate --from=taken.csv --model=llama-3.1-8b
expect 2 'expected the header tokens,context,sequences,time_us' calibrate --from=whole.csv
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
expect 2 '--len: set without --requests' plan --len=100
expect 2 '--eviction-policy: got sieve, expected lru' curve --eviction-policy=sieve
expect 2 '--retain: got all, expected nothing' curve --retain=all
expect 2 '--prefill-factor: requests that run one after the other' curve --prefill-factor=2

# --- Drafters: look-ahead hashes lose no block to the drafter, a drop does ---
dropped() { expect 0 '' replay --quiet --json --num-blocks=2000 --num-draft-tokens=1 "$@"
  tr -s '\n ' ' ' <out | grep -o '"first_admission_misses".*' | grep -o '"cause": "draft drop"[^}]*' | head -1 |
    grep -o '"tokens": "[0-9]*"' | grep -o '[0-9]*'; }
[ "$(dropped --drafter=eagle)" = 0 ] || fail "look-ahead hashes drop blocks"
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
expect 0 '' replay --kv-cache-config groups.textproto --num-blocks=4000 --json
cp out groups.json.report
grep -q '"kind": "sliding_window"' out || fail "no second group"
cat >groups.json <<'END'
{"groups": [
  {"spec": {"fullAttention": {"blockSize": 16, "numKvHeads": 8, "headSize": 128, "dtype": "bf16"}},
   "numLayers": 8},
  {"spec": {"slidingWindow": {"blockSize": 16, "numKvHeads": 8, "headSize": 128,
                              "slidingWindow": 128, "dtype": "bf16"}},
   "numLayers": 8}
]}
END
expect 0 '' replay --kv-cache-config groups.json --num-blocks=4000 --json
cmp out groups.json.report || fail "groups in JSON replay differently"
# A kind that only the full loader knows, and a pool sized by the device.
cat >mamba.textproto <<'END'
groups {
  spec { mamba { block_size: 64 states { shape: [16, 64] dtype: "fp32" } cache_mode: "align" } }
  num_layers: 4
}
END
expect 0 '' replay --kv-cache-config mamba.textproto --json
grep -q '"kind": "mamba"' out || fail "no group with states"
expect 0 '' replay --kv-cache-config mamba.textproto --num-blocks=500 --print-config
cp out mamba_config.textproto
expect 0 '' replay --config mamba_config.textproto --print-config
cmp mamba_config.textproto out || fail "a configuration with groups does not read back"
expect 0 '' replay --model=gemma-3-27b --device=h200 --tensor-parallel=2
grep -q 'KV-cache groups' out || fail "no groups for a hybrid model"

# --- Plans ---
expect 0 '' plan --model=gemma-3-27b --device=h200 --tp=2 --max-model-len=131072
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the plan is wider than 100 columns"
grep -q '^ *sliding_window  *52 ' out || fail "no line for the window layers"
expect 0 '' plan --model=gemma-3-27b --device=h200 --tp=2 --json
grep -q '"policy": "upstream"' out || fail "no plan as vLLM makes it"
# Ten full and 52 window layers in seven tables.
[ "$(grep -c '"metadataKey"\|"metadata_key"' out)" -ge 7 ] || fail "groups are missing"
expect 1 '' plan --model=llama-3.1-70b --device=h100 --tp=4 --memory-utilization=0.57
grep -q 'does not fit.*E-11' out || fail "nothing says that it does not fit"
grep -q 'tensor-parallel=8' out || fail "nothing says what would fit"
expect 0 '' plan --model=qwen3.5-35b-a3b --device=h200 --layout=native --json
grep -q '"layout": "native"' out || fail "--layout does not choose the exact plan's layout"
for layout in uniform slab native; do
  expect 0 '' replay --model=gpt-oss-20b --device=h100 --plan=exact --layout=$layout --json
  grep -q "\"layout\": \"$layout\"" out || fail "--layout=$layout is not in the report"
done
echo '{"architectures": ["NoSuchModel"]}' >broken.json

# --- Standard input, conversion, statistics ---
cat >trace.jsonl <<'END'
{"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 10000, "input_length": 1024, "output_length": 3, "hash_ids": [1, 3]}
END
"$kvsim" replay - --json <trace.jsonl >out 2>err || fail "standard input: $(cat err)"
grep -q '"hit": "512"' out || fail "wrong hits from standard input"
sed 's/"name": "-"/"name": "trace.jsonl"/; s/"trace": "-"/"trace": "trace.jsonl"/' out >from_pipe
expect 0 '' replay trace.jsonl --json
cmp from_pipe out || fail "a pipe and a file differ"
expect 0 'requests written' convert trace.jsonl trace.kvt
expect 0 '' stats trace.kvt --json
grep -q '"shared_tokens": "512"' out || fail "stats of a converted trace"
expect 0 '' stats trace.jsonl
grep -q 'requests' out || fail "stats prints nothing"
expect 0 '' stats
expect 0 '' replay trace.jsonl --csv=-
grep -q '^row,id,' out || fail "--csv=- prints no rows"
head -1 trace.jsonl >one.jsonl
expect 0 '' replay one.jsonl --time=fixed --step-time=1s
grep -q 'no latency' out || fail "fixed time without its caveat"
: >empty.jsonl
expect 2 'error' replay empty.jsonl

# --- For other tools ---
expect 0 '' replay --num-blocks=2000 --json
cp out plain.json
expect 0 '' replay --num-blocks=2000 --json --perfetto=run.json --metrics=run.om --csv=rows_too.csv
cmp plain.json out || fail "--perfetto and --metrics change the report"
grep -q '"complete":true' run.json || fail "the timeline is cut"
head -c1 run.json | grep -q '{' || fail "the timeline is no JSON"
[ "$(tail -1 run.om)" = '# EOF' ] || fail "the metrics have no end"
total=$(sed -n 's/^vllm:generation_tokens_total{.*} //p' run.om)
grep -q "\"output_tokens\": \"$total\"" plain.json || fail "$total output tokens in the metrics"
expect 0 '' replay --perfetto=again.json.gz --num-blocks=2000 --quiet
gzip -dc again.json.gz | cmp - run.json || fail "two timelines differ"
expect 0 '' replay --perfetto=-
head -c1 out | grep -q '{' || fail "--perfetto=- prints no JSON"
expect 0 '' replay --metrics=- --metrics-tick=10s --metrics-epoch=1767225600
grep -q '^vllm:num_requests_running{.*} [0-9]* 17672256[0-9]*\.000$' out || fail "no history"
expect 0 '' replay --quiet --html=run.html --slo=ttft:2s:p99
grep -q 'id="chart-9"' run.html || fail "fewer than ten charts"
grep -q 'Chart.js v3' run.html || fail "no library in the page"
expect 0 '' replay --html=-
head -c15 out | grep -q '<!DOCTYPE html>' || fail "--html=- prints no page"
expect 0 '' compare plain.json plain.json --html=same.html --quiet
grep -q 'The two runs are the same' same.html || fail "no word that runs are the same"
expect 0 '' plan --model=gpt-oss-20b --device=h100 --html=plan.html
grep -q 'id="chart-2"' plan.html || fail "fewer than three charts of a plan"
grep -q 'plans' out || fail "a page instead of the table"
expect 2 'both want standard output' plan --json --html=-
expect 2 'would be overwritten' compare plain.json plain.json --html=plain.json
expect 2 'both want standard output' compare plain.json plain.json --html=-
expect 2 '--perfetto-limit needs --perfetto=FILE' replay --perfetto-limit=5
expect 2 '--perfetto-limit: got 0, expected 1 to' replay --perfetto=x.json --perfetto-limit=0
expect 2 '--metrics-tick needs --metrics=FILE' replay --metrics-tick=5s
expect 2 '--metrics-epoch needs --metrics-tick=TIME' replay --metrics=x.om --metrics-epoch=5
expect 2 '--metrics-tick: got "1us", expected' replay --metrics=x.om --metrics-tick=1us
expect 2 '--perfetto and --metrics are both x' replay --perfetto=x --metrics=x
[ ! -e x ] && [ ! -e x.json ] && [ ! -e x.om ] || fail "an option that is refused leaves a file"

# --- Why requests missed ---
cat >evicting.jsonl <<'END'
{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 10000, "input_length": 2048, "output_length": 1, "hash_ids": [3, 4, 5, 6]}
{"timestamp": 20000, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2, 7]}
END
evicting="evicting.jsonl --block-size=512 --num-blocks=6 --time=fixed"
# shellcheck disable=SC2086
expect 0 '' explain $evicting
grep -q '^evicted  *512 ' out || fail "explain counts no evictions: $(cat out)"
grep -q '^2  *2  *512 ' out || fail "explain lists no worst request"
# shellcheck disable=SC2086
expect 0 '' explain $evicting --top=0
grep -q 'lost most' out && fail "--top=0 lists requests"
# shellcheck disable=SC2086
expect 0 '' explain $evicting --request=2
grep -q '512 of 1,025 known tokens hit' out || fail "explain tells no hits: $(cat out)"
grep -q 'evicted; last used 19.980 s and 4 blocks earlier; gone since$' out || fail "explain tells no eviction: $(cat out)"
grep -q 'computed by request 0' out || fail "explain does not say who was first: $(cat out)"
# shellcheck disable=SC2086
for selector in 2 id:2 row:2 line:3; do
  expect 0 '' explain $evicting --request=$selector --json
  grep -q '"row": "2"' out || fail "--request=$selector finds another request"
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
expect 0 '' explain --num-blocks=2000 --json
cmp first.json out || fail "two explanations differ"
expect 0 '' explain --num-blocks=2000
cp out by_flags.txt
expect 0 '' replay --num-blocks=2000 --print-config
cp out config.textproto
expect 0 '' explain --config config.textproto
cmp by_flags.txt out || fail "explain reads another configuration"
expect 0 '' explain --no-prefix-caching
grep -q 'prefix caching is off' out || fail "explain without prefix caching"
expect 3 'no progress' explain --num-blocks=20 --too-big=run

# --- With tensors ---
expect 0 '' verify --limit=30 --model=gpt-oss-20b --num-blocks=600 --rows=4
grep -q '^verified  *no wrong number' out || fail "verify does not say that nothing is wrong"
grep -q '^groups .*sliding_window, window 128' out || fail "verify does not name the groups"
grep -q '^rows checked .* of .*%' out || fail "verify does not say how much it checked"
expect 0 '' verify --limit=30 --max-tokens=500 --backend=cpu_reference --no-poison
grep -q 'stopped by --max-tokens' out || fail "verify does not say that it stopped"
grep -q '^blocks poisoned  *none' out || fail "--no-poison poisons"

# --- Validation: a bad trace is a result, on standard output ---
# judge STATUS PATTERN ARGUMENT...: the exit status; PATTERN in standard output, nothing on standard
# error.
judge() {
  local want=$1 pattern=$2
  shift 2
  "$kvsim" "$@" >out 2>err </dev/null
  local got=$?
  [ $got -eq "$want" ] || fail "kvsim $*: exit status $got, expected $want: $(head -c 300 out err)"
  [ -z "$pattern" ] || grep -q -e "$pattern" out || fail "kvsim $*: '$pattern' is not in: $(head -c 600 out)"
  [ -s err ] && fail "kvsim $*: wrote to standard error: $(head -c 300 err)"
}

judge 0 'result  *good: 0 errors' validate
judge 0 'result  *good: 0 errors, 0 warnings, 0 notes' validate trace.jsonl --strict
judge 0 'mooncake, fields as published, 512 tokens per content id' validate trace.jsonl
judge 0 '"good": true' validate trace.kvt --json
judge 0 '' validate trace.jsonl --quiet
[ -s out ] && fail "validate --quiet prints"
{
  head -1 trace.jsonl
  echo
  echo '{"timestamp": 5, "input_length": 1024, "output_length": 3, "hash_ids": [1]}'
  echo '{"timestamp": "x", "input_length": 12'
  echo '{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1], "priorty": 1}'
} >faulty.jsonl
judge 2 'result  *bad: 2 errors, 1 warning, 1 note' validate faulty.jsonl
grep -q '^faulty.jsonl:2: warning: blank lines' out || fail "no warning at line 2"
grep -q '^faulty.jsonl:3: error: number of block ids: got 1, expected 2' out || fail "no error at line 3"
grep -q '^faulty.jsonl:4:[0-9]*: error: JSON' out || fail "no error at line 4"
grep -q '^faulty.jsonl:5: note: field: got "priorty"' out || fail "no note at line 5"
judge 2 '"kind": "content-ids"' validate faulty.jsonl --json
judge 2 '' validate faulty.jsonl --max-messages=0
grep -q '^faulty' out && fail "--max-messages=0 prints messages"
judge 2 '' validate faulty.jsonl --quiet
[ -s out ] && fail "validate --quiet prints of a bad trace"
printf '%s\n\n%s\n' "$(head -1 trace.jsonl)" "$(tail -1 trace.jsonl)" >blank.jsonl
judge 0 'good: 0 errors, 1 warning' validate blank.jsonl
judge 2 'bad: 0 errors, 1 warning (--strict counts them)' validate blank.jsonl --strict
tail -1 trace.jsonl >backwards.jsonl
head -1 trace.jsonl >>backwards.jsonl
judge 0 '1 row earlier than the row before' validate backwards.jsonl --strict
judge 2 'as on line 1' validate backwards.jsonl --require-sorted
gzip -c trace.jsonl | head -c 60 >cut.gz
judge 2 'error: truncated gzip stream' validate cut.gz
echo '%PDF' >other.pdf
judge 2 'of no format that can be read' validate other.pdf
"$kvsim" validate - <trace.jsonl >out 2>err || fail "validate from standard input: $(cat err)"

# --- Comparison ---
expect 0 '' replay --json --num-blocks=2000 --steps=a.csv.gz --step-requests
cp out a.json
expect 0 '' replay --json --num-blocks=1500 --steps=b.csv.zst --step-requests
cp out b.json
expect 0 '' replay --json --num-blocks=2000 --steps=again.csv
cp out again.json
judge 0 'the same: 0 of ' compare a.json again.json --tolerance=0
judge 0 'the same in all [0-9,]* steps' compare a.csv.gz again.csv
judge 0 'whole_run.token_hit_rate.value' compare a.json b.json
grep -q 'num_blocks  *2,000  *1,500' out || fail "compare names no option"
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the comparison is wider than 100 columns"
judge 1 'failed' compare a.json b.json --tolerance=0
judge 1 '' compare a.json b.json --tolerance=inf --tolerance=whole_run.token_hit_rate:0.1
judge 0 'passed' compare a.json b.json --tolerance=inf --tolerance=whole_run.token_hit_rate:0.5
judge 0 '' compare a.json b.json --tolerance=workload:0 --tolerance=preemption:0
judge 1 '' compare a.json b.json --tolerance=0 --quiet
[ -s out ] && fail "compare --quiet prints"
judge 0 '"metrics_changed": "[1-9]' compare a.json b.json --json
judge 0 '"name": "series.points\[7\].usage"' compare a.json b.json --json --all
judge 1 'schedules part at step [1-9]' compare a.csv.gz b.csv.zst
grep -q '^! [0-9][0-9]*  *[0-9.]*+[0-9]' out || fail "no request that differs"
judge 0 'schedules part at step [1-9]' compare a.json b.json --steps-a=a.csv.gz --steps-b=b.csv.zst
judge 1 'schedules part' compare a.json b.json --steps-a=a.csv.gz --steps-b=b.csv.zst --same-schedule
judge 0 '' compare a.json again.json --steps-a=a.csv.gz --steps-b=again.csv --same-schedule
for engine in vllm-0.10 vllm-main; do
  expect 0 '' replay --quiet --num-blocks=2000 --engine=$engine --steps=$engine.csv --step-requests
done
judge 1 'schedules part at step [1-9][0-9]*, after' compare vllm-0.10.csv vllm-main.csv
"$kvsim" compare - a.json <a.json >out 2>err || fail "compare from standard input: $(cat err)"
head -c 5000 a.json >cut.json
head -c 5000 again.csv >cut.csv
sed 's/"schema_version": 1,/"schema_version": 2,/' a.json >later.json

expect 0 '' replay --quiet --steps=again_default.csv

# --- Accesses for simulators of caches ---
expect 0 '' stats trace.jsonl --json
refs=$(sed -n 's/ *"block_refs": "\([0-9]*\)",/\1/p' out)
expect 0 'not written: everything but the blocks' convert trace.jsonl trace.oracle --to=oracle
[ "$(wc -c <trace.oracle)" -eq $((refs * 24)) ] || fail "$(wc -c <trace.oracle) bytes are no $refs records of 24"

# --- A reader that goes away ---
for i in $(seq 20000); do
  echo "{\"timestamp\": $i, \"input_length\": 16, \"output_length\": 1, \"hash_ids\": [$i]}"
done >long.jsonl
set -o pipefail
"$kvsim" replay --json 2>err | head -c 10 >/dev/null || fail "a closed pipe is an error"
[ -s err ] && fail "a closed pipe prints: $(cat err)"
for arguments in 'replay --csv=-' 'replay --steps=-' 'replay --json-file=-' 'replay --json-file=/dev/stdout' \
  'replay --perfetto=-' 'replay --metrics=-' 'replay --html=-' 'curve --html=-' 'plan --html=-' \
  'convert long.jsonl - --to=mooncake --quiet' stats; do
  # shellcheck disable=SC2086
  "$kvsim" $arguments 2>err | head -c 10 >/dev/null || fail "kvsim $arguments: a closed pipe is an error"
  [ -s err ] && fail "kvsim $arguments: a closed pipe prints: $(cat err)"
done
set +o pipefail

# --- Outputs that are no plain files ---
expect 0 '' replay --json
cp out plain.json
expect 0 '' replay --json-file=-
cmp plain.json out || fail "--json-file=- is not --json"
expect 0 '' replay --steps=-
cmp again_default.csv out || fail "--steps=- prints something else"
expect 0 '' convert trace.jsonl - --to=mooncake
head -c1 out | grep -q '{' || fail "convert to standard output"
mkfifo pipe
for arguments in 'replay --quiet --json-file=pipe' 'replay --quiet --csv=pipe' 'replay --quiet --steps=pipe' \
  'convert trace.jsonl pipe --quiet'; do
  cat pipe >through &
  # shellcheck disable=SC2086
  expect 0 '' $arguments
  wait $!
  [ -s through ] || fail "kvsim $arguments: nothing came through the pipe"
  [ -p pipe ] || fail "kvsim $arguments: replaced the pipe"
done
echo old >target.json
chmod 600 target.json
ln -sf target.json link.json
expect 0 '' replay --quiet --json-file=link.json
[ -L link.json ] || fail "--json-file replaced a link"
cmp plain.json target.json || fail "--json-file did not follow a link"
[ "$(stat -c %a target.json)" = 600 ] || fail "--json-file changed a mode"

# --- Signals: a line that says so, the old files, and the signal as exit status ---
mkfifo slow
for signal in INT:130 TERM:143; do
  echo old >steps.csv
  set -m
  "$kvsim" replay slow --quiet --steps=steps.csv --csv=rows_new.csv --json-file=report_new.json 2>err &
  run=$!
  set +m
  exec 9>slow
  head -1 trace.jsonl >&9
  for _ in $(seq 200); do
    ls rows_new.csv.*.part >/dev/null 2>&1 && break
    sleep 0.05
  done
  kill -s "${signal%:*}" $run
  wait $run 2>/dev/null
  got=$?
  exec 9>&-
  [ $got -eq "${signal#*:}" ] || fail "SIG$signal: exit status $got: $(cat err)"
  grep -q 'kvsim: .*no output file is finished' err || fail "SIG$signal: says nothing: $(cat err)"
  [ "$(cat steps.csv)" = old ] || fail "SIG$signal: the old file is gone"
  ls ./*.part rows_new.csv report_new.json 2>/dev/null && fail "SIG$signal: files are left"
done

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
  expect 0 '' replay $others $smallest --json
  grep -q '"requests_rejected": "0"' out || fail "$smallest $others rejects some"
  # shellcheck disable=SC2086
  expect 0 '' replay $others --num-blocks=$((${smallest#*=} - 1)) --json
  grep -q '"requests_rejected": "0"' out && fail "one block less than $smallest $others rejects none"
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

head -c 17000000 /dev/zero | tr '\0' '\n' >too-long.txtpb
cp too-long.txtpb too-long.json

# --- Options that make no sense: what, where, limit ---
while IFS='|' read -r pattern arguments; do
  [ -z "$pattern" ] && continue
  # shellcheck disable=SC2086
  expect 2 "$pattern" $arguments
done <<'END'
--kernel-tables: /nonexistent: cannot be opened|replay --kernel-tables=/nonexistent
--kernel-tables: has no use with --time=fixed|replay --kernel-tables=/nonexistent --time=fixed
--kernel-tables: .*: no kernel times of rtx-4090|replay --time=table --device=rtx-4090 --num-blocks=2000
--step-times: has no use with --time=auto|replay --step-times=first.json
--time=recorded needs --step-times=FILE|replay --time=recorded
--step-tables: /nonexistent: cannot be opened|replay --time=table --step-tables=/nonexistent
--draft-model: got llama-3.1-8b with --drafter=ngram, expected|replay --draft-model=llama-3.1-8b
--draft-time: got "fast", expected a time with a unit|replay --draft-time=fast
--prefill-factor: got 0, expected 0.1 to 100|replay --prefill-factor=0
--measured=FILE or --from=FILE is missing|calibrate
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
--retention-interval: got -2, expected -1 to|replay --retention-interval=-2
--retention-interval: got "64", expected -1 or 0|replay --retention-interval=64
--retention-interval: got 7 tokens, expected a multiple|replay --retention-interval=7 --model=gpt-oss-20b
--retention-interval: got "64", expected -1 next to|replay --retention-interval=64 --cache-all-blocks --model=gpt-oss-20b
--max-queue-time: got 90000s, expected 0s to|replay --max-queue-time=25h
--tensor-parallel: got 3, expected a divisor|replay --tp=3
--model: "gpt-9" is unknown|replay --model=gpt-9
--device: "abacus" is unknown|replay --device=abacus
--block-size|replay --model=deepseek-v4-flash --device=h200 --tp=8 --block-size=16
--max-num-seqs: got -1, expected 0 to|replay --max-num-seqs=-1
--max-num-seqs: got 300, expected at most --max-num-batched-tokens, which is 256|replay --max-num-seqs=300 --max-num-batched-tokens=256
--max-num-batched-tokens: got -1, expected 0 to|replay --max-num-batched-tokens=-1
--max-num-active-seqs: got 9, expected 0 to 8|replay --max-num-active-seqs=9 --max-num-seqs=8
--max-num-active-seqs: set for --engine=vllm-0.25, expected vllm-0.33|replay --engine=vllm-0.25 --max-num-active-seqs=4
--max-num-scheduled-tokens: set for --engine=vllm-0.19|replay --engine=vllm-0.19 --max-num-scheduled-tokens=64
--adaptive-prefill-threshold: set for --engine=vllm-0.10|replay --engine=vllm-0.10 --adaptive-prefill-threshold
--prefill-schedule-interval: set for|replay --engine=vllm-0.25 --prefill-schedule-interval=4
--prefill-schedule-interval: got 0, expected 1 to|replay --prefill-schedule-interval=0
--lookahead-hashes: set for --engine=vllm-0.25|replay --engine=vllm-0.25 --lookahead-hashes
--entry-point: got "browser", expected one of|replay --entry-point=browser
--drafter: got "tea-leaves", expected one of|replay --drafter=tea-leaves
--drafter: got mtp_modules, expected another one for vllm-0.25|replay --engine=vllm-0.25 --drafter=mtp_modules --num-draft-tokens=2
unknown option --eagle|replay --eagle
--max-model-len: got 1, expected 2 to|replay --max-model-len=1
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
--max-retained-share: got "0.25", expected --retain beside it|replay --max-retained-share=0.25
--tier: got "host", expected NAME:SIZE:read=SPEED|replay --tier=host
--tier: got "host:1GiB", expected read=SPEED in it|replay --tier=host:1GiB
--tier: got "host:1GiB:read=free:x", expected read=SPEED, |replay --tier=host:1GiB:read=free:x
--tier: tiers: two have the name|replay --tier=host:1GiB:read=free,host:1GiB:read=free
--tier: tier "host": capacity_bytes is 1, but a chunk|replay --tier=host:1B:read=free
--tier: got "host:1GiB:read=free", expected nothing with --no-prefix-caching|replay --tier=host:1GiB:read=free --no-prefix-caching
--load: got "sync", expected --tier beside it|replay --load=sync
--load-if: got "faster", expected --tier beside it|replay --load-if=faster
--tier: got host:1GiB:read=free, expected nothing: --tiers|curve --tier=host:1GiB:read=free
--tier: got "host:1GiB:read=free", expected nothing: only kvsim replay|explain --tier=host:1GiB:read=free --request=1
--tier: got "host:1GiB:read=free", expected nothing: only kvsim replay|serve --tier=host:1GiB:read=free
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
--model: .*llama-3.1-8b|replay --model=gpt-9
--device: .*h100-sxm|replay --device=abacus
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
is the trace itself|replay trace.jsonl --csv=trace.jsonl
is the trace itself|replay trace.jsonl --json-file=trace.jsonl
--trace-format|replay --trace-format=csvx
--block-size: got 0|stats --block-size 0
--model: .*llama-3.1-8b|plan --model=gpt-9
--device: .*h100-sxm|plan --device=abacus
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
is the trace itself|convert trace.jsonl trace.jsonl
nosuchfile|validate nosuchfile
--max-messages: got -1|validate --max-messages=-1
--reorder: got 0|validate --reorder=0
unknown option --limit|validate --limit=5
B is missing, expected a second file|compare a.json
cannot open|compare a.json nosuchfile
truncated|compare a.json cut.json
cut.csv:.*truncated|compare again.csv cut.csv
schema_version: got 2, expected 1|compare a.json later.json
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
is the trace itself|replay trace.jsonl --steps=trace.jsonl
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
echo '{"timestamp": 0, "input_length": -1, "output_length": 3, "hash_ids": []}' >bad.jsonl
expect 2 'bad.jsonl:1' replay bad.jsonl
expect 2 'bad.jsonl:1' stats bad.jsonl

if [ $failures -gt 0 ]; then
  echo "$failures failures" >&2
  exit 1
fi
echo "all passed"
