"""A manager that asks vLLM's and ours, compares, and answers with both."""

from __future__ import annotations

import collections
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager as BuiltIn

from kvblocks.vllm.manager import KVCacheManager as Ours


class Difference(Exception):
    """The managers answered differently."""


class KnownDifference(Exception):
    """They did, in a way that docs/vllm.md names; the run ends here."""


class Refused(Exception):
    """Our manager takes no such settings."""


class Tally:
    """What happened in a run."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        self.facts: collections.Counter[str] = collections.Counter()


class Pair:
    """Both managers' lists of blocks."""

    def __init__(self, theirs: Any, ours: Any) -> None:
        self.theirs, self.ours = theirs, ours

    @property
    def blocks(self) -> Any:
        return self.theirs.blocks

    def get_block_ids(self, allow_none: bool = False, **kwargs: Any) -> Any:
        a, b = (x.get_block_ids(allow_none=allow_none, **kwargs) for x in (self.theirs, self.ours))
        if a != b:
            raise Difference(f"get_block_ids: {a} and {b}")
        return a

    def compare(self) -> None:
        """What connectors see of blocks."""
        show = lambda x: [[(b.block_id, b.is_null, b.block_hash) for b in group] for group in x.blocks]  # noqa: E731
        a, b = show(self.theirs), show(self.ours)
        if a != b:
            raise Difference(f"blocks of a request: vLLM {a}\n   kvblocks {b}")
        a, b = (x.get_unhashed_block_ids_all_groups() for x in (self.theirs, self.ours))
        if a != b:
            raise Difference(f"get_unhashed_block_ids_all_groups: {a} and {b}")


class BlockPair:
    """One block of each pool."""

    def __init__(self, theirs: Any, ours: Any) -> None:
        self.theirs, self.ours = theirs, ours


class PoolPair:
    def __init__(self, both: BothManagers) -> None:
        self._both = both

    def free_blocks(self, blocks: Any) -> None:
        blocks = list(blocks)
        self._both.tally.calls["free_blocks"] += 1
        self._both.theirs.block_pool.free_blocks([b.theirs for b in blocks])
        self._both.ours.block_pool.free_blocks([b.ours for b in blocks])
        self._both.compare_pools("free_blocks")


class CoordinatorPair:
    def __init__(self, both: BothManagers) -> None:
        self._both = both
        self.single_type_managers = both.theirs.coordinator.single_type_managers
        self.enable_partial_hash_hits = both.theirs.coordinator.enable_partial_hash_hits

    def get_num_blocks_to_allocate(self, **kwargs: Any) -> int:
        both = self._both
        both.tally.calls["get_num_blocks_to_allocate"] += 1
        a, b = (m.coordinator.get_num_blocks_to_allocate(**kwargs) for m in (both.theirs, both.ours))
        both._same(f"get_num_blocks_to_allocate({kwargs})", a, b)
        return a


def plain(event: Any) -> Any:
    return (type(event).__name__, {f: getattr(event, f) for f in event.__struct_fields__})


def asked(name: str, *, counts: bool = True, compares: bool = True, pools: bool = False) -> Any:
    """A method that asks both managers: whether the run counts it, and what must be the same after it."""

    def ask(self: BothManagers, *args: Any, **kwargs: Any) -> Any:
        if counts:
            self.tally.calls[name] += 1
        a, b = (getattr(manager, name)(*args, **kwargs) for manager in (self.theirs, self.ours))
        what = f"{name}{[getattr(x, 'request_id', x) for x in args]}{kwargs or ''}"
        if compares:
            self._same(what, a, b)
        if pools:
            self.compare_pools(what)
        return a

    return ask


