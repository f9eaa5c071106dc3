"""Runs vLLM's scheduler with its own KV-cache manager and kvblocks' side by side, and compares every answer.

    python lockstep.py --calls=100000 [--seed=1] [--families=full,hybrid] [--schedulers=sync,async,priority]

Each manager call of the scheduler goes to both; answers, free queues, statistics and events must be
equal. Workloads are random: prompts that share prefixes, small pools (preemption), aborts, resets,
salts, images, streaming sessions. A difference ends a run with both answers. A run that ends in a
difference that docs/vllm.md lists is counted apart. The last line counts families with and without
differences; the exit status is 1 if there is one with.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from typing import Any

import families
from both_managers import Difference, KnownDifference, Tally
from workload import Run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000, help="manager calls in all, over all families")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join(families.FAMILIES))
    parser.add_argument("--schedulers", default="sync,async,priority")
    parser.add_argument("--keep-going", action="store_true", help="go on with the next run after a difference")
    args = parser.parse_args()
    names = args.families.split(",")
    schedulers = args.schedulers.split(",")
    calls: collections.Counter[str] = collections.Counter()
    facts: collections.Counter[str] = collections.Counter()
    differences = num_failed = 0
    start = time.monotonic()
    per_family = args.calls / len(names)
    for name in names:
        seed = args.seed
        before, differences_before, num_known = calls.total(), differences, 0
        while calls.total() - before < per_family:
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
                if not args.keep_going:
                    return 1
            calls.update(tally.calls)
            facts.update(tally.facts)
            seed += 1
        num_failed += differences > differences_before
        print(
            f"{name:24s} {calls.total() - before:9,d} calls, {seed - args.seed:4d} runs, "
            f"{differences - differences_before} differences, {num_known} known ones",
            flush=True,
        )
    print(f"{calls.total():,d} calls in {time.monotonic() - start:.0f} s, {differences} differences")
    print("calls: " + ", ".join(f"{k} {v:,d}" for k, v in calls.most_common()))
    print("seen:  " + ", ".join(f"{k} {v:,d}" for k, v in sorted(facts.items())))
    print(f"{len(names) - num_failed} passed, {num_failed} failed")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
