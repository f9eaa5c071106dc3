#!/usr/bin/env python3
"""kvblocks from Python, and vLLM's own manager beside it, in one process.

  bench/python_manager.py [--repeat=N] [--json=FILE]

Prints microseconds per operation: the median over rounds, and the least round. vLLM's columns need vllm in
the environment (0.33.0 is what was compared); without it they stay empty. Both get the same prompts, and
vLLM's requests hash with sha256_cbor, the fastest of its algorithms that resists collisions.

  decode step     allocate_slots for the next token of a running request
  batch of 256    allocate_decode for 256 requests, in microseconds per step
  look-up         get_computed_blocks of a prompt of 16,384 tokens whose 1,024 blocks are cached
  admission       a new request of 4,096 tokens: hashing, look-up without a hit, slots
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvblocks
from kvblocks import specs

BLOCK = 16
NUM_BLOCKS = 40_000
MAX_LEN = 131_072


def prompts(count: int, length: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 100_000, length, dtype=np.int32) for _ in range(count)]


class Side:
    """One of the two: how it spells what both do. The work is the same."""

    name: str
    numbers = itertools.count()

    def new_manager(self) -> Any:
        raise NotImplementedError

    def new_request(self, manager: Any, tokens: np.ndarray) -> Any:
        raise NotImplementedError

    def append(self, request: Any) -> None:
        """One sampled token."""
        raise NotImplementedError

    def look_up(self, manager: Any, request: Any) -> tuple[int, tuple[Any, ...]]:
        """Tokens hit, and the arguments of allocate_slots that adopt them."""
        raise NotImplementedError

    def allocate(self, manager: Any, running: list[Any]) -> Callable[[], object]:
        """Slots for one token of each, as one call."""
        def step() -> None:
            for request in running:
                manager.allocate_slots(request, 1)
        return step

    def decode_step(self) -> Callable[[], float]:
        manager = self.new_manager()

        def run() -> float:
            request = self.new_request(manager, np.zeros(1024, np.int32))
            manager.allocate_slots(request, 1024)
            spent = 0.0
            clock, allocate = time.perf_counter, manager.allocate_slots
            for computed in range(1024, 3072):
                self.append(request)
                request.num_computed_tokens = computed
                started = clock()
                allocate(request, 1)
                spent += clock() - started
            manager.free(request)
            return spent / 2048

        return run

    def batch(self) -> Callable[[], float]:
        manager = self.new_manager()
        running = []
        for i, prompt in enumerate(prompts(256, 500)):
            # Different lengths, so that some need a block in each step.
            request = self.new_request(manager, prompt[: 400 + i % 16])
            manager.allocate_slots(request, request.num_tokens)
            request.num_computed_tokens = request.num_tokens
            self.append(request)
            running.append(request)
        step = self.allocate(manager, running)

        def run() -> float:
            spent = 0.0
            for _ in range(64):
                started = time.perf_counter()
                step()
                spent += time.perf_counter() - started
                self.advance(running)
            return spent / 64

        return run

    def advance(self, running: list[Any]) -> None:
        for request in running:
            request.num_computed_tokens += 1
            self.append(request)

    def lookup(self) -> Callable[[], float]:
        manager = self.new_manager()
        tokens = prompts(1, 1024 * BLOCK)[0]
        first = self.new_request(manager, tokens)
        manager.allocate_slots(first, len(tokens))
        request = self.new_request(manager, np.append(tokens, np.int32(1)))
        assert self.look_up(manager, request)[0] == 1024 * BLOCK

        def run() -> float:
            _ = first  # its blocks stay
            started = time.perf_counter()
            for _ in range(20):
                manager.get_computed_blocks(request)
            return (time.perf_counter() - started) / 20

        return run

    def admission(self) -> Callable[[], float]:
        manager = self.new_manager()

        def run() -> float:
            spent = 0.0
            for tokens in map(self.tokens, prompts(10, 4096, next(self.numbers))):
                started = time.perf_counter()
                request = self.new_request(manager, tokens)
                hits, adopted = self.look_up(manager, request)
                manager.allocate_slots(request, 4096 - hits, *adopted)
                spent += time.perf_counter() - started
                manager.free(request)
            return spent / 10

        return run

    def tokens(self, tokens: np.ndarray) -> Any:
        """As it takes them."""
        return tokens


class Ours(Side):
    name = "kvblocks"

    def new_manager(self) -> Any:
        spec = specs.FullAttentionSpec(block_size=BLOCK, num_kv_heads=8, head_size=128)
        config = kvblocks.KVCacheConfig(NUM_BLOCKS, [kvblocks.KVCacheGroup(spec, ["layer"])])
        return kvblocks.KVCacheManager(config, max_model_len=MAX_LEN)

    def new_request(self, manager: Any, tokens: Any) -> Any:
        return manager.new_request("r", tokens)

    def append(self, request: Any) -> None:
        request.append_tokens(7)

    def look_up(self, manager: Any, request: Any) -> tuple[int, tuple[Any, ...]]:
        hits = manager.get_computed_blocks(request)
        return hits.num_tokens, (hits,)

    def allocate(self, manager: Any, running: list[Any]) -> Callable[[], object]:
        self.decoding = kvblocks.DecodeBatch(manager, len(running))
        for request in running:
            self.decoding.add(request)
        return functools.partial(manager.allocate_decode, self.decoding)

    def advance(self, running: list[Any]) -> None:
        self.decoding.advance(np.ones(len(running), np.int32))


class Vllm(Side):
    name = "vLLM"

    def __init__(self) -> None:
        import torch
        import vllm
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.request import Request

        self.version = vllm.__version__
        init_none_hash(sha256_cbor)
        hasher = get_request_block_hasher(BLOCK, sha256_cbor)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
        config = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[],
                               kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        parameters = SamplingParams(max_tokens=100_000)
        self.make_manager = lambda: KVCacheManager(config, MAX_LEN, BLOCK, BLOCK)
        self.make_request = lambda tokens: Request(f"r{next(self.numbers)}", tokens, parameters, None,
                                                   block_hasher=hasher)

    def new_manager(self) -> Any:
        return self.make_manager()

    def new_request(self, manager: Any, tokens: Any) -> Any:
        return self.make_request(self.tokens(tokens))

    def append(self, request: Any) -> None:
        request.append_output_token_ids(7)

    def look_up(self, manager: Any, request: Any) -> tuple[int, tuple[Any, ...]]:
        blocks, hits, *_ = manager.get_computed_blocks(request)
        return hits, (hits, blocks)

    def tokens(self, tokens: Any) -> Any:
        return tokens if isinstance(tokens, list) else tokens.tolist()


OPERATIONS = (("decode step", "decode_step", 0.25), ("batch of 256", "batch", 8.0),
              ("look-up, 1,024 blocks", "lookup", 10.0), ("admission, 4,096 tokens", "admission", 60.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=30, help="rounds per operation")
    parser.add_argument("--json", help="write the figures to this file, too")
    options = parser.parse_args()
    sides: list[Side] = [Ours()]
    try:
        sides.append(Vllm())
    except ImportError as error:
        print(f"without vLLM: {error}")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for title, method, _ in OPERATIONS:
        runs = [getattr(side, method)() for side in sides]
        rounds: list[list[float]] = [[] for _ in sides]
        for _ in range(options.repeat):  # in turn, so that a busy moment of the machine meets both
            for run, times in zip(runs, rounds):
                times.append(1e6 * run())
        figures[title] = {side.name: {"median_us": statistics.median(times), "least_us": min(times)}
                          for side, times in zip(sides, rounds)}
    print(f"{'microseconds':26}{'aim':>8}" + "".join(f"{side.name + ' median':>18}{'least':>10}" for side in sides))
    for title, _, aim in OPERATIONS:
        cells = "".join(f"{f['median_us']:18.2f}{f['least_us']:10.2f}" for f in figures[title].values())
        print(f"{title:26}{aim:8.2f}{cells}")
    if options.json:
        with open(options.json, "w") as out:
            json.dump(figures, out, indent=1)


if __name__ == "__main__":
    main()
