#!/usr/bin/env bash
# Prints the commands of the sh blocks of the README and of docs/, each once, one a line, without comments.
set -eu
cd "$(dirname -- "$0")/.."
awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF && $1 !~ /^#/ && !seen[$0]++' README.md docs/*.md
