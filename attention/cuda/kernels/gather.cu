#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_slots.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/key_rows.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/row_formats.h"
#include "attention/cuda/kernels/row_units.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;

// Value d of a record with scales inside.
KVB_DEVICE float LoadFp8Record(const Cache& cache, int64_t block, int64_t offset, int d) {
  const auto* at = static_cast<const uint8_t*>(cache.k.data) + block * cache.k.block_stride;
  if (cache.layout == Layout::kMlaFp8_656) {
    const uint8_t* record = at + offset * cache.k.token_stride;
    if (d >= 512) return Bf16::ToFloat(reinterpret_cast<const uint16_t*>(record + 528)[d - 512]);
    return E4m3::ToFloat(record[d]) * reinterpret_cast<const float*>(record + 512)[d / 128];
  }
  const uint8_t* record = at + offset * 576;
  if (d >= 448) return Bf16::ToFloat(reinterpret_cast<const uint16_t*>(record + 448)[d - 448]);
  const uint8_t scale = at[int64_t{cache.block_size} * 576 + offset * 8 + d / 64];
  return E4m3::ToFloat(record[d]) * E8m0ToFloat(scale);
}

KVB_DEVICE float ScaleOf(const Scales& scales, int64_t request, int head) {
  return scales.data == nullptr
             ? 1.0f
             : scales.data[request * scales.request_stride + head * scales.head_stride];
}

// The elements of one row, lanes side by side.
KVB_DEVICE void GatherRow(const GatherParams& params, bool key, int64_t request, int64_t block,
                          int64_t offset, int64_t to_row, int head, int lane) {
  const Cache& cache = params.keys.cache;
  const GatherOutput& out = key ? params.out : params.out_v;
  const int dim = key ? params.key_dim : params.value_dim;
  const int64_t to =
      request * out.request_stride + to_row * out.row_stride + head * out.head_stride;
  if (cache.has_row_scales()) {
    const KeyAddress address = AddressOf(cache, block, offset, head);
    const unsigned char* row = key ? address.key : address.value;
    const unsigned char* scales = key ? address.scales : address.value_scales;
    // Of nvfp4 the outer scale, else the row's own; the other one is 1.
    const float factor = RowFactor(cache.format, scales) *
                         ScaleOf(key ? cache.k_scale : cache.v_scale, request, head);
    const int zero = ZeroPointOf(scales);
    for (int d = lane; d < dim; d += 32) {
      StoreFloat(out.element,
                 FormatValue(cache.format, cache.element, row, scales, zero, d) * factor, out.data,
                 to + d);
    }
    return;
  }
  if (cache.layout == Layout::kMlaFp8_656 || cache.layout == Layout::kMlaFp8_584) {
    for (int d = lane; d < dim; d += 32) {
      StoreFloat(out.element, LoadFp8Record(cache, block, offset, d), out.data, to + d);
    }
    return;
  }
  const bool scaled = IsCode(cache.element);
  const float scale = scaled ? ScaleOf(key ? cache.k_scale : cache.v_scale, request, head) : 1.0f;
  const CacheTensor& tensor = key ? cache.k : cache.v;
  const int x = 16 / BytesOf(cache.element);
  const int latent = cache.layout == Layout::kMlaSplit ? params.value_dim : dim;
  for (int d = lane; d < dim; d += 32) {
    const void* data = tensor.data;
    int64_t at;
    if (cache.layout == Layout::kPagedX) {
      at = block * tensor.block_stride + head * tensor.head_stride +
           (key ? (int64_t{d / x} * cache.block_size + offset) * x + d % x
                : int64_t{d} * cache.block_size + offset);
    } else if (d >= latent) {
      data = cache.v.data;
      at = block * cache.v.block_stride + offset * cache.v.token_stride + d - latent;
    } else {
      at = block * tensor.block_stride + offset * tensor.token_stride + head * tensor.head_stride +
           d;
    }
    if (!scaled && out.element == cache.element) {
      if (BytesOf(out.element) == 2) {
        static_cast<uint16_t*>(out.data)[to + d] = static_cast<const uint16_t*>(data)[at];
      } else {
        static_cast<uint32_t*>(out.data)[to + d] = static_cast<const uint32_t*>(data)[at];
      }
    } else {
      StoreFloat(out.element, LoadAsFloat(cache.element, data, at) * scale, out.data, to + d);
    }
  }
}

// Which rows of a request's last are there to be gathered.
struct Extent {
  int64_t first_position, count;
};
KVB_DEVICE Extent ExtentOf(const GatherParams& params, int64_t request, bool reports,
                           uint32_t* flags) {
  const PagedKeys& keys = params.keys;
  int64_t length = keys.seq_lens[request * params.seq_lens_stride];
  int64_t count = params.lengths[request * params.lengths_stride];
  const int64_t covered = int64_t{keys.table_columns} * keys.cache.block_size;
  const int64_t room = params.rows - params.row_offset;
  if (length > covered || length < 0 || count > length || count < 0 || count > room) {
    if (reports) Flag(flags, kLengthClamped);
    length = length > covered ? covered : length < 0 ? 0 : length;
    count = count > length ? length : count < 0 ? 0 : count;
    count = count > room ? room : count;
  }
  return {length - count, count};
}

