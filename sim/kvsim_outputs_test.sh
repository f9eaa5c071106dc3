#!/bin/bash
# Runs the kvsim command: events, files for other tools, validation, comparison, pipes, links and signals.
. "$(dirname "$0")/kvsim_checks.sh"

write_trace
"$kvsim" convert trace.jsonl trace.kvt --quiet || fail "no trace in the native format"

# --- KV events ---
keep with_events.json replay --num-blocks=2000 --json --events=events.kvlog.gz
alike with_events.json "two runs with events differ" replay --num-blocks=2000 --json --events=again.kvlog
gunzip -c events.kvlog.gz | cmp - again.kvlog || fail "two runs record other events"
alike with_events.json "recording events changes the replay" replay --num-blocks=2000 --json
expect 0 '' events events.kvlog.gz --record=copy.kvlog
cmp copy.kvlog again.kvlog || fail "a copy of a record differs"
grep -q '^consistent .*yes' out || fail "recorded events are not consistent: $(cat out)"
shows '^#0 stored ' events again.kvlog --show --batches=1
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
expect 2 'is what SOURCE reads and would be overwritten' events again.kvlog --record=again.kvlog
expect 2 '--events-replay needs --events=ENDPOINT' replay --events-replay=tcp://127.0.0.1:1
expect 2 '--events-pace: got "fast"' replay --events-pace=fast
expect 2 'expected one like tcp' replay --events=http://127.0.0.1:1
# Live, with a subscriber that is there first and one that comes late.
"$kvsim" replay --num-blocks=2000 --quiet --events=ipc://live.sock --events-replay=ipc://again.sock \
  --events-subscribers=1 --events-linger=6s 2>live_err &
publisher=$!
shows ' 0 lost at 0 places' events ipc://live.sock --replay=ipc://again.sock --idle=2s --record=live.kvlog
grep 'batches with' out | grep -o '^.* events' >live_count
expect 0 '' events ipc://live.sock --replay=ipc://again.sock --idle=1s
grep 'batches with' out | grep -o '^.* events' | cmp - live_count || fail "who comes late sees other events: $(cat out)"
expect 0 '' events events.kvlog.gz
grep 'batches with' out | grep -o '^.* events' | cmp - live_count || fail "live and recorded events differ: $(cat out live_count)"
wait $publisher || fail "the publishing replay failed: $(cat live_err)"

# --- For other tools ---
keep plain.json replay --num-blocks=2000 --json
alike plain.json "--perfetto and --metrics change the report" replay --num-blocks=2000 --json --perfetto=run.json --metrics=run.om --csv=rows_too.csv
grep -q '"complete":true' run.json || fail "the timeline is cut"
head -c1 run.json | grep -q '{' || fail "the timeline is no JSON"
[ "$(tail -1 run.om)" = '# EOF' ] || fail "the metrics have no end"
total=$(sed -n 's/^vllm:generation_tokens_total{.*} //p' run.om)
grep -q "\"output_tokens\": $total," plain.json || fail "$total output tokens in the metrics"
expect 0 '' replay --perfetto=again.json.gz --num-blocks=2000 --quiet
gzip -dc again.json.gz | cmp - run.json || fail "two timelines differ"
expect 0 '' replay --perfetto=-
head -c1 out | grep -q '{' || fail "--perfetto=- prints no JSON"
shows '^vllm:num_requests_running{.*} [0-9]* 17672256[0-9]*\.000$' replay --metrics=- --metrics-tick=10s --metrics-epoch=1767225600
expect 0 '' replay --quiet --html=run.html --slo=ttft:2s:p99
grep -q '"name":"example"' run.html || fail "no report in the page"
expect 0 '' replay --html=-
head -c15 out | grep -q '<!DOCTYPE html>' || fail "--html=- prints no page"
expect 0 '' compare plain.json plain.json --html=same.html --quiet
grep -q '"same":true' same.html || fail "no word that runs are the same"
expect 0 '' plan --model=gpt-oss-20b --device=h100 --html=plan.html
grep -q '"kind":"PlanReport"' plan.html || fail "no plan in the page"
grep -q 'plans' out || fail "a page instead of the table"
expect 2 'both want standard output' plan --json --html=-
expect 2 'would be overwritten' compare plain.json plain.json --html=plain.json
expect 2 'both want standard output' compare plain.json plain.json --json --html=-
expect 2 '--perfetto-limit needs --perfetto=FILE' replay --perfetto-limit=5
expect 2 '--perfetto-limit: got 0, expected 1 to' replay --perfetto=x.json --perfetto-limit=0
expect 2 '--metrics-tick needs --metrics=FILE' replay --metrics-tick=5s
expect 2 '--metrics-epoch needs --metrics-tick=TIME' replay --metrics=x.om --metrics-epoch=5
expect 2 '--metrics-tick: got "1us", expected' replay --metrics=x.om --metrics-tick=1us
expect 2 '--perfetto and --metrics are both x' replay --perfetto=x --metrics=x
[ ! -e x ] && [ ! -e x.json ] && [ ! -e x.om ] || fail "an option that is refused leaves a file"

