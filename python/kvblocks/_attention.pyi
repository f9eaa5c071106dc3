"""The compiled part of kvblocks.attention; use that."""

from collections.abc import Sequence

import numpy


from typing import Any, Protocol, TypeAlias
from numpy.typing import NDArray
class DLPackArray(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self, *args: Any, **kwargs: Any) -> Any: ...
Array: TypeAlias = DLPackArray | Tensor | memoryview
Stream: TypeAlias = int | Any
Pairs: TypeAlias = Sequence[tuple[int, int]] | NDArray[Any]
Ids: TypeAlias = Sequence[int] | NDArray[Any]

has_cuda: bool

class Tensor:
    """
    An array that was described once: memory, shape, strides, type, device.

    Every function takes one in place of an array; that saves the look at the array (0.1 to 1 us) for
    caches, workspaces and the fixed buffers of a captured graph. With `dtype` the same memory is read
    as another type of the same size: a uint8 array as "float8_e4m3fn", a uint16 array as "bfloat16".
    Keeps the array alive, and copies nothing. The array must not be given other memory meanwhile
    (torch's resize_ and set_).
    """

    def __init__(self, array: Array, dtype: Any | None = None) -> None:
        """
        dtype: a name, as numpy and torch have them, or a dtype object. Raises InvalidArgumentError for negative strides, other devices, types that no operation takes, or another element size.
        """

    @property
    def array(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str:
        """"host", "pinned host", "cuda:0"."""

    @property
    def is_read_only(self) -> bool: ...

    def __repr__(self) -> str: ...

class KVCache:
    """
    One layer's paged cache, over the caller's memory: made once per layer, passed to every
    call.

    With NB blocks of BS tokens, Hkv KV heads of D values (V: Dv), `layout` is one of

      "nhd"          k and v [NB, BS, Hkv, D]
      "hnd"          k and v [NB, Hkv, BS, D]
      "paged_x"      k [NB, Hkv, D/x, BS, x] with x = 16 bytes / element size, v [NB, Hkv, Dv, BS]
      "mla_latent"   k [NB, BS, R_kv + R_pe], of which the first `latent_rank` = R_kv columns are also V
      "mla_split"    k [NB, BS, R_kv] and v [NB, BS, R_pe], separate
      "mla_fp8_656"  k uint8 [NB, BS, 656]: DeepSeek V3.2's rows
      "mla_fp8_584"  k uint8 [NB, bytes of a block], with `block_size` tokens: DeepSeek V4's blocks

    Strides of blocks, tokens and heads are free, so kv[:, 0] and kv[:, 1] of one allocation will do.
    Elements are float32, float16, bfloat16, or codes with scales: float8_e4m3fn, float8_e5m2, int8;
    Tensor(array, dtype) gives uint8 memory such a type. A slot is block * BS + offset in the block.
    """

    def __init__(self, k: Array, v: Array | None = None, *, layout: str = 'nhd', latent_rank: int | None = None, block_size: int | None = None, row_format: str = 'elements', k_scales: Array | None = None, v_scales: Array | None = None) -> None:
        """
        row_format: of nhd and hnd, "per_token_head" (codes of int8 or float8_e4m3fn),
        "int4_per_token_head" or "nvfp4" (uint8 [..., D / 2], two codes each), with scales in the cache:
        k_scales and v_scales have the first three dimensions of k, float32, or for nvfp4 float8_e4m3fn with
        a fourth of D / 16. Of mla_latent, "mla_v41_528", "mla_v41_fp4_288" or "mla_nvfp4_352": k uint8 [NB,
        BS, bytes of a record], without latent_rank.
        """

    @property
    def k(self) -> Any: ...

    @property
    def v(self) -> Any:
        """None for rows of one tensor."""

    @property
    def layout(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int:
        """Tokens per block."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def key_dim(self) -> int:
        """Values per row of K."""

    @property
    def value_dim(self) -> int:
        """Values per row of V."""

    def __repr__(self) -> str: ...

class Workspace:
    """
    Scratch memory of operations on a GPU, and where they report bad indices.

    One per stream, used by all layers and operations in turn; workspace_bytes says how much. Operations
    on host memory need none. Bits of error_flags: 1 a slot outside of the cache (not stored), 2 a block
    id outside of it (its keys unseen), 4 a sparse index (ignored), 8 a bad scale, 16 a state of
    infinity, 32 an input that is not finite where a maximum is taken, 64 a length beyond the block
    table. Operations set bits and never clear any.
    """

    def __init__(self, memory: Array | None = None, *, error_flags: Array | None = None) -> None:
        """
        memory: any contiguous array, which should begin at a multiple of 256 bytes. error_flags: one element of 32 bits, where the arrays of the operations are.
        """

    @property
    def memory(self) -> Any: ...

    @property
    def error_flags(self) -> Any: ...

    @property
    def nbytes(self) -> int: ...

class ThreadPool:
    """
    Threads for operations on host memory; results do not depend on them.

    Calls from several threads take turns. A child after fork has none of its threads: make it there.
    """

    def __init__(self, num_threads: int = 0) -> None:
        """num_threads: in all, the caller included; 0 means one per processor."""

    @property
    def num_threads(self) -> int: ...

def workspace_bytes(op: str, *, max_reqs: int = 0, max_tokens: int = 0, num_heads: int = 0, num_kv_heads: int = 0, value_head_size: int = 0, max_parts: int = 512, max_rows: int = 0) -> int:
    """
    Bytes of a Workspace that serves a function of this module within these bounds on a GPU.

    They follow from bounds alone, never from lengths, so a captured graph finds room at every replay.
    max_parts: of work that run at a time; 512 is enough for GPUs of up to 170 multiprocessors.
    max_rows: of an indexer's cache, that a token sees.
    """

def set_backend(name: str | None) -> str | None:
    """Of this thread; returns the one before. use_backend is the interface."""

class Mask:
    """
    How an array masks keys, where its dimensions and type do not say it.

    form: "shared" [rows, keys], "per_request" [R, rows, keys], "per_head" [R or 1, H or 1, rows, keys];
    "ragged_bits" uint8 [bytes]: a bit per row and key of each request in turn, 1 hides (pack_mask makes
    them); "template": a causal [N, N] from which sparse modes make masks of any length. None goes by
    the number of dimensions. encoding: "marker" (not 0 hides), "additive" (added to scores) or
    "additive_finite" (float16, -10000 for hidden). None goes by the type: floats are added.
    """

    def __init__(self, array: Array | None, *, form: str | None = None, encoding: str | None = None, sparse_mode: int = 1, pre_tokens: int | None = None, next_tokens: int | None = None, rows_are_absolute: bool = False) -> None:
        """
        sparse_mode, of S1 rows i over S2 keys j with o = S2 - S1: 0 the mask and the band
        -pre_tokens <= j - i <= next_tokens, without an array everything; 1 the mask; of a template 2 is
        j <= i, 3 is j <= i + o, 4 is i + o - pre_tokens <= j <= i + o + next_tokens. rows_are_absolute:
        rows are positions.
        """

    @property
    def array(self) -> Any: ...

class BlockSparse:
    """
    Which blocks of keys a head sees (Phi-3-small's rule).

    With query block Q = p // block_size and key block B = j // block_size a key is seen if B > Q -
    local_blocks, or if (B + offset) % vert_stride == 0. offset is (tp_rank * H + h) * head_sliding_step
    + 1 for steps of at least 0, else (tp_rank * Hkv + KV head) * -head_sliding_step + 1.
    """

    def __init__(self, *, local_blocks: int, vert_stride: int, block_size: int = 64, head_sliding_step: int = 0, tp_rank: int = 0) -> None: ...

    @property
    def local_blocks(self) -> int: ...

    @property
    def vert_stride(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def head_sliding_step(self) -> int: ...

    @property
    def tp_rank(self) -> int: ...

class SplitPlanner:
    """
    Cuts the keys of a decode batch into parts of equal work, on the host.

    Keys are counted in tiles. A planner with a plan is an argument `plan` of paged_decode, for all
    layers of the step; plan() makes the next one in the same memory, so not while a call uses the last.
    On CUDA the plan travels with the call; DecodePlan is made there.
    """

    def __init__(self, max_num_reqs: int = 0, max_num_parts: int = 0) -> None:
        """Memory for plans within these bounds; larger ones allocate."""

    def plan(self, seq_lens: Array, *, block_size: int, window: int = 0, split_tokens: int | None = None, num_splits: int | None = None, tile: int = 64, overhead: int = 5, num_parts: int = 1) -> None:
        """
        seq_lens int32 [R] in host memory; block_size of the cache; window: keys that a query
        sees, itself included, 0 is all. split_tokens and num_splits as in paged_decode; without them
        num_parts parts of about equal work, in tiles of `tile` keys, beginning a request being worth
        `overhead` of them.
        """

    @property
    def tile(self) -> int:
        """Keys per tile."""

    @property
    def num_parts(self) -> int: ...

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """(request, first tile, last tile + 1) of each piece, requests in order."""

    @property
    def split_offsets(self) -> list[int]:
        """Of R + 1: ranges of request b are [b] to [b + 1]."""

def reshape_and_cache(k: Array, v: Array, slot_mapping: Array, cache: KVCache, *, k_scale: Array | float | None = None, v_scale: Array | float | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    Stores the keys and values of new tokens.

    k [T, Hkv, D], v [T, Hkv, Dv]; slot_mapping int64 [n], n <= T: slots, below 0 is skipped, and tokens
    from n on are padding. Only the bytes of these slots change. A cache in codes stores value / scale,
    k_scale and v_scale being float32 of one element or [Hkv], or on the host a number.
    """

def concat_and_cache_mla(kv_c: Array, k_pe: Array, slot_mapping: Array, cache: KVCache, *, scale: Array | float | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    Stores rows of a latent cache.

    kv_c [T, R_kv], k_pe [T, R_pe]; slot_mapping as for reshape_and_cache. mla_fp8_656 and mla_fp8_584
    quantise by tiles; an 8-bit mla_latent or mla_split cache takes `scale`, float32 of one element, or
    on the host a number.
    """

def compute_kv_scales(k: Array, v: Array, k_scale: Array, v_scale: Array, *, q: Array | None = None, q_scale: Array | None = None, k_divisor: float = 200.0, v_divisor: float = 100.0, q_divisor: float = 200.0, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    The scales of a cache in codes: the largest magnitude / divisor.

    k [T, Hkv, D], v [T, Hkv, Dv], q [T, H, D] -> k_scale and v_scale, float32 of one element or [Hkv],
    and q_scale of one. Nothing but zeros gives 1; what is not finite is left out and flagged. int8
    caches use divisors of 127.
    """

def scale_and_cache(k: Array, v: Array, slot_mapping: Array, cache: KVCache, k_scale: Array, v_scale: Array, *, q: Array | None = None, q_scale: Array | None = None, k_divisor: float = 200.0, v_divisor: float = 100.0, q_divisor: float = 200.0, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    compute_kv_scales, then reshape_and_cache by these scales, in one call: bit for bit the
    same.

    k [T, Hkv, D], v [T, Hkv, Dv], q [T, H, D], slot_mapping int64 [n], n <= T; k_scale and v_scale,
    float32 of one element or [Hkv], and q_scale of one are written. The cache is one in codes that is
    given scales. Without tokens nothing changes.
    """

def quantize_queries(q: Array, codes: Array, *, scale: Array | float | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    Codes of queries, for operations that take a q_scale.

    q [T, H, D] -> codes float8_e4m3fn [T, H, D]: q / scale, rounded to nearest even, at most 448 either
    way. scale: float32 of one element, or on the host a number; None is 1.
    """

def gather_cache(cache: KVCache, block_table: Array, seq_lens: Array, lengths: Array, out: Array, out_v: Array | None = None, *, row_offset: int = 0, k_scale: Array | float | None = None, v_scale: Array | float | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    Copies the last lengths[b] tokens of each request out of the cache, dequantised.

    block_table int32 [R, columns], seq_lens and lengths int32 [R] -> out [R, M, Hkv, D] and out_v [R,
    M, Hkv, Dv], or of a latent cache out [R, M, key_dim]; rows from row_offset on.
    """

def rotate_keys(keys: Array, positions: Array, *, from_positions: Array | None = None, theta: float = 10000.0, rotary_dim: int = 0, interleaved: bool = False, out: Array | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    Rotary embedding of keys [n, Hkv, D] by positions, int32 or int64 [n]; returns out.

    Angle i is position * theta^(-2i / rotary_dim) (0: D columns); with from_positions, the rotation is
    from there to positions. Pairs are column i and i + rotary_dim / 2, or with interleaved 2i and 2i +
    1. out may be keys.
    """

def select_hkvd(v_new: Array, v_old: Array, imp: Array, *, ratio: float = 0.16, suffix_len: int = 1, diffs: Array | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    CacheBlend's choice of tokens to compute anew: those whose values deviate most, then the
    suffix.

    v_new, v_old [n, Hkv, D] -> imp int32, ascending, of which the first hkvd_count(n, ratio,
    suffix_len) are written; diffs float32 [n - suffix_len]: the squared deviations.
    """

def hkvd_count(num_tokens: int, ratio: float = 0.16, suffix_len: int = 1) -> int:
    """
    How many of num_tokens tokens select_hkvd chooses, the suffix included.
    """

def fuse_kv(imp: Array, k_new: Array, v_new: Array, k_old: Array, v_old: Array, *, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    old[imp[r]] = new[r] for keys and values.

    imp int32 [M]; k_new and v_new [M, Hkv, D]; k_old and v_old [n, Hkv, D].
    """

def gather_rows(rows: Array, index: Array, out: Array | None = None, *, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    out[r] = rows[index[r]], bit by bit; returns out.

    rows [n, ...] of any type and of one to three dimensions, index int32 [M] -> out [M, ...] of the
    same type. A row may be taken repeatedly.
    """

def copy_blocks(caches: Sequence[KVCache], pairs: Pairs, *, stream: Stream = None, threads: ThreadPool | None = None) -> None:
    """
    Within each cache (one per layer), block pair[0] over block pair[1]: copy-on-write.

    Refused before anything is moved: ids outside of the cache, a destination given twice or also a
    source, caches that share memory. Pairs are read on the host; on CUDA they travel with the call.
    """

def swap_blocks(src: KVCache, dst: KVCache, pairs: Pairs, *, stream: Stream = None, threads: ThreadPool | None = None) -> None:
    """
    Block pair[0] of src over block pair[1] of dst, another cache with blocks of the same kind.

    One may be in pinned host memory and the other on CUDA: how blocks are swapped out and back in.
    """

def convert_layout(src: KVCache, dst: KVCache, *, stream: Stream = None, threads: ThreadPool | None = None) -> None:
    """
    All slots of src into dst, of the same blocks, heads, dims and type, but maybe another
    layout.

    "paged_x", "nhd" and "hnd" convert into each other, "mla_latent" and "mla_split" do. Bits are moved,
    not converted.
    """

def fill_blocks(cache: KVCache, block_ids: Ids, byte: int = 0, *, stream: Stream = None, threads: ThreadPool | None = None) -> None:
    """Every byte of these blocks, and no other, becomes `byte`."""

class DecodePlan:
    """
    How a decode on CUDA is cut into parts, in device memory of the caller.

    plan_decode makes it, on the stream; it serves all layers of the same shapes until lengths change,
    on one stream at a time. Without a plan paged_decode makes its own in the same launch: plans save
    time in batches above 128 requests.
    """

    def __init__(self, memory: Array) -> None:
        """
        memory: contiguous, on CUDA, from a multiple of 16 bytes on; plan_decode refuses too little with the size that it needs.
        """

    @property
    def memory(self) -> Any: ...

def plan_decode(plan: DecodePlan, q: Array, cache: KVCache, block_table: Array, seq_lens: Array, *, max_seq_len: int, out: Array, window_left: int = -1, split_tokens: int | None = None, num_splits: int | None = None, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    Makes the plan of a step on CUDA: one launch, for layers that decode these shapes.

    The arguments are those of paged_decode, of which only shapes, lengths and the window count; out is
    not written.
    """

def paged_decode(q: Array, cache: KVCache, block_table: Array, seq_lens: Array, *, max_seq_len: int | None = None, scale: float | None = None, soft_cap: float = 0.0, window_left: int = -1, chunk: int = 0, alibi_slopes: Array | None = None, sinks: Array | None = None, mask: Array | Mask | None = None, block_sparse: BlockSparse | None = None, k_scale: Array | float | None = None, v_scale: Array | float | None = None, q_scale: Array | float | None = None, split_tokens: int | None = None, num_splits: int | None = None, plan: DecodePlan | SplitPlanner | None = None, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    One new token per request, its key already in the cache.

    q [R, H, D]; block_table int32 [R, columns], of which row b counts ceil(seq_lens[b] / block size)
    entries; seq_lens int32 [R], the new token included. A request of length 0 gives 0 and -infinity.

    max_seq_len: at least every length; on CUDA it must be given, and a captured graph serves lengths up
    to it. split_tokens: keys are cut at multiples of it, a multiple of the block size, so that results
    do not depend on the rest of the batch. num_splits: keys are cut into at most so many pieces; 1: not
    at all. plan: made by a SplitPlanner, or on CUDA by plan_decode. A mask has one row per request. The
    other arguments are those of paged_prefill. Returns out [R, H, Dv], or (out, lse [R, H]).
    """

def paged_prefill(q: Array, cache: KVCache, query_start_loc: Array, seq_lens: Array, block_table: Array, *, max_query_len: int | None = None, max_seq_len: int | None = None, scale: float | None = None, soft_cap: float = 0.0, window_left: int = -1, chunk: int = 0, alibi_slopes: Array | None = None, sinks: Array | None = None, causal: bool = True, window_right: int = -1, mask: Array | Mask | None = None, block_sparse: BlockSparse | None = None, mask_rows_are_absolute: bool = False, query_positions: Array | None = None, k_scale: Array | float | None = None, v_scale: Array | float | None = None, q_scale: Array | float | None = None, out_scale: float = 0.0, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    Any number of new tokens per request, whose keys are already in the cache.

    q [T, H, D], requests one after another; query_start_loc int32 [R + 1], from 0 to T; seq_lens int32
    [R], new tokens included; block_table int32 [R, columns]. Row i of request b stands at p = length -
    queries + i, or at query_positions int32 [T].

    max_query_len, max_seq_len: at least every request's; needed on CUDA, found on the host. scale: of
    scores; None is 1 / sqrt(D). soft_cap: cap * tanh(score / cap); 0 is none. causal: keys j <= p only.
    window_left: keys before the query that it sees, itself not counted: a window of W tokens is W - 1;
    -1 is all. window_right: the same behind it. chunk: keys from chunk * (p // chunk) on; 0 is off.
    alibi_slopes float32 [H]: adds slope * (j - p). sinks float32 [H]: one more term of the denominator.
    mask: of bytes (not 0 hides) or floats (added to scores), [rows, keys], [R, rows, keys] or [R or 1,
    H or 1, rows, keys]; rows are a request's new tokens, or with mask_rows_are_absolute positions. A
    Mask has other forms. block_sparse: a BlockSparse. k_scale, v_scale: of caches in codes: float32,
    one or [Hkv] or [R, Hkv]; on the host also a number. q_scale: of q in codes, float8_e4m3fn as of
    quantize_queries: one or [Hkv], each for the heads of its group. Then give out, of floats.
    out_scale: above 0, out is float8 and holds the result / out_scale. out: written and returned; if it
    is left out, a new array of q's library and type (numpy, torch). lse: float32 [T, H], natural
    logarithm, without sinks; -infinity where nothing is visible. return_lse: return it, too. stream: of
    CUDA: a number, or a stream of torch or CuPy; None is the current one of q's library (torch, CuPy),
    of other libraries the legacy default stream. workspace: on CUDA; too small raises with the size.
    threads: on the host. Returns out [T, H, Dv], or (out, lse).
    """

def cascade(q: Array, cache: KVCache, query_start_loc: Array, seq_lens: Array, block_table: Array, common_prefix_len: int, *, max_query_len: int | None = None, max_seq_len: int | None = None, scale: float | None = None, soft_cap: float = 0.0, alibi_slopes: Array | None = None, sinks: Array | None = None, causal: bool = True, k_scale: Array | float | None = None, v_scale: Array | float | None = None, q_scale: Array | float | None = None, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    paged_prefill of requests whose first common_prefix_len keys are the same blocks: read
    once for all.

    common_prefix_len: tokens, a multiple of the block size, before every query; block_table's row 0
    names the blocks.
    """

def varlen_self_attention(q: Array, k: Array, v: Array, query_start_loc: Array, *, kv_start_loc: Array | None = None, kv_seq_lens: Array | None = None, scale: float | None = None, soft_cap: float = 0.0, window_left: int = -1, chunk: int = 0, alibi_slopes: Array | None = None, sinks: Array | None = None, causal: bool = True, window_right: int = -1, mask: Array | Mask | None = None, block_sparse: BlockSparse | None = None, mask_rows_are_absolute: bool = False, query_positions: Array | None = None, k_scale: Array | float | None = None, v_scale: Array | float | None = None, q_scale: Array | float | None = None, out_scale: float = 0.0, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    Attention without a cache, each request to itself: encoders, and prompts from their first
    token.

    q [T, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]; query_start_loc int32 [R + 1]; kv_start_loc the same
    of keys, or kv_seq_lens int32 [R], or neither: as queries. k and v may be float8_e4m3fn, both, with
    k_scale and v_scale. The other arguments are those of paged_prefill.
    """

def paged_decode_partial(q: Array, cache: KVCache, block_table: Array, seq_lens: Array, max_logits: Array, exp_sums: Array, tmp_out: Array, *, max_seq_len: int | None = None, partition_tokens: int = 512, scale: float | None = None, soft_cap: float = 0.0, window_left: int = -1, alibi_slopes: Array | None = None, mask: Array | Mask | None = None, block_sparse: BlockSparse | None = None, k_scale: Array | float | None = None, v_scale: Array | float | None = None, q_scale: Array | float | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    paged_decode cut into partitions of partition_tokens keys (a multiple of the block size),
    for reduce_splits.

    With P = ceil(max_seq_len / partition_tokens), all float32: max_logits and exp_sums [R, H, P],
    tmp_out [R, H, P, Dv], divided by its exp_sum. A partition with nothing visible has -infinity, 0,
    0.
    """

def merge_states(outs: Array, lses: Array, *, tokens_with_context: int = -1, sinks: Array | None = None, out_scale: float = 0.0, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    One state of attention from n, each over other keys.

    outs [n, T, H, Dv] and lses float32 [n, T, H]. Rows at or past tokens_with_context (if it is not
    negative) are the last state's. sinks float32 [H] are applied after the merge. out may be one of
    outs. Returns out [T, H, Dv], or (out, lse [T, H]).
    """

def reduce_splits(max_logits: Array, exp_sums: Array, tmp_out: Array, out: Array, *, sinks: Array | None = None, lse: Array | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    The partitions of paged_decode_partial as out [R, H, Dv] and lse float32 [R, H]; sinks
    float32 [H] count here.
    """

def mla_decode(q_lat: Array, cache: KVCache, block_table: Array | None = None, seq_lens: Array | None = None, *, scale: float, q_pe: Array | None = None, query_start_loc: Array | None = None, kv_start_loc: Array | None = None, max_seq_len: int | None = None, soft_cap: float = 0.0, window_left: int = -1, sinks: Array | None = None, k_scale: Array | float | None = None, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    Absorbed MLA over a latent cache of any layout.

    q_lat [T, H, R_kv] and q_pe [T, H, R_pe], or q_lat [T, H, R_kv + R_pe] and no q_pe. One query per
    request, or any number by query_start_loc int32 [R + 1], then causal. Keys by block_table and
    seq_lens, or from one block whose rows kv_start_loc int32 [R + 1] divides among requests. scale: of
    scores; that of the head before absorption. k_scale: of an 8-bit mla_latent or mla_split cache. The
    other arguments are those of paged_prefill. Returns out [T, H, R_kv], or (out, lse [T, H]).
    """

def sparse_mla_decode(q: Array, cache: KVCache, indices: Array, *, scale: float, topk_len: Array | None = None, extra_cache: KVCache | None = None, extra_indices: Array | None = None, extra_topk_len: Array | None = None, sinks: Array | None = None, kv_scale: Array | float | None = None, out: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    Absorbed MLA to the keys that lists of slots name (DeepSeek V3.2 and V4).

    q [B, s_q, H, D]; indices int32 [B, s_q, K], slots of the cache; entries below 0 or past the
    capacity are ignored, and one that is listed twice counts twice. topk_len int32 [B]: only the first
    so many entries count. extra_cache, extra_indices, extra_topk_len: a second cache with lists of its
    own. Returns out [B, s_q, H, Dv], or (out, lse [B, s_q, H]).
    """

def sparse_mla_prefill(q: Array, kv: Array, indices: Array, *, scale: float, value_dim: int | None = None, topk_len: Array | None = None, sinks: Array | None = None, out: Array | None = None, max_logits: Array | None = None, lse: Array | None = None, return_lse: bool = False, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
    """
    The same over contiguous rows.

    q [T, H, D], kv [S, 1, D], indices int32 [T, 1, K] of rows, topk_len int32 [T]. V is the first
    columns of kv, as many as out has, or value_dim. max_logits float32 [T, H]: written if given.
    Returns out, or (out, lse [T, H]).
    """

def compute_slot_mapping(query_start_loc: Array, positions: Array, block_table: Array, slot_mapping: Array, block_size: int, *, num_blocks: int = 0, null_block: int = 0, num_null_blocks: int = 1, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    The slot of each token: block_table[b][p // block_size] * block_size + p % block_size.

    query_start_loc int32 [R + 1], positions int32 [T or more], block_table int32 [R or more, columns]
    -> slot_mapping int64 [T or more]; -1 behind the last token and in the null blocks. num_blocks: of
    the cache; 0 is unknown. On CUDA all index functions are one launch and read nothing back.
    """

def build_swa_indices(query_start_loc: Array, seq_lens: Array, block_table: Array, indices: Array, lens: Array, *, window: int, block_size: int, num_blocks: int = 0, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    The slots that a window of tokens, the query included, sees, oldest first, then -1.

    query_start_loc int32 [R + 1], seq_lens int32 [R], block_table int32 [R or more, columns] -> indices
    int32 [T or more, window], lens int32 [T or more].
    """

def build_compressed_slots(query_start_loc: Array, positions: Array, block_table: Array, slot_mapping: Array, *, ratio: int, block_size: int, num_blocks: int = 0, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    The row of a compressed cache that each token completes, or -1.

    As compute_slot_mapping, of row p // ratio where (p + 1) % ratio == 0; block_size counts rows.
    """

def build_topk_slots(query_start_loc: Array, indices: Array, block_table: Array, slots: Array, counts: Array, *, block_size: int, num_blocks: int = 0, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    Rows of a request as slots of the cache: what an indexer chose, as sparse_mla_decode
    takes it.

    indices int32 [T or more, K], negative for none -> slots int32 [T or more, K], which may be indices,
    and counts int32 [T or more] of those that are there.
    """

def build_dense_compressed_indices(query_start_loc: Array, positions: Array, indices: Array, lens: Array, *, ratio: int = 128, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    All complete rows of each token's context: 0 ... min((p + 1) // ratio, capacity) - 1.

    query_start_loc int32 [R + 1], positions int32 [T or more] -> indices int32 [T or more, capacity],
    lens int32 [T or more].
    """

def combine_prefill_indices(query_start_loc: Array, seq_lens: Array, indices: Array, lens: Array, *, window: int, rows_per_request: int, compressed_rows: int = 0, ratio: int = 1, topk: Array | None = None, stream: Stream | None = None, workspace: Workspace | None = None) -> None:
    """
    What each token of a prefill reads from a gathered buffer: chosen compressed rows, then
    its window.

    The buffer has rows_per_request rows per request: compressed_rows of the compressed cache, then the
    newest tokens. query_start_loc int32 [R + 1], seq_lens int32 [R], topk int32 [T or more, K] of
    request-local rows, negative kept
    -> indices int32 [T or more, K + window] of rows of the buffer, lens int32 [T or more]. Without
    topk and with ratio 1 it is a layer with a window only.
    """

def cache_index_keys(k: Array, slot_mapping: Array, cache: Array, *, planar_block_size: int = 0, power_of_two_scales: bool = True, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    Stores keys of a sparse-attention indexer.

    k [T, Di]; slot_mapping int64 [n], n <= T, below 0 is skipped; cache [NB, BS, Di] of floats, or with
    planar_block_size = BS uint8 [NB, block bytes]: a block's float8_e4m3fn codes, then a float32 scale
    per row. power_of_two_scales: those scales are rounded up to powers of two.
    """

def index_topk(q: Array, weights: Array, cache: Array, query_start_loc: Array, seq_lens: Array, block_table: Array, indices: Array, lens: Array, *, max_seq_len: int | None = None, ratio: int = 1, as_slots: bool = True, planar_block_size: int = 0, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    The rows of an indexer's cache that each token reads: the K with the largest sum of w_h *
    max(0, q_h . k).

    q [T, Hi, Di], weights float32 [T, Hi]; cache as for cache_index_keys; query_start_loc int32 [R +
    1], seq_lens int32 [R] in tokens, block_table int32 [R, columns] in blocks of rows, of which each
    has `ratio` tokens -> indices int32 [T, K], ascending, -1 behind the chosen ones, and lens int32
    [T]. A token at p chooses among the complete rows [0, (p + 1) // ratio); ties go to the lower row.
    as_slots: indices are slots, as sparse_mla_decode takes them; otherwise rows of the request.
    """

def compress_tokens(kv: Array, score: Array, states: Array, slot_mapping: Array, query_start_loc: Array, seq_lens: Array, block_table: Array, out: Array, *, ratio: int, overlap: bool = True, bias: Array | None = None, norm_weight: Array | None = None, norm_eps: float = 1e-06, cos_sin: Array | None = None, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> None:
    """
    DeepSeek V4's compressor: stores the states of new tokens, and combines those of each row
    that they complete.

    kv and score [T, C * D], C being 2 with overlap, else 1; bias float32 [ratio, C * D]; states float32
    [NB, BS, 2 * C * D], written at slot_mapping int64 [n], n <= T. query_start_loc int32 [R + 1],
    seq_lens int32 [R], block_table int32 [R, columns] of states. A token with (p + 1) % ratio == 0
    writes its row of out [T, D]: per column the softmax of the last C * ratio scores over tokens weighs
    kv. Then RMS norm by norm_weight float32 [D] and norm_eps, and rotation of the last columns by
    cos_sin float32 [P, columns], cosines first.
    """

class KVGroup:
    """One KV-cache group, as metadata sees it."""

    def __init__(self, num_blocks: int, *, manager_block_size: int = 16, kernel_block_size: int | None = None, window: int = 0, compression_ratio: int = 1, null_block: int = 0) -> None:
        """
        num_blocks: of the manager; ids are below it. manager_block_size: tokens per id;
        kernel_block_size: cache rows per block of the kernel, a divisor of it (None: the same). window:
        tokens, the query included; 0 is full attention. compression_ratio: tokens per cache row.
        null_block: never stored to; -1: there is none.
        """

class AttentionMetadata:
    """
    One group of a builder's last batch of R requests and T new tokens.

    Arrays are numpy's, read-only, over the builder's memory: the next build changes them in place.
    Those of a DeviceMetadata are on its device.
    """

    @property
    def query_start_loc(self) -> NDArray[numpy.int32]:
        """[R + 1], from 0 to T."""

    @property
    def seq_lens(self) -> NDArray[numpy.int32]:
        """[R], new tokens included."""

    @property
    def block_table(self) -> NDArray[numpy.int32]:
        """[R, columns] of kernel blocks."""

    @property
    def slot_mapping(self) -> NDArray[numpy.int64]:
        """[T, padded]; -1 stores nothing."""

    @property
    def positions(self) -> NDArray[numpy.int32]:
        """[T, padded]."""

    @property
    def token_to_req(self) -> NDArray[numpy.int32]:
        """[T, padded]: the row of each token."""

    @property
    def block_size(self) -> int:
        """Of the kernel."""

    @property
    def num_reqs(self) -> int: ...

    @property
    def num_actual_tokens(self) -> int:
        """T."""

    @property
    def max_query_len(self) -> int: ...

    @property
    def max_seq_len(self) -> int: ...

    @property
    def causal(self) -> bool: ...

    @property
    def num_decodes(self) -> int:
        """Requests that come first."""

    @property
    def num_decode_tokens(self) -> int: ...

    @property
    def num_extends(self) -> int:
        """Prefills with cached tokens, which come next."""

    @property
    def num_prefills(self) -> int:
        """Extends included."""

    @property
    def num_prefill_tokens(self) -> int: ...

    @property
    def common_prefix_len(self) -> int:
        """Tokens, a multiple of block_size, or 0: what cascade takes."""

    @property
    def attn_state(self) -> str: ...

    def copy_to(self, *, query_start_loc: Array | None = None, seq_lens: Array | None = None, block_table: Array | None = None, slot_mapping: Array | None = None, positions: Array | None = None) -> None:
        """
        Writes arrays into the beginning of the caller's, which are on the host (pinned or
        not), of the same type and at least as large; what lies behind stays.
        """

class AttentionMetadataBuilder:
    """
    Makes the metadata of each step from what scheduler and block manager say.

    Rows are ordered: decodes (at most decode_threshold new tokens), extends, fresh prefills;
    `permutation` tells which request each row is. Padded rows have length 0 and slot -1. Memory is
    taken once, here.
    """

    def __init__(self, groups: Sequence[KVGroup], *, max_num_reqs: int, max_num_tokens: int, max_seq_len: int, decode_threshold: int = 1, require_uniform: bool = False, short_extends_are_decodes: bool = True) -> None:
        """
        max_num_reqs, max_num_tokens: of a batch, padding included. max_seq_len: tokens.
        decode_threshold: new tokens of a decode, 1 + speculative ones. require_uniform: all decodes have
        the same number of them. short_extends_are_decodes: otherwise a request inside its prompt is a
        prefill, however short.
        """

    def build(self, num_computed_tokens: Any, num_scheduled_tokens: Any, block_ids: Any, *, num_prompt_tokens: Any | None = None, causal: bool = True, num_common_prefix_blocks: Any | None = None, padded_num_reqs: int = 0, padded_num_tokens: int = 0) -> None:
        """
        One step. What fails leaves the last batch as it was.

        num_computed_tokens: per request, in the cache before; num_scheduled_tokens: new, at least 1; arrays
        or sequences. block_ids: per group either a table int32 [requests or more, columns], or per request
        a BlockTable, an int32 array or a list; ids behind what the tokens need are not looked at.
        num_prompt_tokens: only with short_extends_are_decodes=False. num_common_prefix_blocks: per group,
        of the manager. padded_num_reqs and padded_num_tokens: what a captured graph wants; 0 is no
        padding.
        """

    def metadata(self, group: int = 0) -> AttentionMetadata: ...

    @property
    def permutation(self) -> NDArray[numpy.int32]:
        """[R]: row i is the build's request permutation[i]."""

class DeviceMetadata:
    """
    A builder's metadata on a CUDA device, by one asynchronous copy per step.

    Addresses stay the same from step to step, so a captured graph reads what the last upload enqueued.
    The arrays of its metadata have DLPack: this module takes them, and torch.from_dlpack.
    """

    def __init__(self, builder: AttentionMetadataBuilder, device: int = 0) -> None:
        """
        device: the number of the CUDA device, which must be the current one. Takes memory there and pinned memory.
        """

    def upload(self, stream: Stream | None) -> None:
        """
        Enqueues the copy of the builder's arrays as they are now. None is the legacy default stream. It waits for the copy before the last only.
        """

    def metadata(self, group: int = 0) -> AttentionMetadata:
        """The builder's metadata, with arrays on the device."""

unified_attention_mutates: tuple[str, ...]

class ForwardContext:
    """
    Layers by name, with their caches, and the metadata of a step.

    What model code calls: unified_attention stores the step's keys and values and attends, decodes and
    prefills each by their own operation. Layers run where their cache is. kvblocks.torch_ops makes an
    operator of torch of it. One thread at a time.
    """

    def __init__(self) -> None: ...

    def add_layer(self, name: str, cache: KVCache, *, num_heads: int, head_size: int = 0, value_head_size: int = 0, scale: float = 0.0, soft_cap: float = 0.0, window: int = 0, chunk: int = 0, sinks: Array | None = None, alibi_slopes: Array | None = None, shares_cache_of: str = '') -> None:
        """
        head_size, value_head_size: 0 is the cache's; of a latent cache, whose queries are
        absorbed, head_size is that before absorption and gives the scale. scale: 0 is 1 / sqrt(head_size).
        window: tokens, the query included; 0 is all. sinks, alibi_slopes: float32 [H]. shares_cache_of: the
        layer whose cache this one reads; it stores nothing.
        """

    def set_metadata(self, metadata: AttentionMetadata | dict[str, AttentionMetadata] | None) -> None:
        """
        Of the step, for all layers or by layer; after each build, again. None: nothing is stored, and outputs are zeros (profiling).
        """

    def output_shape(self, layer: str, q_shape: Sequence[int]) -> tuple[int, ...]:
        """What a layer makes of q [T, H, D] or [T, H * D]; its type is q's."""

    def unified_attention(self, layer: str, q: Array, k: Array, v: Array, out: Array | None = None, *, stream: Stream | None = None, workspace: Workspace | None = None, threads: ThreadPool | None = None) -> Any:
        """
        Stores k and v of the step's tokens and attends.

        q [T, H, D] or [T, H * D], k and v with Hkv heads alike; of a latent cache k is kv_c [T, R_kv] and v
        k_pe [T, R_pe]. Rows past the metadata's tokens are padding; their output is zeros. Returns out, of
        output_shape.
        """
