#!/usr/bin/env bash
# Installs a CUDA compiler for the CUDA backend, without root: NVIDIA's wheels of CUDA 13.0 from PyPI (105 MB, pinned by
# hash), unpacked into ${XDG_CACHE_HOME:-~/.cache}/kvblocks/cuda-13.0, where the build looks for it. Running programs
# needs a driver as well; compiling does not.
#   tools/cuda_toolkit.sh            does nothing if the build finds a CUDA already: by CUDA_PATH, on PATH or in /usr/local/cuda
#   tools/cuda_toolkit.sh --force    installs beside such a CUDA and replaces an earlier installation
# The last line on standard output is the folder. Exit status: 0 there is a CUDA that compiles, 2 there is none.
set -u
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
release=13.0
folder=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kvblocks/cuda-$release

requirements() {
  cat <<'EOF'
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
# The disassemblers; PyPI has none of 13.0, and these read its code.
nvidia-cuda-cuobjdump==13.2.86 --hash=sha256:d332c2ffe78e703ca0a3894be927f83124244e2acf0d792b8c12b4362d44d837
nvidia-cuda-nvdisasm==13.2.86 --hash=sha256:53606e719ecae07a2335f95902d5a1393a0cc1c317499ee7ffcf628a44385f2c
EOF
}

say() { echo "kvblocks: $*" >&2; }

give_up() {
  say "$*"
  exit 2
}

# Compiles and links, for both generations that the kernels are compiled for, as the build does.
compiles() {
  local cuda=$1 work status
  work=$(mktemp -d)
  cat >"$work/probe.cu" <<'EOF'
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <span>
#include <cuda/std/cmath>
__global__ void Scale(__nv_bfloat16* x) { x[threadIdx.x] = __float2bfloat16(cuda::std::sqrt(2.0f)); }
int main() {
  Scale<<<1, 32>>>(nullptr);
  return static_cast<int>(std::span<int>().size());
}
EOF
  "$cuda/bin/nvcc" -std=c++20 -O3 -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a \
    --cudart=static -o "$work/probe" "$work/probe.cu" >&2
  status=$?
  rm -rf "$work"
  return "$status"
}

# Whether nvcc there is of release 12.4 or later.
recent() {
  local major minor
  read -r major minor < <("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  [ "$((${major:-0} * 100 + ${minor:-0}))" -ge 1204 ]
}

# Prints the CUDA that the build takes before ours; third_party/cuda/cuda.bzl looks in the same order.
installed_elsewhere() {
  local nvcc found
  if [ -n "${CUDA_PATH:-}" ]; then
    echo "$CUDA_PATH"
    return
  fi
  for nvcc in "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
    [ -x "$nvcc" ] || continue
    found=$(dirname -- "$(dirname -- "$(readlink -f -- "$nvcc")")")
    if recent "$found"; then
      echo "$found"
      return
    fi
    say "$found is no CUDA 12.4 or later"
  done
  return 1
}

unpack() {
  "$python" - "$@" <<'EOF'
import os, sys, zipfile

target, wheels = sys.argv[1], sys.argv[2:]
prefix = "nvidia/cu13/"
# libnvvm is for programs that compile at run time; nvcc has its own.
unneeded = (".metadata/", "lib/cmake/", "lib/libnvvm")
for wheel in wheels:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = entry.filename[len(prefix):]
            if not entry.filename.startswith(prefix) or entry.is_dir() or path.startswith(unneeded):
                continue
            destination = os.path.join(target, path)
            os.makedirs(os.path.dirname(destination), exist_ok=True)
            with open(destination, "wb") as out:
                out.write(archive.read(entry))
            mode = 0o755 if path.startswith(("bin/", "nvvm/bin/")) else 0o644
            os.chmod(destination, mode)
EOF
}

force=
case ${1-} in
  '') ;;
  --force) force=1 ;;
  *) give_up "usage: tools/cuda_toolkit.sh [--force]" ;;
esac

if [ -z "$force" ]; then
  if found=$(installed_elsewhere); then
    compiles "$found" || give_up "the build would use $found, but that does not compile, see above. It takes CUDA 12.4 or" \
      "later: set CUDA_PATH to one, or run tools/cuda_toolkit.sh --force and set CUDA_PATH=$folder"
    say "the build uses the CUDA in $found; nothing to install"
    echo "$found"
    exit 0
  fi
  if [ -x "$folder/bin/nvcc" ]; then # moved there complete and tried
    say "CUDA $release is in $folder"
    echo "$folder"
    exit 0
  fi
fi

[ "$(uname -sm)" = "Linux x86_64" ] || give_up "the wheels are for Linux on x86-64, this is $(uname -sm); install CUDA and set CUDA_PATH"
python=
find_python() {
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && return
  done
  return 1
}
if ! find_python || ! command -v g++ >/dev/null; then
  . "$root/tools/prepare.sh"
  kvblocks_packages=(g++ python3 python3-pip)
  kvblocks_prepare
  find_python || give_up "$(command -v python3 || echo python3) has no pip; install it"
fi

say "downloading CUDA $release with pip, 105 MB"
mkdir -p "${folder%/*}" || exit 2
work=$(mktemp -d "${folder%/*}/cuda.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
requirements >"$work/requirements.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --retries 2 --timeout 30 --no-deps \
  --only-binary :all: --platform manylinux2014_x86_64 --require-hashes \
  --dest "$work/wheels" --requirement "$work/requirements.txt" >&2 ||
  give_up "pip could not download CUDA $release, see above. It takes access to PyPI or a mirror that pip is configured" \
    "for; or install CUDA 12.4 or later and set CUDA_PATH"
unpack "$work/cuda" "$work"/wheels/*.whl || give_up "could not unpack CUDA $release into $work/cuda"
ln -s lib "$work/cuda/lib64"
compiles "$work/cuda" || give_up "CUDA $release was installed, but does not compile, see above"
chmod 755 "$work/cuda"
rm -rf "$folder"
mv -T "$work/cuda" "$folder" || [ -x "$folder/bin/nvcc" ] || exit 2
say "CUDA $release is in $folder"
if found=$(installed_elsewhere 2>/dev/null) && [ "$found" != "$folder" ]; then
  say "the build goes on using the CUDA in $found, unless CUDA_PATH=$folder is set"
fi
# A running Bazel server has looked for CUDA already.
(cd "$root" && command -v bazel >/dev/null && bazel shutdown >/dev/null 2>&1)
echo "$folder"
