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

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from kvblocks._attention import (
    AttentionMetadata, AttentionMetadataBuilder, BlockSparse, DecodePlan, DeviceMetadata, ForwardContext, KVCache,
    KVGroup, Mask, SplitPlanner, Tensor, ThreadPool, Workspace, build_compressed_slots, build_dense_compressed_indices,
    build_swa_indices, build_topk_slots, cache_index_keys, cascade, combine_prefill_indices, compress_tokens,
    compute_kv_scales, compute_slot_mapping, concat_and_cache_mla, convert_layout, copy_blocks, fill_blocks,
    fuse_kv, gather_cache, gather_rows, has_cuda, hkvd_count, index_topk, merge_states, mla_decode, paged_decode,
    paged_decode_partial, paged_prefill, plan_decode, quantize_queries, reduce_splits, reshape_and_cache,
    rotate_keys, scale_and_cache, select_hkvd, set_backend, sparse_mla_decode, sparse_mla_prefill, swap_blocks,
    varlen_self_attention, workspace_bytes,
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


@contextlib.contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Within it, calls of this thread run on the backend of this name.

    "cpu" and "cuda" are what arrays on the host and on a CUDA device take anyway, and refuse the others;
    "cpu_reference" computes in float64, slowly: what the others are measured against. None goes by the arrays.
    """
    before = set_backend(name)
    try:
        yield
    finally:
        set_backend(before)


def pack_mask(masks: Iterable[Any]) -> Any:
    """Boolean masks of requests, [rows, keys] each and True where a key is hidden, as bits for
    Mask(bits, form="ragged_bits"). Needs numpy; returns its uint8 [bytes]."""
    import numpy

    flat = []
    for i, mask in enumerate(masks):
        array = numpy.asarray(mask)
        if array.dtype != numpy.bool_ or array.ndim != 2:
            raise InvalidArgumentError(f"pack_mask: masks[{i}] is {array.dtype}{list(array.shape)}; bool [rows, keys]")
        flat.append(array.reshape(-1))
    return numpy.packbits(numpy.concatenate(flat) if flat else numpy.zeros(0, numpy.bool_), bitorder="little")


__all__ = [
    "AttentionMetadata", "AttentionMetadataBuilder", "BlockSparse", "DecodePlan", "DeviceMetadata", "ForwardContext",
    "KVCache", "KVGroup", "Mask", "SplitPlanner", "Tensor", "ThreadPool", "Workspace", "build_compressed_slots",
    "build_dense_compressed_indices", "build_swa_indices", "build_topk_slots", "cache_index_keys", "cascade",
    "combine_prefill_indices", "compress_tokens", "compute_kv_scales", "compute_slot_mapping",
    "concat_and_cache_mla", "convert_layout", "copy_blocks", "fill_blocks", "fuse_kv", "gather_cache",
    "gather_rows", "has_cuda", "hkvd_count", "index_topk", "merge_states", "mla_decode", "pack_mask",
    "paged_decode", "paged_decode_partial", "paged_prefill", "plan_decode", "quantize_queries", "reduce_splits",
    "reshape_and_cache", "rotate_keys", "scale_and_cache", "select_hkvd", "sparse_mla_decode",
    "sparse_mla_prefill", "swap_blocks", "use_backend", "varlen_self_attention", "workspace_bytes",
]
