#!/usr/bin/env bash
# Compares what everything says about the version with include/kvblocks/version.h.
#   tests/packaging/check_version.sh PREFIX C_PROGRAM
# PREFIX: where kvblocks is installed; C_PROGRAM: prints kvb_version() as the second word of its line.
set -u
root=$(dirname -- "$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")")
prefix=$1
program=$2
version=$(sed -n 's/^#define KVBLOCKS_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\)$/\2/p' \
  "$root/include/kvblocks/version.h" | paste -sd.)
status=0
# says WHO WHAT
says() {
  [ "$2" = "$version" ] && echo "$1: $2" && return
  echo "$1: got '$2', expected $version of include/kvblocks/version.h"
  status=1
}
case $version in
  *.*.*) ;;
  *) says include/kvblocks/version.h "no three numbers" ;;
esac
says "kvsim --version" "$("$prefix/bin/kvsim" --version | sed 's/^kvsim //')"
says "kvb_version()" "$(LD_LIBRARY_PATH=$prefix/lib "$program" | sed -n 's/^c_interface: \([^,]*\),.*/\1/p')"
says MODULE.bazel "$(sed -n '/^module(/,/^)/s/^ *version = "\(.*\)",$/\1/p' "$root/MODULE.bazel")"
says "the newest of CHANGELOG.md" "$(sed -n 's/^## \([0-9][0-9.]*\).*/\1/p' "$root/CHANGELOG.md" | head -n 1)"
modules=0
for file in "$prefix"/lib/pkgconfig/kvblocks-*.pc; do
  module=$(basename "$file" .pc)
  says "pkg-config $module" "$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --modversion "$module")"
  modules=$((modules + 1))
done
[ "$modules" -ge 4 ] || { echo "$modules pkg-config modules, expected 4 at least" && status=1; }
says "kvblocksConfigVersion.cmake" \
  "$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$prefix/lib/cmake/kvblocks/kvblocksConfigVersion.cmake")"
exit "$status"
