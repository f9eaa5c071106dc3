"""Times vLLM's scheduler with its own manager and with kvblocks', in one process and by turns.

    python bench.py [--running=64,256,1024] [--models=full,hybrid] [--steps=200]

Per row: schedule() for a step in which every running request decodes one token; the manager's part of
it; and what the manager takes to admit a request (look-up, slots, table). The manager's time is taken
around each of its calls, less the cost of taking it. Medians of steps and of calls; schedule() in
processor time.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from typing import Any

import families
import workload
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager as BuiltIn
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from kvblocks.vllm.manager import KVCacheManager as Ours

PROMPT, OUTPUT, SHARED = 1000, 400, 512

MODELS = {
    "full": lambda: families.Family([(families.full(16), False)], 16, 16),
    # Full attention and five groups of windows, as Gemma 3 has them.
    "hybrid": lambda: families.Family(
        [(families.full(16), False)] + [(families.window(16, 512), False)] * 5, 16, 16
    ),
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
        clock = time.perf_counter_ns
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
    family = MODELS[model]()
    config = VllmConfig(
        model_config=workload.model_config(4096),
        scheduler_config=SchedulerConfig(
            max_num_seqs=running, max_num_batched_tokens=8192, max_model_len=4096, enable_chunked_prefill=True,
            async_scheduling=False, is_encoder_decoder=False,
        ),  # fmt: skip
        cache_config=CacheConfig(block_size=16, enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
    )
    num_blocks = 1 + running * len(family.groups) * ((PROMPT + OUTPUT) // 16 + 2)
    config.cache_config.num_gpu_blocks = num_blocks
    scheduler_module.KVCacheManager = manager
    return Scheduler(
        vllm_config=config, kv_cache_config=family.config(num_blocks),
        structured_output_manager=StructuredOutputManager(config), block_size=16, hash_block_size=16, log_stats=True,
    )  # fmt: skip


def run(model: str, running: int, manager: Any, timed: bool, steps: int) -> tuple[float, float, float]:
    """Seconds of schedule() per decode step, of the manager in it, and of the manager per admission."""
    scheduler = make(model, running, manager)
    wrapped = None
    if timed:
        wrapped = Timed(scheduler.kv_cache_manager)
        scheduler.kv_cache_manager = wrapped
    draw = random.Random(1)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(16, sha256)
    shared = [[draw.randrange(3, 250) for _ in range(SHARED)] for _ in range(4)]
    for i in range(running):
        scheduler.add_request(
            Request(
                request_id=f"r{i}",
                prompt_token_ids=shared[i % 4] + [draw.randrange(3, 250) for _ in range(PROMPT - SHARED)],
                sampling_params=SamplingParams(max_tokens=OUTPUT, ignore_eos=True),
                pooling_params=None,
                block_hasher=hasher,
            )
        )
    times, parts = [], []
    overhead = timer_ns() if timed else 0.0
    while len(times) < steps:
        gc.disable()
        before = (wrapped.spent, wrapped.count) if wrapped else (0, 0)
        start = time.thread_time_ns()
        step = scheduler.schedule()
        spent = time.thread_time_ns() - start
        gc.enable()
        if len(step.scheduled_cached_reqs.req_ids) == running and all(
            n == 1 for n in step.num_scheduled_tokens.values()
        ):
            if wrapped:
                parts.append(wrapped.spent - before[0] - (wrapped.count - before[1]) * overhead)
            times.append(spent)
        ids = list(step.num_scheduled_tokens)
        sampled = [[] if scheduler.requests[r].is_prefill_chunk else [draw.randrange(3, 250)] for r in ids]
        scheduler.update_from_output(
            step, ModelRunnerOutput(req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)},
                                    sampled_token_ids=sampled),
        )  # fmt: skip
    if wrapped is None:
        return statistics.median(times), 0.0, 0.0
    admission = sum(statistics.median(spent) - overhead for spent in wrapped.of_admissions.values())
    return statistics.median(times), statistics.median(parts), admission


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", default="64,256,1024")
    parser.add_argument("--models", default="full,hybrid")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    print(f"{'model':7s} {'running':>7s}  {'schedule() us':>24s}  {'manager in it us':>24s}  {'admission us':>22s}")
    for model in args.models.split(","):
        for running in map(int, args.running.split(",")):
            figures = []
            for manager in (BuiltIn, Ours):
                whole = min(run(model, running, manager, False, args.steps)[0] for _ in range(2))
                _, part, admission = run(model, running, manager, True, args.steps)
                figures.append((whole / 1e3, part / 1e3, admission / 1e3))
            cells = [f"{a:8.1f} {b:8.1f} {a / b:5.1f}x" for a, b in zip(*figures, strict=True)]
            print(f"{model:7s} {running:7d}  {cells[0]}  {cells[1]}  {cells[2]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
