// The arguments of every attention operation. One structure each; outputs are TensorViews, inputs
// ConstTensorViews, optional ones may be absent.
//
// R requests, T query tokens of all requests one after another, H query heads, Hkv KV heads, D and
// Dv head sizes of K and V, L total length of a request including its new tokens, BS block size.
// lse is float32, natural log, [T, H], and leaves sinks out. Empty inputs (T = 0, R = 0, K = 0) are
// no-ops.

#ifndef KVBLOCKS_ATTENTION_OPS_ARGS_H_
#define KVBLOCKS_ATTENTION_OPS_ARGS_H_

#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "kvblocks/attention/cache/index_cache.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/ops/params.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// --- Writing the cache ---------------------------------------------------------------------------

// Stores k [T, Hkv, D] and v [T, Hkv, Dv] at slot_mapping i64 [n], n <= T; rows past n are padding
// and slots < 0 are skipped. Distinct tokens need distinct slots. Only addressed bytes change. Same
// type copies bits; narrowing rounds to nearest even; codes (e4m3, e5m2, int8) store x / scale.
struct ReshapeAndCacheArgs {
  ConstTensorView k, v;
  ConstTensorView slot_mapping;
  KvCacheView cache;
  KvScales scales;  // one element or [Hkv]
};

// Stores kv_c [T, R_kv] and k_pe [T, R_pe] as rows of a latent cache: kMlaLatent and kMlaSplit (an
// 8-bit cache takes scales.k, one element), kMlaFp8_656 and kMlaFp8_584 (which quantise by tiles).
struct ConcatAndCacheMlaArgs {
  ConstTensorView kv_c, k_pe;
  ConstTensorView slot_mapping;
  KvCacheView cache;
  ConstTensorView scale;
};

// amax / divisor of each tensor into float32 outputs: one element (per tensor) or [Hkv] (per head, k
// and v only). An amax of 0 gives scale 1. Non-finite inputs are left out and flagged.
struct ComputeKvScalesArgs {
  ConstTensorView q, k, v;  // [T, H, D], [T, Hkv, D], [T, Hkv, Dv]; q may be absent
  float q_divisor = 200, k_divisor = 200, v_divisor = 100;  // int8 caches use 127
  TensorView q_scale, k_scale, v_scale;
};

// ComputeKvScales, then ReshapeAndCache of its k and v by its k_scale and v_scale, in one operation: bit for
// bit what both give one after the other. For caches that are given scales. Without tokens nothing changes.
struct ScaleAndCacheArgs {
  ComputeKvScalesArgs scales;
  ConstTensorView slot_mapping;
  KvCacheView cache;

  // The second of the two.
  ReshapeAndCacheArgs write() const {
    return {scales.k, scales.v, slot_mapping, cache, {scales.k_scale, scales.v_scale}};
  }
};

// Codes of queries for the operations below: codes [T, H, D] of e4m3 hold sat(q / scale), exactly
// rounded; scale is one float32 or absent.
struct QuantizeQueriesArgs {
  ConstTensorView q;  // [T, H, D]
  ConstTensorView scale;
  TensorView codes;
};

// --- Dense attention -----------------------------------------------------------------------------

// Row offsets of a plan that cuts decode work into parts of equal size; see metadata/split_planner.h.
struct SplitPlan;

// A split plan in device memory, made there by the backend's planner for one batch: it serves every
// layer with the same shapes until lengths change, on one stream at a time. `memory` is the caller's;
// what the plan was made for is filled in by the planner and compared by who uses it.
struct DeviceDecodePlan {
  TensorView memory;  // contiguous, aligned to 16 bytes
  int64_t num_requests = 0, num_heads = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  int64_t block_size = 0, window_left = -1, chunk = 0, table_columns = 0, max_seq_len = 0;
  SplitPolicy split;
};

// q may be of a float type or e4m3 codes with params.scales.q, whatever the keys are; results are floats
// then, too.

// One new token per request: q [R, H, D], block_table i32 [R, columns], seq_lens i32 [R] ->
// out [R, H, Dv], lse [R, H] optional. A row of length 0 gives 0 and -infinity.
struct PagedDecodeArgs {
  ConstTensorView q;
  ConstKvCacheView cache;
  ConstTensorView block_table, seq_lens;
  int64_t max_seq_len = 0;  // at least every length; an upper bound
  AttnParams params;
  const SplitPlan* plan = nullptr;
  // Instead, for backends that plan on the device. Neither: the backend plans by itself.
  const DeviceDecodePlan* device_plan = nullptr;
  TensorView out, lse;
};

// The same keys cut into partitions of `partition_tokens` (a multiple of BS), P = ceil(max_seq_len /
// partition_tokens): max_logits and exp_sums f32 [R, H, P], tmp_out f32 [R, H, P, Dv] divided by its
// exp_sum. A partition with nothing visible has -infinity, 0, 0. Sinks are for ReduceSplits.
struct PagedDecodePartialArgs {
  ConstTensorView q;
  ConstKvCacheView cache;
  ConstTensorView block_table, seq_lens;
  int64_t max_seq_len = 0;
  int64_t partition_tokens = 512;
  AttnParams params;
  TensorView max_logits, exp_sums, tmp_out;
};

