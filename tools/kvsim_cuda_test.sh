#!/usr/bin/env bash
# What ./kvsim does where it is asked for a GPU: with a GPU and a compiler, and without.
set -u
here=$(dirname -- "${BASH_SOURCE[0]}")
. "$here/kvsim_cuda.sh"
work=${TEST_TMPDIR:-$(mktemp -d)}
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

wants() { kvsim_wants_cuda "$@" || fail "wants no GPU: $*"; }
does_not_want() { ! kvsim_wants_cuda "$@" || fail "wants a GPU: $*"; }
wants verify --device=cuda
wants verify --backend=cuda
wants verify trace.jsonl.gz --rows=0 --device cuda --limit=3
wants verify --backend cuda trace.jsonl.gz
does_not_want
does_not_want verify
does_not_want verify trace.jsonl.gz --backend=cpu
does_not_want verify cuda
does_not_want verify --device cuda-h --limit 3
does_not_want verify --device=h200
does_not_want verify --device=cuda --help
does_not_want verify -h --device cuda
does_not_want replay --device=cuda

# A machine of our own: programs, devices and compilers are found here alone.
mkdir -p "$work/bin" "$work/dev" "$work/home"
for program in dirname sed cat; do ln -sf "$(command -v $program)" "$work/bin/$program"; done
PATH=$work/bin HOME=$work/home
unset XDG_CACHE_HOME CUDA_PATH
kvsim_devices=$work/dev
kvsim_system_nvcc=$work/cuda/bin/nvcc
compiler() { # FILE RELEASE
  mkdir_p "${1%/*}"
  printf '#!%s\necho "Cuda compilation tools, release %s, V%s.0"\n' "$bash" "$2" "$2" >"$1"
  chmod_x "$1"
}
bash=$BASH
mkdir_p() { /bin/mkdir -p "$1"; }
chmod_x() { /bin/chmod +x "$1"; }
expect() { # MISSING...
  local missing part
  missing=$(kvsim_cuda_missing)
  if [ $# -eq 0 ] && [ -n "$missing" ]; then fail "still missing: $missing"; fi
  for part in "$@"; do
    case $missing in *"$part"*) ;; *) fail "does not name '$part': $missing" ;; esac
  done
}
expect "no NVIDIA GPU" "no CUDA compiler" "tools/cuda_toolkit.sh"
compiler "$work/bin/nvcc" 11.8
expect "no CUDA compiler"
compiler "$work/bin/nvcc" 12.4
expect "no NVIDIA GPU"
case $(kvsim_cuda_missing) in *compiler*) fail "misses a compiler that is on PATH" ;; esac
: >"$work/dev/nvidia0"
expect
/bin/rm "$work/dev/nvidia0"
printf '#!%s\necho "GPU 0: some GPU"\n' "$bash" >"$work/bin/nvidia-smi" && chmod_x "$work/bin/nvidia-smi"
expect
printf '#!%s\nexit 9\n' "$bash" >"$work/bin/nvidia-smi"
expect "no NVIDIA GPU"
/bin/rm "$work/bin/nvidia-smi" "$work/bin/nvcc"
: >"$work/dev/nvidia3"
expect "no CUDA compiler"
compiler "$work/home/.cache/kvblocks/cuda-13.0/bin/nvcc" 13.0
expect
compiler "$work/cuda/bin/nvcc" 12.9
[ "$(kvsim_nvcc)" = "$work/cuda/bin/nvcc" ] || fail "takes $(kvsim_nvcc)"
CUDA_PATH=$work/nowhere # which alone counts
expect "$work/nowhere has no bin/nvcc"

[ "$failures" -eq 0 ] && echo "PASSED"
exit "$((failures > 0))"
