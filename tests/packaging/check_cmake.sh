#!/usr/bin/env bash
# Builds with CMake, installs to a folder of its own, and uses what was installed as other projects do: find_package and
# pkg-config, C++ and C99, shared and static libraries. Then makes the Debian packages.
#   tests/packaging/check_cmake.sh [--build DIR] [--jobs N] [--install-deb] [--cuda]
# --build: keep the build there and continue it the next time (default: a temporary folder)
# --cuda: with the component cuda, if there is a CUDA compiler
# --install-deb: also install the packages with dpkg, use them, and remove them. Only as root.
# The last line counts: "N passed, M failed". Exit status: 0 all passed, 1 some failed, 2 could not be built.
set -u
root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
packaging=$root/tests/packaging
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build=$work/build
jobs=$(nproc)
install_deb= with_cuda=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 && shift ;;
    --jobs) jobs=$2 && shift ;;
    --install-deb) install_deb=1 ;;
    --cuda) with_cuda=1 ;;
    *) echo "unknown option $1; see the head of $0" >&2 && exit 2 ;;
  esac
  shift
done
if [ -n "$install_deb" ] && [ "$(id -u)" -ne 0 ]; then
  echo "--install-deb needs root" >&2
  exit 2
fi

if command -v dpkg-query >/dev/null; then
  . "$root/tools/prepare.sh"
  kvblocks_prepare "${kvblocks_packaging_packages[@]}"
fi

. "$packaging/check.sh"
# is_equal EXPECTED GOT
is_equal() { [ "$1" = "$2" ] || { echo "expected '$1', got '$2'" && return 1; }; }

# What the Python package's tests need arrives while this compiles.
has_python=
if python3 -c 'import venv, ensurepip' 2>/dev/null; then
  has_python=1
  "$packaging/check_python.sh" --environment >"$work/environment" 2>&1 &
  environment=$!
fi

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# Quick to compile: this is about packages, not about speed. clang takes half as long as g++, which compiles the consumers.
compiler=(-DKVBLOCKS_WERROR=ON)
if command -v clang++ >/dev/null && command -v ld.lld >/dev/null; then
  compiler=(-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld
    -DCMAKE_MODULE_LINKER_FLAGS=-fuse-ld=lld)
