#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/key_rows.h"
#include "attention/cuda/kernels/row_visibility.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

// What a warp keeps in shared memory: a tile of keys, and the queries of its heads as floats.
template <int kHeads>
struct WarpScratch {
  TileOfKeys<kHeads>* tile;
  float* q;
};
KVB_HOST_DEVICE int QueryFloats(int key_dim) { return (key_dim + 3) / 4 * 4; }
template <int kHeads>
KVB_HOST_DEVICE int ScratchBytes(int key_dim) {
  return static_cast<int>(sizeof(TileOfKeys<kHeads>)) + kHeads * QueryFloats(key_dim) * 4;
}
template <int kHeads>
KVB_DEVICE WarpScratch<kHeads> ScratchOf(int warp, int key_dim) {
  unsigned char* at = DynamicSharedMemory() + warp * ScratchBytes<kHeads>(key_dim);
  return {reinterpret_cast<TileOfKeys<kHeads>*>(at),
          reinterpret_cast<float*>(at + sizeof(TileOfKeys<kHeads>))};
}

KVB_DEVICE int64_t OffsetOf(int row, int inner, int64_t outer_stride, int64_t row_stride) {
  return row / inner * outer_stride + row % inner * row_stride;
}

// Slots of a list that count.
KVB_DEVICE int UsedEntries(const SlotLists& lists, int outer) {
  if (lists.slots == nullptr) return 0;
  if (lists.lengths == nullptr) return lists.num_entries;
  return static_cast<int>(MaxOf(0, MinOf(lists.lengths[outer], lists.num_entries)));
}

// A row's place in the batch and its keys.
struct RowKeys {
  QueryRow row;
  int64_t first_key = 0;  // kContiguous
  int main_keys = 0;      // kLists: keys before are of the first list
  bool exists = true;     // else padding
};

