// Arguments of the attention operations.

#ifndef KVBLOCKS_ATTENTION_ARGS_H_
#define KVBLOCKS_ATTENTION_ARGS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "kvblocks/device_types.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

// ExecContext: where and with what an operation runs.
//
// Host operations run synchronously on the calling thread, and on the pool if one is given; their
// results do not depend on it. CUDA operations only enqueue work on the stream.

namespace kvblocks::attention {

class ThreadPool;

// Scratch memory that the caller owns; one per stream, reused by all layers. Operations never
// allocate on a device: too small is ResourceExhausted with the size needed.
struct Workspace {
  absl::Span<std::byte> device;
  absl::Span<std::byte> pinned;
};

struct DeviceErrorFlags {
  uint32_t* bits = nullptr;  // in the memory of the context's device
};

struct ExecContext {
  DeviceId device;
  void* stream = nullptr;  // a cudaStream_t
  Workspace* workspace = nullptr;
  DeviceErrorFlags* error_flags = nullptr;
  ThreadPool* threads = nullptr;  // host only; null: the calling thread alone
};

// How many tokens of a fused prompt a ratio selects for recomputation, the suffix not counted.

// floor(ratio * (n - suffix_len)), where a product that only rounding keeps below a whole number
// counts as whole: plain truncation makes 28 of 0.29 * 100.
inline int64_t HkvdCount(int64_t n, int64_t suffix_len, double ratio) {
  return static_cast<int64_t>(std::floor(ratio * static_cast<double>(n - suffix_len) + 1e-6));
}

// KvGroupKey: by what layers and split plans of the same kind recognise each other.

// Groups with equal keys have metadata of the same shape: plans and virtual batches that depend on
// lengths alone are shared between them.
struct KvGroupKey {
  int64_t block_size = 0;  // of the kernel, in rows of the cache
  int64_t window = 0;      // 0: full attention
  int64_t compression_ratio = 1;

  friend bool operator==(const KvGroupKey&, const KvGroupKey&) = default;
};
std::string DebugString(const KvGroupKey& key);

// What attention operations have in common: how scores are made and which keys a query sees.
//
// For a query at absolute position p and a key at position j of the same request:
//   s = scale * <q, k_j>;  soft cap: s = cap * tanh(s / cap);  ALiBi: s += slope_h * (j - p);
//   additive mask: s += mask;  not visible: s = -infinity.
// visible: 0 <= j < L, and j <= p if causal, and j >= p - window_left, j <= p + window_right if
// those are >= 0, and j >= chunk * (p / chunk) if chunk > 0, and the block-sparse rule, and not
// hidden by an explicit mask. A window of W tokens, the query included, is window_left = W - 1.
//
// out = sum of e^(s_j - lse') v_j with lse' = log(sum e^(s_j) + e^sink); the returned lse leaves
// the sink out. Nothing visible: out = 0, lse = -infinity.

// Scales of quantised caches: value = code * scale. Float32; absent means 1.
struct KvScales {
  // One element, or [Hkv], or (on reading) [R, Hkv], R being requests; expanded views are fine.
  ConstTensorView k, v;
  // Of queries that are e4m3, where operations attend to K/V heads: one element, or [Hkv], all
  // heads of a group sharing a scale.
  ConstTensorView q = {};
};

// How decode cuts the keys of a request into pieces that are computed separately and then reduced.
struct SplitPolicy {
  enum class Kind : uint8_t { kAuto, kNone, kFixed, kCount };
  Kind kind = Kind::kAuto;
  int64_t value = 0;

  static constexpr SplitPolicy Auto() { return {}; }
  static constexpr SplitPolicy None() { return {Kind::kNone, 0}; }
  // At multiples of `tokens`, whatever else is in the batch: batch-invariant results.
  static constexpr SplitPolicy Fixed(int64_t tokens) { return {Kind::kFixed, tokens}; }
  // Into at most `count` equal pieces of whole blocks.
  static constexpr SplitPolicy Count(int64_t count) { return {Kind::kCount, count}; }
  friend bool operator==(const SplitPolicy&, const SplitPolicy&) = default;
};

// Block-sparse visibility (Phi-3-small's): with q block Q = p / block_size (decode: p = L - 1) and
// key block B = j / block_size, visible iff B > Q - local_blocks or (B + off) % vert_stride == 0,
// where off = (tp_rank * H + h) * step + 1 for step >= 0, else (tp_rank * Hkv + kv head) * -step +
// 1.
struct BlockSparse {
  int32_t local_blocks = 0;
  int32_t vert_stride = 0;  // at most 1: off
  int64_t block_size = 64;
  int32_t head_sliding_step = 0;
  int32_t tp_rank = 0;

