from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvblocks
from kvblocks import specs


def full_spec(block_size: int = 16) -> kvblocks.KVCacheSpec:
    return specs.FullAttentionSpec(block_size=block_size, num_kv_heads=8, head_size=128)


def window_spec(window: int = 48, block_size: int = 16) -> kvblocks.KVCacheSpec:
    return specs.SlidingWindowSpec(block_size=block_size, num_kv_heads=8, head_size=128, sliding_window=window)


def make_manager(*groups: kvblocks.KVCacheSpec, num_blocks: int = 100, **options: Any) -> kvblocks.KVCacheManager:
    config = kvblocks.KVCacheConfig(
        num_blocks, [kvblocks.KVCacheGroup(spec, [f"layer{i}"]) for i, spec in enumerate(groups or [full_spec()])])
    return kvblocks.KVCacheManager(config, **{"max_model_len": 4096, **options})


def refusal(match: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """The call raises InvalidArgumentError with this in its message."""
    with pytest.raises(kvblocks.InvalidArgumentError, match=match):
        call(*arguments, **options)


@pytest.fixture
def manager() -> kvblocks.KVCacheManager:
    return make_manager(enable_events=True, lookup_history_blocks=100)
