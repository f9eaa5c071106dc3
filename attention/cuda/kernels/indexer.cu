#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_slots.h"
#include "kvblocks/attention/cuda/kernels/device_flags.h"
#include "kvblocks/attention/cuda/kernels/elements.h"
#include "kvblocks/attention/cuda/kernels/indexer.h"
#include "kvblocks/attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kHeadsAtOnce = 8, kMostDim = 512;  // queries in shared memory

unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// A token's request and position; -1: padding.
struct TokenAt {
  int32_t request;
  int64_t position;
};
KVB_DEVICE TokenAt FindToken(const RowBatch& batch, int64_t token) {
  const auto start = [&](int32_t b) {
    return int64_t{batch.query_start_loc[b * batch.starts_stride]};
  };
  if (batch.num_requests == 0 || token >= start(batch.num_requests)) return {0, -1};
  int32_t begin = 0, end = batch.num_requests;
  while (end - begin > 1) {
    const int32_t middle = begin + (end - begin) / 2;
    (start(middle) <= token ? begin : end) = middle;
  }
  return {begin, batch.seq_lens[begin * batch.lens_stride] - (start(begin + 1) - token)};
}

// The block of a row of a request, or -1.
KVB_DEVICE int64_t BlockOf(const RowBatch& batch, int32_t request, int64_t column,
                           int32_t num_blocks, uint32_t* flags) {
  if (column >= batch.columns) {
    Flag(flags, kLengthClamped);
    return -1;
  }
  const int32_t block = batch.block_table[request * batch.table_stride + column];
  if (block >= 0 && block < num_blocks) return block;
  Flag(flags, kBadBlock);
  return -1;
}

// Of a row of planar blocks.
KVB_DEVICE float* ScaleOf(const IndexRows& rows, int64_t block, int32_t row) {
  return reinterpret_cast<float*>(rows.data + block * rows.block_stride +
                                  int64_t{rows.block_size} * rows.dim) +
         row;
}

// --- Keys ---

__global__ void __launch_bounds__(kThreads)
    IndexWriteKernel(const __grid_constant__ IndexWriteParams params, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  const IndexRows& to = params.to;
  const int64_t num_slots = int64_t{to.num_blocks} * to.block_size;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, num_slots, flags);
  if (slot < 0) return;
  const int64_t block = slot / to.block_size;
  const int32_t row = static_cast<int32_t>(slot - block * to.block_size);
  const int64_t from = token * params.from.row_stride;
  if (!to.planar) {
    const int64_t at = block * to.block_stride + row * to.row_stride;
    for (int d = lane; d < to.dim; d += 32) {
      StoreFloat(to.element, LoadAsFloat(params.from.element, params.from.data, from + d), to.data,
                 at + d);
    }
    return;
  }
  float amax = 0;
  for (int d = lane; d < to.dim; d += 32) {
    const float magnitude = fabsf(LoadAsFloat(params.from.element, params.from.data, from + d));
    if (magnitude <= 3.4028235e38f && magnitude > amax) amax = magnitude;
  }
  amax = WarpMax(amax);
  if (amax < 1e-4f) amax = 1e-4f;
  float scale = __fdiv_rn(amax, 448.0f);
  if (params.power_of_two) {
    // 448 = 1.75 * 2^8, so mantissas up to 1.75 stay below the power of two.
    const uint32_t bits = __float_as_uint(amax);
    const int power = static_cast<int>(bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u);
    scale = E8m0ToFloat(static_cast<uint8_t>(power));
  }
  const Divider quotient(scale);
  unsigned char* const codes = to.data + block * to.block_stride + int64_t{row} * to.dim;
  for (int d = lane; d < to.dim; d += 32) {
    codes[d] =
        E4m3::FromFloat(quotient(LoadAsFloat(params.from.element, params.from.data, from + d)));
  }
  if (lane == 0) *ScaleOf(to, block, row) = scale;
}

// --- Choosing ---

// Larger for larger scores; -0 is 0.
KVB_DEVICE uint32_t KeyOf(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Sums of a warp's bits over the block, up to and without each warp.
struct BlockCounts {
  uint32_t before, all;
};
KVB_DEVICE BlockCounts CountBlock(uint32_t of_warp, uint32_t* counts) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) counts[warp] = of_warp;
  __syncthreads();
  BlockCounts sums = {0, 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) sums.before += counts[w];
    sums.all += counts[w];
  }
  __syncthreads();
  return sums;
}

