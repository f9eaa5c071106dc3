#!/usr/bin/env bash
# Builds the Python package from a CMake build folder and tests it: pytest, mypy, the cells of docs/python.md.
#   tests/packaging/check_python.sh [--build DIR] [--jobs N] [--without-kvsim] [--environment]
# --build: a folder that CMake configured and built already (check_cmake.sh's); only the binding is compiled there. Default: a
#     new one.
# --environment: only makes ready what Python needs.
# What Python needs comes from PyPI into an environment that is kept in ${XDG_CACHE_HOME:-~/.cache}/kvblocks.
# The last line counts: "N passed, M failed". Exit status: 0 all passed, 1 some failed, 2 could not be built.
set -u
root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
jobs=$(nproc)
build=
kvsim=ON
environment_only=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 && shift ;;
    --jobs) jobs=$2 && shift ;;
    --without-kvsim) kvsim=OFF ;;
    --environment) environment_only=1 ;;
    *) echo "unknown option $1; see the head of $0" >&2 && exit 2 ;;
  esac
  shift
done
if command -v dpkg-query >/dev/null; then
  . "$root/tools/prepare.sh"
  kvblocks_prepare "${kvblocks_packaging_packages[@]}"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${build:=$work/build}"

# Pinned: a release of theirs must not break a check of ours.
packages=(mypy==2.4.1 nanobind==3.1.0 numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1 pytest==9.2.0)
tag=$(printf '%s\n' "$(python3 --version)" "${packages[@]}" | md5sum | cut -c1-12)
environment=${XDG_CACHE_HOME:-$HOME/.cache}/kvblocks/python-$tag
python=$environment/bin/python
if [ ! -e "$environment/complete" ]; then
  python3 -m venv --clear "$environment" && "$python" -m pip install -q --disable-pip-version-check "${packages[@]}" &&
    touch "$environment/complete" || { echo "could not install ${packages[*]} from PyPI" >&2; exit 2; }
fi

[ -z "$environment_only" ] || exit 0

# A folder that was configured keeps its choice, for the other would compile kvsim anew.
cuda=()
[ -e "$build/CMakeCache.txt" ] || cuda=(-DKVBLOCKS_CUDA=OFF)
generator=()
[ -e "$build/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator=(-G Ninja)
if ! { cmake -S "$root" -B "$build" "${generator[@]}" -DKVBLOCKS_PYTHON=ON -DKVBLOCKS_KVSIM=$kvsim "${cuda[@]}" \
         -DPython_EXECUTABLE="$python" &&
       cmake --build "$build" -j "$jobs" --target kvblocks_python; } >"$work/log" 2>&1; then
  tail -n 40 "$work/log"
  echo "0 passed, 1 failed"
  exit 2
fi
if [ "$kvsim" = ON ] && ! cmake --build "$build" -j "$jobs" --target kvsim >"$work/log" 2>&1; then
  tail -n 40 "$work/log"
  exit 2
fi

. "$root/tests/packaging/check.sh"
export PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
cd "$root/python/tests" || exit 2
options=(-q -p no:cacheprovider)
[ "$kvsim" = ON ] || options+=(--ignore=test_simulator.py --ignore=test_trace.py --ignore=test_docs.py)
# mypy reads beside pytest: each takes one core.
types() { MYPYPATH=$PYTHONPATH "$python" -m mypy --config-file "$root/pyproject.toml" --cache-dir "$work/mypy" "$@"; }
{
  types -p kvblocks >"$work/package" 2>&1
  types ./*.py "$root/examples/python_scheduler.py" >"$work/tests" 2>&1
} &
mypy=$!
has_succeeded() { wait "$mypy"; cat "$work/$1"; grep -q '^Success: ' "$work/$1"; }
check "pytest" "$python" -m pytest "${options[@]}"
check "mypy --strict: the package" has_succeeded package
check "mypy --strict: its tests" has_succeeded tests
stubs_are_current() {
  mkdir -p "$work/stubs" && PYTHON=$python "$root/tools/python_stub.sh" "$build" "$work/stubs" &&
    diff "$root/python/kvblocks/_core.pyi" "$work/stubs" && diff "$root/python/kvblocks/_attention.pyi" "$work/stubs" ||
    { echo "run tools/python_stub.sh"; return 1; }
}
check "the types are those of the modules" stubs_are_current
light_import() {
  "$python" -c 'import kvblocks, sys; heavy = {"numpy", "pandas", "kvblocks.vllm", "kvblocks._attention"} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)'
}
check "import loads the module alone" light_import

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
