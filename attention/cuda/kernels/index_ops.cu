#include "attention/cuda/kernels/index_ops.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kSlotThreads = 128;
constexpr int kWarps = 4;  // few: a decode batch of 256 tokens reaches 64 multiprocessors

// Tokens that are no padding. One thread of the launch, `reports`, says if tensors lack rows for
// them.
KVB_DEVICE int64_t NumTokens(const IndexBatch& batch, bool reports, uint32_t* flags) {
  if (batch.num_requests == 0) return 0;
  const int64_t tokens = batch.query_start_loc[batch.num_requests];
  if (tokens >= 0 && tokens <= batch.most_tokens) return tokens;
  if (reports) Flag(flags, kLengthClamped);
  return tokens < 0 ? 0 : batch.most_tokens;
}

// The last request that begins at or before the token; those without tokens end where they begin.
KVB_DEVICE int32_t FindRequest(const IndexBatch& batch, int64_t token) {
  int32_t begin = 0, end = batch.num_requests;
  while (end - begin > 1) {
    const int32_t middle = begin + (end - begin) / 2;
    (batch.query_start_loc[middle] <= token ? begin : end) = middle;
  }
  return begin;
}

// The slot of a row of a request, or -1. `beyond`: the flag of rows that the table does not cover.
KVB_DEVICE int64_t SlotOf(const IndexBatch& batch, int32_t request, int64_t row, uint32_t beyond,
                          int32_t* block, uint32_t* flags) {
  const uint32_t column = static_cast<uint32_t>(row) / static_cast<uint32_t>(batch.block_size);
  if (row < 0 || column >= static_cast<uint32_t>(batch.columns)) {
    Flag(flags, beyond);
    return -1;
  }
  *block = batch.block_table[int64_t{request} * batch.columns + column];
  if (*block < 0 || *block > batch.last_block) {
    Flag(flags, kBadBlock);
    return -1;
  }
  const uint32_t offset =
      static_cast<uint32_t>(row) - column * static_cast<uint32_t>(batch.block_size);
  return int64_t{*block} * batch.block_size + offset;
}

// The row of a position in its table, or -1: another rank's. Positions are int32.
KVB_DEVICE int64_t RowOf(const SlotParams& params, int64_t position) {
  if (params.num_ranks == 1) return params.sink_rows + position / params.ratio;
  const auto p = static_cast<uint32_t>(position);
  const auto interleave = static_cast<uint32_t>(params.interleave);
  const auto num_ranks = static_cast<uint32_t>(params.num_ranks);
  const uint32_t run = p / interleave;
  if (run % num_ranks != static_cast<uint32_t>(params.rank)) return -1;
  return int64_t{run / num_ranks} * interleave + p % interleave;
}

__global__ void __launch_bounds__(kSlotThreads) SlotKernel(SlotParams params, uint32_t* flags) {
  OverlapNeighbours();
  const int64_t token = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  if (token >= params.num_slots) return;
  int64_t slot = -1;
  if (token < NumTokens(params.batch, token == 0, flags)) {
    const int64_t position = params.positions[token];
    if (position < 0) {
      Flag(flags, kLengthClamped);
    } else if (params.ratio == 1 || (position + 1) % params.ratio == 0) {
      const int64_t row = RowOf(params, position);
      if (row >= 0) {
        int32_t block = 0;
        slot = SlotOf(params.batch, FindRequest(params.batch, token), row, kLengthClamped, &block,
                      flags);
        const int64_t from_null = int64_t{block} - params.null_first;
        if (from_null >= 0 && from_null < params.null_count) slot = -1;
      }
    }
  }
  params.slots[token] = slot;
}

KVB_DEVICE void StoreId(void* to, bool wide, int64_t index, int64_t value) {
  if (wide) {
    static_cast<int64_t*>(to)[index] = value;
  } else {
    static_cast<int32_t*>(to)[index] = static_cast<int32_t>(value);
  }
}

