"""KV-cache configurations of families of models, small enough for random tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

HEADS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}


@dataclasses.dataclass
class Family:
    groups: list[tuple[Any, bool]]  # the spec, and whether it holds draft layers
    block_size: int  # the scheduler's
    hash_block_size: int
    retention: int | None = 0
    mamba: bool = False
    use_eagle: bool = False
    hash_lookahead: int = 0
    prefill_lookahead: int = 0
    encoder: bool = False  # with cross attention, and without prefix caching

    def config(self, num_blocks: int) -> KVCacheConfig:
        return KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{i}"], spec, is_eagle_group=draft)
                for i, (spec, draft) in enumerate(self.groups)
            ],
            prefix_cache_retention_interval=self.retention,
        )


def full(block_size: int) -> Any:
    return FullAttentionSpec(block_size=block_size, **HEADS)


def window(block_size: int, size: int, **more: Any) -> Any:
    return SlidingWindowSpec(block_size=block_size, sliding_window=size, **HEADS, **more)


def mamba(block_size: int, mode: str = "align", speculative: int = 0) -> Any:
    return MambaSpec(
        block_size=block_size,
        shapes=((4, 4),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        num_speculative_blocks=speculative,
    )


def mla(block_size: int, **more: Any) -> Any:
    return MLAAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16, **more)


def mla_window(block_size: int, size: int, head_size: int = 64) -> Any:
    return SlidingWindowMLASpec(
        block_size=block_size, num_kv_heads=1, head_size=head_size, dtype=torch.bfloat16, sliding_window=size
    )


FAMILIES: dict[str, Callable[[], Family]] = {
    "full": lambda: Family([(full(4), False)], 4, 4),
    "mla": lambda: Family([(mla(4), False)], 4, 4),
    # Gemma 3: one full group and five of windows.
    "gemma": lambda: Family([(full(4), False)] + [(window(4, 10), False)] * 5, 4, 4),
    "gemma-dense": lambda: Family([(full(4), False)] + [(window(4, 10), False)] * 5, 4, 4, retention=None),
    "gemma-interval": lambda: Family([(full(4), False), (window(4, 10), False)], 4, 4, retention=16),
    # gpt-oss: windows of 128 tokens beside full attention, one group each.
    "gpt-oss": lambda: Family([(full(4), False), (window(4, 8), False)], 4, 4),
    "window": lambda: Family([(window(4, 10), False)], 4, 4),
    # Gemma 4: windows with blocks of other sizes than full attention.
    "two-block-sizes": lambda: Family([(full(8), False), (window(4, 6), False)], 8, 4),
    "chunked": lambda: Family(
        [(full(4), False), (ChunkedLocalAttentionSpec(block_size=4, attention_chunk_size=16, **HEADS), False)], 4, 4
    ),
    # Qwen 3.5, Nemotron: states beside full attention.
    "mamba": lambda: Family([(full(4), False), (mamba(4), False)], 4, 4, mamba=True),
    "mamba-dense": lambda: Family([(full(4), False), (mamba(4), False)], 4, 4, retention=None, mamba=True),
    # The same with hits inside blocks.
    "mamba-partial": lambda: Family([(full(8), False), (mamba(8), False)], 8, 4, mamba=True),
    "mamba-3": lambda: Family([(full(4), False)] + [(mamba(4), False)] * 3, 4, 4, mamba=True),
    # DeepSeek V4: compressed MLA and windows with blocks of several sizes.
    "deepseek-v4": lambda: Family(
        [(mla(16), False), (mla_window(16, 24), False), (mla_window(4, 8, 32), False), (mla_window(8, 12, 16), False)],
        16,
        4,
    ),
    # Whisper: each request has as many encoder blocks as its input takes, from its admission on.
    "whisper": lambda: Family(
        [(full(4), False), (CrossAttentionSpec(block_size=4, **HEADS), False)], 4, 4, encoder=True
    ),
    # Drafters. With look-ahead hashes (the default), and with the drop that connectors still have.
    "eagle": lambda: Family([(full(4), True)], 4, 4, hash_lookahead=1, prefill_lookahead=1),
    "eagle-gemma": lambda: Family(
        [(full(4), True), (window(4, 10), False)], 4, 4, hash_lookahead=1, prefill_lookahead=1
    ),
    "eagle-drop": lambda: Family([(full(4), True)], 4, 4, use_eagle=True, prefill_lookahead=1),
    "eagle-drop-gemma": lambda: Family(
        [(full(4), True), (window(4, 10), True)], 4, 4, use_eagle=True, prefill_lookahead=1
    ),
    "eagle-mamba": lambda: Family(
        [(full(4), True), (mamba(4, speculative=2), False)], 4, 4, hash_lookahead=1, prefill_lookahead=1, mamba=True
    ),
    "mtp": lambda: Family([(full(4), True)], 4, 4, hash_lookahead=2, prefill_lookahead=2),
    "mtp-gemma": lambda: Family(
        [(full(4), True), (window(4, 10, extra_retained_tokens=1), False)], 4, 4, hash_lookahead=2, prefill_lookahead=2
    ),
}