// Adds the products of up to kHeadsAtOnce heads from `head` on, whose queries are in shared memory.
KVB_DEVICE void ScoreRows(const IndexTopkParams& params, const TokenAt& at, int32_t num_rows,
                          const float* queries, const float* weights, int heads, bool first,
                          float* scores, uint32_t* flags) {
  const IndexRows& rows = params.rows;
  for (int32_t row = static_cast<int32_t>(threadIdx.x); row < num_rows; row += kThreads) {
    const int32_t column = row / rows.block_size, offset = row - column * rows.block_size;
    const int64_t block = BlockOf(params.batch, at.request, column, rows.num_blocks, flags);
    if (block < 0) {
      scores[row] = -INFINITY;
      continue;
    }
    const int64_t from =
        block * rows.block_stride +
        (rows.planar ? int64_t{offset} * rows.dim : int64_t{offset} * rows.row_stride);
    const Element element = rows.planar ? Element::kF8E4M3 : rows.element;
    float products[kHeadsAtOnce] = {};
    for (int d = 0; d < rows.dim; ++d) {
      const float key = LoadAsFloat(element, rows.data, from + d);
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) products[h] += queries[h * rows.dim + d] * key;
    }
    const float scale = rows.planar ? *ScaleOf(rows, block, offset) : 1.0f;
    float sum = first ? 0.0f : scores[row];
    for (int h = 0; h < heads; ++h) {
      const float product = products[h] * scale;
      sum += weights[h] * (product < 0 ? 0.0f : product);  // a NaN stays one
    }
    scores[row] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    IndexTopkKernel(const __grid_constant__ IndexTopkParams params, float* workspace,
                    uint32_t* flags) {
  __shared__ float queries[kHeadsAtOnce * kMostDim];
  __shared__ float weights[kHeadsAtOnce];
  __shared__ uint32_t histogram[256];
  __shared__ uint32_t counts[kWarps];
  __shared__ uint32_t chosen_bucket, needed_in_bucket;
  AllowNextKernel();
  WaitForPreviousKernel();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int dim = params.rows.dim;
  float* const scores = workspace + int64_t{blockIdx.x} * params.most_rows;
  for (int64_t token = blockIdx.x; token < params.num_tokens; token += gridDim.x) {
    const TokenAt at = FindToken(params.batch, token);
    int64_t visible = at.position < 0 ? 0 : (at.position + 1) / params.ratio;
    if (visible > params.most_rows) {
      visible = params.most_rows;
      if (thread == 0) Flag(flags, kLengthClamped);
    }
    const int32_t num_rows = static_cast<int32_t>(visible);
    const int32_t chosen = num_rows < params.width ? num_rows : params.width;
    uint32_t threshold = 0, ties = 0xffffffffu;  // all
    if (chosen < num_rows) {
      for (int head = 0; head < params.heads; head += kHeadsAtOnce) {
        const int heads = params.heads - head < kHeadsAtOnce ? params.heads - head : kHeadsAtOnce;
        __syncthreads();
        for (int i = thread; i < kHeadsAtOnce * dim; i += kThreads) {
          const int h = i / dim;
          queries[i] = h >= heads
                           ? 0.0f
                           : LoadAsFloat(params.q.element, params.q.data,
                                         token * params.q.row_stride +
                                             (head + h) * params.q.head_stride + i - h * dim);
        }
        if (thread < heads) {
          weights[thread] = params.weights[token * params.weight_stride + head + thread];
        }
        __syncthreads();
        ScoreRows(params, at, num_rows, queries, weights, heads, head == 0, scores, flags);
      }
      // The key of the last that is chosen, byte by byte from the top. Each thread reads what it
      // wrote itself.
      uint32_t mask = 0;
      if (thread == 0) needed_in_bucket = static_cast<uint32_t>(chosen);
      for (int32_t row = thread; row < num_rows; row += kThreads) {
        if (!(scores[row] == scores[row])) scores[row] = -INFINITY;
      }
      for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = thread; i < 256; i += kThreads) histogram[i] = 0;
        __syncthreads();
        for (int32_t row = thread; row < num_rows; row += kThreads) {
          const uint32_t key = KeyOf(scores[row]);
          if ((key & mask) == threshold) atomicAdd(&histogram[key >> shift & 255u], 1u);
        }
        __syncthreads();
        if (thread == 0) {
          uint32_t needed = needed_in_bucket;
          int bucket = 255;
          for (; histogram[bucket] < needed; --bucket) needed -= histogram[bucket];
          chosen_bucket = static_cast<uint32_t>(bucket);
          needed_in_bucket = needed;
        }
        __syncthreads();
        threshold |= chosen_bucket << shift;
        mask |= 255u << shift;
      }
      ties = needed_in_bucket;
    }
    // In the order of rows: those above the threshold, and the first of those at it.
    int32_t* const out = params.indices + token * params.index_stride;
    uint32_t above = 0, equal = 0;
    for (int32_t base = 0; base < num_rows; base += kThreads) {
      const int32_t row = base + thread;
      const bool exists = row < num_rows;
      const uint32_t key = exists && chosen < num_rows ? KeyOf(scores[row]) : threshold;
      const unsigned above_lanes = __ballot_sync(kFullWarp, exists && key > threshold);
      const unsigned equal_lanes = __ballot_sync(kFullWarp, exists && key == threshold);
      const BlockCounts sums = CountBlock(static_cast<uint32_t>(__popc(above_lanes)) << 16 |
                                              static_cast<uint32_t>(__popc(equal_lanes)),
                                          counts);
      const unsigned below = (1u << lane) - 1;
      const uint32_t own_above =
          above + (sums.before >> 16) + static_cast<uint32_t>(__popc(above_lanes & below));
      const uint32_t own_equal =
          equal + (sums.before & 0xffffu) + static_cast<uint32_t>(__popc(equal_lanes & below));
      if (exists && (key > threshold || (key == threshold && own_equal < ties))) {
        int64_t index = row;
        if (params.as_slots) {
          const int32_t column = row / params.rows.block_size;
          const int64_t block =
              BlockOf(params.batch, at.request, column, params.rows.num_blocks, flags);
          index = block < 0 ? -1
                            : block * params.rows.block_size + row -
                                  int64_t{column} * params.rows.block_size;
        }
        out[own_above + (own_equal < ties ? own_equal : ties)] = static_cast<int32_t>(index);
      }
      above += sums.all >> 16;
      equal += sums.all & 0xffffu;
    }
    for (int32_t i = chosen + thread; i < params.width; i += kThreads) out[i] = -1;
    if (thread == 0) params.lens[token * params.lens_stride] = chosen;
  }
}

