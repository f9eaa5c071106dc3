#!/bin/bash
# Runs kvsim replay and explain with several replicas.
. "$(dirname "$0")/kvsim_checks.sh"

# --- Several replicas ---
keep alone.json replay --num-blocks=2000 --json
alike alone.json "one replica is not what a replay is" replay --num-blocks=2000 --json --replicas=1
fleet="--num-blocks=2000 --replicas=3"
keep fleet.json replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1 --router-seed=1
cmp -s out fleet.json && fail "a router draws alike with another seed"
shows '^claims .* too high for 0 requests' replay $fleet --router=oracle
narrow "the table of a fleet"
shows 'was sent to replica [0-2] at .* by prefix' explain $fleet --router=prefix --request=row:40
expect 2 'needs --request' explain $fleet
expect 2 'no such request' explain $fleet --request=row:99999999
expect 2 '^kvsim replay: --router needs --replicas above 1' replay --router=prefix
expect 2 '^kvsim replay: --event-loss needs --router=prefix (got random)' replay $fleet --router=random --event-loss=0.1
expect 2 '^kvsim replay: --router: got "best", expected one of round-robin' replay $fleet --router=best
expect 2 '^kvsim replay: --hit-weight: got "-1", expected a number from 0' replay $fleet --router=prefix --hit-weight=-1
expect 2 '^kvsim replay: --session-factor: got "0.5", expected 0, or' replay $fleet --router=session --session-factor=0.5
expect 2 '^kvsim replay: --router-delay: got "5", expected a time' replay $fleet --router-delay=5
# What is not asked for has its default, wherever it is asked.
keep fleet.textproto replay $fleet --router=prefix --event-loss=0.1 --print-config
grep -q '^router: "prefix"' out || fail "the configuration of a fleet names no router"
keep asked.json replay $fleet --router=prefix --event-loss=0.1 --json
alike asked.json "a fleet's configuration is another fleet" replay --config=fleet.textproto --json
expect 2 'replicas: got 3, expected 1: this command runs one replica' curve --config=fleet.textproto
expect 2 'unknown option --replicas' verify --replicas=2
# One and several replicas have one report.
expect 0 '' compare fleet.json fleet.json --tolerance=0
expect 1 '' compare alone.json fleet.json --tolerance=0 --html=both.html
grep -q 'replicas\[1\].report.totals.steps' out || fail "compare names no figure of a replica: $(head -c 600 out)"
# Data-parallel ranks: those of a model with experts step together, others do not.
ranks="--num-blocks=2000 --dp=4"
keep ranks.json replay $ranks --model=gpt-oss-20b --expert-parallel --json
[ "$(grep -c '"dummySteps"\|"dummy_steps"' ranks.json)" -eq 4 ] || fail "four ranks in lockstep have no dummy steps each"
grep -q '"router": "data-parallel"' ranks.json || fail "ranks have another balancer than the engine's"
shows '^fleet  *1 replica of 4 data-parallel ranks in lockstep' replay --num-blocks=2000 --replica=dp=4 --model=gpt-oss-20b --expert-parallel
grep -q '^lockstep .* passes in .* waits for a slower one' out || fail "nothing is said of lockstep: $(cat out)"
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 122 ] ||
  fail "the table of ranks is wider than 122 columns"
shows '^fleet  *2 replicas of 4 data-parallel ranks$' replay $ranks --replicas=2
grep -q '^lockstep' out && fail "ranks of a dense model step together"
shows 'was sent to replica [0-3] at .* by data-parallel' explain $ranks --request=row:40
# Rows, pages and events of all replicas.
expect 0 '' replay $fleet --router=prefix --csv=rows.csv --html=page.html --events=fleet.kvlog
head -1 rows.csv | grep -q ',end_ms,replica' || fail "rows of a fleet do not say whose they are"
[ "$(tail -n +2 rows.csv | wc -l)" -eq 396 ] || fail "a fleet has not one row per request"
awk -F, 'NR > 1 { gsub("\r", ""); print $NF }' rows.csv | sort | uniq -c | awk '{ print $2, $1 }' >of_rows
awk '/^  [0-9]/ { print $1, $2 }' out >of_table
cmp of_rows of_table || fail "rows and table differ: $(cat of_rows of_table)"
grep -q '"decision_series":' page.html || fail "the page of a fleet has no decisions"
expect 0 '' events fleet.kvlog
for replica in 0 1 2; do
  grep -q "replica-$replica" out || fail "events of replica $replica are missing: $(cat out)"
