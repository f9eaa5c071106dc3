"""KVCacheManager: what vLLM's scheduler calls, answered by the native manager.

What is called per request and step (allocate_slots, get_computed_blocks, cache_blocks, get_blocks,
free) is native and has no Python frame; here is the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import vllm.envs as envs
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy, _gen_prompt_embeds_extra_hash_keys
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    KVCacheConfig,
    get_kv_cache_spec_kind,
    get_kv_cache_spec_sliding_window,
)
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import Request, RequestStatus

from kvblocks._core import vllm_native
from kvblocks.vllm import UnsupportedError
from kvblocks.vllm.config import checkpoint_alignment, groups_of, has_partial_hits, layer_spec
from kvblocks.vllm.plugin import SEMANTICS_SETTING

logger = init_logger("vllm.kvblocks")

Block = vllm_native.Block
KVCacheBlocks = vllm_native.Blocks


def _embedding_digest(request: Request, begin: int, end: int) -> bytes:
    keys = _gen_prompt_embeds_extra_hash_keys(request, begin, end)
    return keys[0][1] if keys else b""


class SingleTypeManager:
    """One group, as the engine and the scheduler ask about it."""

    def __init__(self, group_id: int, spec: Any, block_size: int) -> None:
        self.kv_cache_group_id = group_id
        self.kv_cache_spec = spec
        self.block_size = block_size


class Coordinator:
    """The groups together."""

    def __init__(self, manager: KVCacheManager, managers: tuple[SingleTypeManager, ...], partial_hits: bool) -> None:
        self.single_type_managers = managers
        self.enable_partial_hash_hits = partial_hits
        self.block_pool = manager.block_pool
        self._manager = manager

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        *,
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
        **_: Any,
    ) -> int:
        """Blocks that slots for num_tokens would take; for requests that hold blocks."""
        return int(
            self._manager._num_blocks_needed(request_id, num_tokens, total_computed_tokens, apply_admission_cap)
        )


class _Blocks(Sequence[Any]):
    """The blocks of the pool by id, made when asked for."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager

    def __len__(self) -> int:
        return int(self._manager._num_blocks())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._manager._block(i) for i in range(*index.indices(len(self)))]
        return self._manager._block(index)