// The block and offset of a position; a block outside of the cache, flagged, is -1.
KVB_DEVICE BlockAndOffset PlaceOf(const PagedKeys& keys, const SlotDivision& division,
                                  int64_t request, int64_t position, uint32_t* flags) {
  BlockAndOffset place = division.Of(position);  // of the column
  const int32_t block = keys.block_table[request * keys.table_stride + place.block];
  place.block = block;
  if (block < 0 || block >= keys.cache.num_blocks) {
    Flag(flags, kBadBlock);
    place.block = -1;
  }
  return place;
}

// Any layout and type: a warp per row of the output.
__global__ void __launch_bounds__(kWarps * 32)
    GatherKernel(const __grid_constant__ GatherParams params, SlotDivision division,
                 uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t request = blockIdx.y;
  const Extent extent = ExtentOf(params, request, threadIdx.x == 0 && blockIdx.x == 0, flags);
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= extent.count) return;
  const BlockAndOffset place =
      PlaceOf(params.keys, division, request, extent.first_position + i, flags);
  if (place.block < 0) return;
  for (int head = 0; head < params.kv_heads; ++head) {
    GatherRow(params, true, request, place.block, place.offset, params.row_offset + i, head, lane);
    if (params.out_v.data != nullptr) {
      GatherRow(params, false, request, place.block, place.offset, params.row_offset + i, head,
                lane);
    }
  }
}

// --- Rows by units: layouts with rows as they are, of the output's type or codes ---

constexpr int kThreads = kWarps * 32;
constexpr int kTokens = 8;       // loads of a thread that are under way at once
constexpr int kMostTokens = 64;  // of a thread block

// Part of the rows: K or V, or what a latent row has in each of two tensors.
struct GatherPart {
  CacheTensor from;
  Scales scale;
  GatherOutput to;
  int32_t units = 0;  // per token
  FastDivisor units_per_head;
};
struct GatherPlan {
  GatherPart parts[2];
  SlotDivision division;
  FastDivisor across;  // columns: units that a block has of each token
  int32_t tokens_per_pass = 1, column_blocks = 1;
};

// Eight codes times a scale.
KVB_DEVICE void StoreDecoded(Element from, const uint2& codes, float scale, Element to,
                             unsigned char* at) {
  const uint32_t words[2] = {codes.x, codes.y};
  float values[kUnit];
  WithElement(from, [&](auto tag) {
    using E = decltype(tag);
    if constexpr (sizeof(typename E::Bits) == 1) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        values[i] = E::ToFloat(static_cast<uint8_t>(words[i / 4] >> i % 4 * 8)) * scale;
      }
    }
  });
  if (to == Element::kF32) {
    reinterpret_cast<float4*>(at)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(at)[1] = make_float4(values[4], values[5], values[6], values[7]);
    return;
  }
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = to == Element::kF16 ? F16::Pack(values[2 * i], values[2 * i + 1])
                                   : Bf16::Pack(values[2 * i], values[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(at) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

template <bool kCodes>
__global__ void __launch_bounds__(kThreads)
    GatherUnitsKernel(const __grid_constant__ GatherParams params,
                      const __grid_constant__ GatherPlan plan, uint32_t* flags) {
  __shared__ int64_t rows[2][kMostTokens];  // in the cache's tensors; -1: none
  OverlapNeighbours();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t request = blockIdx.z;
  const Extent extent =
      ExtentOf(params, request, thread == 0 && blockIdx.x == 0 && blockIdx.y == 0, flags);
  const int tokens_per_block = kTokens * plan.tokens_per_pass;
  const int64_t first_token = int64_t{blockIdx.x} * tokens_per_block;
  const int64_t left = extent.count - first_token;
  if (left <= 0) return;
  const int num_tokens = left < tokens_per_block ? static_cast<int>(left) : tokens_per_block;
  if (thread < num_tokens) {
    const BlockAndOffset place = PlaceOf(params.keys, plan.division, request,
                                         extent.first_position + first_token + thread, flags);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const CacheTensor& from = plan.parts[i].from;
      rows[i][thread] =
          place.block < 0 ? -1 : place.block * from.block_stride + place.offset * from.token_stride;
    }
  }
  __syncthreads();

  const auto first = static_cast<int>(plan.across.Quotient(threadIdx.x));
  const auto columns = static_cast<int>(plan.across.divisor());
  int unit = static_cast<int>(blockIdx.y) * columns + thread - first * columns;
  if (first >= plan.tokens_per_pass || unit >= plan.parts[0].units + plan.parts[1].units) return;
  const int which = unit >= plan.parts[0].units ? 1 : 0;
  if (which == 1) unit -= plan.parts[0].units;
  const GatherPart& part = plan.parts[which];
  const auto head = static_cast<int>(part.units_per_head.Quotient(unit));
  const Element element = params.keys.cache.element;
  const int bytes = BytesOf(element), out_bytes = BytesOf(part.to.element);
  const int elements = kCodes ? kUnit : 16 / bytes;
  const int d = (unit - head * static_cast<int>(part.units_per_head.divisor())) * elements;
  const auto* from = static_cast<const unsigned char*>(part.from.data) +
                     (head * part.from.head_stride + d) * bytes;
  float scale = 1;
  if constexpr (kCodes) scale = ScaleOf(part.scale, request, head);
  uint4 units[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int token = first + i * plan.tokens_per_pass;
    if (token >= num_tokens || rows[which][token] < 0) continue;
    const unsigned char* at = from + rows[which][token] * bytes;
    if constexpr (kCodes) {
      const uint2 codes = *reinterpret_cast<const uint2*>(at);
      units[i].x = codes.x, units[i].y = codes.y;
    } else {
      units[i] = LoadOnce16(at);
    }
  }
  auto* to =
      static_cast<unsigned char*>(part.to.data) +
      (request * part.to.request_stride + (params.row_offset + first_token) * part.to.row_stride +
       head * part.to.head_stride + d) *
          out_bytes;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int token = first + i * plan.tokens_per_pass;
    if (token >= num_tokens || rows[which][token] < 0) continue;
    unsigned char* at = to + token * part.to.row_stride * out_bytes;
    if constexpr (kCodes) {
      StoreDecoded(element, make_uint2(units[i].x, units[i].y), scale, part.to.element, at);
    } else {
      *reinterpret_cast<uint4*>(at) = units[i];
    }
  }
}