done
[ "$(grep -c '^consistent  *yes' out)" -eq 3 ] || fail "the events of a fleet have problems: $(cat out)"
# Replicas of several kinds.
keep mixed.json replay --num-blocks=2000 --replica=2:device=h200:tensor-parallel=2 --replica=num-blocks=1000 --router=prefix --json
grep -q '"options": "device=h200 tensor-parallel=2"' mixed.json || fail "a fleet does not say how replicas differ"
[ "$(grep -c '"requests_sent"' mixed.json)" -eq 3 ] || fail "a fleet of 2 and 1 has not 3 replicas"
alike mixed.json "kinds that are parted by ; are others" replay --num-blocks=2000 --replica='2:device=h200:tensor-parallel=2;num-blocks=1000' --router=prefix --json
expect 0 '' replay --num-blocks=2000 --replica=3 --router=prefix
sed 1d out >alike
expect 0 '' replay $fleet --router=prefix
sed 1d out | cmp - alike || fail "three of one kind are not three replicas: $(cat alike)"
part='^kvsim replay: --replica, part 2 "2:'
expect 2 "$part"'devices=h100": --devices: no such option of a replay; did you mean --device' replay --replica=1 --replica=2:devices=h100
expect 2 "$part"'limit=3": --limit: got "3", expected none here' replay --replica=1 --replica=2:limit=3
expect 2 "$part"'num-blocks=-3": --num-blocks: got -3, expected 0 to' replay --replica=1 --replica=2:num-blocks=-3
expect 2 "$part"'h100": got "h100", expected OPTION=VALUE' replay --replica=1 --replica=2:h100
expect 2 'part 1 "0": got 0 replicas, expected 1 to 4096' replay --replica=0
expect 2 'replica, device=h900: .*h900' replay --replica='1;2:device=h900'
expect 2 'replicas: got 4, expected 3 as --replica lists' replay --replicas=4 --replica=3
expect 2 'replica 1 has blocks of 32 tokens' replay --replica='1;block-size=32' --num-blocks=2000 --router=prefix
expect 2 'expected none with --devices' capacity --replica=2 --devices=h100,h200 --slo=ttft:1s@p99
# Rows and events come in order of time, those of requests that ended at the router included.
awk 'BEGIN { for (i = 0; i < 400; i++) printf "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": %d, \"block_size\": 16, \"hash_ids\": [%d, %d, %d]}\n",
  50 * int(i / 3), 33 + i % 15, 1 + i % 37, i % 7, 1000 + i % 29, 2000 + i }' >plain.jsonl
for router in round-robin "random --max-queue-time=4ms"; do
  plain="plain.jsonl --replicas=3 --num-blocks=200 --router=$router"
  for run in 1 2; do
    keep t$run.txt replay $plain --csv=t$run.csv --html=t$run.html --events=t$run.kvlog --json-file=t$run.json
  done
  for output in csv html kvlog json txt; do
    cmp t1.$output t2.$output || fail "a second run writes another $output with $router"
  done
  shows 'was sent to replica [0-2]' explain $plain --request=row:200
  awk -F, 'NR > 1 { if ($21 + 0 < last) exit 1; last = $21 + 0 }' t1.csv || fail "rows are not in the order of their ends"
