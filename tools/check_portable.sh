#!/usr/bin/env bash
# Checks that binaries load no shared library but glibc's, so that they run on another machine that has at least as new a
# glibc, whatever else is installed there. Says which glibc that is.
#   tools/check_portable.sh <binary>...
# Exit status: 0 all do, 1 one loads more, 2 one cannot be read.
set -u
[ "$#" -gt 0 ] || { echo "usage: tools/check_portable.sh <binary>..." >&2; exit 2; }
status=0
for binary in "$@"; do
  libraries=$(LC_ALL=C ldd "$binary") || exit 2
  extra=$(grep -vE '^\s*(linux-vdso\.so\.1|lib(c|m|pthread|dl|rt)\.so\.[0-9]+|/lib64/ld-linux-x86-64\.so\.2|statically linked)( |$)' \
    <<<"$libraries")
  if [ -n "$extra" ]; then
    printf '%s also loads\n%s\n' "$binary" "$extra"
    status=1
  else
    glibc=$(objdump -T "$(readlink -f -- "$binary")" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    echo "$binary runs where glibc is at least ${glibc#GLIBC_}"
  fi
done
exit "$status"
