#!/usr/bin/env bash
# tests/serve/soak.py with kvsim built for AddressSanitizer and UndefinedBehaviorSanitizer, with debug checks.
#   tests/serve/soak.sh [SECONDS [SEED]]
# Ten minutes and seed 1 without them. Exit status: 0 all well, 1 not, 2 not built.
set -u
root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
cd "$root" || exit 2
. tools/prepare.sh
kvblocks_prepare
bazel build --config=sanitize --color=no --curses=no --noshow_progress //sim:kvsim || exit 2
exec python3 tests/serve/soak.py "$(bazel info --config=sanitize bazel-bin 2>/dev/null)/sim/kvsim" "$@"
