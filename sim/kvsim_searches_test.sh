#!/bin/bash
# Runs kvsim curve, sweep, point and capacity.
. "$(dirname "$0")/kvsim_checks.sh"

# --- Curves ---
shows '^answers .*50 % of the possible hits need' curve
narrow "the curve's table"
keep curve.json curve --json --csv=curve.csv
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
  grep -q "\"numerator\": $((hits * 16))," out || fail "the curve says $hits blocks at $pool"
done
# And in the same schedule, replays of all sizes do.
shows '"exactness": "as one replay' curve --mode=schedule --time=fixed --max-num-batched-tokens=65536 --refine=3 --json
awk '/"hit_tokens"/ { gsub(/[^0-9]/, ""); real = $0 }
     /"curve_hit_tokens"/ { gsub(/[^0-9]/, ""); n++; if ($0 != real) exit 1 }
     END { if (n != 3) exit 1 }' out || fail "replays differ from the exact curve"
shows 'same-schedule approximation' curve --mode=schedule
shows 'no single pass is exact' curve --model=gemma-3-27b --device=h200 --sizes 10000 20000 --json
shows '^blocks of 64' curve --block-sizes 16 64 --what-if=shuffled --what-if=per-session --tiers 5000 --sizes 1000
grep -q '^two tiers' out || fail "no tiers"
# SM-97: the surface is the curve read at the larger tier, or at both.
expect 0 '' curve --sizes 300 600 --tiers 900 600 --csv=surface.csv --quiet
expect 0 '' curve --sizes 300 600 900 1200 1500 --csv=sizes.csv --quiet
awk -F, 'NR == FNR { rate[$1] = $5; next }
         FNR > 1 { n++; if ($5 != rate[$1] || $6 != rate[$3] || $7 != rate[$1 + $3] || ($3 < $1)) exit 1 }
         END { if (n != 4) exit 1 }' sizes.csv surface.csv || fail "the surface is not on the curve: $(cat surface.csv)"
shows '^two tiers' curve --model=gemma-3-27b --device=h200 --sizes 2000 4000 --tiers 4000 20000 --csv=hybrid.csv
awk -F, 'FNR > 1 { n++; if ($6 < $5 || $7 < $5) exit 1 } END { if (n != 4) exit 1 }' hybrid.csv ||
  fail "a second tier takes hits away: $(cat hybrid.csv)"
expect 2 'tiers: set for --mode=schedule' curve --mode=schedule --sizes 300 --tiers 600
expect 0 '' curve --quiet --html=surface.html --sizes 300 600 --tiers 900 1200
grep -q '"second_gib":' surface.html || fail "no plot of two tiers"
shows '^sampling .*the 32 hottest always' curve --sample-paths=0.5 --hot=32
expect 2 'sample-paths: got "2", expected a number from' curve --sample-paths=2
expect 2 'hot needs --sample-paths' curve --hot=3
expect 2 'sample-paths: set with' curve --sample-paths=0.1 --what-if=shuffled
expect 2 'standard input can be read once' curve - --mode=schedule
expect 2 'max-num-seqs.*expected --mode=schedule' curve --max-num-seqs=3
expect 2 'what-if: got "x"' curve --what-if=x
expect 2 'expected one of order' curve --mode=x
expect 2 'refine.*expected --mode=schedule' curve --refine=1
expect 2 'tiers needs --sizes' curve --tiers 5
expect 2 'no-prefix-caching' curve --no-prefix-caching
expect 2 'what-if.*need a model of full attention' curve --model=gemma-3-27b --device=h200 --what-if=shuffled
expect 2 'both want standard output' curve --json --csv=-
expect 0 '' curve --quiet --html=curve.html --block-sizes 16 64
[ -s out ] && fail "curve --quiet prints a page"
grep -q '"variants":' curve.html || fail "no variants in the page of a curve"
expect 2 'both want standard output' curve --json --html=-
expect 2 '--csv and --html are both x' curve --csv=x --html=x
# The table of a replay has the answers of the curve.
expect 0 '' curve --json
needed=$(awk '/"share_of_possible": 0.9,/ { getline; gsub(/[^0-9]/, ""); print }' out)
expect 0 '' replay
tr -d ',' <out | grep -q "50 / 90 / 99 % of these need [0-9]* / $needed / [0-9]* blocks = " ||
  fail "replay does not say that 90 % of the possible hits need $needed blocks"
shows 'blocks for 50 / 90 / 99 % of these: n/a, windows' replay --model=gpt-oss-20b
expect 3 'no requests' curve --end=0.001s --start=0s --limit=1

# --- Sweeps ---
keep one.txt sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --threads=1 --csv=one.csv \
  --html=one.html --pareto=hit-rate,pool-gib --results=one.jsonl
