from __future__ import annotations

import random

import numpy as np
import pytest

import kvblocks
from conftest import full_spec, make_manager, refusal, window_spec
from kvblocks import specs


def start(manager: kvblocks.KVCacheManager, name: str, num_tokens: int) -> kvblocks.Request:
    request = manager.new_request(name, np.full(num_tokens, hash(name) % 1000, np.int32))
    assert manager.allocate_slots(request, num_tokens) is not None
    request.num_computed_tokens = num_tokens
    request.append_tokens(1)
    return request


def rows_of(manager: kvblocks.KVCacheManager, batch: kvblocks.DecodeBatch, group: int) -> None:
    """The batch's tables are those of its requests, then zeros."""
    tables = batch.block_tables(group)
    assert tables.shape[0] == len(batch) and not tables.flags.writeable
    for row, request in enumerate(batch.requests):
        expected = manager.get_block_ids(request)[group]
        assert tables[row, : len(expected)].tolist() == expected
        assert not tables[row, len(expected):].any()


def test_a_step_makes_slots_for_all() -> None:
    manager = make_manager()
    batch = kvblocks.DecodeBatch(manager, 4)
    requests = [start(manager, str(i), 15 + i) for i in range(3)]
    assert [batch.add(request) for request in requests] == [0, 1, 2]
    tables = batch.block_tables()
    assert manager.allocate_decode(batch) == 3
    # The prompts have 15, 16 and 17 tokens: the second needs a block.
    assert batch.new_blocks.tolist() == [[1, 0, 5]]
    assert tables[1, :2].tolist() == [2, 5], "the array is live"
    batch.advance([7, 8, 9])
    assert [request.num_computed_tokens for request in requests] == [16, 17, 18]
    assert [request.num_tokens for request in requests] == [17, 18, 19]
    rows_of(manager, batch, 0)


def test_the_first_row_that_does_not_fit_is_told() -> None:
    manager = make_manager(num_blocks=4)
    batch = kvblocks.DecodeBatch(manager, 4)
    requests = [start(manager, str(i), 16) for i in range(2)]
    for request in requests:
        batch.add(request)
    assert manager.allocate_decode(batch) == 1
    manager.free(requests[1])
    requests[1].mark_preempted()
    batch.remove(requests[1])
    assert manager.allocate_decode(batch, first=1) == 1 == len(batch)
    batch.advance([3])
    assert requests[0].num_tokens == 18
    manager.check_invariants()


def test_misuse_is_named() -> None:
    manager = make_manager()
    batch = kvblocks.DecodeBatch(manager, 1)
    request = start(manager, "a", 20)
    refusal("holds no blocks", batch.add, manager.new_request("b", [1]))
    batch.add(request)
    refusal("in the batch already", batch.add, request)
    with pytest.raises(kvblocks.ResourceExhaustedError, match="max_requests"):
        batch.add(start(manager, "c", 20))
    refusal("first is 2", manager.allocate_decode, batch, first=2)
    for wrong in (-1, 2**62, 2**41):
        refusal(f"num_new_tokens is {wrong}", manager.allocate_decode, batch, wrong)
    refusal("num_lookahead_tokens is -5", manager.allocate_decode, batch, num_lookahead_tokens=-5)
    request.status = "finished"
    refusal("finished", manager.allocate_decode, batch)
    request.status = "running"
    refusal("2 token_ids, expected one per request: 1", batch.advance, [1, 2])
    with pytest.raises(kvblocks.NotFoundError, match="group is 3"):
        batch.block_tables(3)
    refusal("another KVCacheManager", make_manager().allocate_decode, batch)
    refusal("max_requests is 0", kvblocks.DecodeBatch, manager, 0)
    manager.free(request)
    for use in (lambda: manager.allocate_decode(batch), lambda: batch.advance([1])):
        refusal("request a of row 0 has given its blocks back", use)
    batch.remove(request)
    with pytest.raises(kvblocks.NotFoundError, match="not in the batch"):
        batch.remove(request)
    hashed = manager.new_request_from_hashes("h", 20, [b"h" * 32])
    assert manager.allocate_slots(hashed, 20) is not None
    batch.add(hashed)
    refusal("made from hashes", batch.advance, [1])
    assert hashed.num_computed_tokens == 0


