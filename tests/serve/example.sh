#!/usr/bin/env bash
# What docs/serve.md shows: a server, a request that comes twice, a stream, and some of its metrics. Ports and times are left out.
#   tests/serve/example.sh ./kvsim
set -u
"$1" serve --port=0 --num-blocks=2000 --max-model-len=8192 >/tmp/kvsim-serve.$$ 2>/dev/null &
server=$!
trap 'kill "$server"; wait "$server"; rm -f /tmp/kvsim-serve.$$' EXIT
until grep -qs '^http' /tmp/kvsim-serve.$$; do sleep 0.05; done
sed 's/127.0.0.1:[0-9]*/127.0.0.1:8000/' /tmp/kvsim-serve.$$
url=$(grep -o '^http[^ ]*' /tmp/kvsim-serve.$$)
ask() {
  echo "$ curl $1 -d '$2'"
  curl -s "$url$1" -d "$2" | sed 's/"created":[0-9]*/"created":0/' | grep . | fold -w 128
}
prompt='How many blocks does a prompt of ninety bytes fill, and how many of them are found again?'
ask /v1/completions "{\"prompt\": \"$prompt\", \"max_tokens\": 24}"
ask /v1/completions "{\"prompt\": \"$prompt\", \"max_tokens\": 24}"
ask /v1/completions '{"prompt": "Hello", "max_tokens": 2, "stream": true}'
ask /v1/completions '{"prompt": "Hello", "logprobs": 3}'
echo '$ curl /metrics | grep cache'
curl -s "$url/metrics" | grep -E '^vllm:(prefix_cache|prompt_tokens_cached_total|generation)'
