from __future__ import annotations

import array
import gc
import threading
from typing import Any

import numpy as np
import pytest

import kvblocks
from conftest import full_spec, make_manager, refusal, window_spec
from kvblocks import specs


def admit(manager: kvblocks.KVCacheManager, request: kvblocks.Request) -> int:
    """Look-up and slots for the whole prompt; the tokens hit."""
    hits = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(request, request.num_tokens - hits.num_tokens, hits)
    assert blocks is not None
    request.num_computed_tokens = request.num_tokens
    return hits.num_tokens


def test_a_freed_prompt_is_hit(manager: kvblocks.KVCacheManager) -> None:
    first = manager.new_request("a", range_of(100))
    assert admit(manager, first) == 0
    manager.free(first)
    second = manager.new_request("b", range_of(100))
    assert admit(manager, second) == 96
    assert manager.get_block_ids(second)[0][:6] == [1, 2, 3, 4, 5, 6]
    manager.check_invariants()


def range_of(n: int) -> list[int]:
    return list(range(n))


@pytest.mark.parametrize("tokens", [
    list(range(40)), tuple(range(40)), np.arange(40, dtype=np.int32), np.arange(40), array.array("i", range(40)),
    memoryview(array.array("i", range(40))),
])
def test_tokens_of_any_kind_are_the_same_content(tokens: Any) -> None:
    manager = make_manager()
    assert manager.new_request("a", tokens).block_hashes == manager.new_request("b", range_of(40)).block_hashes