KVB_DEVICE RowKeys KeysOf(const AttendRowsParams& params, int row, uint32_t& flags) {
  RowKeys keys;
  QueryRow& place = keys.row;
  if (params.query_start_loc == nullptr) {
    place.request = row;
  } else {
    // The last request that begins at or before the row.
    const int32_t* starts = params.query_start_loc;
    int low = 0, high = params.num_requests;
    if (high < 1 || starts[0] > row || starts[high] <= row) {
      keys.exists = false;
      return keys;
    }
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (starts[middle] <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    place.request = low;
    place.i = int64_t{row} - starts[low];
    place.q_len = int64_t{starts[low + 1]} - starts[low];
  }

  int64_t length = 0;
  switch (params.source) {
    case KeySource::kPaged: {
      length = params.keys.seq_lens[place.request];
      const int64_t covered = int64_t{params.keys.table_columns} * params.keys.cache.block_size;
      if (length > covered || length < 0) {
        flags |= kLengthClamped;
        length = length < 0 ? 0 : covered;
      }
      break;
    }
    case KeySource::kContiguous: {
      const int64_t begin = params.kv_start_loc[place.request];
      const int64_t end = params.kv_start_loc[place.request + 1];
      if (begin < 0 || end < begin || end > params.num_keys) {
        flags |= kLengthClamped;
        keys.first_key = MinOf(MaxOf(0, begin), params.num_keys);
        length = MaxOf(0, MinOf(end, params.num_keys) - keys.first_key);
      } else {
        keys.first_key = begin;
        length = end - begin;
      }
      break;
    }
    case KeySource::kLists: {
      const int outer = row / params.inner_rows;
      keys.main_keys = UsedEntries(params.main, outer);
      length = keys.main_keys + int64_t{UsedEntries(params.extra, outer)};
      break;
    }
  }
  place.kv_len = static_cast<int>(MinOf(length, INT32_MAX - 64));
  place.p = params.query_positions != nullptr ? params.query_positions[row]
                                              : int64_t{place.kv_len} - place.q_len + place.i;
  return keys;
}

// Keys [begin, end) of a piece.
struct KeyRange {
  int64_t begin = 0, end = INT32_MAX;
};
KVB_DEVICE KeyRange PieceOf(const Pieces& pieces, int piece, int block_size, int first_visible,
                            int kv_len) {
  KeyRange range;
  if (pieces.count <= 1) return range;
  int64_t step = pieces.step;
  if (pieces.per_request > 0) {
    const int64_t blocks = (int64_t{kv_len} + block_size - 1) / block_size;
    step = (blocks + pieces.per_request - 1) / pieces.per_request * block_size;
  }
  const int64_t from =
      pieces.from_first_visible ? int64_t{first_visible / block_size} * block_size : 0;
  range.begin = from + piece * step;
  if (piece + 1 < pieces.count) range.end = range.begin + step;
  return range;
}

// Where key j is; false if an index says something impossible.
KVB_DEVICE bool Locate(const AttendRowsParams& params, const RowKeys& keys, const Cache& cache,
                       bool extra, int row, int j, int kv_head, KeyAddress& address,
                       uint32_t& flags) {
  const int block_size = cache.block_size;
  if (params.source == KeySource::kContiguous) {
    address = AddressOf(cache, 0, keys.first_key + j, kv_head);
    return true;
  }
  if (params.source == KeySource::kPaged) {
    const int table_row = j < params.shared_prefix ? 0 : keys.row.request;
    const int block =
        params.keys.block_table[table_row * params.keys.table_stride + j / block_size];
    if (block < 0 || block >= cache.num_blocks) {
      flags |= kBadBlock;
      return false;
    }
    address = AddressOf(cache, block, j % block_size, kv_head);
    return true;
  }
  const SlotLists& lists = extra ? params.extra : params.main;
  const int slot =
      lists.slots[OffsetOf(row, params.inner_rows, lists.outer_stride, lists.row_stride) +
                  (extra ? j - keys.main_keys : j)];
  if (slot < 0) return false;
  if (slot / block_size >= cache.num_blocks) {
    flags |= kBadIndex;
    return false;
  }
  address = AddressOf(cache, slot / block_size, slot % block_size, 0);
  return true;
}

KVB_DEVICE float ScaleOf(const Scales& scales, int request, int kv_head) {
  if (scales.data == nullptr) return 1;
  return scales.data[request * scales.request_stride + kv_head * scales.head_stride];
}

KVB_DEVICE void StoreStatistic(const AttendRowsParams& params, const RowStatistic& statistic,
                               int row, int head, int piece, float value) {
  if (statistic.data == nullptr) return;
  statistic.data[OffsetOf(row, params.inner_rows, statistic.outer_stride, statistic.row_stride) +
                 head * statistic.head_stride + piece * statistic.piece_stride] = value;
}

// The online softmax of one row, and up to kHeads heads of one group, over the keys of a piece:
// each key is loaded once for all of them. kPackedRows: as of KeyProducts.
template <int kHeads, int kSums, bool kPackedRows>
class RowRun {
 public:
  // Heads [head, head + num_heads). `keys`: the row's; `sees`: what the first head sees.
  KVB_DEVICE RowRun(const AttendRowsParams& params, const RowKeys& keys, const RowSees& sees,
                    const WarpScratch<kHeads>& scratch, int row, int head, int num_heads)
      : params_(params),
        keys_(keys),
        sees_(sees),
        scratch_(scratch),
        row_(row),
        head_(head),
        num_heads_(num_heads) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    kv_head_ = head / (params.num_heads / params.num_kv_heads);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      max_[h] = -INFINITY;
      sum_[h] = 0;
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums_[h][i] = 0;
    }
  }

  KVB_DEVICE void LoadQueries() {
    const AttendRowsParams& params = params_;
    const int stride = QueryFloats(params.key_dim);
#pragma unroll 1
    for (int h = 0; h < num_heads_; ++h) {
      const int64_t at =
          OffsetOf(row_, params.inner_rows, params.q_outer_stride, params.q.row_stride) +
          (head_ + h) * params.q.head_stride;
      const int64_t tail_at =
          row_ * params.q_tail.row_stride + (head_ + h) * params.q_tail.head_stride;
      for (int d = lane_; d < params.key_dim; d += 32) {
        scratch_.q[h * stride + d] = d < params.q_dim
                                         ? LoadAsFloat(params.q.element, params.q.data, at + d)
                                         : LoadAsFloat(params.q_tail.element, params.q_tail.data,
                                                         tail_at + d - params.q_dim);
      }
    }
    // Heads that the warp does not have.
    for (int at = num_heads_ * stride + lane_; at < kHeads * stride; at += 32) scratch_.q[at] = 0;
    __syncwarp();
  }

  // Keys [begin, end), all of one cache.
  KVB_DEVICE void Attend(const Cache& cache, bool extra, int begin, int end) {
    // A latent row is key and value at once and has the key's scale.
    const float k_scale = params_.scoring.scale *
                          ScaleOf(params_.q_scale, keys_.row.request, kv_head_) *
                          ScaleOf(cache.k_scale, keys_.row.request, kv_head_);
    const float v_scale = ScaleOf(
        cache.layout == Layout::kMlaLatent || cache.layout == Layout::kMlaSplit ? cache.k_scale
                                                                                : cache.v_scale,
        keys_.row.request, kv_head_);
    // Tiles begin at multiples of 32: what hides keys does not move the others between lanes.
    for (int tile = begin / 32 * 32; tile < end; tile += 32) {
      KeyAddress address;
      float scores[kHeads];
      Score(cache, extra, tile + lane_, tile + lane_ >= begin && tile + lane_ < end, k_scale,
            address, scores);
      unsigned live[kHeads];
      unsigned any = 0;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        live[h] = 0;
        // A NaN is visible; -infinity is as good as hidden.
        if (h < num_heads_) live[h] = __ballot_sync(kFullWarp, !(scores[h] == -INFINITY));
        any |= live[h];
      }
      if (any == 0) continue;
      const float row_v_scale = address.value_scales == nullptr
                                    ? v_scale
                                    : v_scale * RowFactor(cache.format, address.value_scales);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= num_heads_) continue;
        const float max = fmaxf(max_[h], WarpMax(scores[h]));
        const float shift = max == -INFINITY ? 0.0f : max;
        const float shrink = __expf(max_[h] - shift);
        const float weight = scores[h] == -INFINITY ? 0.0f : __expf(scores[h] - shift);
        sum_[h] = sum_[h] * shrink + weight;
        max_[h] = max;
        if (shrink != 1.0f) {
#pragma unroll
          for (int i = 0; i < kSums; ++i) sums_[h][i] *= shrink;
        }
        scratch_.tile->weight[h][lane_] = weight * row_v_scale;
      }
      scratch_.tile->value[lane_] = address.value;
      scratch_.tile->scales[lane_] = address.value_scales;
      __syncwarp();
      AddValues<kHeads, kSums, kPackedRows>(cache, params_.value_dim, *scratch_.tile, live,
                                            num_heads_, lane_, sums_);
      __syncwarp();
    }
  }

  KVB_DEVICE void Write(int piece) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < num_heads_) WriteHead(piece, head_ + h, max_[h], WarpSum(sum_[h]), sums_[h]);
    }
  }

  KVB_DEVICE uint32_t flags() const { return flags_; }

 private:
  // Scores of key j and where it is; -infinity where it is hidden.
  KVB_DEVICE void Score(const Cache& cache, bool extra, int j, bool inside, float k_scale,
                        KeyAddress& address, float (&scores)[kHeads]) {
    const Scoring& scoring = params_.scoring;
    float biases[kHeads];
    bool any = false;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      biases[h] = 0;
      scores[h] = -INFINITY;
      bool visible = inside && h < num_heads_;
      if (visible && sees_.needs_test) {
        visible = IsVisible(scoring, sees_, h, j, biases[h], flags_);
      }
      if (visible) scores[h] = 0;
      any = any || visible;
    }
    if (!any) return;
    if (!Locate(params_, keys_, cache, extra, row_, j, kv_head_, address, flags_)) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) scores[h] = -INFINITY;
      return;
    }
    float products[kHeads];
    KeyProducts<kHeads, kPackedRows>(cache, params_.key_dim, params_.value_dim, scratch_.q,
                                     QueryFloats(params_.key_dim), address, products);
    if (address.scales != nullptr) k_scale *= RowFactor(cache.format, address.scales);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (scores[h] == -INFINITY) continue;
      float score = k_scale * products[h];
      if (scoring.soft_cap > 0) score = scoring.soft_cap * tanhf(score / scoring.soft_cap);
      if (scoring.alibi_slopes != nullptr) {
        score += scoring.alibi_slopes[head_ + h] * static_cast<float>(j - sees_.p);
      }
      if (sees_.has_bias) score += biases[h];
      scores[h] = score;
    }
  }

  KVB_DEVICE void WriteHead(int piece, int head, float max, float sum, const float (&sums)[kSums]) {
    const AttendRowsParams& params = params_;
    const AttendOutput& output = params.output;
    const bool empty = sum == 0 && max == -INFINITY;
    const float lse = empty ? -INFINITY : max + logf(sum);
    float denominator = sum;
    if (params.scoring.sinks != nullptr && !empty) {
      denominator *= 1 + expf(params.scoring.sinks[head] - lse);
    }
    if (output.out.data != nullptr) {
      const int64_t at =
          OffsetOf(row_, params.inner_rows, output.out_outer_stride, output.out.row_stride) +
          head * output.out.head_stride + piece * output.out_piece_stride;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int d = lane_ + 32 * i;
        if (d >= params.value_dim) continue;
        // Divided by infinity, negative numbers become -0: the sum makes it +0.
        float value = empty ? 0.0f : sums[i] / denominator + 0.0f;
        if (output.out_scale > 0) value /= output.out_scale;
        StoreFloat(output.out.element, value, output.out.data, at + d);
      }
    }
    if (lane_ == 0) {
      StoreStatistic(params, output.lse, row_, head, piece, lse);
      // A NaN among the scores is their maximum.
      const float largest = sum == sum || max == INFINITY ? max : sum;
      StoreStatistic(params, output.max_logits, row_, head, piece, largest);
      StoreStatistic(params, output.exp_sums, row_, head, piece, sum);
    }
  }

  const AttendRowsParams& params_;
  const RowKeys& keys_;
  const RowSees& sees_;
  const WarpScratch<kHeads> scratch_;
  const int row_, head_, num_heads_;
  int lane_, kv_head_;
  float max_[kHeads];
  float sum_[kHeads];  // of this lane's keys
  float sums_[kHeads][kSums];
  uint32_t flags_ = 0;
};

