#include "attention/cuda/kernels/gather.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/device_flags.h"
#include "attention/cuda/kernels/elements.h"

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
  const int64_t to = request * out.request_stride + to_row * out.row_stride + head * out.head_stride;
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
      at = block * tensor.block_stride + offset * tensor.token_stride + head * tensor.head_stride + d;
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

// A warp per row of the output.
__global__ void __launch_bounds__(kWarps * 32) GatherKernel(GatherParams params, uint32_t* flags) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t request = blockIdx.y;
  const PagedKeys& keys = params.keys;
  int64_t length = keys.seq_lens[request * params.seq_lens_stride];
  int64_t count = params.lengths[request * params.lengths_stride];
  const int64_t covered = int64_t{keys.table_columns} * keys.cache.block_size;
  const int64_t room = params.rows - params.row_offset;
  if (length > covered || length < 0 || count > length || count < 0 || count > room) {
    if (threadIdx.x == 0 && blockIdx.x == 0) Flag(flags, kLengthClamped);
    length = length > covered ? covered : length < 0 ? 0 : length;
    count = count > length ? length : count < 0 ? 0 : count;
    count = count > room ? room : count;
  }
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (i >= count) return;
  const int64_t position = length - count + i;
  const int64_t column = position / keys.cache.block_size;
  const int64_t offset = position - column * keys.cache.block_size;
  const int32_t block = keys.block_table[request * keys.table_stride + column];
  if (block < 0 || block >= keys.cache.num_blocks) {
    if (lane == 0) Flag(flags, kBadBlock);
    return;
  }
  for (int head = 0; head < params.kv_heads; ++head) {
    GatherRow(params, true, request, block, offset, params.row_offset + i, head, lane);
    if (params.out_v.data != nullptr) {
      GatherRow(params, false, request, block, offset, params.row_offset + i, head, lane);
    }
  }
}

}  // namespace

Error LaunchGather(const LaunchContext& context, const GatherParams& params) {
  const int64_t rows = params.rows - params.row_offset;
  if (params.num_requests == 0 || rows <= 0) return 0;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps),
                     static_cast<unsigned>(params.num_requests));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  return Launch(config, GatherKernel, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
