#!/usr/bin/env bash
# Writes python/kvblocks/_core.pyi, the types of the extension module, from the module itself.
#   tools/python_stub.sh BUILD_FOLDER [OUTPUT]
# BUILD_FOLDER was configured with -DKVBLOCKS_PYTHON=ON and is built. $PYTHON is the interpreter (python3).
set -eu
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
output=${2:-$root/python/kvblocks/_core.pyi}
PYTHONPATH=$1/python "${PYTHON:-python3}" -m nanobind.stubgen -q -m kvblocks._core -p "$root/python/src/stub_patterns.txt" -o "$output"
# What kvblocks.vllm is made of is no interface; the patterns declare it without types.
sed -i '/^from kvblocks._core import vllm_native/d' "$output"
