"""Runs vLLM's scheduler with its own KV-cache manager and kvblocks' side by side, and compares every answer.

    python lockstep.py --calls=100000 [--seed=1] [--families=full,hybrid] [--schedulers=sync,async,priority]

Each manager call of the scheduler goes to both; answers, free queues, statistics and events must be
equal. Workloads are random: prompts that share prefixes, small pools (preemption), aborts, resets,
salts, images, streaming sessions, a KV connector whose loads come late or fail. A difference ends a run with both answers. A run that ends in a
difference that docs/vllm.md lists is counted apart. The last line counts families with and without
differences; the exit status is 1 if there is one with. --state writes what each finished family counted;
with --resume the families that it has are not run again.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import time
import traceback
from typing import Any

import families
from both_managers import Difference, KnownDifference, Tally
from workload import Run


MOST_BROKEN = 5  # runs of a family that end in an error of vLLM's or the harness


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000, help="manager calls in all, over all families")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join(families.FAMILIES))
    parser.add_argument("--schedulers", default="sync,async,priority")
    parser.add_argument("--keep-going", action="store_true", help="go on with the next run after a difference")
    parser.add_argument("--state", type=pathlib.Path, help="file for the counts of finished families")
    parser.add_argument("--resume", action="store_true", help="take finished families from --state")
    args = parser.parse_args()
    names = args.families.split(",")
    state: dict[str, Any] = {}
    if args.resume and args.state is not None and args.state.exists():
        state = json.loads(args.state.read_text())
    calls: collections.Counter[str] = collections.Counter()
    facts: collections.Counter[str] = collections.Counter()
    differences = num_failed = 0
    seconds = 0.0
    for name in names:
        if name not in state:
            state[name] = run_family(name, args)
            if args.state is not None:
                unfinished = args.state.with_suffix(".new")
                unfinished.write_text(json.dumps(state))
                unfinished.replace(args.state)
        found = state[name]
        print(
            f"{name:24s} {sum(found['calls'].values()):9,d} calls, {found['runs']:4d} runs, "
            f"{found['differences']} differences, {found['known']} known ones, {found['seconds']:5.0f} s",
            flush=True,
        )
        calls.update(found["calls"])
        facts.update(found["facts"])
        differences += found["differences"]
        num_failed += found["differences"] > 0
        seconds += found["seconds"]
        if found["differences"] > 0 and not args.keep_going:
            return 1
    print(f"{calls.total():,d} calls in {seconds:.0f} s, {differences} differences")
    print("calls: " + ", ".join(f"{k} {v:,d}" for k, v in calls.most_common()))
    print("seen:  " + ", ".join(f"{k} {v:,d}" for k, v in sorted(facts.items())))
    print(f"{len(names) - num_failed} passed, {num_failed} failed")
    return 1 if differences else 0


def run_family(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the family's share of the calls came to."""
    schedulers = args.schedulers.split(",")
    most = args.calls / len(args.families.split(","))
    calls: collections.Counter[str] = collections.Counter()
    facts: collections.Counter[str] = collections.Counter()
    differences = num_known = num_runs = num_broken = 0
    start = time.monotonic()
    while calls.total() < most:
        seed = args.seed + num_runs
        run = Run(name, schedulers[seed % len(schedulers)], seed, max_calls=6000)
        tally = Tally()
        try:
            run.go(tally)
        except KnownDifference as known:
            facts[f"known difference: {known}"] += 1
            num_known += 1
        except Difference as difference:
            differences += 1
            print(f"{name} {run.scheduler_kind} seed {seed}: {difference}", flush=True)
        except Exception:
            differences += 1
            num_broken += 1
            print(f"{name} {run.scheduler_kind} seed {seed}: {traceback.format_exc()}", flush=True)
        calls.update(tally.calls)
        facts.update(tally.facts)
        num_runs += 1
        # A run that fails at once makes no calls, and the next one may not either.
        if (differences > 0 and not args.keep_going) or num_broken == MOST_BROKEN:
            break
    return {
        "calls": calls, "facts": facts, "runs": num_runs, "differences": differences, "known": num_known,
        "seconds": time.monotonic() - start,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
