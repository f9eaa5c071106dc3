"""A BlockPool by itself, and contents that name its blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvblocks
from conftest import make_manager, refusal
from kvblocks import BlockPool, PrefixContent


def test_blocks_are_taken_cached_found_and_evicted() -> None:
    pool = BlockPool(6, enable_events=True)
    content = PrefixContent(range(40), block_size=16)
    table = pool.get_new_blocks(3)
    assert table == [1, 2, 3] and pool.num_free == 2 and pool.num_live == 3
    pool.cache_full_blocks(table[:2], content)
    pool.free_blocks(table, from_back=True)
    assert pool.num_cached == pool.num_cached_unreferenced == 2
    assert [pool.find_cached(hash) for hash in content.block_hashes] == [1, 2]
    assert pool[1].block_hash == content.block_hashes[0] and pool[3].block_hash is None
    pool.touch([1])
    assert pool[1].ref_count == 1 and not pool.reset_prefix_cache()
    # Blocks without a key go first, then the end of the table.
    assert pool.get_new_blocks(4) == [3, 4, 5, 2] and pool.get_new_blocks(1) is None
    assert pool.find_cached(content.block_hashes[1]) is None and pool.num_evictions == 1
    stored, removed = pool.take_events()
    assert isinstance(stored, kvblocks.BlockStored) and stored.token_ids == list(range(32))
    assert isinstance(removed, kvblocks.BlockRemoved) and removed.block_hash == content.block_hashes[1]
    pool.free_blocks([1, 2, 3, 4, 5])
    pool.evict_blocks([1])
    assert pool.num_cached == 0 and pool.reset_prefix_cache()
    assert pool.take_permanent_blocks(1) == [2] and pool[2].is_permanent
    pool.check_invariants()


def test_positions_block_sizes_and_groups() -> None:
    pool = BlockPool(10)
    content = PrefixContent(np.arange(64, dtype=np.int32), block_size=16)
    table = pool.get_new_blocks(2)
    assert table is not None
    pool.cache_full_blocks([0, table[0]], content, first=1, last=2, block_size=32, group=3)
    assert pool.find_cached(content.block_hashes[3], 3) == table[0]
    assert pool.find_cached(content.block_hashes[3]) is None and pool[table[0]].cached_group == 3


def test_hashes_have_the_size_of_the_first_that_is_registered() -> None:
    pool = BlockPool(4)
    table = pool.get_new_blocks(2)
    assert table is not None
    short = PrefixContent(range(32), hash_algorithm="xxh3_128")
    pool.cache_full_blocks([], short)
    pool.cache_full_blocks([0, 0], short)
    pool.cache_full_blocks(table, PrefixContent(range(32)))
    assert [len(pool[id].block_hash or b"") for id in table] == [32, 32]
    pool.evict_blocks(table)
    refusal("hashes have 16 bytes, and the first ones of this pool 32", pool.cache_full_blocks, table, short)


def test_misuse_changes_nothing() -> None:
    pool = BlockPool(6)
    content = PrefixContent(range(40))
    table = pool.get_new_blocks(3)
    assert table is not None
    pool.cache_full_blocks(table, content, last=1)
    before = [(pool[i].ref_count, pool[i].block_hash) for i in range(6)]
    wrong: list[tuple[Any, str]] = [
        (lambda: pool.get_new_blocks(-1), "-1 blocks"),
        (lambda: pool.free_blocks([1, 1]), "block 1 stands 2 times in the list and has 1"),
        (lambda: pool.free_blocks([1, 5]), "block 5 has no reference"),
        (lambda: pool.free_blocks([6]), "block 6, expected 0 to 5"),
        (lambda: pool.touch([-1]), "-1"),
        (lambda: pool.evict_blocks([9]), "9"),
        (lambda: pool.cache_full_blocks([2], content, block_size=24), "block_size is 24, expected a multiple"),
        (lambda: pool.cache_full_blocks([2, 3], content, first=1, last=3), "positions 1 to 3"),
        (lambda: pool.cache_full_blocks([0, 0, 3], content), "3 blocks of 16 tokens, but the content has 32"),
        (lambda: pool.cache_full_blocks([1], content), "block 1 is cached already"),
        (lambda: pool.cache_full_blocks([2, 2], content), "stands twice"),
        (lambda: pool.cache_full_blocks([4], content), "block 4 has no reference"),
        (lambda: pool.cache_full_blocks([2], content, group=-1), "group is -1"),
        (lambda: pool.cache_full_blocks([2], PrefixContent(range(40), hash_algorithm="xxh3_128")), "16 bytes"),
        (lambda: BlockPool(6, enable_caching=False).cache_full_blocks([], content), "enable_caching=False"),
        (lambda: BlockPool(0), "num_blocks"),
        (lambda: BlockPool(6, free_order="none"), "free_order"),
        (lambda: BlockPool(6, eviction_policy="none"), "eviction_policy"),
    ]
    for use, text in wrong:
        refusal(text, use)
    with pytest.raises(kvblocks.ResourceExhaustedError):
        pool.take_permanent_blocks(3)
    assert [(pool[i].ref_count, pool[i].block_hash) for i in range(6)] == before
    pool.check_invariants()


def test_a_manager_s_pool_is_to_look_at() -> None:
    pool = make_manager().pool
    for use in (lambda: pool.get_new_blocks(1), lambda: pool.free_blocks([]), pool.reset_prefix_cache):
        refusal("a KVCacheManager keeps this pool", use)


def test_contents_have_a_manager_s_hashes() -> None:
    options: dict[str, Any] = {"lora_name": "l", "cache_salt": "s", "features": [("image", 20, 30)]}
    for algorithm in ("sha256", "sha256_cbor", "xxh3_128", "xxhash_cbor"):
        manager = make_manager(hash_algorithm=algorithm, hash_seed="seed")
        content = PrefixContent(range(60), hash_algorithm=algorithm, hash_seed="seed", **options)
        assert content.block_hashes == manager.new_request("r", range(60), **options).block_hashes
    content = PrefixContent(range(60))
    content.append_tokens(range(60, 100))
    assert content.block_hashes == PrefixContent(range(100)).block_hashes
    assert (content.num_tokens, content.num_hashes, content.block_size) == (100, 6, 16)
    looking = PrefixContent(range(32), num_lookahead_tokens=1)
    assert looking.num_hashes == 1 and looking.block_hashes[0] != content.block_hashes[0]


@pytest.mark.parametrize("make,text", [
    (lambda: PrefixContent([1], block_size=0), "block"),
    (lambda: PrefixContent([1], hash_algorithm="md5"), 'hash_algorithm: got "md5"'),
    (lambda: PrefixContent([1], num_lookahead_tokens=256), "255"),
    (lambda: PrefixContent([1], lora_path="p"), "path"),
    (lambda: PrefixContent([1], features=[("i", -1, 1)]), "offset"),
    (lambda: PrefixContent([2**31]), r"token_ids\[0\]"),
])
def test_bad_contents_are_refused(make: Any, text: str) -> None:
    refusal(text, make)


def test_a_hit_may_be_limited() -> None:
    manager = make_manager()
    request = manager.new_request("a", range(100))
    manager.allocate_slots(request, 100)
    other = manager.new_request("b", range(100))
    lengths = [manager.get_computed_blocks(other, n).num_tokens for n in (None, 96, 95, 17, 0, -1, 1000)]
    assert lengths == [96, 96, 80, 16, 0, 0, 96]
    assert manager.get_computed_blocks(other, max_tokens=32).block_ids() == ([1, 2],)
