"""A scheduler for a serving engine in Python, over kvblocks' batch interface.

    python3 examples/python_scheduler.py

What an engine author writes: admission by prefix look-up, chunked prefill, one call per step for all decodes,
preemption when blocks run out, and the arrays that an attention kernel reads. Instead of a model there is
next_token(); everything else is as in an engine.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

import kvblocks
from kvblocks import specs


@dataclass
class Sequence:
    """One request of a user: its tokens live in kvblocks' Request."""

    request: kvblocks.Request
    max_tokens: int
    output: list[int] = field(default_factory=list)


@dataclass
class StepInput:
    """What the model runner gets for one step."""

    prefill: list[tuple[kvblocks.Request, int]]  # request, tokens to compute
    decode_tables: list[np.ndarray]  # per group: requests x blocks
    decode_lengths: np.ndarray  # tokens that each decode attends to


class Scheduler:
    def __init__(self, manager: kvblocks.KVCacheManager, max_batch: int = 64, token_budget: int = 512) -> None:
        self.manager = manager
        self.max_batch = max_batch
        self.token_budget = token_budget
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: dict[int, Sequence] = {}  # by id() of the request
        self.batch = kvblocks.DecodeBatch(manager, max_batch)
        self.num_preemptions = 0

    def add(self, name: str, prompt: np.ndarray, max_tokens: int) -> Sequence:
        sequence = Sequence(self.manager.new_request(name, prompt), max_tokens)
        self.waiting.append(sequence)
        return sequence

    def has_work(self) -> bool:
        return bool(self.waiting or self.prefilling or self.decoding)

    def schedule(self) -> StepInput:
        """Decodes first, then prefills that run, then new requests, within the budget of tokens."""
        self.manager.new_step_starts()
        self._allocate_decodes()
        budget = self.token_budget - len(self.batch)
        scheduled: list[tuple[kvblocks.Request, int]] = []
        for sequence in list(self.prefilling):
            request = sequence.request
            num_new = min(budget, request.num_tokens - request.num_computed_tokens)
            if num_new <= 0:
                continue
            if self.manager.allocate_slots(request, num_new) is None:
                self._preempt(sequence)
                continue
            scheduled.append((request, num_new))
            budget -= num_new
        while self.waiting and budget > 0 and len(self.batch) + len(self.prefilling) < self.max_batch:
            sequence = self.waiting[0]
            request = sequence.request
            hits = self.manager.get_computed_blocks(request)
            num_new = min(budget, request.num_tokens - hits.num_tokens)
            if hits.shared_prefix_boundary:  # others will want a hit there, too
                request.shared_prefix_boundary = hits.shared_prefix_boundary
            if self.manager.allocate_slots(request, num_new, hits, full_sequence_must_fit=True,
                                           has_scheduled_requests=bool(scheduled or len(self.batch))) is None:
                break  # it comes first when blocks are free again
            self.manager.record_prefix_cache_stats(request, hits.num_tokens)
            request.num_computed_tokens = hits.num_tokens
            request.status = "running"
            self.prefilling.append(self.waiting.popleft())
            scheduled.append((request, num_new))
            budget -= num_new
        lengths = np.array([request.num_computed_tokens + 1 for request in self.batch.requests], np.int32)
        tables = [self.batch.block_tables(group) for group in range(self.manager.num_groups)]
        return StepInput(scheduled, tables, lengths)

    def finish_step(self, step: StepInput, sampled: np.ndarray) -> None:
        """The step has run: `sampled` has a token per decode, then one per prefill that is complete."""
        num_decodes = len(self.batch)
        self.batch.advance(sampled[:num_decodes])
        for request, token in zip(self.batch.requests, sampled[:num_decodes].tolist()):
            sequence = self.decoding[id(request)]
            sequence.output.append(token)
            if len(sequence.output) == sequence.max_tokens:
                self.batch.remove(request)
                self._finish(self.decoding.pop(id(request)))
        first_tokens = iter(sampled[num_decodes:].tolist())
        by_request = {id(sequence.request): sequence for sequence in self.prefilling}
        for request, num_new in step.prefill:
            request.num_computed_tokens += num_new
            if request.num_computed_tokens < request.num_tokens:
                continue
            sequence = by_request[id(request)]
            self.prefilling.remove(sequence)
            token = next(first_tokens)
            request.append_tokens(token)
            sequence.output.append(token)
            if len(sequence.output) == sequence.max_tokens:
                self._finish(sequence)
            else:
                self.batch.add(request)
                self.decoding[id(request)] = sequence

    def _allocate_decodes(self) -> None:
        first = 0
        while (first := self.manager.allocate_decode(self.batch, first=first)) < len(self.batch):
            # The last request gives way, so rows before `first`, which have their slots, stay in place.
            self._preempt(self.decoding[id(self.batch.requests[-1])])

    def _preempt(self, sequence: Sequence) -> None:
        request = sequence.request
        self.manager.free(request)  # what is cached of it will be hit again, if it is still there
        request.mark_preempted()
        if self.decoding.pop(id(request), None):
            self.batch.remove(request)
        else:
            self.prefilling.remove(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _finish(self, sequence: Sequence) -> None:
        self.manager.free(sequence.request)
        sequence.request.status = "finished"


def next_token(rng: random.Random) -> int:
    return rng.randrange(1000)


def main() -> None:
    full = specs.FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
    window = specs.SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, sliding_window=64)
    config = kvblocks.KVCacheConfig(300, [kvblocks.KVCacheGroup(full, ["layers.0"]),
                                          kvblocks.KVCacheGroup(window, ["layers.1"])])
    manager = kvblocks.KVCacheManager(config, max_model_len=1024)
    scheduler = Scheduler(manager, max_batch=16)
    rng = random.Random(0)
    system_prompt = np.arange(200, dtype=np.int32)
    users = [scheduler.add(f"user{i}", np.concatenate([system_prompt, np.full(20 + i, 1000 + i, np.int32)]), 60)
             for i in range(40)]
    num_steps = 0
    while scheduler.has_work():
        step = scheduler.schedule()
        done = sum(request.num_computed_tokens + num_new == request.num_tokens for request, num_new in step.prefill)
        sampled = np.array([next_token(rng) for _ in range(len(scheduler.batch) + done)], np.int32)
        scheduler.finish_step(step, sampled)
        num_steps += 1
    manager.check_invariants()
    stats = manager.take_prefix_cache_stats()
    print(f"{len(users)} requests, {sum(len(user.output) for user in users)} tokens in {num_steps} steps, "
          f"{scheduler.num_preemptions} preemptions")
    print(f"first admissions: {stats.hits} of {stats.queries} prompt tokens hit")
    print(f"after preemption: {stats.preempted_hits} of {stats.preempted_queries} tokens hit")
    assert all(len(user.output) == 60 for user in users) and manager.usage == 0


if __name__ == "__main__":
    main()