struct ReduceSplitsArgs {
  ConstTensorView max_logits, exp_sums, tmp_out;
  ConstTensorView sinks;
  TensorView out, lse;  // [R, H, Dv], [R, H]
};

// Any number of new tokens per request, already stored in the cache: q [T, H, D], query_start_loc i32
// [R + 1], seq_lens i32 [R], block_table i32 [R, columns] -> out [T, H, Dv], lse [T, H] optional.
// Requests with no query are skipped. Row i of request b stands at p = L - q_len + i, or at
// query_positions[row].
struct PagedPrefillArgs {
  ConstTensorView q;
  ConstKvCacheView cache;
  ConstTensorView query_start_loc, seq_lens, block_table;
  int64_t max_query_len = 0, max_seq_len = 0;
  ConstTensorView query_positions;  // i32 [T] or absent: partial queries of CacheBlend
  AttnParams params;
  float out_scale = 0;  // > 0: out is e4m3 or e5m2 and holds sat(out / out_scale)
  TensorView out, lse;
};

// Keys and values from contiguous tensors: q [T, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], block-
// diagonal by query_start_loc and kv_start_loc (absent: the same), or, where only lengths of keys are
// known, kv_seq_lens i32 [R], whose keys lie one after another. Row i of request b stands at
// p = kv_len - q_len + i. k and v may be e4m3, both of them, with params.scales as of a cache.
struct VarlenSelfAttentionArgs {
  ConstTensorView q, k, v;
  ConstTensorView query_start_loc, kv_start_loc, kv_seq_lens;
  ConstTensorView query_positions;  // as above
  AttnParams params;
  float out_scale = 0;
  TensorView out, lse;
};

// PagedPrefill whose first `common_prefix_len` keys (a multiple of BS) are the same blocks for all
// requests, those of row 0: computed once for all queries, then merged with the rest.
struct CascadeArgs {
  PagedPrefillArgs prefill;
  int64_t common_prefix_len = 0;
};

// --- MLA -----------------------------------------------------------------------------------------

// Absorbed MLA over a latent cache (any MLA layout): q_lat [T, H, R_kv] and q_pe [T, H, R_pe], or
// q_lat [T, H, R_kv + R_pe] and no q_pe. One query per request unless query_start_loc is given, then
// causal. out [T, H, R_kv], lse [T, H].
// Keys by block_table and seq_lens; or, without a table, contiguous: the cache is one block, of which
// request b has rows [kv_start_loc[b], kv_start_loc[b + 1]).
struct MlaDecodeArgs {
  ConstTensorView q_lat, q_pe;
  ConstKvCacheView cache;
  ConstTensorView query_start_loc;
  ConstTensorView block_table, seq_lens;
  ConstTensorView kv_start_loc;  // i32 [R + 1]
  int64_t max_seq_len = 0;
  AttnParams params;
  TensorView out, lse;
};

// A cache and, per query, the slots of it that count.
struct SparseKeys {
  ConstKvCacheView cache;    // an MLA layout
  ConstTensorView indices;   // i32 [B, s_q, K]: slots; < 0 and >= capacity are ignored
  ConstTensorView topk_len;  // i32 [B] or absent: only the first so many entries count
};

// q [B, s_q, H, D] against the union of both lists; a slot listed twice counts twice. out
// [B, s_q, H, Dv], lse [B, s_q, H].
struct SparseMlaDecodeArgs {
  ConstTensorView q;
  SparseKeys main, extra;  // extra.cache may be absent
  float scale = 1;
  ConstTensorView sinks;
  ConstTensorView kv_scale;  // f32, one element: for 8-bit kMlaLatent
  TensorView out, lse;
};

// q [T, H, D], kv [S, 1, D], indices i32 [T, 1, K], topk_len i32 [T] optional -> out [T, H, d_v],
// max_logits and lse [T, H]; V is the first d_v columns of kv.
struct SparseMlaPrefillArgs {
  ConstTensorView q, kv, indices, topk_len;
  float scale = 1;
  ConstTensorView sinks;
  TensorView out, max_logits, lse;
};

// --- Choosing and compressing rows ----------------------------------------------------------------

// Stores k [T, Di] as rows of an indexer's cache at slot_mapping i64 [n], n <= T; slots < 0 are
// skipped, distinct tokens need distinct slots. Planar rows get a scale each, by default rounded up
// to a power of two; see index_cache.h.
struct CacheIndexKeysArgs {
  ConstTensorView k;
  ConstTensorView slot_mapping;
  IndexCacheView cache;
  bool power_of_two_scales = true;
};