def test_a_step_notices_what_others_did_to_a_request() -> None:
    manager = make_manager()
    batch = kvblocks.DecodeBatch(manager, 4)
    requests = [start(manager, str(i), 20) for i in range(2)]
    for request in requests:
        batch.add(request)
    for _ in range(3):  # nobody else changes anything
        assert manager.allocate_decode(batch) == 2 and not batch.new_blocks.size
        batch.advance([1, 1])
    assert [request.num_computed_tokens for request in requests] == [23, 23]
    # The counters of a row whose step would have been a no-op.
    requests[1].append_tokens([1] * 9)
    requests[1].num_computed_tokens = 32
    assert manager.allocate_decode(batch) == 2 and batch.new_blocks.tolist() == [[1, 0, 5]]
    requests[1].num_computed_tokens = 24
    assert manager.allocate_decode(batch) == 2
    # A step of another call: more slots than the batch would have made.
    assert manager.allocate_slots(requests[0], 40) is not None
    assert manager.allocate_decode(batch) == 2
    rows_of(manager, batch, 0)
    # A row that is refused is refused again, also behind rows that are left out.
    for wrong in (-1, 2**62):
        requests[0].num_inflight_tokens = wrong
        for first in (1, 0, 0, 1, 0):
            if first == 1:
                assert manager.allocate_decode(batch, first=1) == 2
                continue
            refusal(f"num_inflight_tokens is {wrong}", manager.allocate_decode, batch)
    requests[0].num_inflight_tokens = 0
    requests[0].status = "finished"
    refusal("finished", manager.allocate_decode, batch)
    requests[0].status = "running"
    manager.free(requests[0])
    refusal("request 0 of row 0 has given its blocks back", manager.allocate_decode, batch)
    manager.check_invariants()


@pytest.mark.parametrize("kinds", ["full", "window", "full+window", "chunked", "mamba", "output window"])
@pytest.mark.parametrize("seed", range(3))
def test_tables_follow_any_sequence_of_steps(kinds: str, seed: int) -> None:
    chunked = specs.ChunkedLocalAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, attention_chunk_size=32)
    mamba = specs.MambaSpec(block_size=16, states=[((4,), "fp32")], cache_mode="align")
    fading = specs.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, output_window=20)
    groups = {"full": [full_spec()], "window": [window_spec()], "full+window": [full_spec(), window_spec(), window_spec()],
              "chunked": [full_spec(), chunked], "mamba": [full_spec(), mamba], "output window": [fading]}[kinds]
    draw = random.Random(seed)
    manager = make_manager(*groups, num_blocks=60 * len(groups), max_model_len=400)
    batch = kvblocks.DecodeBatch(manager, 8)
    running: list[kvblocks.Request] = []
    for step in range(300):
        manager.new_step_starts()
        if len(running) < 8 and draw.random() < 0.3:
            request = manager.new_request(str(step), [draw.randrange(2)] * draw.randrange(1, 100))
            hits = manager.get_computed_blocks(request)
            if manager.allocate_slots(request, request.num_tokens - hits.num_tokens, hits) is not None:
                request.num_computed_tokens = request.num_tokens
                request.append_tokens(1)
                running.append(request)
                batch.add(request)
        if running and draw.random() < 0.1:
            gone = running.pop(draw.randrange(len(running)))
            if draw.random() < 0.5:
                manager.free(gone)
                batch.remove(gone)
            else:
                batch.remove(gone)
                manager.free(gone)
        first = 0
        while (first := manager.allocate_decode(batch, first=first)) < len(batch):
            victim = running.pop()
            row = batch.requests.index(victim)
            manager.free(victim)
            batch.remove(victim)
            if row < first:  # the last row came to a place that was served: serve it now
                if row < len(batch) and manager.allocate_slots(batch.requests[row], 1) is None:
                    late = batch.requests[row]
                    running.remove(late)
                    manager.free(late)
                    batch.remove(late)
                first = min(first, len(batch))
        for group in range(manager.num_groups):
            rows_of(manager, batch, group)
        for request in list(batch.requests):
            if request.num_tokens >= 300:
                manager.free(request)
                batch.remove(request)
                running.remove(request)
        batch.advance(np.ones(len(batch), np.int32))
        if step % 50 == 0:
            manager.check_invariants()
