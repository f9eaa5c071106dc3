# Sourced by ./kvsim: whether its arguments ask for this machine's GPU, and what is missing to build and run that.

kvsim_devices=/dev
kvsim_system_nvcc=/usr/local/cuda/bin/nvcc

# Whether these are the arguments of a run on the GPU.
kvsim_wants_cuda() {
  local argument previous='' wanted=''
  [ "${1-}" = verify ] || return 1
  for argument in "$@"; do
    case $argument in
      -h | --help) return 1 ;;
      --device=cuda | --backend=cuda) wanted=1 ;;
      cuda) [ "$previous" = --device ] || [ "$previous" = --backend ] && wanted=1 ;;
    esac
    previous=$argument
  done
  [ -n "$wanted" ]
}

# Prints the compiler that the build takes: third_party/cuda/cuda.bzl looks in the same order.
kvsim_nvcc() {
  local nvcc major minor
  local candidates=("$(command -v nvcc)" "$kvsim_system_nvcc"
    "${XDG_CACHE_HOME:-${HOME-}/.cache}/kvblocks/cuda-13.0/bin/nvcc")
  [ -n "${CUDA_PATH-}" ] && candidates=("$CUDA_PATH/bin/nvcc")
  for nvcc in "${candidates[@]}"; do
    [ -x "$nvcc" ] || continue
    read -r major minor < <("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    [ "$((${major:-0} * 100 + ${minor:-0}))" -ge 1204 ] || continue
    printf '%s\n' "$nvcc"
    return 0
  done
  return 1
}

kvsim_has_gpu() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null) && [ -n "$gpus" ] && return 0
  compgen -G "$kvsim_devices/nvidia[0-9]*" >/dev/null || [ -e "$kvsim_devices/dxg" ]
}

# Prints what is missing, a line each.
kvsim_cuda_missing() {
  kvsim_has_gpu ||
    echo "kvsim: cuda: this machine has no NVIDIA GPU with a driver: nvidia-smi -L lists none, and there is no $kvsim_devices/nvidia0"
  kvsim_nvcc >/dev/null && return
  if [ -n "${CUDA_PATH-}" ]; then
    echo "kvsim: cuda: $CUDA_PATH has no bin/nvcc of CUDA 12.4 or later; set CUDA_PATH to one that has, or unset it"
  else
    echo "kvsim: cuda: there is no CUDA compiler (12.4 or later); tools/cuda_toolkit.sh installs one without root"
  fi
}
