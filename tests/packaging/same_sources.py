"""Compares the sources that CMake and Bazel compile into the libraries and kvsim.

  same_sources.py BUILD      BUILD: a CMake build folder whose .cmake/api/v1/query had codemodel-v2 when it was configured

Both builds find sources by the same rule, so a difference is a folder that one of them does not know, or a target with
a list of its own. What a build generates is compared by what it is generated from: .proto files, and the two embedded
data files. Exit status: 0 the same, 1 not, 2 one of the builds could not be asked.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGETS = ["//:kv_cache", "//:planning", "//:attention", "//:planned_memory", "//:kv_events_zmq", "//:offload",
           "//:kvblocks_c", "//sim:kvsim"]
# For GPUs: with CMake only where there is a CUDA compiler, and no part of these targets with Bazel.
CUDA = "attention/cuda/"
SUFFIXES = (".cc", ".proto", ".textproto", ".gz")
# What CMake writes at configuration, and from what.
EMBEDDED = {
    "catalogue_data.cc": "specs/catalogue/catalogue.textproto",
    "example_trace.cc": "sim/example/mixed.jsonl.gz",
    "page_assets.cc": "sim/report/page/page.js",  # and more, none of which has a suffix that is compared
}


def cmake_sources(build):
  reply = build / ".cmake" / "api" / "v1" / "reply"
  sources = set()
  targets = 0
  for path in reply.glob("target-*.json"):
    target = json.loads(path.read_text())
    if target["type"] not in ("OBJECT_LIBRARY", "EXECUTABLE"):
      continue
    targets += 1
    for source in target.get("sources", []):
      path = (ROOT / source["path"]).resolve()
      generated = build.resolve() / "generated"
      if path.is_relative_to(generated):
        name = str(path.relative_to(generated))
        name = EMBEDDED.get(path.name, name.replace(".pb.cc", ".proto"))
      elif path.is_relative_to(ROOT) and not path.is_relative_to(build.resolve()):
        name = str(path.relative_to(ROOT))
      else:
        continue
      if name.endswith(SUFFIXES) and not name.startswith(CUDA):
        sources.add(name)
  if targets < 5:
    print(f"{reply}: {targets} targets with sources, expected 5 at least; was the query there at configuration?")
    sys.exit(2)
  return sources


def bazel_sources():
  query = f"kind('source file', deps(set({' '.join(TARGETS)})))"
  command = ["bazel", "query", "--noimplicit_deps", query]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  if result.returncode != 0:
    print(result.stderr, file=sys.stderr)
    print("bazel query failed", file=sys.stderr)
    sys.exit(2)
  labels = [line for line in result.stdout.split() if line.startswith("//") and not line.startswith("//third_party")]
  paths = {label[2:].replace(":", "/").lstrip("/") for label in labels}
  return {path for path in paths if path.endswith(SUFFIXES) and not path.startswith(CUDA)}


def main():
  if len(sys.argv) != 2:
    print(__doc__, file=sys.stderr)
    sys.exit(2)
  of_cmake = cmake_sources(pathlib.Path(sys.argv[1]))
  of_bazel = bazel_sources()
  for name in sorted(of_cmake - of_bazel):
    print(f"{name}: compiled by CMake, not by Bazel")
  for name in sorted(of_bazel - of_cmake):
    print(f"{name}: compiled by Bazel, not by CMake")
  if of_cmake != of_bazel:
    sys.exit(1)
  print(f"{len(of_cmake)} sources are the same")


main()