// Warps that a row takes: each has up to kHeads heads of one group.
KVB_HOST_DEVICE int WarpsPerGroup(const AttendRowsParams& params, int heads_per_warp) {
  const int group = params.num_heads / params.num_kv_heads;
  return (group + heads_per_warp - 1) / heads_per_warp;
}

// Blocks per multiprocessor that leave enough registers.
constexpr int BlocksFor(int heads, int sums) { return heads == 1 ? 4 : sums <= 8 ? 3 : 2; }

template <int kHeads, int kSums, bool kPackedRows>
__global__ void __launch_bounds__(kThreads, BlocksFor(kHeads, kSums))
    AttendRowsKernel(const __grid_constant__ AttendRowsParams params, uint32_t* error_flags) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int per_group = WarpsPerGroup(params, kHeads);
  const int per_row = per_group * params.num_kv_heads;
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp;
  if (item >= int64_t{params.num_rows} * per_row) return;
  const int row = static_cast<int>(item / per_row);
  const int of_row = static_cast<int>(item % per_row);
  const int group = params.num_heads / params.num_kv_heads;
  const int first = of_row % per_group * kHeads;  // in the group
  const int head = of_row / per_group * group + first;
  const int num_heads = group - first < kHeads ? group - first : kHeads;
  const int piece = static_cast<int>(blockIdx.y);

  uint32_t flags = 0;
  const RowKeys keys = KeysOf(params, row, flags);
  RowSees sees;
  if (keys.exists) {
    sees = SeesOf(params.scoring, params.num_heads, params.num_kv_heads, keys.row, head);
  }
  const KeyRange range =
      PieceOf(params.pieces, piece, params.keys.cache.block_size, sees.lo, keys.row.kv_len);
  const int begin = static_cast<int>(MinOf(MaxOf(sees.lo, range.begin), sees.hi));
  const int end = static_cast<int>(MinOf(sees.hi, range.end));

  RowRun<kHeads, kSums, kPackedRows> run(
      params, keys, sees, ScratchOf<kHeads>(warp, params.key_dim), row, head, num_heads);
  if (begin < end) {
    run.LoadQueries();
    const bool lists = params.source == KeySource::kLists;
#pragma unroll 1
    for (int part = 0; part < (lists ? 2 : 1); ++part) {
      run.Attend(part == 1 ? params.extra.cache
                 : lists   ? params.main.cache
                           : params.keys.cache,
                 part == 1, part == 1 ? static_cast<int>(MaxOf(begin, keys.main_keys)) : begin,
                 lists && part == 0 ? static_cast<int>(MinOf(end, keys.main_keys)) : end);
    }
  }
  run.Write(piece);
  flags |= run.flags();
  if (flags != 0 && error_flags != nullptr) atomicOr(error_flags, flags);
}

