#!/bin/bash
# Inputs that ask for far more than they are: memory is bounded, and nothing that is read is written over.
. "$(dirname "$0")/kvsim_checks.sh"

write_trace
cat >limited <<END
#!/bin/bash
ulimit -v 3000000
exec "$kvsim" "\$@"
END
chmod +x limited
unlimited=$kvsim
kvsim=$PWD/limited

# --- Ids copied from other requests cost a file nothing ---
{
  printf 'header { version: 1 block_tokens: 1 }\n\nrequest { id: 1 input_length: 1000000 output_length: 1 ids: [1'
  head -c 999999 /dev/zero | sed 's/\x0/,1/g'
  printf '] }\n\n'
  for i in $(seq 2 1000); do
    printf 'request { id: %d input_length: 1000000 output_length: 1 copy_from: 1 copy_ids: 1000000 }\n\n' "$i"
  done
} | gzip >copies.kvt.gz
expect 0 '' validate copies.kvt.gz
expect 2 'requests held at once: got' replay copies.kvt.gz --num-blocks=70000
expect 2 'requests held at once: got' replay copies.kvt.gz --num-blocks=70000 --concurrency=1
expect 2 'requests held at once: got' curve copies.kvt.gz --what-if=shuffled
judge 1 'requests held at once: got' sweep copies.kvt.gz --grid=num_blocks=1000,2000
bash -c "ulimit -v 250000; exec '$unlimited' stats copies.kvt.gz" >out 2>err
[ $? -eq 2 ] || fail "stats without memory did not end as for bad input"
grep -q 'out of memory' err || fail "stats without memory says: $(head -c 300 err)"
grep -q -e '--num-blocks' err && fail "stats blames a pool that it does not have"

# --- Sessions of long rounds ---
for i in $(seq 500); do
  echo '{"provider": "claude", "session_id": "s'"$i"'", "round_index": 0, "model": "m", "input_tokens_total": 60000000, "prefix_tokens": 0, "newly_append_tokens": 60000000, "output_tokens": 1, "timing_events": [], "tools": []}'
done >rounds.jsonl
expect 0 '' convert rounds.jsonl some.csv --to=csv --sample=0.01

# --- Events of many streams ---
{
  printf '\xb1kvblocks-events-1'
  for i in $(seq 10000 15000); do printf '\x94\xa1s\xa5%d\x00\xc4\x03\x92\x01\x90' "$i"; done
} >streams.kvlog
expect 2 'got more than 4096 streams' events streams.kvlog

# --- Workloads of many sessions at once ---
expect 2 'sessions under way at once: got' gen --turns=1000 --rate=1000 --requests=200000 -o made.kvt
expect 2 '--rate: got 1e-09, expected 1e-06 to' gen --rate=1e-9 -o made.kvt
expect 0 'requests are missing: nothing arrives after' gen --rate=1e-6 --requests=2000 -o made.kvt

# --- Nothing that is read is written over, however it is spelled ---
kvsim=$unlimited
cp trace.jsonl kept.jsonl
ln -s trace.jsonl symbolic.jsonl
ln trace.jsonl hard.jsonl
for out in trace.jsonl ./trace.jsonl symbolic.jsonl hard.jsonl "$PWD/../${PWD##*/}/trace.jsonl"; do
  expect 2 'is what IN reads and would be overwritten' convert trace.jsonl "$out"
  expect 2 'is what --measured reads' calibrate --measured=trace.jsonl --output="$out"
  expect 2 'is what TRACE reads' sweep trace.jsonl --grid=num_blocks=1000,2000 --csv="$out"
  expect 2 'is what TRACE reads' sweep --grid=trace=trace.jsonl --csv="$out"
  expect 2 'is what --config reads' replay --config=trace.jsonl --csv="$out"
  expect 2 'is what --kernel-tables reads' replay --kernel-tables=trace.jsonl --csv="$out"
  expect 2 'is what --step-times reads' replay --time=recorded --step-times=trace.jsonl --json-file="$out"
done
expect 2 'is what TRACE reads' replay trace.jsonl --csv=/dev/fd/9 9>>trace.jsonl
cmp -s trace.jsonl kept.jsonl || fail "an input was written over"
ln -s new.out link.out
expect 2 'new.out is the same file' replay --csv=./new.out --html=new.out
expect 2 'link.out is the same file' replay --csv=link.out --html=new.out
expect 2 'both want standard output' replay --csv=- --html=/dev/stdout
expect 2 '--csv: got an empty value' replay --csv= --num-blocks=2
expect 2 '--csv: got no value before --num-blocks=2' replay --csv --num-blocks=2
[ -e ./--num-blocks=2 ] && fail "an option became a file"
for command in replay stats validate curve explain events verify; do
  expect 2 'got a directory, expected a file' $command .
done
expect 2 'Is a directory' convert trace.jsonl .

# --- Options without effect ---
while IFS='|' read -r pattern arguments; do
  # shellcheck disable=SC2086
  expect 2 "$pattern" $arguments
done <<'END'
--layout needs --plan=exact|replay --layout=slab
--memory-utilization needs no --num-blocks (got 2000)|replay --memory-utilization=0.5 --num-blocks=2000
--activation-gb needs no --num-blocks (got 2000)|replay --activation-gb=3 --num-blocks=2000
--graph-gb needs no --kv-memory (got 20)|replay --graph-gb=3 --kv-memory=20
--layout needs --plan=exact|sweep --layout=slab --grid=num_blocks=1000,2000
--step-time needs --time=fixed|capacity --step-time=1ms --largest=num_blocks=1000:2000 --where=hit-rate>=0.5
--layout needs --plan=exact|capacity --layout=slab --slo=ttft:2s@p99
--memory-utilization needs no --num-blocks (got 400)|capacity --memory-utilization=0.5 --num-blocks=400 --smallest=max-num-seqs=1:9 --where=hit-rate>=0.5
--acceptance needs --num-draft-tokens|replay --acceptance=iid:0.5
--drafter needs --num-draft-tokens|replay --drafter=eagle
--step-time needs --time=fixed|replay --step-time=1ms
--fixed-time needs --time=auto, table or roofline (got fixed)|replay --time=fixed --fixed-time=1ms
--start-jitter needs --concurrency|replay --start-jitter=2s
--reorder needs no --require-sorted|replay --reorder=5 --require-sorted
--reorder: got it beside --sort|convert trace.jsonl out.kvt --sort --reorder=5
--lost-requests needs --scale with crash (got 1s:stop)|replay --replicas=2 --scale=1s:stop --lost-requests=fail
--kv-events-bytes needs --kv-events|serve --kv-events-bytes
expected no shared tier with one replica|replay --tier=host:9GiB:read=20GB/s:shared
--scale-interval: got "1ns", expected a time with a unit, of at least 10ms|replay --replicas=2 --scale-rule=queue:1:2 --scale-interval=1ns
unknown option --concurrency|convert trace.jsonl out.kvt --concurrency=5
unknown option --start-jitter|stats trace.jsonl --start-jitter=5s
END

# --- A pipe cannot be read twice ---
mkfifo pipe
expect 2 'a pipe or device can be read once' curve pipe --mode=schedule
expect 2 'pipe: can be read once' calibrate --measured=pipe
expect 2 'expected a file, which can be read twice' gen --like=pipe --check -o made.kvt
cat trace.jsonl >pipe &
expect 0 '' gen --like=pipe --to=spec -o made.txtpb
wait
cat trace.jsonl >pipe &
expect 2 'restart: got a pipe or device' stats pipe --link-turns
wait

finish
