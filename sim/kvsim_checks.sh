#!/bin/bash
# What the tests of the kvsim command share. Each sources it with the program as its first argument, works in an empty
# folder, and ends with `finish`.
set -u
kvsim="$PWD/$1"
tmp=$(mktemp -d "${TEST_TMPDIR:-/tmp}/kvsim.XXXXXX")
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

# shows PATTERN ARGUMENT...: it works, and PATTERN is in a line of standard output.
shows() {
  local pattern=$1
  shift
  expect 0 '' "$@"
  grep -q -e "$pattern" out || fail "kvsim $*: '$pattern' is not in: $(head -c 700 out)"
}

# keep FILE ARGUMENT...: it works, and FILE has what is on standard output.
keep() {
  local file=$1
  shift
  expect 0 '' "$@"
  cp out "$file"
}

# alike FILE WHY ARGUMENT...: it works, and what is on standard output is what FILE has.
alike() {
  local file=$1 why=$2
  shift 2
  expect 0 '' "$@"
  cmp out "$file" || fail "kvsim $*: $why"
}

# narrow WHAT: the lines on standard output have at most 100 columns.
narrow() {
  [ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] || fail "$1 is wider than 100 columns"
}

# says PATTERN ARGUMENT...: it works, and PATTERN is in standard output with all white space as one blank.
says() {
  local pattern=$1
  shift
  expect 0 '' "$@"
  tr -s '\n ' ' ' <out | grep -q -e "$pattern" || fail "kvsim $*: '$pattern' is not in: $(head -c 700 out)"
}

# Two requests that share 512 tokens.
write_trace() {
  cat >trace.jsonl <<'END'
{"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]}
{"timestamp": 10000, "input_length": 1024, "output_length": 3, "hash_ids": [1, 3]}
END
}

# Requests of which the second evicts what the third could hit.
write_evicting_trace() {
  cat >evicting.jsonl <<'END'
{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 10000, "input_length": 2048, "output_length": 1, "hash_ids": [3, 4, 5, 6]}
{"timestamp": 20000, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2, 7]}
END
}

# Two KV-cache groups in JSON.
write_groups() {
  cat >groups.json <<'END'
{"groups": [
  {"spec": {"fullAttention": {"blockSize": 16, "numKvHeads": 8, "headSize": 128, "dtype": "bf16"}},
   "numLayers": 8},
  {"spec": {"slidingWindow": {"blockSize": 16, "numKvHeads": 8, "headSize": 128,
                              "slidingWindow": 128, "dtype": "bf16"}},
   "numLayers": 8}
]}
END
}

# The decoder of an encoder-decoder model like Whisper, and requests with an input of 300 tokens, of none, and of
# what is usual.
write_encoder() {
  cat >whisper.textproto <<'END'
groups {
  spec { full_attention { block_size: 16 num_kv_heads: 20 head_size: 64 dtype: "bf16" } }
  num_layers: 32
}
groups {
  spec { cross_attention { block_size: 16 num_kv_heads: 20 head_size: 64 dtype: "bf16" } }
  num_layers: 32
}
END
  cat >speech.jsonl <<'END'
{"timestamp": 0, "input_length": 4, "output_length": 30, "block_size": 0, "hash_ids": []}
{"timestamp": 10, "input_length": 4, "output_length": 20, "block_size": 0, "hash_ids": [], "encoder_tokens": 300}
{"timestamp": 20, "input_length": 4, "output_length": 10, "block_size": 0, "hash_ids": [], "encoder_tokens": 0}
{"timestamp": 30, "input_length": 4, "output_length": 20, "block_size": 0, "hash_ids": []}
END
}

finish() {
  if [ "$failures" -gt 0 ]; then
    echo "$failures failures" >&2
    exit 1
  fi
  echo "all passed"
}
