#!/usr/bin/env bash
# kvsim serve with clients that others wrote: the openai package, vLLM's benchmark, event decoder, block hashes and list
# of metrics, AIPerf, vllm-router with KV-aware routing in front of four servers, Prometheus' own parser, Hugging Face's
# tokenizers.
#   tools/serve_clients_test.sh [FOLDER]
# FOLDER: a virtual environment that has vLLM 0.33.0 already, or where to make one. Without it one is made in
# ~/.cache/kvblocks/vllm-0.33.0: pip downloads vLLM and all that it needs from PyPI (several GB); no GPU is used. The router and
# AIPerf get environments of their own beside it.
# Not part of .ci/run. The last line counts: "N passed, M failed". Exit status: 0 all passed, 1 some failed, 2 no environment.
set -u
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
cd "$root" || exit 2
environment=${1:-$HOME/.cache/kvblocks/vllm-0.33.0}
if ! [ -x "$environment/bin/vllm" ]; then
  python3 -m venv "$environment" && "$environment/bin/pip" install --quiet vllm==0.33.0 || exit 2
fi
"$environment/bin/python" -c 'import importlib.metadata as m; v = m.version("vllm"); assert v.startswith("0.33."), v' || exit 2
router=$HOME/.cache/kvblocks/vllm-router
if ! [ -x "$router/bin/vllm-router" ]; then
  python3 -m venv "$router" && "$router/bin/pip" install --quiet vllm-router || exit 2
fi
aiperf=$HOME/.cache/kvblocks/aiperf-0.13.0
if ! [ -x "$aiperf/bin/aiperf" ]; then
  python3 -m venv "$aiperf" && "$aiperf/bin/pip" install --quiet aiperf==0.13.0 || exit 2
fi
. tools/prepare.sh
kvblocks_prepare
bazel build -c opt --color=no --curses=no --noshow_progress //sim:kvsim || exit 2
exec "$environment/bin/python" tests/serve/with_clients.py "$(bazel info -c opt bazel-bin 2>/dev/null)/sim/kvsim" \
  "$environment/bin/vllm" "$router/bin/vllm-router" "$aiperf/bin/aiperf"