@pytest.mark.parametrize("tokens,error,text", [
    ([1, 2**31], ValueError, r"token_ids\[1\] is 2147483648"),
    ([2**70], ValueError, "beyond 64 bits"),
    (["a"], TypeError, "str"),
    (np.zeros(3), TypeError, "format 'd'"),
    (np.zeros((2, 2), np.int32), TypeError, "2 dimensions"),
    (np.array([2**40]), ValueError, r"token_ids\[0\]"),
    (np.arange(10, dtype=np.int32)[::2], (TypeError, ValueError, BufferError), "contiguous"),
    (None, TypeError, "token_ids"),
])
def test_other_tokens_are_refused(tokens: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        make_manager().new_request("a", tokens)


def test_shortage_is_none_and_changes_nothing() -> None:
    manager = make_manager(num_blocks=4)
    big = manager.new_request("big", range_of(100))
    assert manager.allocate_slots(big, 100) is None
    assert manager.num_free_blocks == 3 and not manager.holds_blocks(big)


def test_misuse_has_our_message(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("r1", range_of(10))
    refusal(r"AllocateSlots\(r1\): num_new_tokens is -1", manager.allocate_slots, request, -1)
    refusal("another KVCacheManager", make_manager().allocate_slots, request, 1)
    with pytest.raises(ValueError, match="block_size: got 0"):
        full_spec(0)
    refusal("eviction", make_manager, eviction_policy="none")
    refusal("free_order", make_manager, free_order="none")
    refusal("hash_algorithm", make_manager, hash_algorithm="md5")
    refusal("semantics", make_manager, semantics="vllm-0.1")
    with pytest.raises(kvblocks.InvalidArgumentError, match="waiting"):
        request.status = "none"
    with pytest.raises(kvblocks.NotFoundError, match="group is 1"):
        manager.get_blocks(request, 1)
    refusal("block 3", manager.free_blocks, [3])


def test_a_table_is_the_memory_itself_and_read_only(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(40))
    admit(manager, request)
    table = manager.get_blocks(request)
    shown = table.numpy()
    assert shown.tolist() == table.tolist() == [1, 2, 3] and table[-1] == 3 and len(table) == 3
    assert shown.dtype == np.int32 and not shown.flags.writeable and not shown.flags.owndata
    assert shown.ctypes.data == table.numpy().ctypes.data
    with pytest.raises(ValueError):
        shown[0] = 7
    with pytest.raises(ValueError):
        shown.flags.writeable = True
    with pytest.raises(IndexError):
        table[3]


def test_an_array_stays_and_a_table_dies(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(40))
    admit(manager, request)
    table = manager.get_blocks(request)
    before = table.numpy()
    request.append_tokens(range_of(20))
    assert manager.allocate_slots(request, 20) is not None
    assert table.tolist() == [1, 2, 3, 4] and before.tolist() == [1, 2, 3]
    last = table.numpy()
    manager.free(request)
    assert table.is_stale
    for use in (table.numpy, table.tolist, lambda: len(table), lambda: table[0], lambda: memoryview(table),  # type: ignore[arg-type]
                lambda: np.asarray(table)):
        with pytest.raises(kvblocks.StaleBlockTableError, match="request a"):
            use()
    # Other requests write where the table was; arrays do not see it.
    others = [manager.new_request(str(i), [i] * 64) for i in range(10)]
    for other in others:
        admit(manager, other)
    assert before.tolist() == [1, 2, 3] and last.tolist() == [1, 2, 3, 4]
    del request, table
    gc.collect()
    assert last.tolist() == [1, 2, 3, 4]


def test_an_array_of_a_window_keeps_its_moment() -> None:
    manager = make_manager(window_spec())
    request = manager.new_request("a", range_of(160))
    assert manager.allocate_slots(request, 160) is not None
    shown = manager.get_blocks(request).numpy()
    at_first = shown.tolist()
    request.num_computed_tokens = 160
    request.append_tokens(1)
    assert manager.allocate_slots(request, 1) is not None
    assert manager.get_blocks(request)[0] == 0, "the window has moved on"
    assert shown.tolist() == at_first


def test_a_request_that_goes_gives_its_blocks_back(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(40))
    admit(manager, request)
    shown = manager.get_blocks(request).numpy()
    assert manager.num_requests_holding_blocks == 1
    del request
    gc.collect()
    # The array keeps its table, and the table its request.
    assert manager.num_requests_holding_blocks == 1
    assert shown.tolist() == [1, 2, 3]
    del shown
    gc.collect()
    assert manager.num_requests_holding_blocks == 0
    manager.check_invariants()


def test_requests_outlive_the_managers_name() -> None:
    manager = make_manager()
    request = manager.new_request("a", range_of(40))
    admit(manager, request)
    del manager
    gc.collect()
    assert "num_tokens=40" in repr(request)


def test_blocks_are_values() -> None:
    manager = make_manager(full_spec(), window_spec())
    request = manager.new_request("a", range_of(40))
    blocks = manager.allocate_slots(request, 40)
    assert blocks is not None
    first = blocks[0]
    assert blocks.block_ids() == ([1, 2, 3], [4, 5, 6]) and blocks.num_blocks == 6 and len(blocks) == 2
    manager.free(request)
    del blocks
    assert first.tolist() == [1, 2, 3]
    with pytest.raises(IndexError):
        manager.get_computed_blocks(request)[2]


def test_hashes_of_the_caller_hit_and_grow() -> None:
    manager = make_manager(enable_events=True)
    hashes = [bytes([i]) * 32 for i in range(8)]
    request = manager.new_request_from_hashes("a", 100, hashes[:6], session_id="s1")
    assert admit(manager, request) == 0
    request.sync(num_tokens=112, block_hashes=hashes[:7], num_computed_tokens=100)
    assert manager.allocate_slots(request, 12) is not None
    stored = [event for event in manager.take_events() if isinstance(event, kvblocks.BlockStored)]
    assert [event.block_hashes for event in stored] == [hashes[:6], [hashes[6]]]
    assert stored[0].token_ids == [] and stored[0].session_id == "s1"
    manager.free(request)
    packed = b"".join(hashes[:7])
    again = manager.new_request_from_hashes("b", 112, np.frombuffer(packed, np.uint8))
    assert admit(manager, again) == 96
    refusal("tokens cannot be taken back", again.sync, num_tokens=1, block_hashes=[], num_computed_tokens=0)
    refusal("33 bytes", manager.new_request_from_hashes, "c", 16, [b"x" * 33])
    refusal("multiple of 32", manager.new_request_from_hashes, "c", 16, b"x" * 33)
    skipping = manager.new_request_from_hashes("d", 112, hashes[:7], skip_reading_prefix_cache=True)
    assert manager.get_computed_blocks(skipping).num_tokens == 0


def test_events_tell_all(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(32), lora_name="l", lora_id=3, cache_salt="s",
                                  features=[("image", 2, 20)], session_id="one")
    admit(manager, request)
    (stored,) = manager.take_events()
    assert isinstance(stored, kvblocks.BlockStored)
    assert stored.block_hashes == request.block_hashes and stored.parent_block_hash is None
    assert stored.token_ids == range_of(32) and stored.block_size == 16
    assert (stored.lora_id, stored.lora_name, stored.session_id, stored.medium) == (3, "l", "one", "GPU")
    assert stored.extra_keys == [(("lora", "l"), ("mm", "image", 2), ("cache_salt", "s")),
                                 (("lora", "l"), ("mm", "image", -14))]
    assert stored.kv_cache_spec_kind == "full_attention"
    manager.free(request)
    manager.evict_blocks([1])
    (removed,) = manager.take_events()
    assert isinstance(removed, kvblocks.BlockRemoved)
    assert removed.block_hash == request.block_hashes[0] and removed.reason == "evicted"
    assert manager.reset_prefix_cache()
    assert isinstance(manager.take_events()[-1], kvblocks.AllBlocksCleared)


def test_explanations_and_stats(manager: kvblocks.KVCacheManager) -> None:
    first = manager.new_request("a", range_of(40))
    admit(manager, first)
    manager.free(first)
    manager.evict_blocks([2])
    request = manager.new_request("b", range_of(40))
    why = manager.explain_lookup(request)
    assert (why.num_hit_tokens, why.num_tokens) == (16, 40)
    assert why.tokens_by_reason == {"removed": 16, "partial block": 8}
    assert why.missed[0].reason == "removed" and why.missed[0].first_token == 16 and why.missed[0].block == 1
    assert "16 of 40 tokens hit" in str(why)
    manager.record_prefix_cache_stats(request, 16, why)
    stats = manager.take_prefix_cache_stats()
    assert (stats.requests, stats.queries, stats.hits) == (1, 40, 16)
    assert stats.missed == {"removed": 16, "partial block": 8}
    assert manager.take_prefix_cache_stats().requests == 0


def test_the_pool_can_be_looked_at(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(40))
    admit(manager, request)
    pool = manager.pool
    assert (pool.num_blocks, pool.num_free, pool.num_live, pool.num_cached) == (100, 96, 3, 2)
    assert pool[0].is_null and pool[1].ref_count == 1 and pool[3].block_hash is None
    assert pool[1].block_hash == request.block_hashes[0] and pool[1].cached_group == 0
    assert pool.find_cached(request.block_hashes[1]) == 2 and pool.find_cached(b"x" * 32) is None
    assert pool.free_list()[0] == 4
    with pytest.raises(kvblocks.NotFoundError, match="block is 100"):
        pool[100]


def test_pins_and_popped_blocks(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(40))
    admit(manager, request)
    popped = manager.pop_blocks_for_free(request)
    assert popped == [1, 2, 3] and manager.num_free_blocks == 96
    manager.free_blocks(popped[::-1])
    manager.pin_blocks(np.array([1], np.int32))
    assert manager.pool[1].ref_count == 1
    assert not manager.reset_prefix_cache()
    manager.free_blocks([1])
    manager.check_invariants()


def test_partial_hits_copy_blocks() -> None:
    mamba = specs.MambaSpec(block_size=64, states=[((16,), "fp32")], cache_mode="align")
    config = kvblocks.KVCacheConfig(
        100, [kvblocks.KVCacheGroup(full_spec(64), ["a"]), kvblocks.KVCacheGroup(mamba, ["b"])], hash_block_size=16)
    manager = kvblocks.KVCacheManager(config, max_model_len=4096, partial_hits=True, report_new_blocks=True)
    assert mamba.fields["states"] == (((16,), "fp32"),)
    first = manager.new_request("a", range_of(40))
    for chunk in (32, 8):
        manager.new_step_starts()
        assert manager.allocate_slots(first, chunk) is not None
        first.num_computed_tokens += chunk
    assert 1 in manager.take_new_block_ids() and manager.take_new_block_ids() == []
    manager.release_block_copies(manager.take_block_copies())
    manager.free(first)
    manager.new_step_starts()
    second = manager.new_request("b", range_of(100))
    hits = manager.get_computed_blocks(second)
    assert hits.num_tokens == 32 and hits.num_tokens % manager.hit_alignment == 0
    assert manager.allocate_slots(second, 68, hits) is not None
    copies = manager.take_block_copies()
    assert {group for group, _, _ in copies} == {0, 1}
    manager.release_block_copies(copies)
    with pytest.raises(kvblocks.InvalidArgumentError):
        manager.release_block_copies(copies)
    manager.check_invariants()


def test_hits_can_be_cut_and_made() -> None:
    manager = make_manager()
    first = manager.new_request("a", range_of(64))
    admit(manager, first)
    second = manager.new_request("b", range_of(70))
    hits = manager.get_computed_blocks(second)
    assert hits.num_tokens == 64
    assert manager.truncate_computed_blocks(hits, 32).block_ids() == ([1, 2],)
    refusal("num_tokens is 65", manager.truncate_computed_blocks, hits, 65)
    made = kvblocks.ComputedBlocks([[1, 2]], 32)
    assert manager.allocate_slots(second, 38, made) is not None
    assert manager.get_block_ids(second)[0][:2] == [1, 2]
    assert manager.get_num_common_prefix_blocks(second) == [2]


def test_external_tokens_and_delayed_registration(manager: kvblocks.KVCacheManager) -> None:
    request = manager.new_request("a", range_of(64))
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=48, delay_cache_blocks=True) is not None
    assert manager.pool.num_cached == 0
    request.num_computed_tokens = 48
    manager.cache_blocks(request, 48)
    assert manager.pool.num_cached == 3
    assert manager.get_unhashed_block_ids(request) == ([],)
    assert manager.get_block_ids_for_computed_tokens(request, 17) == ([1, 2],)


def test_a_config_file_makes_the_same_manager() -> None:
    text = """cache { num_blocks: 10 groups { layer_names: "a"
        spec { full_attention { block_size: 16 num_kv_heads: 8 head_size: 128 dtype: "bf16" } } } }
        options { max_model_len: 64 }"""
    manager = kvblocks.KVCacheManager.from_config(text)
    assert manager.config == kvblocks.KVCacheConfig(10, [kvblocks.KVCacheGroup(full_spec(), ["a"])])
    assert manager.max_model_len == 64 and manager.block_size(0) == 16
    refusal("config:1", kvblocks.KVCacheManager.from_config, "cache { num_blox: 10 }")


def test_a_plan_makes_a_manager() -> None:
    plan = kvblocks.make_plan("gemma-3-27b", "h200", max_model_len=8192, lengths=[1000, 8192])
    assert plan.model == "gemma-3-27b" and {group.kind for group in plan.groups} == {"sliding_window", "full_attention"}
    assert plan.lengths[0].concurrency > plan.lengths[1].concurrency > 1
    manager = plan.make_manager(enable_events=True)
    assert manager.num_blocks == plan.num_blocks and manager.max_model_len == 8192
    request = manager.new_request("a", range_of(100))
    assert manager.allocate_slots(request, 100) is not None and manager.take_events()
    with pytest.raises(kvblocks.NotFoundError, match="none"):
        kvblocks.make_plan("none", "h200")
    refusal("policy", kvblocks.make_plan, "gemma-3-27b", "h200", policy="none")
    with pytest.raises(FileNotFoundError):
        kvblocks.make_plan(hf_config="none.json", device="h200")


def test_specs_are_values() -> None:
    assert full_spec() == full_spec() and hash(full_spec()) == hash(full_spec()) and full_spec() != window_spec()
    assert full_spec().page_bytes == 65536 and window_spec().sliding_window == 48
    assert full_spec().fields["head_size_v"] == 128
    with pytest.raises(TypeError, match="unknown field colour"):
        kvblocks.KVCacheSpec.create("full_attention", colour=1)
    refusal("num_kv_heads is missing", kvblocks.KVCacheSpec.create, "full_attention", block_size=16)
    refusal("kind is", kvblocks.KVCacheSpec.create, "none")
    switches = kvblocks.Semantics("vllm-0.33-exactly")
    switches.retention_interval = None
    assert switches.trusts_hits and switches != kvblocks.Semantics("vllm-0.33-exactly")


def test_another_thread_is_refused_or_waits() -> None:
    """A long call lets other threads run; of the same manager they get an exception, never a data race."""
    manager = make_manager(num_blocks=200_000, max_model_len=1 << 21)
    tokens = np.arange(1 << 20, dtype=np.int32)
    stop = threading.Event()
    seen: list[Exception] = []

    def other() -> None:
        request = manager_request
        while not stop.is_set():
            try:
                manager.get_computed_blocks(request)
            except kvblocks.ConcurrentUseError as error:
                seen.append(error)

    manager_request = manager.new_request("other", tokens[:100])
    thread = threading.Thread(target=other)
    thread.start()
    try:
        for _ in range(40):
            while True:
                try:
                    request = manager.new_request("long", tokens)
                    break
                except kvblocks.ConcurrentUseError:
                    continue
            if seen:
                break
            del request
    finally:
        stop.set()
        thread.join()
    assert seen, "hashing a million tokens held the interpreter lock"
    manager.check_invariants()