class BlockPool:
    """What the scheduler and connectors that know block ids ask of a pool."""

    def __init__(self, manager: KVCacheManager, enable_caching: bool, hash_block_size: int) -> None:
        self._manager = manager
        self.enable_caching = enable_caching
        self.hash_block_size = hash_block_size
        self.num_gpu_blocks = int(manager._num_blocks())
        self.blocks = _Blocks(manager)

    @property
    def null_block(self) -> Any:
        """Stands in tables where no data is needed."""
        return self._manager._block(0)

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Gives back blocks that pop_blocks_for_free or take_kv_cache_block_copies handed out, first to be reused first."""
        self._manager._free_blocks(ordered_blocks)

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> list[Any] | None:
        """The block of each group that holds this content, or None if one lacks it."""
        ids = [self._manager._find_cached(block_hash, group) for group in kv_cache_group_ids]
        return None if 0 in ids else [self._manager._block(i) for i in ids]

    def get_num_free_blocks(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return int(self._manager._num_free_blocks())

    def get_usage(self) -> float:
        """Share of the blocks that requests hold."""
        return float(self._manager.usage)


class KVCacheManager(vllm_native.Manager):  # type: ignore[misc]
    """In the place of vllm.v1.core.kv_cache_manager.KVCacheManager, with its constructor.

    Raises UnsupportedError for a model or an option that it does not serve, ValueError for numbers that
    do not fit together.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: Any = None,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
    ) -> None:
        if metrics_collector is not None:
            raise UnsupportedError("kv_cache_metrics is not supported by kvblocks; switch it off")
        if enable_mamba_shared_prefix_checkpoint:
            raise UnsupportedError("enable_mamba_shared_prefix_checkpoint is not supported by kvblocks; switch it off")
        if pcp_world_size != 1:
            raise UnsupportedError(f"pcp_world_size is {pcp_world_size}, expected 1")
        groups = groups_of(kv_cache_config, dcp_world_size)
        partial_hits = has_partial_hits(kv_cache_config, enable_caching, hash_block_size, dcp_world_size)
        options = {
            "max_model_len": max_model_len,
            "max_in_flight_tokens": max_model_len if max_in_flight_tokens is None else max_in_flight_tokens,
            "scheduler_block_size": scheduler_block_size,
            "hash_block_size": hash_block_size,
            "enable_caching": enable_caching,
            "use_eagle": use_eagle and enable_caching,
            "num_hash_lookahead_tokens": num_hash_lookahead_tokens,
            "num_prefill_lookahead": num_prefill_lookahead,
            "enable_events": enable_kv_cache_events,
            "watermark": watermark,
            "partial_hits": partial_hits,
            "dcp_world_size": dcp_world_size,
            "checkpoint_alignment": checkpoint_alignment(kv_cache_config),
            "report_new_blocks": kv_cache_config.needs_kv_cache_zeroing,
            "semantics": os.environ.get(SEMANTICS_SETTING, "vllm-0.33-exactly"),
            "retention_interval": kv_cache_config.prefix_cache_retention_interval,
            "waiting_status": int(RequestStatus.WAITING),
            "preempted_status": int(RequestStatus.PREEMPTED),
            "block_stored": BlockStored,
            "block_removed": BlockRemoved,
            "all_blocks_cleared": AllBlocksCleared,
            "embedding_digest": _embedding_digest,
            "uses_int_hashes": envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES,
            "event_groups": [
                (
                    get_kv_cache_spec_kind(group.kv_cache_spec).value,
                    get_kv_cache_spec_sliding_window(group.kv_cache_spec),
                )
                for group in kv_cache_config.kv_cache_groups
            ],
        }
        super().__init__(kv_cache_config.num_blocks, groups, options)
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.enable_kv_cache_events = enable_kv_cache_events
        self.use_eagle = use_eagle
        self.log_stats = log_stats
        self.kv_cache_config = kv_cache_config
        self.num_kv_cache_groups = len(kv_cache_config.kv_cache_groups)
        self.mamba_shared_prefix_checkpoint = False
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.block_pool = BlockPool(self, enable_caching, hash_block_size)
        managers = []
        for index, group in enumerate(kv_cache_config.kv_cache_groups):
            spec = layer_spec(group.kv_cache_spec)
            ranks = dcp_world_size if spec.dcp_sharded else 1
            managers.append(SingleTypeManager(index, group.kv_cache_spec, group.kv_cache_spec.block_size * ranks))
        self.coordinator = Coordinator(self, tuple(managers), partial_hits)
        self._zeroed_again: list[int] = []
        logger.info("KV-cache manager: kvblocks, %d groups, semantics %s", len(groups), options["semantics"])

    # --- Statistics ---

    def prefix_cache_lookup_enabled(self, request: Request) -> bool:
        """Whether look-ups are made for this request."""
        return self.enable_caching and not request.skip_reading_prefix_cache

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Counts an admission with num_hits tokens from the cache."""
        if self.prefix_cache_stats is None or not self.prefix_cache_lookup_enabled(request):
            return
        self.prefix_cache_stats.record(
            num_tokens=request.num_tokens, num_hits=num_hits, preempted=request.num_preemptions > 0
        )

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """What was counted since the last call, or None without log_stats."""
        stats = self.prefix_cache_stats
        if stats is not None:
            self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached content; False, and nothing changed, while any block is in use."""
        if not self._reset_prefix_cache():
            used = self.block_pool.num_gpu_blocks - 1 - self.block_pool.get_num_free_blocks()
            logger.warning("The prefix cache was not reset: %d blocks are in use", used)
            return False
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    # --- Blocks ---

    def get_computed_blocks_for_connector(
        self, request: Request, max_cache_hit_length: int | None = None
    ) -> tuple[Any, int, int, bool]:
        """get_computed_blocks, and that no group hit more than the others."""
        blocks, num_tokens, boundary = self.get_computed_blocks(request, max_cache_hit_length)
        return blocks, num_tokens, boundary, False

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """0 for each group: vLLM has no cascade attention any more."""
        return [0] * self.num_kv_cache_groups

    def get_block_ids_for_computed_tokens(self, request_id: str, num_computed_tokens: int) -> tuple[list[int], ...]:
        """Block ids that cover so many tokens, per group; whole tables for groups of states."""
        clipped = []
        for group, ids in zip(self.kv_cache_config.kv_cache_groups, self.get_block_ids(request_id), strict=True):
            spec = group.kv_cache_spec
            if isinstance(spec, AttentionSpec):
                ids = ids[: -(-num_computed_tokens // spec.block_size)]
            clipped.append(ids)
        return tuple(clipped)

    def create_kv_cache_blocks(self, blocks: Any) -> Any:
        """vLLM builds its own lists here; ours come from the manager only."""
        if any(blocks):
            raise UnsupportedError("create_kv_cache_blocks: kvblocks makes no lists of foreign blocks")
        return self.empty_kv_cache_blocks

    def take_new_block_ids(self) -> list[int]:
        """Ids of attention blocks taken since the last call, where the model needs them zeroed."""
        ids: list[int] = self._take_new_block_ids()
        if self._zeroed_again:
            ids += self._zeroed_again
            self._zeroed_again = []
        return ids

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Names a request's attention blocks from start_token on once more, for blocks left unwritten."""
        if not self.kv_cache_config.needs_kv_cache_zeroing:
            return
        tables = self.get_block_ids(request_id)
        for manager, table in zip(self.coordinator.single_type_managers, tables, strict=True):
            if isinstance(manager.kv_cache_spec, AttentionSpec):
                self._zeroed_again += table[start_token // manager.block_size :]

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[Any]]:
        """Copies to be made before the next step computes, and the blocks kept for them until free_blocks."""
        if not self._has_block_copies():
            return [], []
        copies, blocks = self._take_block_copies()
        return [KVCacheBlockCopy(source, target) for source, target in copies], blocks

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Nothing: for connectors that store Mamba states, which are not supported."""
        return {}

    def finalize_partial_tail_offloads(self, request: Request) -> list[tuple[int, int, int]]:
        """Nothing, likewise."""
        return []


__all__ = ["Block", "BlockPool", "KVCacheBlocks", "KVCacheManager"]