// --- Compressing ---

// A block of threads per token.
__global__ void __launch_bounds__(kThreads)
    StoreStatesKernel(const __grid_constant__ CompressParams params, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  const int64_t num_slots = int64_t{params.num_blocks} * params.block_size;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, num_slots, flags);
  if (slot < 0) return;
  const TokenAt at = FindToken(params.batch, token);
  if (at.position < 0) return;
  const int width = params.parts * params.dim;
  const int64_t block = slot / params.block_size;
  float* const to = params.states + block * params.block_stride +
                    (slot - block * params.block_size) * params.row_stride;
  const float* const bias = params.bias == nullptr
                                ? nullptr
                                : params.bias + at.position % params.ratio * params.bias_stride;
  for (int d = static_cast<int>(threadIdx.x); d < width; d += kThreads) {
    to[d] = LoadAsFloat(params.kv.element, params.kv.data, token * params.kv.row_stride + d);
    const float score =
        LoadAsFloat(params.score.element, params.score.data, token * params.score.row_stride + d);
    to[width + d] = bias == nullptr ? score : score + bias[d];
  }
}

// A block of threads per token, most of which complete no row; a thread per column.
__global__ void __launch_bounds__(kThreads)
    CompressKernel(const __grid_constant__ CompressParams params, uint32_t* flags) {
  __shared__ float squares[kWarps];
  auto* const row = reinterpret_cast<float*>(DynamicSharedMemory());
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  const TokenAt at = FindToken(params.batch, token);
  if (at.position < 0 || (at.position + 1) % params.ratio != 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = at.position + 1 - int64_t{params.parts} * params.ratio;
  const int width = params.parts * params.dim;
  const auto state_of = [&](int64_t position) -> const float* {
    const int64_t column = position / params.block_size;
    const int64_t block = BlockOf(params.batch, at.request, column, params.num_blocks, flags);
    if (block < 0) return nullptr;
    // With overlap the older tokens give their first half.
    const int half = position - first >= params.ratio ? params.parts - 1 : 0;
    return params.states + block * params.block_stride +
           (position - column * params.block_size) * params.row_stride + half * params.dim;
  };
  const int64_t begin = first < 0 ? 0 : first;
  float own = 0;
  for (int d = thread; d < params.dim; d += kThreads) {
    float most = -INFINITY;
    for (int64_t p = begin; p <= at.position; ++p) {
      const float* state = state_of(p);
      if (state != nullptr) most = fmaxf(most, state[width + d]);
    }
    float sum = 0, weighted = 0;
    for (int64_t p = begin; p <= at.position; ++p) {
      const float* state = state_of(p);
      if (state == nullptr) continue;
      const float weight = expf(state[width + d] - most);
      sum += weight;
      weighted += weight * state[d];
    }
    row[d] = __fdiv_rn(weighted, sum);
    own += row[d] * row[d];
  }
  own = WarpSum(own);
  if (thread % 32 == 0) squares[thread / 32] = own;
  __syncthreads();
  float factor = 1;
  if (params.norm_weight != nullptr) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += squares[w];
    factor = __fdiv_rn(1.0f, sqrtf(sum / static_cast<float>(params.dim) + params.norm_eps));
  }
  const auto normal = [&](int d) {
    return params.norm_weight == nullptr
               ? row[d]
               : row[d] * factor * params.norm_weight[d * params.norm_stride];
  };
  const int64_t out = token * params.out.row_stride;
  const int64_t rotated_at = at.position + 1 - params.ratio;
  bool rotates = params.cos_sin != nullptr;
  if (rotates && rotated_at >= params.num_positions) {
    if (thread == 0) Flag(flags, kLengthClamped);
    rotates = false;
  }
  const int plain = params.dim - (rotates ? params.rotary : 0);
  for (int d = thread; d < plain; d += kThreads) {
    StoreFloat(params.out.element, normal(d), params.out.data, out + d);
  }
  for (int i = thread; rotates && i < params.rotary / 2; i += kThreads) {
    const float* angle = params.cos_sin + rotated_at * params.cos_sin_stride + i;
    const float cosine = angle[0], sine = angle[params.rotary / 2];
    const float x = normal(plain + 2 * i), y = normal(plain + 2 * i + 1);
    StoreFloat(params.out.element, x * cosine - y * sine, params.out.data, out + plain + 2 * i);
    StoreFloat(params.out.element, x * sine + y * cosine, params.out.data, out + plain + 2 * i + 1);
  }
}