class BothManagers:
    tally = Tally()  # of the run; set before a scheduler is made

    def __init__(self, **kwargs: Any) -> None:
        self.tally = BothManagers.tally
        self.theirs = BuiltIn(**kwargs)
        try:
            self.ours = Ours(**kwargs)
        except ValueError as error:
            raise Refused(error) from error
        self.coordinator = CoordinatorPair(self)
        self.kv_cache_config = self.theirs.kv_cache_config
        self._same("enable_partial_hash_hits", self.coordinator.enable_partial_hash_hits,
                   self.ours.coordinator.enable_partial_hash_hits)
        self.mamba_shared_prefix_checkpoint = self.theirs.mamba_shared_prefix_checkpoint
        self._same("checkpoint", self.mamba_shared_prefix_checkpoint, self.ours.mamba_shared_prefix_checkpoint)
        self.empty_kv_cache_blocks = Pair(self.theirs.empty_kv_cache_blocks, self.ours.empty_kv_cache_blocks)
        self.block_pool = PoolPair(self)
        for a, b in zip(
            self.theirs.coordinator.single_type_managers, self.ours.coordinator.single_type_managers, strict=True
        ):
            self._same("block_size", a.block_size, b.block_size)
        self._count = 0

    def _same(self, what: str, a: Any, b: Any) -> None:
        if a != b:
            raise Difference(f"{what}: vLLM {a}\n   kvblocks {b}")

    def compare_pools(self, what: str) -> None:
        a = self.theirs.block_pool
        self._same(f"free blocks after {what}", a.get_num_free_blocks(), self.ours.block_pool.get_num_free_blocks())
        self._count += 1
        if self._count % 8 == 0:
            self._compare_free_queues(what)

    def _compare_free_queues(self, what: str) -> None:
        free = self.theirs.block_pool.free_block_queue.get_all_free_blocks()
        self._same(f"free queue after {what}", [b.block_id for b in free], self.ours._free_block_ids())

    def get_computed_blocks(self, request: Any, max_cache_hit_length: int | None = None) -> Any:
        self.tally.calls["get_computed_blocks"] += 1
        a = self.theirs.get_computed_blocks(request, max_cache_hit_length)
        b = self.ours.get_computed_blocks(request, max_cache_hit_length)
        show = lambda r: ([list(x) for x in r[0].get_block_ids()], r[1], r[2])  # noqa: E731
        self._same(f"get_computed_blocks({request.request_id}, {request.num_tokens} tokens)", show(a), show(b))
        self.tally.facts["hits"] += a[1] > 0
        self.tally.facts["boundaries"] += a[2] > 0
        return Pair(a[0], b[0]), a[1], a[2]

    def allocate_slots(
        self, request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0, new_computed_blocks: Any = None,
        **kwargs: Any,
    ) -> Any:
        self.tally.calls["allocate_slots"] += 1
        answers = [
            manager.allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens=num_new_computed_tokens,
                new_computed_blocks=None if new_computed_blocks is None else getattr(new_computed_blocks, side),
                **kwargs,
            )
            for manager, side in ((self.theirs, "theirs"), (self.ours, "ours"))
        ]
        a, b = (None if x is None else [list(ids) for ids in x.get_block_ids()] for x in answers)
        what = (
            f"allocate_slots({request.request_id}, {num_new_tokens}, computed {request.num_computed_tokens}, "
            f"in flight {request.num_in_flight_tokens}, known {request.num_tokens}, prompt "
            f"{request.num_prompt_tokens}, hit {num_new_computed_tokens}, {kwargs})"
        )
        if a is None and b is not None and kwargs.get("full_sequence_must_fit") and self._is_turn_with_states(request):
            raise KnownDifference("the gate counts a state beside those that a session's turn before left")
        self._same(what, a, b)
        self.tally.facts["no space"] += a is None
        self.tally.facts["admissions"] += new_computed_blocks is not None and a is not None
        if request.num_computed_tokens > 0 or self._count % 4 == 0 or a is None:
            a, b = (manager.get_block_ids(request.request_id) for manager in (self.theirs, self.ours))
            self._same("tables after " + what, a, b)
        self.compare_pools(what)
        return None if answers[0] is None else Pair(*answers)

    def _is_turn_with_states(self, request: Any) -> bool:
        # Only sessions have a queue.
        return request.streaming_queue is not None and request.num_computed_tokens > 0 and any(
            hasattr(manager, "cached_blocks_this_step") for manager in self.theirs.coordinator.single_type_managers
        )

    def get_blocks(self, request_id: str) -> Any:
        self.tally.calls["get_blocks"] += 1
        pair = Pair(self.theirs.get_blocks(request_id), self.ours.get_blocks(request_id))
        pair.get_block_ids()
        return pair

    def get_block_ids(self, request_id: str) -> Any:
        return self.get_blocks(request_id).get_block_ids()

    cache_blocks = asked("cache_blocks", compares=False)
    free = asked("free", compares=False, pools=True)
    remove_skipped_blocks = asked("remove_skipped_blocks", compares=False, pools=True)
    get_block_ids_for_computed_tokens = asked("get_block_ids_for_computed_tokens")
    finalize_partial_tail_offloads = asked("finalize_partial_tail_offloads", counts=False)
    make_prefix_cache_stats = asked("make_prefix_cache_stats", counts=False)
    record_prefix_cache_stats = asked("record_prefix_cache_stats", compares=False)
    estimate_cached_tokens = asked("estimate_cached_tokens")
    evict_blocks = asked("evict_blocks", compares=False)
    new_step_starts = asked("new_step_starts", counts=False, compares=False)

    def pop_blocks_for_free(self, request: Any) -> Any:
        self.tally.calls["pop_blocks_for_free"] += 1
        a, b = self.theirs.pop_blocks_for_free(request), self.ours.pop_blocks_for_free(request)
        self._same("pop_blocks_for_free", [x.block_id for x in a], [x.block_id for x in b])
        return [BlockPair(x, y) for x, y in zip(a, b, strict=True)]

    def take_kv_cache_block_copies(self) -> Any:
        a, b = self.theirs.take_kv_cache_block_copies(), self.ours.take_kv_cache_block_copies()
        self._same("block copies", sorted(a[0]), sorted(b[0]))
        self.tally.facts["block copies"] += len(a[0])
        ours = {x.block_id: x for x in b[1]}
        self._same("retained blocks", sorted(x.block_id for x in a[1]), sorted(x.block_id for x in b[1]))
        return a[0], [BlockPair(x, ours[x.block_id]) for x in a[1]]

    def take_new_block_ids(self) -> list[int]:
        a, b = self.theirs.take_new_block_ids(), self.ours.take_new_block_ids()
        if self.kv_cache_config.needs_kv_cache_zeroing:
            states = {
                y for m in self.theirs.coordinator.single_type_managers if not m.records_new_block_ids
                for blocks in m.req_to_blocks.values() for x in blocks for y in [x.block_id]
            }
            self._same("blocks to zero", sorted(set(a) - states), sorted(set(b) - states))
        return a

    def take_boundary_state_offloads(self) -> Any:
        self.theirs.take_boundary_state_offloads()
        return {}

    def take_events(self) -> Any:
        self.tally.calls["take_events"] += 1
        a, b = self.theirs.take_events(), self.ours.take_events()
        if len(a) != len(b) or any(plain(x) != plain(y) for x, y in zip(a, b, strict=True)):
            at = next(
                (i for i, (x, y) in enumerate(zip(a, b)) if plain(x) != plain(y)), min(len(a), len(b))
            )
            raise Difference(
                f"events, {len(a)} and {len(b)}, number {at}:\n   vLLM {[plain(x) for x in a[at:at + 2]]}\n"
                f"   kvblocks {[plain(x) for x in b[at:at + 2]]}"
            )
        self.tally.facts["events"] += len(a)
        return a

    def reset_prefix_cache(self) -> bool:
        self.tally.calls["reset_prefix_cache"] += 1
        a, b = self.theirs.reset_prefix_cache(), self.ours.reset_prefix_cache()
        self._same("reset_prefix_cache", a, b)
        self.tally.facts["resets"] += a
        return a

    @property
    def usage(self) -> float:
        self._same("usage", self.theirs.usage, self.ours.usage)
        return self.theirs.usage

    def compare_all(self) -> None:
        """Everything that can be seen, and our own invariants."""
        self.ours.check_invariants()
        pool = self.theirs.block_pool
        self._same(
            "keys of blocks",
            [b.block_hash for b in pool.blocks],
            [b.block_hash for b in self.ours.block_pool.blocks],
        )
        self._same(
            "references",
            [0 if b.is_null else b.ref_cnt for b in pool.blocks],
            [b.ref_cnt for b in self.ours.block_pool.blocks],
        )
        self._compare_free_queues("a step")