// Rows that a request is sampled behind.
KVB_DEVICE int64_t NumLogits(const InputTokenParams& params, int32_t request) {
  if (params.logits_start_loc == nullptr) return 1;
  return int64_t{params.logits_start_loc[request + 1]} - params.logits_start_loc[request];
}

KVB_DEVICE int32_t InputId(const InputTokenParams& params, int32_t request, int64_t position,
                           int64_t index, uint32_t* flags) {
  const int64_t row = params.request_rows[request];
  const int64_t last = params.last_rows == nullptr ? -1 : params.last_rows[request];
  if (last >= 0 && index >= 0 && (index == 0 || params.drafts != nullptr)) {
    if (last < params.num_last_rows && index <= params.num_drafts) {
      return index == 0 ? params.sampled[last * params.sampled_width]
                        : params.drafts[last * params.num_drafts + index - 1];
    }
    Flag(flags, kBadIndex);
    return 0;
  }
  if (row < 0 || row >= params.num_rows) {
    Flag(flags, kBadIndex);
    return 0;
  }
  if (position < 0 || position >= params.max_len) {
    Flag(flags, kLengthClamped);
    return 0;
  }
  return params.token_ids[row * params.max_len + position];
}

// The row whose logits are the i-th; behind the last, the last once more.
KVB_DEVICE int64_t LogitsRow(const InputTokenParams& params, int64_t i, int64_t num_tokens,
                             uint32_t* flags) {
  const IndexBatch& batch = params.batch;
  if (batch.num_requests == 0 || num_tokens == 0) return 0;
  if (params.logits_start_loc == nullptr) {
    if (i >= batch.num_requests) return num_tokens - 1;
    const int64_t begin = batch.query_start_loc[i], end = batch.query_start_loc[i + 1];
    if (begin < end && end <= num_tokens) return end - 1;
    if (begin < num_tokens) Flag(flags, kLengthClamped);  // others behind it have tokens
    return num_tokens - 1;
  }
  const int64_t count = params.logits_start_loc[batch.num_requests];
  if (count <= 0) return 0;
  if (i >= count) i = count - 1;
  int32_t begin = 0, end = batch.num_requests;
  while (end - begin > 1) {
    const int32_t middle = begin + (end - begin) / 2;
    (params.logits_start_loc[middle] <= i ? begin : end) = middle;
  }
  const int64_t row = int64_t{batch.query_start_loc[begin + 1]} -
                      params.logits_start_loc[begin + 1] + i;
  if (row >= batch.query_start_loc[begin] && row < num_tokens) return row;
  Flag(flags, kBadIndex);
  return 0;
}

__global__ void __launch_bounds__(kSlotThreads)
    InputTokenKernel(InputTokenParams params, uint32_t* flags) {
  OverlapNeighbours();
  const int64_t i = int64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  const int64_t num_tokens = NumTokens(params.batch, i == 0, flags);
  int64_t id = 0, position = 0;
  if (i < num_tokens) {
    const int32_t request = FindRequest(params.batch, i);
    const int64_t begin = params.batch.query_start_loc[request];
    const int64_t end = params.batch.query_start_loc[request + 1];
    position = params.num_computed[request] + i - begin;
    id = InputId(params, request, position, i - (end - NumLogits(params, request)), flags);
  }
  if (i < params.num_ids) StoreId(params.input_ids, params.wide_ids, i, id);
  if (i < params.num_positions) StoreId(params.positions, params.wide_positions, i, position);
  if (i < params.num_logits) {
    params.logits_indices[i] = static_cast<int32_t>(LogitsRow(params, i, num_tokens, flags));
  }
}

// A warp's data about its token.
struct ListRow {
  int lane;
  int64_t row;
  bool is_token;
};
KVB_DEVICE ListRow RowOfWarp(const IndexListParams& params, uint32_t* flags) {
  ListRow at;
  at.lane = static_cast<int>(threadIdx.x % 32);
  at.row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  at.is_token = at.row < NumTokens(params.batch, at.row == 0 && at.lane == 0, flags);
  return at;
}

