#!/bin/bash
# Every trace format through every command that reads traces.
formats="$PWD/sim/trace/testdata/formats"
. "$(dirname "$0")/kvsim_checks.sh"

# number NAME FILE: of a JSON report.
number() { grep -m1 -o "\"$1\": \"\?[0-9]*" "$2" | grep -o '[0-9]*$'; }

# try FILE FORMAT REQUESTS [OPTION...]: the file as it is, and converted.
try() {
  local file=$1 format=$2 requests=$3
  shift 3
  "$kvsim" validate "$file" "$@" --strict >out 2>err || fail "validate $file: $(head -c 500 out err)"
  keep stats.json stats "$file" "$@" --json
  grep -q "\"format\": \"$format\"" stats.json || fail "$file is not read as $format"
  [ "$(number requests stats.json)" = "$requests" ] || fail "$file has not $requests requests"
  expect 0 '' convert "$file" copy.kvt.zst --quiet "$@"
  keep one.json replay "$file" "$@" --num-blocks=4000 --json
  keep two.json replay copy.kvt.zst --num-blocks=4000 --json
  # The same requests, so the same steps and hits.
  for name in requests_arrived steps prompt_tokens; do
    [ "$(number $name one.json)" = "$(number $name two.json)" ] ||
      fail "$file and its conversion differ in $name: $(number $name one.json), $(number $name two.json)"
  done
  gzip -c "$file" >copy.gz
  [ "$format" = ragpulse ] && set -- "$@" --rag-lengths="$(dirname "$file")"
  expect 0 '' stats copy.gz "$@"
}

try "$formats/ragpulse/0_trace.jsonl" ragpulse 3
try "$formats/ragpulse/0_trace.jsonl" ragpulse 3 --rag-order=history,sys_prompt,passages,web_search,user_input
try "$formats/bailian.jsonl" bailian 4
try "$formats/bailian.jsonl" bailian 4 --closed-loop
try "$formats/burstgpt_sessions.csv" burstgpt 2
try "$formats/burstgpt.csv" burstgpt 1 --model-filter=ModelA --log-type="Conversation log"
try "$formats/azure_2024.csv" azure 3
try "$formats/vidur.csv" vidur 3
try "$formats/vidur_lengths.csv" vidur 2
try "$formats/llmservingsim.jsonl" llmservingsim 4
try "$formats/llmservingsim_ids.jsonl" llmservingsim 2
try "$formats/dynamo.jsonl" dynamo 3
try "$formats/dynamo.jsonl" dynamo 3 --closed-loop
try "$formats/lmcache.jsonl" lmcache 2
try "$formats/aiperf.jsonl" aiperf 3
try "$formats/applied_compute.jsonl" applied-compute 4
try "$formats/tracelab.jsonl" tracelab 4
try "$formats/sharegpt.json" sharegpt 1
try "$formats/sharegpt.json" sharegpt 3 --sharegpt=sessions --bytes-per-token=2
try "$formats/vllm_custom.jsonl" vllm-custom 2
try "$formats/vllm_custom_ids.jsonl" vllm-custom 2
try "$formats/aiperf_profile.jsonl" aiperf-profile 2
try "$formats/vllm_bench.json" vllm-bench 2
try "$formats/request_log.jsonl" request-log 2
try "$formats/otel_genai.jsonl" otel-genai 2
try "$formats/workload.txtpb" workload 4
try "$formats/fields.csv" fields 2 --trace-block-size=16 \
  --fields=arrival=when,session=user,input_length=prompt_tokens,output_length=completion_tokens,ids=blocks

# Calls that failed are skipped by default, also after a conversion, and make a token if asked (SM-44).
arrived() {
  keep one.json replay "$@" --num-blocks=4000 --json
  number requests_arrived one.json
}
"$kvsim" convert "$formats/burstgpt.csv" burst.kvt --quiet
[ "$(arrived "$formats/burstgpt.csv")" = 2 ] || fail "a failed call is replayed"
[ "$(arrived burst.kvt)" = 2 ] || fail "a failed call is replayed after a conversion"
[ "$(arrived burst.kvt --zero-output=one)" = 3 ] || fail "--zero-output=one skips a call"
[ "$(arrived "$formats/lmcache.jsonl")" = 2 ] || fail "look-ups are skipped"