  bool enabled() const { return vert_stride > 1; }
};

enum class MaskEncoding : uint8_t {
  kAdditive,        // 0 or -infinity, added to scores
  kAdditiveFinite,  // 0 or -10000 in f16, added to scores
  kMarker,          // 0 or not 0: not 0 hides; never added
};

enum class MaskForm : uint8_t {
  kNone,
  kShared,      // [S1, S2] for all
  kPerRequest,  // [B, S1, S2]
  kPerHead,     // [B or 1, H or 1, S1, S2]
  kRaggedBits,  // u8 [bytes]: requests one after another, row-major q x k bits, little-endian; 1
                // hides
  kTemplate,    // [N, N] causal, read as a Toeplitz mask for any length
};

inline constexpr int64_t kUnlimitedTokens = (int64_t{1} << 31) - 1;

// Modes of explicit masks as NPU operators number them; o = S2 - S1, S1 query rows, S2 keys, i the
// row, j the column.
//   0 without a tensor everything, with one the mask and the band -pre <= j - i <= next
//   1 exactly the given full mask    2 template, j <= i    3 template, j <= i + o
//   4 template, i + o - pre <= j <= i + o + next
struct ExplicitMask {
  ConstTensorView tensor;
  MaskEncoding encoding = MaskEncoding::kMarker;
  MaskForm form = MaskForm::kNone;
  int32_t sparse_mode = 1;
  // Keys before and after the query, itself not counted.
  int64_t pre_tokens = kUnlimitedTokens;
  int64_t next_tokens = kUnlimitedTokens;
  // Rows are positions p, not rows of new tokens: how a [max_len, max_len] mask serves chunks.
  bool rows_are_absolute = false;

  bool enabled() const { return form != MaskForm::kNone || sparse_mode == 0; }
};

struct AttnParams {
  float scale = 1;
  float soft_cap = 0;  // 0: off
  bool causal = true;
  int64_t window_left = -1, window_right = -1;  // -1: unlimited; causal allows window_right <= 0
  int64_t chunk = 0;                            // chunked local attention; 0: off
  ConstTensorView alibi_slopes;                 // f32 [H] or absent
  // f32 [H] or longer (the rest is ignored), or absent. -infinity: none. +infinity: out = 0.
  ConstTensorView sinks;
  BlockSparse block_sparse;
  KvScales scales;
  SplitPolicy split;
  ExplicitMask mask;
};

// MaskRef: a materialised attention mask, kept alive by its holders.
//
// Copies share the storage, which never changes once handed out: a builder that grows makes new
// storage and leaves earlier refs valid.

struct MaskRef {
  std::shared_ptr<const void> storage;
  ConstTensorView view;  // [S1, S2], its row stride may be larger than S2
  MaskEncoding encoding = MaskEncoding::kMarker;
  MaskForm form = MaskForm::kNone;

  bool null() const { return form == MaskForm::kNone; }

