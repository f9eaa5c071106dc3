#!/usr/bin/env python3
"""Prints how large the house is: code, tests, BUILD files, Bazel targets, and what a manager needs.

    tools/count_house.py             the counts
    tools/count_house.py --closure   the files of the manager's closure, the longest first

Lines are those that hold code: blank lines and whole-line comments do not count. Files are those
that git tracks or would track. A file is a test if it lies in tests/ or testing/, or if its name
ends in _test or _fuzz. The closure of a header has every own header that it reaches by #include, the
.cc files that implement one of them, and what those reach in turn (tree_files.py says how it is told).
"""

import argparse
import collections
import pathlib
import re

from tree_files import implemented_headers, included_files, list_files

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENTRY = "include/kvblocks/kv_cache_manager.h"
C_LIKE = {".h", ".cc", ".c", ".cu", ".cuh", ".proto"}
CODE = C_LIKE | {".py", ".sh", ".bzl"}
# A rule at the top level of a BUILD file, or one of a list comprehension, which counts once.
RULE = re.compile(r"^\[?([a-z]\w*)\($|^    ([a-z]\w*)\($", re.MULTILINE)
NO_TARGET = {"load", "package", "exports_files", "licenses", "glob", "select", "test_suite"}


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


def num_lines(name):
    comment = "//" if pathlib.PurePath(name).suffix in C_LIKE else "#"
    lines = (line.strip() for line in text_of(name).splitlines())
    return sum(bool(line) and not line.startswith(comment) for line in lines)


def is_test(name):
    path = pathlib.PurePath(name)
    return bool({"tests", "testing"} & set(path.parts)) or path.stem.endswith(("_test", "_fuzz"))


def num_targets(build_text):
    rules = (top or nested for top, nested in RULE.findall(build_text))
    return sum(rule not in NO_TARGET for rule in rules)


def reached(entry, files):
    """The own headers that `entry` includes, directly or not, with itself."""
    found, ahead = set(), [entry]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += included_files(text_of(name), files)
    return found


def closure(entry, files):
    """The headers and sources that whoever includes `entry` compiles, directly or by linking."""
    includes = {name: included_files(text_of(name), files)
                for name in files if name.endswith((".h", ".cc")) and not is_test(name)}
    sources = collections.defaultdict(set)  # of a header
    library = {name: text_of(name) for name in includes
               if name.endswith(".cc") and not name.startswith(("bench/", "examples/", "python/"))}
    for name, headers in implemented_headers(library, files)[0].items():
        for header in headers:
            sources[header].add(name)
    found = set()
    ahead = [entry]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += [*includes[name], *sources[name]]
    return found


def main():
    parser = argparse.ArgumentParser(description="Counts lines, files and Bazel targets.")
    parser.add_argument("--closure", action="store_true", help="list the manager's closure")
    args = parser.parse_args()
    files = set(list_files(str(ROOT)))
    needed = closure(ENTRY, files)
    if args.closure:
        for name in sorted(needed, key=lambda name: (-num_lines(name), name)):
            print(f"{num_lines(name):7,} {name}")
    code = [name for name in files if pathlib.PurePath(name).suffix in CODE]
    tests = [name for name in code if is_test(name)]
    builds = [name for name in files if pathlib.PurePath(name).name == "BUILD.bazel"]

    def row(what, names):
        print(f"{what:32}{sum(map(num_lines, names)):8,} lines {len(names):6,} files")

    row("code", set(code) - set(tests))
    row("tests", tests)
    row("public headers", [name for name in code if name.startswith("include/")])
    row("what kv_cache.h includes", reached("include/kvblocks/kv_cache.h", files))
    row("BUILD files", builds)
    row("closure of kv_cache_manager.h", needed)
    print(f"{'Bazel targets':32}{sum(num_targets(text_of(name)) for name in builds):8,}")


if __name__ == "__main__":
    main()
