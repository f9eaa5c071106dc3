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
// scores take one fused multiply-add per lane: right for small work and for unusual features.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ATTEND_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ATTEND_ROWS_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMaxHeadDim = 576;  // of keys and of values
// Heads of a group that share a warp, and with it each load of a key.
constexpr int HeadsPerWarp(int num_heads, int num_kv_heads, int value_dim) {
  return value_dim > 128 ? 2 : num_heads == num_kv_heads ? 1 : 4;
}

enum class KeySource : uint8_t { kPaged, kContiguous, kLists };

// Row r of `rows` is at (r / inner) * outer_stride + (r % inner) * the row stride of its
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

// Lengths and sums of lengths that kernels read and no caller has, because only the device knows
// them. One launch each.

// Of the part of a cascade behind the shared prefix. Lengths that leave a request fewer keys behind
// the prefix than it has queries are flagged (kLengthClamped).
struct SuffixLengthsParams {
  const int32_t* query_start_loc = nullptr;  // [R + 1]
  const int32_t* seq_lens = nullptr;         // [R]
  int32_t num_requests = 0;
  int32_t prefix = 0;
  int32_t* suffix_lens = nullptr;  // [R]
};
Error LaunchSuffixLengths(const LaunchContext& context, const SuffixLengthsParams& params);

// Where the keys of each request begin among contiguous ones. What is negative, or goes beyond the
// keys that there are, is clamped and flagged (kLengthClamped).
struct KeyStartsParams {
  const int32_t* seq_lens = nullptr;  // [R]
  int32_t num_requests = 0;
  int64_t num_keys = 0;
  int32_t* starts = nullptr;  // [R + 1]
};
Error LaunchKeyStarts(const LaunchContext& context, const KeyStartsParams& params);

// Sums of q_len * kv_len over the requests before each, for masks of ragged bits. Lengths as in
// AttendRowsParams.
struct MaskBitsParams {
  int32_t num_requests = 0;
  const int32_t* query_start_loc = nullptr;  // null: one query each
  const int32_t* seq_lens = nullptr;         // or
  const int32_t* kv_start_loc = nullptr;
  int64_t* bits_before = nullptr;  // [R]
};
Error LaunchMaskBits(const LaunchContext& context, const MaskBitsParams& params);

// Merges attention states: partial outputs with what they weigh into one output and log-sum-exp.
//
// State n of row r is dense, at n * state_stride + r * row_stride; with state_offsets, those
// of row r are n = [offsets[q], offsets[q + 1]) with q = r / rows_per_request, and the row within a
// state is r % rows_per_request: what decode with a plan leaves. A state weighs e^lse, or, with
// exp_sums, exp_sum * e^max. States that weigh nothing are left out, their values not read; one
// that is alone keeps its bits. Sinks are applied after the merge and do not show in the lse. `out`
// and `lse` may be one of the states. Sums in float32, in order of n.
//
// Cost: one warp per (row, head), or, of up to four states, a thread per eight values; each value
// is read once.

// Float32, one per (state, row, head).
struct StateStatistic {
  const float* data = nullptr;
  int64_t state_stride = 0, row_stride = 0, head_stride = 0;
};

struct MergeStatesParams {
  ConstRows outs;
  int64_t out_state_stride = 0;
  StateStatistic lses;      // natural logarithms; with exp_sums: largest scores
  StateStatistic exp_sums;  // may have no data

  int32_t num_states = 0;  // without offsets
  const int32_t* state_offsets = nullptr;
  int32_t rows_per_request = 1;
  // With offsets: rows of one state have their output already and are left alone.
  bool single_states_are_done = false;

  int32_t num_rows = 0, num_heads = 1, value_dim = 0;
  int32_t tokens_with_context = -1;  // >= 0: rows from here on copy their last state
  // An lse of +infinity is no state: left out and flagged.
  bool infinity_is_empty = false;

  const float* sinks = nullptr;
  float out_scale = 0;  // > 0: out is divided by it
  Rows out;
  float* lse = nullptr;
  int64_t lse_row_stride = 0, lse_head_stride = 0;
  // As in AttendRowsParams, of out and lse.
  int32_t inner_rows = INT32_MAX;
  int64_t out_outer_stride = 0, lse_outer_stride = 0;
};

Error LaunchMergeStates(const LaunchContext& context, const MergeStatesParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ATTEND_ROWS_H_