  // As an operation takes it; `this` must live as long as the result is used.
  ExplicitMask ToExplicit(int32_t sparse_mode, int64_t pre_tokens = kUnlimitedTokens,
                          int64_t next_tokens = kUnlimitedTokens) const {
    ExplicitMask mask;
    mask.tensor = view;
    mask.encoding = encoding;
    mask.form = form;
    mask.sparse_mode = sparse_mode;
    mask.pre_tokens = pre_tokens;
    mask.next_tokens = next_tokens;
    return mask;
  }
};

// The arguments of every attention operation. One structure each; outputs are TensorViews, inputs
// ConstTensorViews, optional ones may be absent.
//
// R requests, T query tokens of all requests one after another, H query heads, Hkv KV heads, D and
// Dv head sizes of K and V, L total length of a request including its new tokens, BS block size.
// lse is float32, natural log, [T, H], and leaves sinks out. Empty inputs (T = 0, R = 0, K = 0) are
// no-ops.

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

// amax / divisor of each tensor into float32 outputs: one element (per tensor) or [Hkv] (per head,
// k and v only). An amax of 0 gives scale 1. Non-finite inputs are left out and flagged.
struct ComputeKvScalesArgs {
  ConstTensorView q, k, v;  // [T, H, D], [T, Hkv, D], [T, Hkv, Dv]; q may be absent
  float q_divisor = 200, k_divisor = 200, v_divisor = 100;  // int8 caches use 127
  TensorView q_scale, k_scale, v_scale;
};

// ComputeKvScales, then ReshapeAndCache of its k and v by its k_scale and v_scale, in one
// operation: bit for bit what both give one after the other. For caches that are given scales.
// Without tokens nothing changes.
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

// Row offsets of a plan that cuts decode work into parts of equal size; see
// metadata/split_planner.h.
struct SplitPlan;

// A split plan in device memory, made there by the backend's planner for one batch: it serves every
// layer with the same shapes until lengths change, on one stream at a time. `memory` is the
// caller's; the planner fills in what the plan was made for, and operations compare it.
struct DeviceDecodePlan {
  TensorView memory;  // contiguous, aligned to 16 bytes
  int64_t num_requests = 0, num_heads = 0, num_kv_heads = 0, key_dim = 0, value_dim = 0;
  int64_t block_size = 0, window_left = -1, chunk = 0, table_columns = 0, max_seq_len = 0;
  DType cache_dtype = DType::kBF16;
  SplitPolicy split;
};

// q may be of a float type or e4m3 codes with params.scales.q, whatever the keys are; results are
// floats then, too.

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

// The same keys cut into partitions of `partition_tokens` (a multiple of BS), P = ceil(max_seq_len
// / partition_tokens): max_logits and exp_sums f32 [R, H, P], tmp_out f32 [R, H, P, Dv] divided by
// its exp_sum. A partition with nothing visible has -infinity, 0, 0. Sinks are for ReduceSplits.
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

// Any number of new tokens per request, already stored in the cache: q [T, H, D], query_start_loc
// i32 [R + 1], seq_lens i32 [R], block_table i32 [R, columns] -> out [T, H, Dv], lse [T, H]
// optional. Requests with no query are skipped. Row i of request b stands at p = L - q_len + i, or
// at query_positions[row].
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
// diagonal by query_start_loc and kv_start_loc (absent: the same), or, where only lengths of keys
// are known, kv_seq_lens i32 [R], whose keys lie one after another. Row i of request b stands at
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
// q_lat [T, H, R_kv + R_pe] and no q_pe. One query per request unless query_start_loc is given,
// then causal. out [T, H, R_kv], lse [T, H].
// Keys by block_table and seq_lens; or, without a table, contiguous: the cache is one block, of
// which request b has rows [kv_start_loc[b], kv_start_loc[b + 1]).
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

// --- Choosing and compressing rows ---------------------------------------------------------------

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
// request the K with the largest sum over heads h of w_h * max(0, q_h . k), ascending; ties go to
// the lower row, a NaN counts as -infinity. q [T, Hi, Di] (codes: scales are folded into the
// weights), weights f32 [T, Hi]; batch as in PagedPrefill, the block table in blocks of rows ->
// indices i32 [T, K], -1 behind the chosen ones, lens i32 [T]. Indices are slots, also of any other
// cache with this block table and block size; or row numbers.
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
// ratio], each [T, C * D], as rows f32 [NB, BS, 2 * C * D] at slot_mapping i64 [n], n <= T. Then
// each token that completes a row, (p + 1) % ratio == 0, combines the last C * ratio states through
// the block table: per column the softmax of the scores over tokens weights kv. C is 2 with
// overlap, where the older `ratio` tokens contribute their first D columns and the newest their
// last, and 1 without. Positions below 0 are left out. RMS norm with norm_weight f32 [D], if given,
// then rotation of the last R columns by the row's first position p + 1 - ratio: pairs of
// neighbours, cos_sin f32 [P, R] holding R / 2 cosines, then as many sines, per position, if given.
// Rows of out [T, D] are written for tokens that complete one only.
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
// past tokens_with_context (if >= 0) copy the last state. Sinks are applied after the merge. out
// may be one of the states.
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

// The tokens whose values deviate most: diff_t = sum of (v_new - v_old)^2 for t < n - suffix_len;
// the k = floor(ratio * (n - suffix_len) + 1e-6) largest, ties to the lower index, NaN first;
// ascending, then the suffix. v_new, v_old [n, Hkv, D]; imp i32 [at least k + suffix_len].
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

// out[r] = in[index[r]], bit by bit: rows of any type and of rank 0 to 2, which go on as queries or
// are compared. in [n, ...], index i32 [M], out [M, ...] of the same type; a row may be taken
// repeatedly.
struct GatherRowsArgs {
  ConstTensorView in, index;
  TensorView out;
};

enum class RotaryPairs : uint8_t { kHalves, kInterleaved };

// Rotary embedding of in [n, Hkv, D], the first rotary_dim columns (0: D), by angle position *
// theta^(-2i / rotary_dim), into out; in and out are the same tensor or do not overlap. positions
// i64 or i32 [n]; with from_positions the rotation is by the difference.
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

#endif  // KVBLOCKS_ATTENTION_ARGS_H_
