// Which keys a query row sees, and what an explicit mask adds to their scores, on the device.
//
// Rules that are intervals (length, causal, window, chunk, the band of a mask) make [lo, hi);
// block-sparse rules and mask tensors remain a test per key. Entries of a mask past its extents
// hide and are flagged: lengths in device memory can exceed what the host knew.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_VISIBILITY_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_VISIBILITY_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/row_elements.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

// As ops/params.h has them.
inline constexpr int64_t kUnlimitedBand = (int64_t{1} << 31) - 1;
inline constexpr uint8_t kMaskNone = 0;
inline constexpr uint8_t kMaskShared = 1;
inline constexpr uint8_t kMaskPerRequest = 2;
inline constexpr uint8_t kMaskPerHead = 3;
inline constexpr uint8_t kMaskRaggedBits = 4;
inline constexpr uint8_t kMaskTemplate = 5;

// A query row of a request. Offsets in device memory may be anything: 64 bits hold their
// differences.
struct QueryRow {
  int request = 0;
  int64_t i = 0;  // among the request's queries
  int64_t q_len = 1;
  int kv_len = 0;
  int64_t p = 0;  // position
};

struct RowSees {
  int lo = 0, hi = 0;  // lo >= hi: nothing
  bool needs_test = false;
  bool has_bias = false;
  int64_t p = 0;
  int64_t sparse_offset = 0;
  int64_t mask_row = 0;   // i or p; kRaggedBits: the first bit of the row
  int64_t diagonal = 0;   // the column at which a template has its diagonal
  int64_t mask_base = 0;  // of the row's elements
};

KVB_DEVICE int64_t FloorDiv(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
KVB_DEVICE int64_t MinOf(int64_t a, int64_t b) { return a < b ? a : b; }
KVB_DEVICE int64_t MaxOf(int64_t a, int64_t b) { return a > b ? a : b; }

// What is added to key blocks before the stride divides them.
KVB_DEVICE int64_t SparseOffsetOf(const BlockSparseRule& sparse, int num_heads, int num_kv_heads,
                                  int head) {
  const int64_t step = sparse.head_sliding_step;
  const int64_t kv_head = head / (num_heads / num_kv_heads);
  return (step >= 0 ? (int64_t{sparse.tp_rank} * num_heads + head) * step
                    : (int64_t{sparse.tp_rank} * num_kv_heads + kv_head) * -step) +
         1;
}

KVB_DEVICE RowSees SeesOf(const Scoring& scoring, int num_heads, int num_kv_heads,
                          const QueryRow& row, int head) {
  RowSees sees;
  const int64_t p = row.p;
  sees.p = p;
  int64_t lo = 0, hi = row.kv_len;
  if (scoring.causal) hi = MinOf(hi, p + 1);
  if (scoring.window_left >= 0) lo = MaxOf(lo, p - scoring.window_left);
  if (scoring.window_right >= 0) hi = MinOf(hi, p + scoring.window_right + 1);
  if (scoring.chunk > 0) lo = MaxOf(lo, scoring.chunk * FloorDiv(p, scoring.chunk));

  const BlockSparseRule& sparse = scoring.block_sparse;
  if (sparse.vert_stride > 1) {
    sees.sparse_offset = SparseOffsetOf(sparse, num_heads, num_kv_heads, head);
    sees.needs_test = true;
  }

  const MaskRule& mask = scoring.mask;
  if (mask.form != kMaskNone) {
    sees.needs_test = true;
    sees.has_bias = !mask.marker && mask.form != kMaskRaggedBits;
    sees.mask_row = mask.rows_are_absolute ? p : row.i;
    const bool bottom_right = mask.mode == 3 || mask.mode == 4;
    sees.diagonal = mask.form != kMaskTemplate ? sees.mask_row
                    : bottom_right             ? row.i + row.kv_len - row.q_len
                                               : row.i;
    if (mask.mode == 0 || mask.mode == 4) {
      if (mask.pre_tokens != kUnlimitedBand) lo = MaxOf(lo, sees.diagonal - mask.pre_tokens);
      if (mask.next_tokens != kUnlimitedBand) {
        hi = MinOf(hi, sees.diagonal + mask.next_tokens + 1);
      }
    }
    if (mask.form == kMaskRaggedBits) {
      // Modulo 2^64, as the sums before it.
      sees.mask_row = static_cast<int64_t>(static_cast<uint64_t>(mask.bits_before[row.request]) +
                                           static_cast<uint64_t>(row.i) * row.kv_len);
    } else if (mask.form != kMaskTemplate && sees.mask_row >= 0 && sees.mask_row < mask.rows) {
      sees.mask_base = row.request * mask.batch_stride + head * mask.head_stride +
                       sees.mask_row * mask.row_stride;
    }
  }
  sees.lo = static_cast<int>(MinOf(lo, row.kv_len));
  sees.hi = static_cast<int>(MaxOf(hi, 0));
  return sees;
}

// What the mask says of key j: 1 or 0 of markers and bits, else what it adds.
KVB_DEVICE float MaskValueOf(const MaskRule& mask, const RowSees& sees, int h, int64_t j,
                             uint32_t& flags) {
  int64_t at = 0;
  bool inside = true;
  if (mask.form == kMaskRaggedBits) {
    const auto bit = static_cast<uint64_t>(sees.mask_row) + static_cast<uint64_t>(j);
    if (bit / 8 >= static_cast<uint64_t>(mask.columns)) {
      flags |= kLengthClamped;
      return 1;
    }
    const auto* bytes = static_cast<const uint8_t*>(mask.data);
    return static_cast<float>(bytes[bit / 8] >> (bit % 8) & 1);
  }
  if (mask.form == kMaskTemplate) {
    const int64_t t = j - sees.diagonal;
    at = MinOf(MaxOf(0, -t), mask.rows - 1) * mask.row_stride +
         MinOf(MaxOf(0, t), mask.columns - 1) * mask.column_stride;
  } else {
    inside = sees.mask_row >= 0 && sees.mask_row < mask.rows && j < mask.columns;
    at = sees.mask_base + h * mask.head_stride + j * mask.column_stride;
  }
  if (!inside) {
    flags |= kLengthClamped;
    return mask.marker ? 1.0f : -INFINITY;
  }
  if (mask.bytes) return static_cast<const uint8_t*>(mask.data)[at] != 0 ? 1.0f : 0.0f;
  return LoadAsFloat(mask.element, mask.data, at);
}

// Whether key j of [lo, hi) is visible to the h-th head from that of `sees` on, of the same group,
// and what is added to its score.
KVB_DEVICE bool IsVisible(const Scoring& scoring, const RowSees& sees, int h, int64_t j,
                          float& bias, uint32_t& flags) {
  bias = 0;
  const BlockSparseRule& sparse = scoring.block_sparse;
  if (sparse.vert_stride > 1) {
    const int64_t q_block = FloorDiv(sees.p, sparse.block_size);
    const int64_t k_block = j / sparse.block_size;
    const int64_t offset =
        sees.sparse_offset +
        (sparse.head_sliding_step > 0 ? int64_t{h} * sparse.head_sliding_step : 0);
    if (k_block <= q_block - sparse.local_blocks && (k_block + offset) % sparse.vert_stride != 0) {
      return false;
    }
  }
  if (scoring.mask.form == kMaskNone) return true;
  const float value = MaskValueOf(scoring.mask, sees, h, j, flags);
  if (!sees.has_bias) return value == 0;
  bias = value;
  return value != -INFINITY;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_VISIBILITY_H_