// Ends a row whose first `length` entries were written.
KVB_DEVICE void FinishRow(const IndexListParams& params, const ListRow& at, int64_t length) {
  if (at.row < params.rows) {
    for (int64_t k = length + at.lane; k < params.width; k += 32) {
      params.indices[at.row * params.width + k] = -1;
    }
  }
}

// A token's request and the positions [first, end) that it sees through a window.
struct Window {
  int32_t request;
  int64_t position, first, end;
  int64_t query_len, seq_len;
};
KVB_DEVICE Window WindowOf(const IndexListParams& params, const ListRow& at) {
  Window window;
  window.request = FindRequestByWarp(params.batch.query_start_loc, 1, params.batch.num_requests,
                                     at.row, at.lane);
  const int32_t* starts = params.batch.query_start_loc + window.request;
  const int64_t begin = starts[0], end = starts[1];
  window.query_len = end - begin;
  window.seq_len = params.seq_lens[window.request];
  window.position = window.seq_len - (end - at.row);
  window.end = window.position + 1;
  window.first = window.end > params.window ? window.end - params.window : 0;
  return window;
}

__global__ void __launch_bounds__(kWarps * 32)
    WindowKernel(IndexListParams params, uint32_t* flags) {
  OverlapNeighbours();
  const ListRow at = RowOfWarp(params, flags);
  if (at.row >= params.num_lens) return;
  int64_t length = 0;
  if (at.is_token) {
    Window window = WindowOf(params, at);
    const int64_t covered = int64_t{params.batch.columns} * params.batch.block_size;
    if ((window.seq_len > covered || window.position < params.sink_rows) && at.lane == 0) {
      Flag(flags, kLengthClamped);
    }
    if (window.end > covered) window.end = covered;
    if (window.first < params.sink_rows) window.first = params.sink_rows;
    const int64_t seen = window.end > window.first ? window.end - window.first : 0;
    const int64_t sinks = params.sink_rows < covered ? params.sink_rows : covered;
    length = seen == 0 ? 0 : sinks + seen;
    int32_t* out = params.indices + at.row * params.width;
    for (int64_t k = at.lane; k < length; k += 32) {
      const int64_t row = k < sinks ? k : window.first + k - sinks;
      int32_t block = 0;
      out[k] = static_cast<int32_t>(
          SlotOf(params.batch, window.request, row, kLengthClamped, &block, flags));
    }
  }
  FinishRow(params, at, length);
  if (at.lane == 0) params.lens[at.row] = static_cast<int32_t>(length);
}

__global__ void __launch_bounds__(kWarps * 32) TopkKernel(IndexListParams params, uint32_t* flags) {
  OverlapNeighbours();
  const ListRow at = RowOfWarp(params, flags);
  if (at.row >= params.num_lens) return;
  int32_t count = 0;
  if (at.is_token) {
    const int32_t request = FindRequestByWarp(params.batch.query_start_loc, 1,
                                              params.batch.num_requests, at.row, at.lane);
    for (int64_t k = at.lane; k < params.width; k += 32) {
      const int32_t index = params.from[at.row * params.width + k];
      int32_t block = 0;
      const int64_t slot =
          index < 0 ? -1 : SlotOf(params.batch, request, index, kBadIndex, &block, flags);
      count += slot >= 0 ? 1 : 0;
      params.indices[at.row * params.width + k] = static_cast<int32_t>(slot);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) count += __shfl_xor_sync(kFullWarp, count, lanes);
  } else {
    FinishRow(params, at, 0);
  }
  if (at.lane == 0) params.lens[at.row] = count;
}

__global__ void __launch_bounds__(kWarps * 32)
    DenseKernel(IndexListParams params, uint32_t* flags) {
  OverlapNeighbours();
  const ListRow at = RowOfWarp(params, flags);
  if (at.row >= params.num_lens) return;
  int64_t length = 0;
  if (at.is_token) {
    const int64_t position = params.positions[at.row];
    if (position < 0) {
      if (at.lane == 0) Flag(flags, kLengthClamped);
    } else {
      length = (position + 1) / params.ratio;
      if (length > params.width) length = params.width;
    }
    for (int64_t k = at.lane; k < length; k += 32) {
      params.indices[at.row * params.width + k] = static_cast<int32_t>(k);
    }
  }
  FinishRow(params, at, length);
  if (at.lane == 0) params.lens[at.row] = static_cast<int32_t>(length);
}

