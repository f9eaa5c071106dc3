"""Attention through block tables on arrays of any library: numpy, torch, JAX, CuPy, whatever has DLPack.

    from kvblocks import attention

    cache = attention.KVCache(k_cache, v_cache)                       # [blocks, 16, kv heads, head size] each
    attention.reshape_and_cache(k, v, slot_mapping, cache)
    out = attention.paged_decode(q, cache, block_table, seq_lens)     # scale is 1 / sqrt(head size)

Arrays on the host run on the CPU (threads=ThreadPool(8) shares the work), arrays on a CUDA device there, if the
package was built with CUDA (`has_cuda`). A call on CUDA only enqueues, on the caller's stream, and neither
allocates nor waits, so it can be captured in a graph; that device must be the current one. Nothing is copied.
Shapes use R requests, T new tokens of all requests one after another, H query heads, Hkv KV heads, head sizes D
(of K) and Dv (of V), and lengths that include the new tokens.

A wrong argument raises kvblocks.InvalidArgumentError, which names it, and nothing was written.
docs/python.md and docs/attention.md go on from here.
"""

from __future__ import annotations

import sys
from typing import Any

from kvblocks._attention import (
    AttentionMetadata, AttentionMetadataBuilder, DecodePlan, DeviceMetadata, KVCache, KVGroup, Tensor,
    ThreadPool, Workspace, build_compressed_slots, build_dense_compressed_indices, build_swa_indices,
    build_topk_slots, cache_index_keys, cascade, combine_prefill_indices, compress_tokens, compute_kv_scales,
    compute_slot_mapping, concat_and_cache_mla, fuse_kv, gather_cache, has_cuda, hkvd_count, index_topk,
    merge_states, mla_decode, paged_decode, paged_decode_partial, paged_prefill, plan_decode, reduce_splits,
    reshape_and_cache, rotate_keys, select_hkvd, sparse_mla_decode, sparse_mla_prefill, varlen_self_attention,
    workspace_bytes,
)
from kvblocks.errors import InvalidArgumentError


def _current_stream(array: Any, device: int) -> int:
    """The CUDA stream of the array's library, where that has no table of DLPack's to ask."""
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)
    return 0  # the legacy default stream


def _empty(op: str, name: str, like: Any, shape: tuple[int, ...], float32: bool) -> Any:
    """An output that the caller left out, from the library of `like`."""
    library = type(like).__module__.partition(".")[0]
    if library == "torch":
        torch = sys.modules["torch"]
        return like.new_empty(shape, dtype=torch.float32 if float32 else like.dtype, requires_grad=False)
    if library == "numpy":
        import numpy

        return numpy.empty(shape, numpy.float32 if float32 else like.dtype)
    raise InvalidArgumentError(f"{op}: {name} is None, and is allocated for arrays of numpy and torch only; "
                               f"give an array for it")


__all__ = [
    "AttentionMetadata", "AttentionMetadataBuilder", "DecodePlan", "DeviceMetadata", "KVCache", "KVGroup",
    "Tensor", "ThreadPool", "Workspace", "build_compressed_slots", "build_dense_compressed_indices",
    "build_swa_indices", "build_topk_slots", "cache_index_keys", "cascade", "combine_prefill_indices",
    "compress_tokens", "compute_kv_scales", "compute_slot_mapping", "concat_and_cache_mla", "fuse_kv",
    "gather_cache", "has_cuda", "hkvd_count", "index_topk", "merge_states", "mla_decode", "paged_decode",
    "paged_decode_partial", "paged_prefill", "plan_decode", "reduce_splits", "reshape_and_cache", "rotate_keys",
    "select_hkvd", "sparse_mla_decode", "sparse_mla_prefill", "varlen_self_attention", "workspace_bytes",
]
