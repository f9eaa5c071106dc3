#include "attention/cuda/block_ops.h"

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention/cache/element_rows.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/block_ops.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/ops/arg_checker.h"
#include "attention/ops/block_checks.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kTensorsPerLaunch = std::extent_v<decltype(BlockParams::tensors)>;

// Blocks like `source` and `target`, which are block 0 and may be empty, with a stride of so many
// bytes. REQUIRES: equal shapes and types.
BlockBytes BytesOf(const ConstTensorView& source, const TensorView& target,
                   int64_t from_block_stride, int64_t to_block_stride) {
  const int64_t element = ElementBytes(target.dtype);
  BlockBytes bytes;
  bytes.from_block_stride = from_block_stride;
  bytes.to_block_stride = to_block_stride;
  bytes.from = reinterpret_cast<const unsigned char*>(source.data);
  bytes.to = reinterpret_cast<unsigned char*>(target.data);
  if (target.empty()) return bytes;
  const StridedLoop loop(source, target);
  int64_t run = element;
  bytes.rank = loop.rank;
  if (loop.rank > 0 && loop.dims[loop.rank - 1].from == element &&
      loop.dims[loop.rank - 1].to == element) {
    run *= loop.dims[--bytes.rank].extent;
  }
  // Any power of two up to 16 that divides all of these.
  uint64_t divided = reinterpret_cast<uintptr_t>(bytes.from) |
                     reinterpret_cast<uintptr_t>(bytes.to) | static_cast<uint64_t>(run) |
                     static_cast<uint64_t>(from_block_stride | to_block_stride);
  for (int dim = 0; dim < bytes.rank; ++dim) {
    bytes.extent[dim] = loop.dims[dim].extent;
    bytes.from_stride[dim] = loop.dims[dim].from;
    bytes.to_stride[dim] = loop.dims[dim].to;
    divided |= static_cast<uint64_t>(loop.dims[dim].from | loop.dims[dim].to);
  }
  bytes.unit = 16;
  while (divided % static_cast<uint64_t>(bytes.unit) != 0) bytes.unit /= 2;
  bytes.run_units = run / bytes.unit;
  return bytes;
}

// All blocks of two tensors. REQUIRES: checked, at least one block each.
BlockBytes BlocksOf(const ConstTensorView& from, const TensorView& to) {
  const auto stride = [](const ConstTensorView& tensor) {
    return tensor.extent[0] > 1 ? tensor.stride[0] * ElementBytes(tensor.dtype) : 0;
  };
  return BytesOf(*from.Select(0, 0), *to.Select(0, 0), stride(from), stride(to));
}

// Launches kernels for `count` pairs of blocks, as many as each takes.
template <typename PairOf>
absl::Status LaunchPairs(const CudaCall& call, size_t count, const PairOf& pair_of,
                         BlockParams* params) {
  absl::Status status;
  for (size_t begin = 0; status.ok() && begin < count; begin += BlockPairs::kMost) {
    params->num_pairs = static_cast<int32_t>(std::min<size_t>(count - begin, BlockPairs::kMost));
    for (int32_t i = 0; i < params->num_pairs; ++i) {
      std::tie(params->pairs.from[i], params->pairs.to[i]) =
          pair_of(begin + static_cast<size_t>(i));
    }
    status = call.Launch(LaunchBlocks, *params);
  }
  return status;
}

absl::Status LaunchPairs(const CudaCall& call, absl::Span<const BlockPair> pairs,
                         BlockParams* params) {
  return LaunchPairs(
      call, pairs.size(), [&](size_t i) { return pairs[i]; }, params);
}

// Dense blocks by a copy engine; pairs that go on where the one before ended, in one copy.
Error CopyPairs(void* stream, absl::Span<const BlockPair> pairs, const BlockBytes& bytes) {
  const int64_t block = bytes.run_units * bytes.unit;
  const bool neighbours_touch = bytes.from_block_stride == block && bytes.to_block_stride == block;
  for (size_t i = 0; i < pairs.size();) {
    size_t end = i + 1;
    while (neighbours_touch && end < pairs.size() && pairs[end].first - 1 == pairs[end - 1].first &&
           pairs[end].second - 1 == pairs[end - 1].second) {
      ++end;
    }
    const Error error = CopyAsync(bytes.to + pairs[i].second * bytes.to_block_stride,
                                  bytes.from + pairs[i].first * bytes.from_block_stride,
                                  (end - i) * static_cast<size_t>(block), stream);
    if (error != 0) return error;
    i = end;
  }
  return 0;
}