template <int kHeads, int kSums>
Error LaunchKernel(const LaunchContext& context, const AttendRowsParams& params) {
  const int64_t warps =
      int64_t{params.num_rows} * params.num_kv_heads * WarpsPerGroup(params, kHeads);
  const int64_t blocks = (warps + kWarps - 1) / kWarps;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(params.pieces.count));
  config.block = dim3(kThreads);
  config.shared_bytes = static_cast<size_t>(kWarps) * ScratchBytes<kHeads>(params.key_dim);
  config.stream = context.stream;
  // Separate kernels, so that packed rows cost the others no registers.
  const auto packed = [&](const Cache& cache) { return IsPackedRow(cache.format); };
  const bool lists = params.source == KeySource::kLists;
  if (lists ? packed(params.main.cache) || packed(params.extra.cache) : packed(params.keys.cache)) {
    return Launch(config, AttendRowsKernel<kHeads, kSums, true>, params, context.error_flags);
  }
  return Launch(config, AttendRowsKernel<kHeads, kSums, false>, params, context.error_flags);
}

}  // namespace

Error LaunchAttendRows(const LaunchContext& context, const AttendRowsParams& params) {
  if (params.num_rows == 0 || params.num_heads == 0) return cudaSuccess;
  if (params.pieces.count < 1 || params.pieces.count > 65535 || params.key_dim > kMaxHeadDim ||
      params.value_dim > kMaxHeadDim) {
    return cudaErrorInvalidConfiguration;
  }
  switch (HeadsPerWarp(params.num_heads, params.num_kv_heads, params.value_dim)) {
    case 1:
      return LaunchKernel<1, 4>(context, params);
    case 2:
      if (params.value_dim > 256) return LaunchKernel<2, kMaxHeadDim / 32>(context, params);
      return LaunchKernel<2, 8>(context, params);
    default:
      return LaunchKernel<4, 4>(context, params);
  }
}

}  // namespace kvblocks::attention::cuda
