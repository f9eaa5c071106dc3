#!/usr/bin/env bash
# docs_test.sh KVSIM: what the documents name exists, and what they show is what kvsim prints and what the includes give.
# It reads the whole tree, which is found through the links that Bazel makes to sources.
set -u
[ $# -eq 1 ] || { echo "usage: docs_test.sh KVSIM"; exit 2; }
kvsim=$(readlink -f -- "$1")
root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
status=0
check() {
  echo "== $*"
  "$@" || status=1
}
cd "$root" || exit 2
check python3 tests/docs/check_docs_test.py
check python3 tests/docs/check_docs.py --kvsim="$kvsim"
check python3 tools/doc_samples.py --check --kvsim="$kvsim"
check python3 tools/draw_house.py --check
exit "$status"