LaunchConfig ConfigOf(const LaunchContext& context, unsigned blocks) {
  LaunchConfig config;
  config.grid = dim3(blocks);
  config.block = dim3(kThreads);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return config;
}

// Token stripes of scores that are worked on at a time.
int64_t MostStripes(int64_t num_tokens, int num_multiprocessors) {
  const int64_t wave = int64_t{num_multiprocessors} * 4;
  return num_tokens < wave ? num_tokens : wave;
}

}  // namespace

Error LaunchIndexWrite(const LaunchContext& context, const IndexWriteParams& params) {
  if (params.num_tokens == 0) return 0;
  return Launch(ConfigOf(context, Blocks(params.num_tokens, kWarps)), IndexWriteKernel, params,
                context.error_flags);
}

int64_t IndexTopkWorkspaceBytes(int64_t num_tokens, int64_t most_rows) {
  return num_tokens == 0 ? 0 : most_rows * static_cast<int64_t>(sizeof(float));
}

Error LaunchIndexTopk(const LaunchContext& context, const IndexTopkParams& params) {
  if (params.num_tokens == 0) return 0;
  if (params.rows.dim > kMostDim) return cudaErrorInvalidConfiguration;
  int64_t stripes = MostStripes(params.num_tokens, context.num_multiprocessors);
  if (params.most_rows > 0) {
    const int64_t room =
        static_cast<int64_t>(context.workspace_bytes / sizeof(float)) / params.most_rows;
    stripes = room < stripes ? room : stripes;
  }
  if (stripes == 0) return cudaErrorInvalidConfiguration;  // less than IndexTopkWorkspaceBytes
  return Launch(ConfigOf(context, static_cast<unsigned>(stripes)), IndexTopkKernel, params,
                reinterpret_cast<float*>(context.workspace), context.error_flags);
}

Error LaunchCompress(const LaunchContext& context, const CompressParams& params) {
  if (params.num_tokens == 0) return 0;
  if (params.num_slots > 0) {
    const Error error = Launch(ConfigOf(context, static_cast<unsigned>(params.num_slots)),
                               StoreStatesKernel, params, context.error_flags);
    if (error != 0) return error;
  }
  LaunchConfig config = ConfigOf(context, static_cast<unsigned>(params.num_tokens));
  config.shared_bytes = static_cast<size_t>(params.dim) * sizeof(float);
  return Launch(config, CompressKernel, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
