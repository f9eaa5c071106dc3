#!/usr/bin/env bash
# Builds gpu_check, every test and benchmark of the CUDA backend in one file that needs only a driver, installing what the
# build misses (Debian packages, a CUDA compiler from PyPI). Where there is a GPU, runs it with the arguments given.
#   tools/gpu_check.sh                     the tests
#   tools/gpu_check.sh --portable          the tests, with the kernels for compute capability 8.0
#   tools/gpu_check.sh --bench=decode      benchmarks; --rounds=N, --warm-ms=MS, --matrix-tflops=X
#   tools/gpu_check.sh --to=DIR            does not run it, but leaves a copy in DIR to carry to another machine
# Exit status: that of gpu_check (0 all passed), 2 could not be built or copied.
set -u
cd "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")" || exit 2
to=
arguments=()
for argument in "$@"; do
  case $argument in
    --to=?*) to=${argument#--to=} ;;
    --to | --to=)
      echo "tools/gpu_check.sh: --to needs a folder: --to=DIR" >&2
      exit 2
      ;;
    -h | --help)
      sed -n '2,/^set -u/{/^# /s/^# //p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) arguments+=("$argument") ;;
  esac
done
if [ -n "$to" ] && [ "${#arguments[@]}" -gt 0 ]; then
  echo "tools/gpu_check.sh: --to leaves the program and does not run it; give ${arguments[0]} to the program there" >&2
  exit 2
fi
. tools/prepare.sh
kvblocks_prepare
tools/cuda_toolkit.sh >/dev/null || exit 2
bazel build -c opt //attention/cuda:gpu_check || exit 2
built=$(bazel info -c opt bazel-bin 2>/dev/null)/attention/cuda/check/gpu_check
tools/check_portable.sh "$built" || exit 2
if [ -n "$to" ]; then
  mkdir -p -- "$to" && strip -o "$to/gpu_check" "$built" || exit 2
  ls -l "$to/gpu_check"
  exit 0
fi
exec "$built" "${arguments[@]}"