// The context of one side of a swap.
absl::StatusOr<ExecContext> SideOf(const char* name, const ExecContext& context,
                                   const ConstKvCacheView& cache) {
  ExecContext side;
  side.device = cache.k.device;
  const bool in_place = context.device.on_host() ? side.device.on_host()
                                                 : side.device == context.device ||
                                                       side.device.kind == DeviceKind::kPinnedHost;
  ConstTensorView storage[kMostCacheTensors];
  bool together = true;
  for (const ConstTensorView& tensor : CacheTensors(cache, storage)) {
    together = together && tensor.device == side.device;
  }
  if (in_place && together) return side;
  return absl::InvalidArgumentError(absl::StrCat(
      "SwapBlocks: ", name, " is on ", Name(side.device), together ? "" : " and elsewhere",
      "; it must be on ", Name(context.device), ", or in pinned host memory"));
}

// Without pairs each tensor is one block, all of it.
absl::Status Convert(const ExecContext& context, const ConstKvCacheView& src,
                     const KvCacheView& dst, const absl::Span<const BlockPair>* pairs) {
  constexpr char kName[] = "ConvertLayout";
  constexpr BlockPair kWhole[] = {{0, 0}};
  LayoutConversion tensors;
  absl::Status status = CheckConvertLayout(context, src, dst, pairs, &tensors);
  if (!status.ok() || (pairs != nullptr && pairs->empty())) return status;
  const absl::StatusOr<CudaCall> call = CudaCall::Begin(kName, context);
  if (!call.ok()) return call.status();
  for (int first = 0; status.ok() && first < tensors.num_tensors; first += kTensorsPerLaunch) {
    BlockParams params;
    params.num_tensors = 0;
    for (int i = first; i < std::min(first + kTensorsPerLaunch, tensors.num_tensors); ++i) {
      if (tensors.to[i].empty()) continue;
      params.tensors[params.num_tensors++] = pairs == nullptr
                                                 ? BytesOf(tensors.from[i], tensors.to[i], 0, 0)
                                                 : BlocksOf(tensors.from[i], tensors.to[i]);
    }
    status = LaunchPairs(*call, pairs == nullptr ? absl::MakeConstSpan(kWhole) : *pairs, &params);
  }
  return status;
}

}  // namespace

absl::Status CudaCopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                            absl::Span<const BlockPair> pairs) {
  constexpr char kName[] = "CopyBlocks";
  absl::Status status = CheckCopyBlocks(context, caches, pairs);
  if (!status.ok() || pairs.empty() || caches.empty()) return status;
  const absl::StatusOr<CudaCall> call = CudaCall::Begin(kName, context);
  if (!call.ok()) return call.status();
  for (const KvCacheView& cache : caches) {
    TensorView storage[kMostCacheTensors];
    const auto tensors = CacheTensors(cache, storage);
    for (size_t first = 0; first < tensors.size(); first += kTensorsPerLaunch) {
      BlockParams params;
      params.num_tensors = 0;
      for (const TensorView& tensor : tensors.subspan(first, kTensorsPerLaunch)) {
        params.tensors[params.num_tensors++] = BlocksOf(tensor, tensor);
      }
      status = LaunchPairs(*call, pairs, &params);
      if (!status.ok()) return status;
    }
  }
  return status;
}

