"""vLLM's KVCacheConfig as our manager takes it."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.kv_cache_utils import partial_hash_hits_enabled
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvblocks.vllm import UnsupportedError

# By exact type: a subclass may have a manager of its own.
_KINDS: dict[type[KVCacheSpec], str] = {
    FullAttentionSpec: "full_attention",
    MLAAttentionSpec: "full_attention",
    HiddenStateCacheSpec: "full_attention",
    SlidingWindowSpec: "sliding_window",
    SlidingWindowMLASpec: "sliding_window",
    ChunkedLocalAttentionSpec: "chunked_local_attention",
    MambaSpec: "mamba",
    CircularBufferSpec: "ring",
    CrossAttentionSpec: "cross_attention",
}

Group = tuple[str, int, int, int | None, int, str, int, int, bool]


def layer_spec(spec: KVCacheSpec) -> KVCacheSpec:
    """The spec that says how a group's blocks are managed: of its first layer, where layers differ in size only."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def _refuse(index: int, spec: KVCacheSpec, why: str) -> UnsupportedError:
    return UnsupportedError(f"KV-cache group {index} ({type(spec).__name__}): {why}; unset KVBLOCKS_VLLM")


def groups_of(config: KVCacheConfig, dcp_world_size: int) -> list[Group]:
    """One entry per group for the native manager. Raises UnsupportedError for a kind that it does not serve."""
    groups: list[Group] = []
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    for index, group in enumerate(config.kv_cache_groups):
        spec = layer_spec(group.kv_cache_spec)
        kind = _KINDS.get(type(spec))
        if kind is None or group.host_resident or str(getattr(group.role, "value", group.role)) != "default":
            raise _refuse(index, spec, "a kind of cache that kvblocks does not manage")
        if getattr(spec, "bounded_replay", False):
            raise _refuse(index, spec, "bounded_replay is not supported")
        if dcp_world_size > 1 and isinstance(spec, AttentionSpec) and kind != "ring" and not spec.dcp_sharded:
            raise _refuse(index, spec, f"not spread over ranks, but dcp_world_size is {dcp_world_size}")
        if dcp_world_size > 1 and kind in ("sliding_window", "chunked_local_attention"):
            raise _refuse(index, spec, f"cannot be spread over ranks, but dcp_world_size is {dcp_world_size}")
        window: int | None = None
        mode, num_speculative, num_checkpoints, num_retained = "none", 0, 0, 0
        if isinstance(spec, SlidingWindowSpec):
            window, num_retained = spec.sliding_window, spec.extra_retained_tokens
        elif isinstance(spec, ChunkedLocalAttentionSpec):
            window = spec.attention_chunk_size
            if window % spec.block_size != 0:
                raise _refuse(index, spec, f"attention_chunk_size is {window}, expected whole blocks of {spec.block_size}")
        elif isinstance(spec, MambaSpec):
            mode = spec.mamba_cache_mode
            num_speculative = spec.num_speculative_blocks
            num_checkpoints = spec.num_prefill_checkpoint_blocks
        # Groups with equal specs are looked up together.
        number = next(i for i, other in enumerate(specs) if other == group.kv_cache_spec)
        groups.append(
            (
                kind, spec.block_size, number, window, num_retained, mode, num_speculative, num_checkpoints,
                group.is_eagle_group,
            )
        )
    return groups


def has_partial_hits(
    config: KVCacheConfig, enable_caching: bool, hash_block_size: int, dcp_world_size: int
) -> bool:
    """Whether hits may end inside blocks, as vLLM's coordinator decides it."""
    if not enable_caching or len(config.kv_cache_groups) < 2:
        return False
    managers = [
        KVCacheSpecRegistry.get_manager_class(group.kv_cache_spec, group.role) for group in config.kv_cache_groups
    ]
    return bool(partial_hash_hits_enabled(config.kv_cache_groups, hash_block_size, dcp_world_size, managers))


def checkpoint_alignment(config: KVCacheConfig) -> int:
    """Tokens between the places at which a backend can export a Mamba state; 1 where it does not say."""
    alignments: set[Any] = {
        spec.prefill_checkpoint_alignment
        for spec in (layer_spec(group.kv_cache_spec) for group in config.kv_cache_groups)
        if isinstance(spec, MambaSpec) and spec.prefill_checkpoint_alignment is not None
    }
    if len(alignments) > 1:
        raise UnsupportedError(f"Mamba groups with several checkpoint alignments {sorted(alignments)}: expected one")
    return int(alignments.pop()) if alignments else 1
