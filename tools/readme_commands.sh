#!/usr/bin/env bash
# Prints the commands of the README's sh blocks, one a line, without comments.
set -eu
awk '/^```sh$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF && $1 !~ /^#/' "$(dirname -- "$0")/../README.md"