absl::Status CudaSwapBlocks(const ExecContext& context, const ConstKvCacheView& src,
                            const KvCacheView& dst, absl::Span<const BlockPair> pairs) {
  constexpr char kName[] = "SwapBlocks";
  const absl::StatusOr<ExecContext> from = SideOf("src", context, src);
  if (!from.ok()) return from.status();
  const absl::StatusOr<ExecContext> to = SideOf("dst", context, dst);
  if (!to.ok()) return to.status();
  if (!context.device.on_host() && from->device.on_host() && to->device.on_host()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": src and dst are on ", Name(from->device), "; the host's SwapBlocks does that"));
  }
  absl::Status status = CheckSwapBlocks(*from, src, *to, dst, pairs);
  if (!status.ok() || pairs.empty()) return status;
  const absl::StatusOr<CudaCall> call = CudaCall::Begin(kName, context);
  if (!call.ok()) return call.status();
  ConstTensorView from_storage[kMostCacheTensors];
  TensorView to_storage[kMostCacheTensors];
  const auto sources = CacheTensors(src, from_storage);
  const auto targets = CacheTensors(dst, to_storage);
  const bool over_the_bus = from->device.on_host() || to->device.on_host();
  BlockParams params;
  params.num_tensors = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const BlockBytes bytes = BlocksOf(sources[i], targets[i]);
    if (over_the_bus && bytes.rank == 0) {
      status = StatusOf(kName, CopyPairs(context.stream, pairs, bytes));
      if (!status.ok()) return status;
      continue;
    }
    params.tensors[params.num_tensors++] = bytes;
    if (params.num_tensors < kTensorsPerLaunch) continue;
    status = LaunchPairs(*call, pairs, &params);
    if (!status.ok()) return status;
    params.num_tensors = 0;
  }
  if (params.num_tensors == 0) return status;
  return LaunchPairs(*call, pairs, &params);
}

absl::Status CudaConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                               const KvCacheView& dst) {
  return Convert(context, src, dst, nullptr);
}

absl::Status CudaConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                               const KvCacheView& dst, absl::Span<const BlockPair> pairs) {
  return Convert(context, src, dst, &pairs);
}

absl::Status CudaFillBlocks(const ExecContext& context, const KvCacheView& cache,
                            absl::Span<const int32_t> ids, std::byte byte) {
  constexpr char kName[] = "FillBlocks";
  absl::Status status = CheckFillBlocks(context, cache, ids);
  if (!status.ok() || ids.empty()) return status;
  const absl::StatusOr<CudaCall> call = CudaCall::Begin(kName, context);
  if (!call.ok()) return call.status();
  BlockParams params;
  params.fill = std::to_integer<uint8_t>(byte);
  TensorView storage[kMostCacheTensors];
  const auto tensors = CacheTensors(cache, storage);
  for (size_t first = 0; first < tensors.size(); first += kTensorsPerLaunch) {
    params.num_tensors = 0;
    for (const TensorView& tensor : tensors.subspan(first, kTensorsPerLaunch)) {
      BlockBytes& bytes = params.tensors[params.num_tensors++];
      bytes = BlocksOf(tensor, tensor);
      bytes.from = nullptr;
    }
    status = LaunchPairs(
        *call, ids.size(), [&](size_t i) { return BlockPair(ids[i], ids[i]); }, &params);
    if (!status.ok()) return status;
  }
  return status;
}

absl::Status CudaFillTensor(const ExecContext& context, const TensorView& out, std::byte byte) {
  constexpr char kName[] = "FillTensor";
  ArgChecker check(context, kName);
  if (check.View("out", out, DTypeSet::All())) check.Writes("out", out);
  absl::Status status = check.Finish();
  if (!status.ok() || out.empty()) return status;
  BlockParams params;
  BlockBytes& bytes = params.tensors[0];
  bytes = BytesOf(out, out, 0, 0);
  bytes.from = nullptr;
  params.fill = std::to_integer<uint8_t>(byte);
  if (bytes.rank == 0) {
    return StatusOf(
        kName, FillAsync(bytes.to, params.fill, static_cast<size_t>(bytes.run_units * bytes.unit),
                         context.stream));
  }
  const absl::StatusOr<CudaCall> call = CudaCall::Begin(kName, context);
  if (!call.ok()) return call.status();
  params.num_pairs = 1;
  params.pairs.from[0] = params.pairs.to[0] = 0;
  return call->Launch(LaunchBlocks, params);
}

}  // namespace kvblocks::attention::cuda