fi
programs=(kv_cache planning attention events_zmq offload c_interface)
# Kernels as unoptimised PTX, which nobody runs here: that is quick.
cuda=(-DKVBLOCKS_CUDA=OFF)
if [ -n "$with_cuda" ] && folder=$("$root/tools/cuda_toolkit.sh" 2>/dev/null); then
  export CUDA_PATH=${folder##*$'\n'}
  cuda=(-DKVBLOCKS_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90a-virtual)
  ! "$CUDA_PATH/bin/nvcc" --help | grep -q Ofast-compile || cuda+=(-DCMAKE_CUDA_FLAGS=--Ofast-compile=max)
  programs+=(cuda)
fi
configure() {
  cmake -S "$root" -B "$build" "${generator[@]}" "${launcher[@]}" "${compiler[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG" -DCMAKE_UNITY_BUILD=ON -DKVBLOCKS_PRECOMPILED_HEADERS=ON "${cuda[@]}" "$@"
}
build_and_install() { cmake --build "$build" -j "$jobs" && cmake --install "$build" --prefix "$1"; }
fail_to_build() {
  echo "$passed passed, $failed failed"
  exit 2
}

# CMake answers this query with the sources of every target.
mkdir -p "$build/.cmake/api/v1/query" && touch "$build/.cmake/api/v1/query/codemodel-v2"
both=$work/both static=$work/static
check "configure" configure -UBUILD_SHARED_LIBS || fail_to_build
check "build and install shared and static libraries" build_and_install "$both" || fail_to_build
if command -v bazel >/dev/null; then
  check "CMake and Bazel compile the same sources" python3 "$packaging/same_sources.py" "$build"
fi
# The same objects, so this only makes other archives of them.
check "configure for static libraries only" configure -DBUILD_SHARED_LIBS=OFF
check "build and install static libraries" build_and_install "$static"

# Outside the tree: nothing may be found through it.
cp -r "$packaging/consumer_cmake" "$work/consumer"
cd "$work" || exit 2

loads_kvblocks() { ldd "$1" | grep -q libkvblocks; }
# find_package PREFIX KIND
find_package() {
  local prefix=$1 kind=$2 out=consumer-$2${1//\//-} program
  cmake -S consumer -B "$out" "${generator[@]}" -DCMAKE_PREFIX_PATH="$prefix" -DKIND="$kind" &&
    grep "^kvblocks_DIR:PATH=$prefix/" "$out/CMakeCache.txt" && cmake --build "$out" -j "$jobs" || return 1
  for program in "${programs[@]}"; do
    "$out/$program" || return 1
    if loads_kvblocks "$out/$program"; then is_equal "$kind" shared; else is_equal "$kind" static; fi || return 1
  done
}
# with_pkg_config PREFIX FLAGS...: compiles the first time, and links what was compiled to the libraries of PREFIX.
with_pkg_config() {
  local prefix=$1 program out=$work/pkg-config
  shift
  mkdir -p "$out"
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  compile() {
    local package=kvblocks-${1/_/-}
    [ "$1" != c_interface ] || package=kvblocks-c
    # shellcheck disable=SC2046
    if [ -e "$out/$1.o" ]; then
      :
    elif [ "$1" = c_interface ]; then
      cc -std=c99 -pedantic-errors -Wall -Wextra -Werror -c consumer/c_interface.c -o "$out/$1.o" $(pkg-config --cflags "$package")
    else
      c++ -std=c++20 -c "consumer/$1.cc" -o "$out/$1.o" $(pkg-config --cflags "$package")
    fi && $([ "$1" = c_interface ] && echo cc || echo c++) "$out/$1.o" -o "$out/$1" $(pkg-config "${@:2}" --libs "$package")
  }
  export -f compile
  export out
  printf '%s\n' "${programs[@]}" | xargs -P "$jobs" -I{} bash -c 'compile "$@"' compile {} "$@" || return 1
  for program in "${programs[@]}"; do
    LD_LIBRARY_PATH=$prefix/lib "$out/$program" || return 1
  done
}
check "find_package, shared libraries" find_package "$both" shared
check "find_package, static libraries" find_package "$both" static
check "pkg-config, shared libraries" with_pkg_config "$both"
check "pkg-config, static libraries" with_pkg_config "$static" --static
no_such_component() {
  printf '%s\n' 'cmake_minimum_required(VERSION 3.25)' 'project(x CXX)' \
    'find_package(kvblocks REQUIRED COMPONENTS kv_cash)' >"$1/CMakeLists.txt"
  ! cmake -S "$1" -B "$1/build" -DCMAKE_PREFIX_PATH="$both" 2>"$1/message" &&
    tr -s ' \n' ' ' <"$1/message" | grep "has no component kv_cash; there are: kv_cache"
}
mkdir missing
check "a component that does not exist is refused by name" no_such_component missing

check "kvsim runs" "$both/bin/kvsim" stats "$root/sim/example/mixed.jsonl.gz"
check "the licence is installed" cmp "$root/LICENSE" "$both/share/doc/kvblocks/LICENSE"
no_test_support() { ! grep -rlE 'gtest|rapidcheck|/testing/' "$both/include"; }
check "no header needs a test library" no_test_support
# A private header is not installed, so none of these can reach one.
headers_alone() {
  local compiler=c++
  ! command -v clang++ >/dev/null || compiler=clang++
  local without=attention_cuda.h
  [[ " ${programs[*]} " != *" cuda "* ]] || without=none
  diff <(cd "$root/include" && find . -name '*.h' ! -name $without | sort) \
    <(cd "$both/include" && find . -name '*.h' | sort) &&
    (cd "$both/include" && find . -name '*.h') |
    xargs -P "$jobs" -I{} "$compiler" -std=c++20 -fsyntax-only -x c++ -I "$both/include" "$both/include/{}"
}
check "the public headers are installed, and each compiles alone" headers_alone
symbols() {
  nm -D --defined-only --with-symbol-versions "$both/lib/libkvblocks_c.so" | awk '$2 == "T" { print $3 }' | sort |
    diff - <(grep -v '^#' "$root/c/symbols.txt" | sort)
}
check "libkvblocks_c.so exports what c/symbols.txt lists" symbols
check "one version everywhere" "$packaging/check_version.sh" "$both" "$work/pkg-config/c_interface"

# Debian packages.
packages() {
  (cd "$build" && rm -f ./*.deb && cpack -G DEB -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip) && mv "$build"/*.deb "$work" && ls "$work"/kvblocks_*.deb "$work"/kvblocks-dev_*.deb
}
field() { dpkg-deb --field "$work/$1"_*.deb "$2"; }
depends_are_right() {
  field kvblocks Depends && field kvblocks-dev Depends &&
    field kvblocks Depends | grep -q 'libc6 (>= .*libprotobuf' &&
    ! field kvblocks Depends | grep -q -- '-dev' &&
    field kvblocks-dev Depends | grep -q "^kvblocks (= $(field kvblocks Version)), libabsl-dev, libprotobuf-dev"
}
if command -v dpkg-shlibdeps >/dev/null; then
  check "configure for packages" configure -UBUILD_SHARED_LIBS
  check "Debian packages" packages && check "they depend on what they load" depends_are_right
  if [ -n "$install_deb" ]; then
    check "dpkg installs them" dpkg -i "$work"/kvblocks_*.deb "$work"/kvblocks-dev_*.deb
    dpkg -L kvblocks kvblocks-dev | while read -r path; do [ -d "$path" ] || echo "$path"; done >"$work/installed"
    check "the installed kvsim runs" /usr/bin/kvsim stats "$root/sim/example/mixed.jsonl.gz"
    check "find_package without a path" find_package /usr shared
    unset PKG_CONFIG_PATH
    check "dpkg removes them" dpkg -r kvblocks-dev kvblocks
    nothing_left() { ! xargs ls -d <"$work/installed" 2>/dev/null; }
    check "nothing is left of them" nothing_left
    # Without this dpkg remembers the script that ran ldconfig.
    check "dpkg forgets them" dpkg -P kvblocks
  fi
else
  echo "no dpkg-shlibdeps here: no Debian packages"
fi

if [ -n "$has_python" ]; then
  wait "$environment" || cat "$work/environment"
  check "the Python package" "$packaging/check_python.sh" --build "$build" --jobs "$jobs"
else
  echo "no python3-venv here: no Python package"
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
