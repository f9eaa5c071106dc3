#!/usr/bin/env bash
# What docs/serve.md shows: a server, a request that comes twice, a stream, and some of its metrics.
#   tests/serve/example.sh ./kvsim
set -u
"$1" serve --port=0 --num-blocks=2000 --max-model-len=8192 >/tmp/kvsim-serve.$$ &
server=$!
trap 'kill "$server"; wait "$server"; rm -f /tmp/kvsim-serve.$$' EXIT
until grep -q '^http' /tmp/kvsim-serve.$$; do sleep 0.05; done
cat /tmp/kvsim-serve.$$
url=$(grep -o '^http[^ ]*' /tmp/kvsim-serve.$$)
ask() {
  echo "$ curl $1 -d '$2'"
  curl -s "$url$1" -d "$2" | fold -w 128
  echo
}
prompt='Which blocks does a prompt of one hundred and thirty bytes fill, if each of them holds sixteen, and which of them will be found again?'
ask /v1/completions "{\"prompt\": \"$prompt\", \"max_tokens\": 24}"
ask /v1/completions "{\"prompt\": \"$prompt\", \"max_tokens\": 24}"
ask /v1/completions '{"prompt": "Hello", "max_tokens": 2, "stream": true}'
ask /v1/completions '{"prompt": "Hello", "logprobs": 3}'
echo '$ curl /metrics | grep cache'
curl -s "$url/metrics" | grep -E '^vllm:(prefix_cache|prompt_tokens_cached|generation)'
