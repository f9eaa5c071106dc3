#!/usr/bin/env python3
"""Compares what two builds of kvsim report for the same commands: numbers may move, but not change.

  tools/compare_runs.py OLD NEW [--only=TEXT] [--moved=OLD_PATH=NEW_PATH]...

OLD and NEW are kvsim programs. Each command below runs with both; JSON answers are compared value by value, others line
by line. Fields that only one side has are listed and count as a difference, unless --moved names them or they are
settings (config.*) that only one side knows. Wall-clock times are left out.
Exit status: 0 all the same, 1 something differs, 2 a program is missing. Outside the gate: made for changes of the inside.
"""

import argparse
import json
import pathlib
import subprocess
import sys

# One replica, layouts, drafts, tiers, fleets, scaling, prefill and decode in replicas of their own, searches, the rest.
COMMANDS = """
replay --num-blocks=2000 --json
replay --num-blocks=300 --json
replay --num-blocks=2000 --no-prefix-caching --json
replay --num-blocks=2000 --policy=priority --speedup=20 --json
replay --num-blocks=2000 --no-async --json
replay --num-blocks=2000 --time=fixed --step-time=20ms --json
replay --num-blocks=2000 --time=roofline --json
replay --num-blocks=1500 --eviction-policy=arc --json
replay --num-blocks=1500 --eviction-policy=hazard --json
replay --num-blocks=1500 --retain=first:tokens=1024 --max-retained-share=0.3 --json
replay --model=gemma-3-27b --tensor-parallel=2 --json
replay --model=gemma-3-27b --tensor-parallel=2 --plan=exact --json
replay --model=llama-3.1-70b --device=h200 --tensor-parallel=4 --json
replay --num-blocks=2000 --num-draft-tokens=3 --acceptance=iid:0.7 --json
replay --num-blocks=2000 --concurrency=32 --json
replay --num-blocks=2000 --slo=ttft:500ms:p99,tpot:50ms --json
replay --num-blocks=1000 --tier=host:8GiB:read=20GB/s --json
replay --num-blocks=1000 --tier=host:2GiB:read=20GB/s,disk:64GiB:read=3GB/s --json
replay --num-blocks=2000 --steps=- --quiet
replay --num-blocks=2000 --csv=- --quiet
replay --num-blocks=2000 --metrics=- --quiet
replay --replicas=4 --router=prefix --num-blocks=2000 --json
replay --replicas=4 --router=round-robin --num-blocks=2000 --json
replay --replicas=3 --router=least-tokens --num-blocks=1000 --tier=host:8GiB:read=20GB/s:shared --json
replay --replicas=2 --scale-rule=queue:1:8 --max-replicas=4 --num-blocks=1000 --speedup=20 --json
replay --replicas=4 --scale=30s:crash@1 --num-blocks=2000 --json
replay --replicas=4 --router=prefix --num-blocks=2000 --csv=- --quiet
replay --data-parallel=2 --num-blocks=2000 --json
replay --prefill-replicas=1 --decode-replicas=1 --speedup=10 --json
replay --prefill-replicas=2 --decode-replicas=2 --speedup=10 --num-blocks=3000 --json
explain --num-blocks=1000 --json
explain --num-blocks=2000 --request=219
curve --json
curve --sizes 300 1000 3000 --tiers 1000 3000 10000 30000 --json
plan --model=gemma-3-27b --device=h200 --tensor-parallel=2 --json
plan --model=deepseek-v3 --device=h200 --tensor-parallel=8 --json
sweep --grid num-blocks=1000:4000:*2 --grid block-size=16,64 --json
capacity --slo=ttft:500ms@p99,tpot:10ms@p95 --num-blocks=4000 --json
verify --num-blocks=2000 --limit=40 --json
stats --json
convert sim/example/mixed.jsonl.gz -
validate --json
gen --rate=10 --requests=200 -o -
events sim/commands/testdata/example.kvlog.gz --json
""".strip().splitlines()

IGNORED = ("wall_time", "wall_seconds", "elapsed", "threads", "version")


def run(program, command, folder):
    done = subprocess.run([program, *command.split()], capture_output=True, timeout=600, cwd=folder)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def flat(value, path=""):
    """Leaves by path, as in replicas[1].hits."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from flat(inner, f"{path}[{i}]")
    else:
        yield path, value


def leaves(text):
    lines = [json.loads(line) for line in text.splitlines() if line.strip()] if not text.lstrip().startswith("{\n") else None
    document = json.loads(text) if lines is None else lines
    return {path: value for path, value in flat(document) if not any(word in path for word in IGNORED)}


def differences(old, new, moved):
    try:
        before, after = leaves(old), leaves(new)
    except ValueError:
        before, after = dict(enumerate(old.splitlines())), dict(enumerate(new.splitlines()))
        moved = {}
    before = {moved.get(path, path): value for path, value in before.items()}
    found = []
    for path in sorted(before.keys() | after.keys(), key=str):
        if path in before and path in after:
            if before[path] != after[path]:
                found.append(f"{path}: {before[path]!r} is now {after[path]!r}")
        elif "config." not in str(path):
            gone = path in before
            found.append(f"{path}: {'gone' if gone else 'new'}, {(before if gone else after)[path]!r}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--only", default="", help="commands that contain this")
    parser.add_argument("--moved", action="append", default=[], help="OLD_PATH=NEW_PATH of a field")
    args = parser.parse_args()
    for program in (args.old, args.new):
        if not program.is_file():
            print(f"{program}: no such program", file=sys.stderr)
            return 2
    moved = dict(pair.split("=", 1) for pair in args.moved)
    root = pathlib.Path(__file__).resolve().parent.parent
    num_same = num_different = num_refused = 0
    for command in COMMANDS:
        if args.only not in command:
            continue
        old = run(args.old.resolve(), command, root)
        new = run(args.new.resolve(), command, root)
        found = differences(old[1], new[1], moved)
        if old[0] != new[0]:
            found.insert(0, f"exit status {old[0]} is now {new[0]}: {new[2].strip()[:300]}")
        if old[0] == 2 and new[0] == 2:
            num_refused += 1
            print(f"refused  {command}: {old[2].strip()[:200]}", flush=True)
            continue
        num_different += bool(found)
        num_same += not found
        print(f"{'differs' if found else 'same   '}  {command}", flush=True)
        for line in found[:10]:
            print(f"         {line}")
        if len(found) > 10:
            print(f"         ... and {len(found) - 10} more")
    print(f"{num_same} the same, {num_different} differ, {num_refused} refused by both")
    return 1 if num_different or num_refused else 0


if __name__ == "__main__":
    sys.exit(main())