done
# A queue at the router.
queued="$fleet --speedup=60 --router-queue=requests:4"
shows '^router queue  [1-9][0-9]* requests waited, ' replay $queued --csv=rows.csv
expect 0 '' replay $queued --router-queue-limit=60 --max-queue-time=3s --csv=rows.csv --json
waited=$(tr -d ' \n"' <out | sed 's/.*requests_queued:\([0-9]*\).*/\1/')
sed -n '/^ "router"/,/^ }/p' out >router.json
rejected=$(grep -m1 '"requests_rejected"' router.json | tr -dc 0-9)
gave_up=$(grep -m1 '"requests_aborted"' router.json | tr -dc 0-9)
[ "$waited" -gt 0 ] && [ "$rejected" -gt 0 ] && [ "$gave_up" -gt 0 ] || fail "waited $waited, rejected $rejected, gave up $gave_up"
[ "$(tail -n +2 rows.csv | wc -l)" -eq 396 ] || fail "a request that ends at the router has no row"
[ "$(grep -c ',rejected,"\?the router' rows.csv)" -eq "$rejected" ] || fail "rows lack requests that the router rejected"
[ "$(grep -c ',abort,queue_time,.*,.$' rows.csv)" -ge "$gave_up" ] || fail "rows lack requests that gave up at the router"
row=$(awk -F, '/the router/ { print $1; exit }' rows.csv)
shows 'was sent to no replica' explain $queued --router-queue-limit=60 --max-queue-time=3s --request=row:$row
# What no request ever meets changes nothing.
expect 0 '' replay $fleet --router=prefix --json
sed '/queue/d' out >without.json
expect 0 '' replay $fleet --router=prefix --json --router-queue=requests:1000000,tokens:100000000000
sed '/queue/d' out | cmp - without.json || fail "limits that are never met change a replay"
expect 2 'router-queue: got "requests", expected requests:N' replay $fleet --router-queue=requests
expect 2 'router-queue: got "requests:1,requests:2"' replay $fleet --router-queue=requests:1,requests:2
expect 2 'router-queue: got "requests:0"' replay $fleet --router-queue=requests:0
expect 2 'router-queue-order: got "lifo", expected fcfs or priority' replay $queued --router-queue-order=lifo
expect 2 'router-queue-limit: got "-1", expected a whole' replay $queued --router-queue-limit=-1
expect 2 'router-queue-limit needs --router-queue' replay $fleet --router-queue-limit=1
expect 2 'router-queue needs --replicas' replay --router-queue=requests:1
# Limits hold for all requests together.
expect 1 '' replay $fleet --slo=ttft:1ms:p50
grep -q '^goodput .*a percentile misses its limit' out || fail "a fleet does not say that limits are missed: $(cat out)"
expect 0 '' replay $fleet --slo=ttft:10s:p99
# Sweeps over routers are their replays.
expect 0 '' sweep $fleet --grid router=random,prefix --grid load-weight=0.1,1 --results=points.jsonl \
  --metrics=hit-rate,imbalance,missed-hits,replicas --csv=points.csv
[ "$(wc -l <points.jsonl)" -eq 3 ] || fail "points that differ in unused options are not one"
expect 0 '' replay $fleet --router=prefix --load-weight=0.1 --json-file=one.json
shows '^note  *1 point is the replay of another' sweep $fleet --grid router=random,prefix --grid load-weight=0.1,1 --results=points.jsonl
expect 0 '' sweep $fleet --grid router=random,prefix --grid load-weight=0.1,1 --pareto=missed-hits
grep -q '^best  *\* --router=prefix --load-weight=0.1: missed-hits' out || fail "the best router is another: $(cat out)"
rate=$(tr -d ' \n' <one.json | grep -o '"token_hit_rate":{[^}]*}' | head -1 | sed 's/.*"value":\([0-9.]*\)}/\1/')
grep -q "prefix,0.1,${rate:0:14}" points.csv || fail "a sweep's hit rate is not the replay's: $rate, $(cat points.csv)"
expect 0 '' sweep --num-blocks=2000 --router=prefix --grid replicas=1,2 --metrics=hit-rate
expect 1 '' sweep --num-blocks=2000 --grid router=best,random --replicas=2
# Capacity behind a router.
shows 'behind prefix for 20 requests/s' capacity --num-blocks=4000 --slo=tpot:9ms@p95 --router=prefix --rate=20
grep -q 'worst replica' out && fail "percentiles of a fleet are those of all requests"
expect 0 '' capacity --num-blocks=4000 --slo=tpot:9ms@p95 --replicas=2 --router=prefix --json-file=capacity.json
speedup=$(grep -m1 -A12 '"at_highest"' capacity.json | grep -m1 '"speedup"' | cut -d'"' -f4)
expect 0 '' replay --num-blocks=4000 --slo=tpot:9ms:p95 --replicas=2 --router=prefix --speedup=$speedup
speedup=$(grep -m1 -A12 '"at_failing"' capacity.json | grep -m1 '"speedup"' | cut -d'"' -f4)
expect 1 '' replay --num-blocks=4000 --slo=tpot:9ms:p95 --replicas=2 --router=prefix --speedup=$speedup
expect 2 'router needs --replicas above 1' capacity --slo=ttft:1s@p99 --router=prefix
expect 2 'replicas: got 2, expected none with --rate' capacity --slo=ttft:1s@p99 --replicas=2 --rate=9
expect 2 'event-loss needs --router=prefix (got random)' capacity --slo=ttft:1s@p99 --rate=9 --router=random --event-loss=0.1

# Steps, timelines and metrics of all replicas in one file each.
outputs="--steps=steps.csv --step-requests --perfetto=timeline.json --metrics=run.om"
expect 0 '' replay $fleet --router=prefix $outputs --json-file=steps.json --quiet
head -1 steps.csv | grep -q ',hit_tokens,replica,requests,digest' || fail "steps of a fleet do not say whose they are"
awk -F, 'NR > 1 { if ($3 + 0 < last[$14]) exit 1; last[$14] = $3 + 0 }' steps.csv || fail "steps of a replica are not in order"
rows=$(tail -n +2 steps.csv | wc -l)
steps=$(grep -m1 '^  "steps": ' steps.json | tr -dc 0-9)
[ "$rows" -eq "$steps" ] || fail "$rows rows of steps, and the report counts $steps"
for replica in 0 1 2; do
  cut -d, -f14 steps.csv | grep -q "^$replica$" || fail "no steps of replica $replica"
  grep -q "\"args\":{\"name\":\"replica $replica\"}" timeline.json || fail "no timeline of replica $replica"
  grep -q "^vllm:generation_tokens_total{.*engine=\"$replica\"" run.om || fail "no metrics of replica $replica"
done
[ "$(grep -c '^# TYPE vllm:generation_tokens ' run.om)" -eq 1 ] || fail "a family of metrics stands there twice"
[ "$(tail -1 run.om)" = '# EOF' ] || fail "the metrics of a fleet have no end"
expect 0 '' compare steps.csv steps.csv
expect 0 '' replay $fleet --router=round-robin --steps=other.csv --quiet
expect 1 '' compare steps.csv other.csv

# The same with prefill and decode on replicas of their own.
outputs="--steps=split.csv --perfetto=split.json --metrics=split.om --csv=split_rows.csv"
expect 0 '' replay --prefill-replicas=2 --decode-replicas=1 $outputs --quiet
[ "$(tail -n +2 split_rows.csv | wc -l)" -eq 396 ] || fail "not one row per request that is handed over"
head -1 split_rows.csv | grep -q ',end_ms,prefill_replica,decode_replica,prompt_ms,handover_ms,transfer_ms,' || fail "no phases in rows"
for replica in 'prefill 0' 'prefill 1' 'decode 0'; do
  cut -d, -f14 split.csv | grep -q "^$replica$" || fail "no steps of $replica"
  grep -q "\"args\":{\"name\":\"$replica\"}" split.json || fail "no timeline of $replica"
  grep -q "^vllm:generation_tokens_total{.*engine=\"$replica\"" split.om || fail "no metrics of $replica"
done
expect 2 'compares cached blocks, but prefix caching is off' replay $fleet --router=prefix --no-prefix-caching

# --- Replicas that start, stop and crash ---
plan="--num-blocks=2000 --replicas=2 --router=prefix --speedup=4"
says '"requests_finished": 396,' replay $plan --json --scale=20s:crash@0,40s:start,80s:stop@1 --start-time=10s
says 'fleet 2 replicas .* 1 start (1 again), 1 stop, 1 crash lost [1-9].* requests* by crashes' \
  replay $plan --scale=20s:crash@0,40s:start,80s:stop@1 --start-time=10s
narrow "the table of a plan"
says '"requests_failed": [1-9]' replay $plan --scale=20s:crash=2,21s:start --lost-requests=fail --json
says '"requests_finished": 396,' replay --json --num-blocks=2000 --speedup=20 --scale-rule=queue:0.1:2 --max-replicas=3
expect 3 'requests wait at the router, the first is' replay $plan --scale=20s:crash=2
expect 2 '^kvsim replay: --scale: got "20s:sleep", expected TIME:ACTION' replay $plan --scale=20s:sleep
expect 2 '^kvsim replay: --scale-rule: got "queue:3:1", expected queue:LOW:HIGH' replay $plan --scale-rule=queue:3:1
expect 2 '^kvsim replay: --max-replicas needs --scale-rule' replay $plan --max-replicas=3
expect 2 '^kvsim replay: --min-replicas: got "3", expected a whole number from 1 to 2' replay $plan --scale-rule=queue:1:2 --min-replicas=3
expect 2 '^kvsim replay: --start-time needs --scale' replay $plan --start-time=1s
expect 2 '^kvsim replay: --lost-requests: got "drop", expected retry or fail' replay $plan --scale=1s:start --lost-requests=drop
# --- Tiers behind replicas: a fleet shares what it stored; one replica has nobody to share with ---
tier=host:9GiB:read=20GB/s
expect 2 'expected no shared tier with one replica' replay --num-blocks=400 --tier=$tier:shared
loaded() { sed -n 's/.*"loaded_tokens": \([0-9]*\).*/\1/p' out | head -1; }
expect 0 '' replay --num-blocks=400 --replicas=3 --json --check-invariants --tier=$tier
own=$(loaded)
keep shared.json replay --num-blocks=400 --replicas=3 --json --check-invariants --tier=$tier:shared
[ "$(loaded)" -gt "$((own * 5 / 4))" ] || fail "a shared tier gives $(loaded) tokens, tiers of their own $own"
alike shared.json "two runs over a shared tier differ" replay --num-blocks=400 --replicas=3 --json --check-invariants --tier=$tier:shared
expect 2 'two have the name' replay --num-blocks=400 --replicas=3 --tier=host:1GiB:read=20GB/s,$tier:shared
expect 0 '' replay --num-blocks=400 --replicas=3 --tier=near:1GiB:read=20GB/s,$tier:shared
grep -q '^tiers .* loaded' out && grep -q '^host  *shared; ' out || fail "no tiers of a fleet: $(cat out)"
expect 2 'expected shared in it, as "host" before it is' replay --tier=$tier:shared,disk:9GiB:read=1GB/s

finish