# --- Validation: a bad trace is a result, on standard output ---
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
keep a.json replay --json --num-blocks=2000 --steps=a.csv.gz --step-requests
keep b.json replay --json --num-blocks=1500 --steps=b.csv.zst --step-requests
keep again.json replay --json --num-blocks=2000 --steps=again.csv
judge 0 'the same: 0 of ' compare a.json again.json --tolerance=0
judge 0 'the same in all [0-9,]* steps' compare a.csv.gz again.csv
judge 0 'whole_run.token_hit_rate.value' compare a.json b.json
grep -q 'num_blocks  *2,000  *1,500' out || fail "compare names no option"
narrow "the comparison"
judge 1 'failed' compare a.json b.json --tolerance=0
judge 1 '' compare a.json b.json --tolerance=inf --tolerance=whole_run.token_hit_rate:0.1
judge 0 'passed' compare a.json b.json --tolerance=inf --tolerance=whole_run.token_hit_rate:0.5
judge 0 '' compare a.json b.json --tolerance=workload:0 --tolerance=preemption:0
judge 1 '' compare a.json b.json --tolerance=0 --quiet
[ -s out ] && fail "compare --quiet prints"
judge 0 '"metrics_changed": [1-9]' compare a.json b.json --json
judge 0 '"name": "series.points\[7\].usage"' compare a.json b.json --json --all
judge 1 'schedules part at step [1-9]' compare a.csv.gz b.csv.zst
grep -q '^! [0-9][0-9]*  *[0-9.]*+[0-9]' out || fail "no request that differs"
judge 0 'schedules part at step [1-9]' compare a.json b.json --steps-a=a.csv.gz --steps-b=b.csv.zst
judge 1 'schedules part' compare a.json b.json --steps-a=a.csv.gz --steps-b=b.csv.zst --same-schedule
judge 0 '' compare a.json again.json --steps-a=a.csv.gz --steps-b=again.csv --same-schedule
for async in async no-async; do
  expect 0 '' replay --quiet --num-blocks=2000 --$async --steps=$async.csv --step-requests
done
judge 1 'schedules part at step [0-9]*' compare async.csv no-async.csv
"$kvsim" compare - a.json <a.json >out 2>err || fail "compare from standard input: $(cat err)"

expect 0 '' replay --quiet --steps=again_default.csv

# --- Accesses for simulators of caches ---
expect 0 '' stats trace.jsonl --json
refs=$(sed -n 's/ *"block_refs": \([0-9]*\),/\1/p' out)
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
keep plain.json replay --json
alike plain.json "--json-file=- is not --json" replay --json-file=-
alike again_default.csv "--steps=- prints something else" replay --steps=-
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

finish
