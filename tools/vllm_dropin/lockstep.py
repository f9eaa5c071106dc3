"""Runs vLLM's scheduler with its own KV-cache manager and kvblocks' side by side, and compares every answer.

    python lockstep.py [--calls=2000000] [--seeds=20] [--configurations=25] [--first=1] [--jobs=2]
    python lockstep.py --only=SEED:NUMBER [--shrink]

Each manager call of the scheduler goes to both; answers, free queues, statistics and events must be equal. Each seed draws
so many configurations (draws.py), which share the calls, and workloads on them: prompts that share prefixes, small pools
(preemption), aborts, resets, evictions, salts, images, streaming sessions, a KV connector whose loads come late or fail.
Settings that vLLM or the plugin refuses are passed over and counted, and so are runs that end in an error of vLLM's own or in a
difference that docs/vllm.md names.
A difference ends a configuration; it is printed with what --only takes. --shrink looks for simpler settings that still
differ. The same numbers give the same bytes on stdout; times go to stderr. --state keeps finished seeds; with --resume they
are not run again. The last line counts configurations with and without differences; the exit status is 1 if one has any.
"""

from __future__ import annotations

import fixed_hashes  # noqa: F401, I001

import argparse
import collections
import concurrent.futures
import itertools
import json
import pathlib
import random
import sys
import time
import traceback
from typing import Any

import draws
import setups
from both_managers import BothManagers, BuiltIn, Difference, KnownDifference, Refused, Tally
from workload import Run

from kvblocks.vllm import UnsupportedError

MOST_RUNS = 8  # of a configuration, if they end early in errors of vLLM's
CALLS_OF_A_RUN = 2500

Found = dict[str, Any]


class Ended(Exception):
    """vLLM failed by itself, or it or the plugin refused the settings."""