grep -q '"on_front":true' one.html || fail "the page of a sweep has no front"
# Finished points are not replayed again, and a specification says the same as options.
expect 0 'has 4 finished points' sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --results=one.jsonl
keep grid.textproto sweep --limit=100 --grid num-blocks=300,600 --grid block-size=16,32 --print-spec
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
# The best point by one metric, of those that hold a condition.
expect 0 '' sweep --limit=100 --grid num-blocks=300,600,900 --pareto=hit-rate --csv=-
grep -q '^2,.*true,$' out && [ "$(grep -c 'true,$' out)" -eq 1 ] || fail "the largest pool is not the best: $(cat out)"
expect 0 '' sweep --limit=100 --grid num-blocks=300,600,900 --pareto=hit-rate --where 'pool-gib<=1.5' --csv=-
grep -q '^1,.*true,$' out && [ "$(grep -c 'true,$' out)" -eq 1 ] || fail "a condition excludes nothing: $(cat out)"
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
expect 2 'kvsim capacity --largest' tune --over max-num-seqs=1,2
expect 2 'kvsim capacity --smallest' break-even --tier=host:2GiB:read=20GB/s
shows '^answer  *cheapest: ' capacity --slo=tpot:9ms@p95 --num-blocks=3000 --devices=h100:2.5,h200:3.5 --rate=15
expect 1 '' capacity --slo=ttft:1us@p99 --limit=50
grep -q 'no rate meets the limits' out || fail "capacity does not say that no rate meets"
expect 1 "" capacity --slo=ttft:10s@p99 --limit=50 --rate=1000
grep -q 'more replicas than the trace has' out || fail "capacity does not say that the trace is too short"
expect 2 'no limit has a percentile' capacity --slo=ttft:1s
expect 2 'speedup: the search sets it' capacity --slo=ttft:1s@p99 --speedup=2
expect 2 'closed loop' capacity --slo=ttft:1s@p99 --concurrency=2
expect 2 'time: got fixed' capacity --slo=ttft:1s@p99 --time=fixed
expect 2 'a price for every device' capacity --slo=ttft:1s@p99 --devices=h100:2,h200

# --- The border of any option: its value holds the conditions, the next one tried does not ---
expect 0 '' capacity --largest max-num-seqs=1:256 --speedup=60 --limit=150 --slo=tpot:9ms@p95 --json
value() { grep -m1 "\"$1\"" out | cut -d'"' -f4; }
expect 1 '' capacity --smallest num-blocks=300:900 --where 'hit-rate>=0.99' --limit=100
grep -q '^answer  *no value of the range holds' out || fail "a condition that nothing holds is held: $(cat out)"
# The break-even of a tier (SM-106): below it the TTFT is worse than without a tier, at it, it is not.
expect 0 '' capacity --num-blocks=400 --smallest 'tier=host:2GiB:read={0.5:50}GB/s:latency=50us' --baseline tier= \
  --where 'ttft-mean<=baseline' --tolerance=0.05 --json --csv=border.csv
found=$(value value) missed=$(value missed)
[ "$(awk -F, '{ print NF }' border.csv | sort -u | wc -l)" -eq 1 ] || fail "ragged CSV of a border"
ttft() { expect 0 '' replay --num-blocks=400 --json "$@"
  tr -s '\n ' ' ' <out | grep -o '"ttft": {[^}]*' | grep -o '"mean_ms": [0-9.e+]*' | cut -d' ' -f2; }
none=$(ttft) worse=$(ttft --tier=$missed) even=$(ttft --tier=$found)
awk "BEGIN { exit !($worse > $none && $even <= $none) }" ||
  fail "TTFT $none without, $worse with $missed and $even with $found"
# --- Prefill and decode replicas are options like others: which division, and how many ---
limits='--speedup=60 --slo=ttft:200ms,tpot:12ms'
divisions="sweep $limits --grid prefill-replicas=1,2 --grid decode-replicas=1,2 --pareto=good-share --where replicas<=3"
keep divisions.json $divisions --json
alike divisions.json "one thread finds another division" $divisions --json --threads=1
# What the sweep says of one is what its replay says.
expect 0 '' replay --prefill-replicas=1 --decode-replicas=2 $limits --json
share=$(grep -o '"good_share": [0-9.e-]*' out | head -1 | cut -d' ' -f2)
grep -q "[ :]$share" divisions.json || fail "the sweep has no division with $share"
shows '^answer  *--prefill-replicas=[1-4]' capacity $limits --smallest prefill-replicas=1:4 --decode-replicas=2 --goodput=0.5
expect 1 '' capacity --speedup=60 --slo=ttft:1us --smallest prefill-replicas=1:3 --decode-replicas=1 --goodput=0.9
grep -q '^answer  *no value of the range holds' out || fail "unreachable limits are reached"
expect 2 'link-scope needs --prefill-replicas' capacity --slo=ttft:1s@p99 --link-scope=decode

finish