// False if rows cannot be taken by units.
bool PlanGather(const GatherParams& params, GatherPlan* plan) {
  const Cache& cache = params.keys.cache;
  const bool split = cache.layout == Layout::kMlaSplit;
  if (cache.has_row_scales()) return false;
  if (!split && !IsStrided(cache.layout) && cache.layout != Layout::kMlaLatent)
    return false;
  const bool codes = IsCode(cache.element);
  const int elements = codes ? kUnit : 16 / BytesOf(cache.element);
  const bool two = split || params.out_v.data != nullptr;
  int units = 0;
  bool fits = true;
  for (int i = 0; i < (two ? 2 : 1); ++i) {
    GatherPart& part = plan->parts[i];
    part.from = i == 0 ? cache.k : cache.v;
    part.scale = i == 0 || split ? cache.k_scale : cache.v_scale;
    part.to = i == 0 || split ? params.out : params.out_v;
    int dim = i == 0 ? params.key_dim : params.value_dim;
    if (split) dim = i == 0 ? params.value_dim : params.key_dim - params.value_dim;
    if (split && i == 1) {
      part.to.data = static_cast<unsigned char*>(part.to.data) +
                     int64_t{params.value_dim} * BytesOf(part.to.element);
    }
    const auto aligned = [&fits](const void* data, int64_t a, int64_t b, int64_t c, int bytes) {
      fits = fits && reinterpret_cast<uintptr_t>(data) % 16 == 0 && a * bytes % 16 == 0 &&
             b * bytes % 16 == 0 && c * bytes % 16 == 0;
    };
    aligned(part.from.data, part.from.block_stride, part.from.token_stride, part.from.head_stride,
            BytesOf(cache.element));
    aligned(part.to.data, part.to.request_stride, part.to.row_stride, part.to.head_stride,
            BytesOf(part.to.element));
    fits = fits && dim % elements == 0 && (codes || part.to.element == cache.element);
    if (dim < elements) continue;
    part.units_per_head = FastDivisor(dim / elements);
    part.units = dim / elements * params.kv_heads;
    units += part.units;
  }
  if (!fits || units == 0) return false;
  plan->column_blocks = static_cast<int32_t>(Blocks(units, kThreads));
  const auto columns = static_cast<int32_t>(Blocks(units, plan->column_blocks));
  plan->across = FastDivisor(columns);
  plan->tokens_per_pass =
      kThreads / columns < kMostTokens / kTokens ? kThreads / columns : kMostTokens / kTokens;
  return true;
}

}  // namespace

Error LaunchGather(const LaunchContext& context, const GatherParams& params) {
  const int64_t rows = params.rows - params.row_offset;
  if (params.num_requests == 0 || rows <= 0) return 0;
  LaunchConfig config = ConfigOf(context, 1, kThreads);
  GatherPlan plan;
  plan.division = SlotDivision(params.keys.cache.block_size,
                               int64_t{params.keys.table_columns} * params.keys.cache.block_size);
  if (PlanGather(params, &plan)) {
    config.grid =
        dim3(Blocks(rows, kTokens * plan.tokens_per_pass),
             static_cast<unsigned>(plan.column_blocks), static_cast<unsigned>(params.num_requests));
    return Launch(
        config,
        IsCode(params.keys.cache.element) ? GatherUnitsKernel<true> : GatherUnitsKernel<false>,
        params, plan, context.error_flags);
  }
  config.grid = dim3(Blocks(rows, kWarps), static_cast<unsigned>(params.num_requests));
  return Launch(config, GatherKernel, params, plan.division, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