# A workload gives the same results as the file that is written from it, and the same file each time (SM-56).
"$kvsim" gen --requests=300 --turns=3 --system=200:400 --groups=5 --rate=20 --to=spec -o chat.txtpb || fail "gen --to=spec"
"$kvsim" gen --requests=300 --turns=3 --system=200:400 --groups=5 --rate=20 -o a.kvt --quiet || fail "gen"
"$kvsim" gen chat.txtpb -o b.kvt 2>err || fail "gen chat.txtpb: $(head -c 300 err)"
cmp -s a.kvt b.kvt || fail "options and their specification give different files"
# Sessions are whole: 300 requests of 3 turns each on average, where the first 300 would have one or two.
sessions=$("$kvsim" stats a.kvt | sed -n 's/^sessions; requests that wait  *\([0-9]*\);.*/\1/p')
[ "$sessions" -gt 80 ] && [ "$sessions" -lt 125 ] || fail "gen --turns=3 --requests=300 has $sessions sessions"
grep -q "expected hit_rate: 0\." err || fail "gen does not say what to expect: $(head -c 300 err)"
grep -aq "groups: 5" a.kvt || fail "the file does not hold its specification"
for command in "replay --num-blocks=900" curve; do
  "$kvsim" $command chat.txtpb --json | sed 's/chat\.txtpb/a.kvt/' | grep -v '"format"\|"trace"\|"traceFormat"' >one.json || fail "$command chat.txtpb"
  "$kvsim" $command a.kvt --json | sed 's/chat\.txtpb/a.kvt/' | grep -v '"format"\|"trace"\|"traceFormat"' >two.json || fail "$command a.kvt"
  diff one.json two.json >differences || fail "$command differs: $(head -c 400 differences)"
done
"$kvsim" gen chat.txtpb --seed=2 -o c.kvt --quiet && cmp -s a.kvt c.kvt && fail "another seed, the same file"
"$kvsim" gen --like=a.kvt -o like.kvt --check >table 2>err || fail "gen --like: $(head -c 300 err)"
grep -q "greatest difference" table || fail "gen --check: $(head -c 300 table)"
keep stats.json stats like.kvt --json
[ "$(number requests stats.json)" = 300 ] || fail "a fit has not the trace's 300 requests"

# What is wrong with an option or a file is said, and nothing is written.
expect 2 '--trace-format: got "parquet", expected auto, mooncake' stats "$formats/vidur.csv" --trace-format=parquet
expect 2 '--fields: got "a"' stats "$formats/fields.csv" --fields=a
expect 2 '--closed-loop: got "true" for a trace of the format vidur' stats "$formats/vidur.csv" --closed-loop
expect 2 '--rag-order: got "x"' stats "$formats/ragpulse/0_trace.jsonl" --rag-order=x
expect 2 '--sharegpt: got "x"' stats "$formats/sharegpt.json" --sharegpt=x
expect 2 'or --fields to name columns' stats "$formats/fields.csv"
expect 2 '--output: got nothing' gen --requests=3
expect 2 '--rate: got -1' gen --rate=-1 -o x.kvt
expect 2 '--turns: got "x"' gen --turns=x -o x.kvt
expect 2 '--like: got it beside' gen chat.txtpb --like=a.kvt -o x.kvt
expect 2 'expected none of the options of a chat' gen chat.txtpb --rate=3 -o x.kvt
expect 2 'is what SPEC reads and would be overwritten' gen chat.txtpb -o chat.txtpb
printf 'workload: "w"\nsesions: 3\n' >bad.txtpb
expect 2 'bad.txtpb:2:' stats bad.txtpb
printf 'PAR1' >x.parquet
expect 2 'got Parquet' replay x.parquet

finish