__global__ void __launch_bounds__(kWarps * 32)
    PrefillKernel(IndexListParams params, uint32_t* flags) {
  OverlapNeighbours();
  const ListRow at = RowOfWarp(params, flags);
  if (at.row >= params.num_lens) return;
  int64_t length = 0;
  if (at.is_token) {
    Window window = WindowOf(params, at);
    int32_t* out = params.indices + at.row * params.width;
    const int64_t base = window.request * params.rows_per_request;
    int64_t compressed = window.end > 0 ? window.end / params.ratio : 0;
    if (compressed > params.from_width) compressed = params.from_width;
    for (int64_t k = at.lane; k < compressed; k += 32) {
      const int64_t local = params.from[at.row * params.from_width + k];
      const bool is_row = local < params.compressed_rows;
      if (!is_row) Flag(flags, kBadIndex);
      out[k] = static_cast<int32_t>(local < 0 || !is_row ? -1 : base + local);
    }
    // The buffer ends with the newest tokens, from gather_start on.
    const int64_t cached = window.seq_len - window.query_len;
    const int64_t before = cached < params.window - 1 ? cached : params.window - 1;
    const int64_t gather_start = cached - (before > 0 ? before : 0);
    const int64_t room = params.rows_per_request - params.compressed_rows;
    if ((cached < 0 || window.seq_len - gather_start > room) && at.lane == 0) {
      Flag(flags, kLengthClamped);
    }
    if (window.first < gather_start) window.first = gather_start;
    if (window.end > gather_start + room) window.end = gather_start + room;
    const int64_t seen = window.end > window.first ? window.end - window.first : 0;
    const int64_t window_base = base + params.compressed_rows + window.first - gather_start;
    for (int64_t k = at.lane; k < seen; k += 32) {
      out[compressed + k] = static_cast<int32_t>(window_base + k);
    }
    length = compressed + seen;
  }
  FinishRow(params, at, length);
  if (at.lane == 0) params.lens[at.row] = static_cast<int32_t>(length);
}

template <typename Kernel>
Error LaunchRows(const LaunchContext& context, const IndexListParams& params, Kernel kernel) {
  if (params.num_lens == 0) return 0;
  return Launch(ConfigOf(context, Blocks(params.num_lens, kWarps), kWarps * 32), kernel, params,
                context.error_flags);
}

}  // namespace

Error LaunchSlots(const LaunchContext& context, const SlotParams& params) {
  if (params.num_slots == 0) return 0;
  return Launch(ConfigOf(context, Blocks(params.num_slots, kSlotThreads), kSlotThreads), SlotKernel,
                params, context.error_flags);
}

Error LaunchInputTokens(const LaunchContext& context, const InputTokenParams& params) {
  int64_t threads = params.num_ids > params.num_positions ? params.num_ids : params.num_positions;
  if (params.num_logits > threads) threads = params.num_logits;
  if (threads == 0) return 0;
  return Launch(ConfigOf(context, Blocks(threads, kSlotThreads), kSlotThreads), InputTokenKernel,
                params, context.error_flags);
}

Error LaunchWindowLists(const LaunchContext& context, const IndexListParams& params) {
  return LaunchRows(context, params, WindowKernel);
}
Error LaunchTopkSlots(const LaunchContext& context, const IndexListParams& params) {
  return LaunchRows(context, params, TopkKernel);
}
Error LaunchDenseLists(const LaunchContext& context, const IndexListParams& params) {
  return LaunchRows(context, params, DenseKernel);
}
Error LaunchPrefillLists(const LaunchContext& context, const IndexListParams& params) {
  return LaunchRows(context, params, PrefillKernel);
}

}  // namespace kvblocks::attention::cuda
