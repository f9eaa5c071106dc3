#!/usr/bin/env bash
# Runs the tests of the faulty core once per planted fault: see run_faults.py.
set -eu
exec python3 -Bu "$(dirname -- "$0")/run_faults.py" "$@"