// The rows of an indexer's cache that each token reads: of the rows [0, (p + 1) / ratio) of its
// request the K with the largest sum over heads h of w_h * max(0, q_h . k), ascending; ties go to the
// lower row, a NaN counts as -infinity. q [T, Hi, Di] (codes: scales are folded into the weights),
// weights f32 [T, Hi]; batch as in PagedPrefill, the block table in blocks of rows -> indices i32
// [T, K], -1 behind the chosen ones, lens i32 [T]. Indices are slots, also of any other cache with
// this block table and block size; or row numbers.
struct IndexTopkArgs {
  ConstTensorView q, weights;
  ConstIndexCacheView cache;
  ConstTensorView query_start_loc, seq_lens, block_table;
  int64_t max_seq_len = 0;  // tokens; at least every length
  int64_t ratio = 1;        // tokens per row
  bool as_slots = true;
  TensorView indices, lens;
};

// DeepSeek V4's compressor. First the states of the step's tokens are stored: kv | score + bias[p %
// ratio], each [T, C * D], as rows f32 [NB, BS, 2 * C * D] at slot_mapping i64 [n], n <= T. Then each
// token that completes a row, (p + 1) % ratio == 0, combines the last C * ratio states through the
// block table: per column the softmax of the scores over tokens weights kv. C is 2 with overlap: the
// older `ratio` tokens contribute their first D columns, the newest their last; else 1. Positions
// below 0 are left out. RMS norm with norm_weight f32 [D], if given, then rotation of the last R
// columns by the row's first position p + 1 - ratio: pairs of neighbours, cos_sin f32 [P, R] holding
// R / 2 cosines, then as many sines, per position, if given. Rows of out [T, D] are written for tokens
// that complete one only.
struct CompressTokensArgs {
  ConstTensorView kv, score;
  ConstTensorView bias;  // f32 [ratio, C * D] or absent
  TensorView states;
  ConstTensorView slot_mapping;
  ConstTensorView query_start_loc, seq_lens, block_table;
  int64_t ratio = 4;
  bool overlap = true;
  ConstTensorView norm_weight;
  float norm_eps = 1e-6f;
  ConstTensorView cos_sin;
  TensorView out;
};

// --- States --------------------------------------------------------------------------------------

// n-ary merge of attention states: outs [n, T, H, Dv], lses f32 [n, T, H] -> out, lse. Rows at or
// past tokens_with_context (if >= 0) copy the last state. Sinks are applied after the merge. out may
// be one of the states.
struct MergeStatesArgs {
  ConstTensorView outs, lses;
  int64_t tokens_with_context = -1;
  ConstTensorView sinks;
  float out_scale = 0;
  TensorView out, lse;
};

// --- Blocks --------------------------------------------------------------------------------------

// The last lengths[b] tokens of each request, dequantised, into out [R, M, width] from row_offset
// on. Latent caches: width = key_dim. Others: k into out, v into out_v, [R, M, Hkv, D].
struct GatherCacheArgs {
  ConstKvCacheView cache;
  ConstTensorView block_table, seq_lens;
  ConstTensorView lengths;  // i32 [R]
  int64_t row_offset = 0;
  KvScales scales;
  TensorView out, out_v;
};

// --- CacheBlend ----------------------------------------------------------------------------------

// The tokens whose values deviate most: diff_t = sum of (v_new - v_old)^2 for t < n - suffix_len; the
// k = floor(ratio * (n - suffix_len) + 1e-6) largest, ties to the lower index, NaN first; ascending,
// then the suffix. v_new, v_old [n, Hkv, D]; imp i32 [at least k + suffix_len].
struct SelectHkvdArgs {
  ConstTensorView v_new, v_old;
  double ratio = 0.16;
  int64_t suffix_len = 1;
  TensorView imp;
  TensorView diffs;  // f32 [n - suffix_len] or absent
};

// old[imp[r]] = new[r] for K and V: [n, Hkv, D] and [M, Hkv, D].
struct FuseKvArgs {
  ConstTensorView imp;
  ConstTensorView k_new, v_new;
  TensorView k_old, v_old;
};

// out[r] = in[index[r]], bit by bit: rows of any type and of rank 0 to 2, which go on as queries or are
// compared. in [n, ...], index i32 [M], out [M, ...] of the same type; a row may be taken repeatedly.
struct GatherRowsArgs {
  ConstTensorView in, index;
  TensorView out;
};

enum class RotaryPairs : uint8_t { kHalves, kInterleaved };

// Rotary embedding of in [n, Hkv, D], the first rotary_dim columns (0: D), by angle position *
// theta^(-2i / rotary_dim), into out; in and out are the same tensor or apart. positions i64 or i32
// [n]; with from_positions the rotation is by the difference.
struct RotateKeysArgs {
  ConstTensorView in;
  ConstTensorView positions, from_positions;
  double theta = 10000;
  int64_t rotary_dim = 0;
  RotaryPairs pairs = RotaryPairs::kHalves;
  TensorView out;
};

// --- Moving blocks -------------------------------------------------------------------------------

using BlockPair = std::pair<int32_t, int32_t>;  // source, destination

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_ARGS_H_
