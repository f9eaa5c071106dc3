#!/usr/bin/env bash
# Writes python/kvblocks/_core.pyi and _attention.pyi, the types of the extension modules, from the modules themselves.
#   tools/python_stub.sh BUILD_FOLDER [OUTPUT_FOLDER]
# BUILD_FOLDER was configured with -DKVBLOCKS_PYTHON=ON and is built. $PYTHON is the interpreter (python3).
set -eu
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
output=${2:-$root/python/kvblocks}
for module in _core _attention; do
  PYTHONPATH=$1/python "${PYTHON:-python3}" -m nanobind.stubgen -q -m kvblocks.$module -p "$root/python/src/stub_patterns.txt" \
    -o "$output/$module.pyi"
done
# What kvblocks.vllm is made of is no interface; the patterns declare it without types.
sed -i '/^from kvblocks._core import vllm_native/d' "$output/_core.pyi"