def run_once(config: setups.Config, seed: str, max_calls: int, tally: Tally) -> None:
    """Raises Difference, or Ended with what was said."""
    BothManagers.tally = tally
    try:
        try:
            Run(config, seed, max_calls).go(tally)
        except Refused as refused:
            # vLLM refuses some settings when it first looks for a prefix.
            Run(config, seed, 500, BuiltIn).go(Tally())
            raise Difference(f"kvblocks alone refuses: {refused}") from refused
    except Difference:
        raise
    except KnownDifference as known:
        raise Ended(f"known difference: {known}") from known
    except UnsupportedError as error:
        raise Ended(f"kvblocks refuses: {_short(error)}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = frames[-1]
        # What fails in vLLM's code below our manager is no error of vLLM's own.
        is_ours = any("/kvblocks/vllm/" in frame.filename for frame in frames)
        if "/site-packages/vllm/" in where.filename and not is_ours:
            name = f"{pathlib.Path(where.filename).name}: {where.name}"
            raise Ended(f"vLLM raises {type(error).__name__} in {name}: {_short(error)}") from error
        raise Difference(traceback.format_exc()) from error


def _short(error: Exception) -> str:
    """The message without its numbers."""
    words = "".join("#" if c.isdigit() else c for c in str(error).split("\n")[0])
    while "##" in words:
        words = words.replace("##", "#")
    return words[:110]


def run_configuration(seed: int, number: int, most: int) -> Found:
    config = draws.settings(random.Random(f"{seed} {number}"), simulated=False)
    tally = Tally()
    ended: collections.Counter[str] = collections.Counter()
    difference = ""
    for index in range(MOST_RUNS):
        before = tally.calls.total()
        if before >= most:
            break
        try:
            run_once(config, f"{seed} {number} {index}", before + min(CALLS_OF_A_RUN, most - before), tally)
        except Ended as end:
            ended[str(end)] += 1
            if tally.calls.total() == 0:
                break
        except Difference as found:
            difference = f"{seed}:{number} run {index}: {found}\n   {json.dumps(config)}"
            break
    return {"calls": tally.calls, "facts": tally.facts, "ended": ended, "difference": difference, "config": config}


def run_seed(seed: int, num_configurations: int, most: int) -> Found:
    """What so many configurations came to that could run."""
    start = time.monotonic()
    total: Found = {"calls": collections.Counter(), "facts": collections.Counter(), "ended": collections.Counter()}
    total |= {"refused": collections.Counter(), "differences": [], "taken": 0}
    for number in itertools.count():
        if total["taken"] == num_configurations:
            break
        found = run_configuration(seed, number, most)
        if not found["difference"] and found["calls"].total() == 0:
            total["refused"].update(found["ended"])
            continue
        total["taken"] += 1
        for name in ("calls", "facts", "ended"):
            total[name].update(found[name])
        total["facts"].update(features(found["config"]))
        if found["difference"]:
            total["differences"].append(found["difference"])
    print(f"seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return total


def features(config: setups.Config) -> list[str]:
    """What the counts at the end name: configurations with it."""
    sizes = {g["block_size"] for g in config["groups"]}
    told = [*(f"with {kind}" for kind in setups.kinds(config)), f"{config['mode']} {config['policy']}"]
    told += [f"with {len(config['groups'])} groups", f"drafting {config['method']}"]
    told += [f"retention {'of tokens' if config['retention'] else config['retention']}"]
    told += ["unequal blocks"] * (len(sizes) > 1) + ["no caching"] * (not config["prefix_caching"])
    return told + [f"with {name}" for name in ("dcp", "connector", "hash_block_size") if name in config]


def shrink(config: setups.Config) -> None:
    def difference_of(candidate: setups.Config) -> tuple[str, int] | None:
        for index, calls in itertools.product(range(6), (300, 1500)):
            tally = Tally()
            try:
                run_once(candidate, f"shrink {index}", calls, tally)
            except Ended:
                continue
            except Difference as found:
                return f"run 'shrink {index}': {found}", tally.calls.total()
        return None

    found = True
    said = None
    while found:
        found = False
        for candidate in draws.simpler(config):
            if told := difference_of(candidate):
                config, said, found = candidate, told, True
                break
    print(f"{said}\n{json.dumps(config)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2_000_000, help="manager calls in all")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--configurations", type=int, default=25, help="per seed, besides those that are refused")
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", help="SEED:NUMBER of one configuration")
    parser.add_argument("--shrink", action="store_true", help="look for simpler settings than those of --only")
    parser.add_argument("--state", type=pathlib.Path, help="file for what finished seeds came to")
    parser.add_argument("--resume", action="store_true", help="take finished seeds from --state")
    args = parser.parse_args()
    most = max(1, args.calls // (args.seeds * args.configurations))
    if args.only:
        seed, number = (int(part) for part in args.only.split(":"))
        if args.shrink:
            shrink(draws.settings(random.Random(f"{seed} {number}"), simulated=False))
            return 0
        found = run_configuration(seed, number, most)
        print(json.dumps(found["config"]), dict(found["ended"]), found["difference"], sep="\n")
        return 1 if found["difference"] else 0
    state: dict[str, Found] = {}
    if args.resume and args.state is not None and args.state.exists():
        state = json.loads(args.state.read_text())
    seeds = range(args.first, args.first + args.seeds)
    names = {seed: f"{seed} {args.configurations} {most}" for seed in seeds}
    total: Found = {name: collections.Counter() for name in ("calls", "facts", "ended", "refused")}
    num_taken = num_different = 0
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        running = {
            seed: pool.submit(run_seed, seed, args.configurations, most) for seed in seeds if names[seed] not in state
        }
        for seed in seeds:
            if seed in running:
                state[names[seed]] = running[seed].result()
                if args.state is not None:
                    unfinished = args.state.with_suffix(".new")
                    unfinished.write_text(json.dumps(state))
                    unfinished.replace(args.state)
            found = state[names[seed]]
            for difference in found["differences"]:
                print(difference)
            print(
                f"seed {seed:5d} {found['taken']:3d} configurations, {sum(found['refused'].values()):2d} refused, "
                f"{sum(found['calls'].values()):9,d} calls, {len(found['differences'])} differences",
                flush=True,
            )
            for name, counts in total.items():
                counts.update(found[name])
            num_taken += found["taken"]
            num_different += len(found["differences"])
    print(f"{total['calls'].total():,d} calls in {num_taken} configurations, {num_different} differences")
    print("calls: " + ", ".join(f"{k} {v:,d}" for k, v in total["calls"].most_common()))
    print("seen:  " + ", ".join(f"{k} {v:,d}" for k, v in sorted(total["facts"].items())))
    for title, name in (("refused, configurations", "refused"), ("ended early, runs", "ended")):
        print(f"{title}: {total[name].total()}")
        for why, times in sorted(total[name].items()):
            print(f"  {times:4d} {why}")
    print(f"{num_taken - num_different} passed, {num_different} failed")
    return 1 if num_different else 0


if __name__ == "__main__":
    sys.exit(main())
