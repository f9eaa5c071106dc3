// Attention of any kind, row by row: the kernel that serves whatever no faster one was built for.
//
// Query rows against keys of one source: a paged cache through block tables, contiguous keys, or
// lists of slots in one or two latent caches; every layout, element type, head size up to
// kMaxHeadDim and every feature of Scoring. A warp takes one row, up to HeadsPerWarp heads of a
// group and a piece of the keys, in float32 all along; keys outside of [lo, hi), the interval that
// positions leave visible, are never touched. The same inputs give the same bits, whatever else is
// in the batch.
//
// Checked on the device: block ids, slots, lengths against tables, masks and tensors. What is out
// of range is invisible and flagged.
//
// Cost: keys are read once per query row and head (by neighbouring warps, so mostly from L1),
// scores take one fused multiply-add per lane: right for small work and for rare features.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ATTEND_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ATTEND_ROWS_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMaxHeadDim = 576;  // of keys and of values
// Heads of a group that share a warp, and with it each load of a key.
constexpr int HeadsPerWarp(int num_heads, int num_kv_heads, int value_dim) {
  return value_dim > 128 ? 2 : num_heads == num_kv_heads ? 1 : 4;
}

enum class KeySource : uint8_t { kPaged, kContiguous, kLists };

// Row r of `rows` stands at (r / inner) * outer_stride + (r % inner) * the row stride of its
// tensor: rows [B, s_q] that cannot be counted by one stride. One dimension: inner beyond all rows.
inline constexpr int32_t kOneDimension = INT32_MAX;

// Slots of a latent cache: row (b, s) has entries at b * outer_stride + s * row_stride, of which
// the first lengths[b] count (null: all).
struct SlotLists {
  Cache cache;
  const int32_t* slots = nullptr;  // null: no lists
  int64_t outer_stride = 0, row_stride = 0;
  int32_t num_entries = 0;
  const int32_t* lengths = nullptr;
};

// How the keys of a row are cut: piece n has keys [n, n + 1) * step from `from`, the last one all
// the rest. Each is computed on its own and written where AttendOutput's piece strides say.
struct Pieces {
  int32_t count = 1;
  int32_t step = 0;         // tokens; 0: by per_request
  int32_t per_request = 0;  // > 0: at most so many equal pieces of whole blocks of each request
  bool from_first_visible = false;  // from the block of the first visible key, else from key 0
};

// A float32 per (row, head, piece), or null.
struct RowStatistic {
  float* data = nullptr;
  int64_t outer_stride = 0, row_stride = 0, head_stride = 0, piece_stride = 0;
};

struct AttendOutput {
  Rows out;  // may have no data
  int64_t out_outer_stride = 0, out_piece_stride = 0;
  float out_scale = 0;  // > 0: out is divided by it
  RowStatistic lse, max_logits, exp_sums;
};

struct AttendRowsParams {
  ConstRows q;
  Scales q_scale;  // of codes
  int64_t q_outer_stride = 0;
  ConstRows q_tail;  // if it has data: dimensions from q_dim on
  int32_t q_dim = 0;

  int32_t num_rows = 0, num_heads = 1, num_kv_heads = 1;
  int32_t key_dim = 0, value_dim = 0;
  int32_t inner_rows = kOneDimension;

  // Which request a row is of: by query_start_loc [num_requests + 1], or row r is request r.
  int32_t num_requests = 0;
  const int32_t* query_start_loc = nullptr;
  const int32_t* query_positions = nullptr;  // [rows], or null: kv_len - q_len + i

  KeySource source = KeySource::kPaged;
  // kPaged; kContiguous: only cache, one block.
  PagedKeys keys;
  int32_t shared_prefix = 0;  // keys before it are looked up in row 0 of the table
  // kContiguous: [num_requests + 1], and the rows there are.
  const int32_t* kv_start_loc = nullptr;
  int32_t num_keys = 0;
  // kLists: key positions count through both.
  SlotLists main, extra;

  // kRaggedBits: scoring.mask.columns is the bytes there are.
  Scoring scoring;
  Pieces pieces;
  AttendOutput output;
};

Error LaunchAttendRows(const LaunchContext& context, const AttendRowsParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ATTEND_ROWS_H_
