"""Times vLLM's scheduler with its own manager and with kvblocks', in one process and by turns.

    python bench.py [--running=64,256,1024] [--models=full,hybrid] [--rounds=5] [--steps=10]

Per row: schedule() for a step in which every running request decodes one token; the manager's part of
it; and what the manager takes to admit a request (look-up, slots, table). The manager's time is taken
around each of its calls, less the cost of taking it. Medians of steps and of calls, over rounds in which
the managers alternate; all times are processor time of the thread.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from typing import Any

import setups
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager as BuiltIn
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from kvblocks.vllm.manager import KVCacheManager as Ours

PROMPT, OUTPUT, SHARED = 1000, 400, 512

FULL = {"kind": "full_attention", "block_size": 16}
MODELS = {
    "full": [FULL],
    # Full attention and five groups of windows, as Gemma 3 has them.
    "hybrid": [FULL] + [{"kind": "sliding_window", "block_size": 16, "window": 512}] * 5,
}

TIMED = ("allocate_slots", "get_computed_blocks", "get_blocks", "new_step_starts", "take_new_block_ids",
         "take_kv_cache_block_copies", "take_boundary_state_offloads")  # fmt: skip


# What an admission takes; of allocate_slots only the calls with hits to adopt, which may be none.
ADMISSION = ("get_computed_blocks", "allocate_slots", "get_blocks")


class Timed:
    """A manager whose calls are timed."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.spent = self.count = 0
        self.of_admissions: dict[str, list[int]] = {name: [] for name in ADMISSION}
        for name in TIMED:
            setattr(self, name, self._timed(getattr(manager, name), self.of_admissions.get(name)))
        self.empty_kv_cache_blocks = manager.empty_kv_cache_blocks

    def _timed(self, call: Any, of_admissions: list[int] | None) -> Any:
        clock = time.thread_time_ns
        call_is_look_up = getattr(call, "__name__", "") != "allocate_slots"

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            answer = call(*args, **kwargs)
            spent = clock() - start
            self.spent += spent
            self.count += 1
            if of_admissions is not None and (call_is_look_up or "new_computed_blocks" in kwargs):
                of_admissions.append(spent)
            return answer

        return timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


def timer_ns() -> float:
    """What the timing itself adds to a call's time."""

    class Nothing:
        empty_kv_cache_blocks = None

    for name in TIMED:
        setattr(Nothing, name, staticmethod(lambda *args, **kwargs: None))
    timed = Timed(Nothing())
    timed.of_admissions["get_blocks"].clear()
    for _ in range(20_000):
        timed.get_blocks("r")
    return statistics.median(timed.of_admissions["get_blocks"])


def make(model: str, running: int, manager: Any) -> Scheduler:
    groups = MODELS[model]
    scheduler_module.KVCacheManager = manager
    return setups.scheduler({
        "mode": "sync", "num_blocks": 1 + running * len(groups) * ((PROMPT + OUTPUT) // 16 + 2), "block_size": 16,
        "groups": groups, "max_num_seqs": running, "max_num_batched_tokens": 8192, "max_model_len": 4096,
        "policy": "fcfs", "chunked_prefill": True, "long_prefill_threshold": 0, "watermark": 0,
        "reserve_full_isl": True, "drafts": 0, "method": None, "lookahead_hashes": True, "retention": 0,
        "prefix_caching": True, "log_stats": True,
    })  # fmt: skip


class Measured:
    """A scheduler with `running` requests, of which each decodes one token per step."""

    def __init__(self, model: str, running: int, manager: Any) -> None:
        self.running = running
        self.scheduler = make(model, running, manager)
        self.plain = self.scheduler.kv_cache_manager
        self.timed = Timed(self.plain)
        self.overhead = timer_ns()
        self.whole: list[float] = []
        self.part: list[float] = []
        self._draw = random.Random(1)
        self._admit()

    def _admit(self) -> None:
        init_none_hash(sha256)
        hasher = get_request_block_hasher(16, sha256)
        draw = self._draw
        shared = [[draw.randrange(3, 250) for _ in range(SHARED)] for _ in range(4)]
        for i in range(self.running):
            self.scheduler.add_request(
                Request(
                    request_id=f"r{i}",
                    prompt_token_ids=shared[i % 4] + [draw.randrange(3, 250) for _ in range(PROMPT - SHARED)],
                    sampling_params=SamplingParams(max_tokens=OUTPUT, ignore_eos=True),
                    pooling_params=None,
                    block_hasher=hasher,
                )
            )
        self.scheduler.kv_cache_manager = self.timed
        while any(r.is_prefill_chunk or not r.num_output_tokens for r in self.scheduler.requests.values()):
            self._step()
        self.admission = sum(
            statistics.median(spent) - self.overhead for spent in self.timed.of_admissions.values()
        )

    def _step(self) -> tuple[int, int, int]:
        """One step: nanoseconds of schedule(), of the manager in it, and calls of the manager."""
        scheduler = self.scheduler
        before = self.timed.spent, self.timed.count
        gc.disable()
        start = time.thread_time_ns()
        step = scheduler.schedule()
        spent = time.thread_time_ns() - start
        gc.enable()
        ids = list(step.num_scheduled_tokens)
        sampled = [[] if scheduler.requests[r].is_prefill_chunk else [self._draw.randrange(3, 250)] for r in ids]
        scheduler.update_from_output(
            step, ModelRunnerOutput(req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)},
                                    sampled_token_ids=sampled),
        )  # fmt: skip
        return spent, self.timed.spent - before[0], self.timed.count - before[1]

    def decode(self, steps: int) -> None:
        """Steps by turns without and with a clock around the manager's calls."""
        for _ in range(steps):
            self.scheduler.kv_cache_manager = self.plain
            self.whole.append(self._step()[0])
            self.scheduler.kv_cache_manager = self.timed
            _, spent, calls = self._step()
            self.part.append(spent - calls * self.overhead)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", default="64,256,1024")
    parser.add_argument("--models", default="full,hybrid")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in each of which both managers take their turn")
    parser.add_argument("--steps", type=int, default=10, help="steps per turn that are timed as a whole, and as many in parts")
    args = parser.parse_args()
    print(f"{'model':7s} {'running':>7s}  {'schedule() us':>24s}  {'manager in it us':>24s}  {'admission us':>22s}")
    num_reached = num_rows = 0
    for model in args.models.split(","):
        for running in map(int, args.running.split(",")):
            both = [Measured(model, running, manager) for manager in (BuiltIn, Ours)]
            for _ in range(args.rounds):
                for measured in both:
                    measured.decode(args.steps)
            figures = [
                (statistics.median(m.whole) / 1e3, statistics.median(m.part) / 1e3, m.admission / 1e3) for m in both
            ]
            cells = [f"{a:8.1f} {b:8.1f} {a / b:5.1f}x" for a, b in zip(*figures, strict=True)]
            print(f"{model:7s} {running:7d}  {cells[0]}  {cells[1]}  {cells[2]}", flush=True)
            num_rows += 1
            num_reached += figures[0][1] >= 5 * figures[1][1]
    print("passed: rows in which the manager's part falls by 5x or more")
    print(f"{num_reached} passed, {num_rows - num_reached} failed")
    return 0 if num_reached == num_rows else 1


if __name__ == "__main__":
    sys.exit(main())
