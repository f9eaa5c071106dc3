// What attention operations have in common: how scores are made and which keys a query sees.
//
// For a query at absolute position p and a key at position j of the same request:
//   s = scale * <q, k_j>;  soft cap: s = cap * tanh(s / cap);  ALiBi: s += slope_h * (j - p);
//   additive mask: s += mask;  not visible: s = -infinity.
// visible: 0 <= j < L, and j <= p if causal, and j >= p - window_left, j <= p + window_right if
// those are >= 0, and j >= chunk * (p / chunk) if chunk > 0, and the block-sparse rule, and not
// hidden by an explicit mask. A window of W tokens, the query included, is window_left = W - 1.
//
// out = sum of e^(s_j - lse') v_j with lse' = log(sum e^(s_j) + e^sink); the returned lse leaves the
// sink out. Nothing visible: out = 0, lse = -infinity.

#ifndef KVBLOCKS_ATTENTION_OPS_PARAMS_H_
#define KVBLOCKS_ATTENTION_OPS_PARAMS_H_

#include <cstdint>

#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// Scales of quantised caches: value = code * scale. Float32; absent means 1.
struct KvScales {
  // One element, or [Hkv], or (on reading) [R, Hkv], R being requests; expanded views are fine.
  ConstTensorView k, v;
  // Of queries that are e4m3, where operations attend to K/V heads: one element, or [Hkv], all heads of
  // a group sharing a scale.
  ConstTensorView q = {};
};

// How decode cuts the keys of a request into pieces that are computed apart and then reduced.
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
};

// Block-sparse visibility (Phi-3-small's): with q block Q = p / block_size (decode: p = L - 1) and
// key block B = j / block_size, visible iff B > Q - local_blocks or (B + off) % vert_stride == 0,
// where off = (tp_rank * H + h) * step + 1 for step >= 0, else (tp_rank * Hkv + kv head) * -step + 1.
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
  kRaggedBits,  // u8 [bytes]: requests one after another, row-major q x k bits, little-endian; 1 hides
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

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_PARAMS_H_
