#include "attention/cuda/block_ops.h"

#include <algorithm>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention/cache/element_rows.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/block_ops.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/ops/arg_checker.h"
#include "attention/ops/block_checks.h"
#include "checks/status_macros.h"

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

constexpr BlockPair kWhole[] = {{0, 0}};  // of tensors that are one block

// Launches kernels for pairs of blocks of the tensors that are added, as many of both as each
// takes.
class BlockLauncher {
 public:
  // `fill`: what blocks become that come from nowhere.
  BlockLauncher(const CudaCall& call, absl::Span<const BlockPair> pairs, std::byte fill = {})
      : call_(call), pairs_(pairs) {
    params_.num_tensors = 0;
    params_.fill = std::to_integer<uint8_t>(fill);
  }
  absl::Status Add(const BlockBytes& bytes) {
    params_.tensors[params_.num_tensors++] = bytes;
    return params_.num_tensors < kTensorsPerLaunch ? absl::OkStatus() : LaunchRest();
  }
  absl::Status LaunchRest() {
    if (params_.num_tensors == 0) return absl::OkStatus();
    for (auto rest = pairs_; !rest.empty(); rest.remove_prefix(params_.num_pairs)) {
      params_.num_pairs = static_cast<int32_t>(std::min<size_t>(rest.size(), BlockPairs::kMost));
      for (int32_t i = 0; i < params_.num_pairs; ++i) {
        std::tie(params_.pairs.from[i], params_.pairs.to[i]) = rest[i];
      }
      KVBLOCKS_RETURN_IF_ERROR(call_.Launch(LaunchBlocks, params_));
    }
    params_.num_tensors = 0;
    return absl::OkStatus();
  }

 private:
  const CudaCall& call_;
  absl::Span<const BlockPair> pairs_;
  BlockParams params_;
};

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
  LayoutConversion tensors;
  KVBLOCKS_RETURN_IF_ERROR(CheckConvertLayout(context, src, dst, pairs, &tensors));
  if (pairs != nullptr && pairs->empty()) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin("ConvertLayout", context));
  BlockLauncher launcher(call, pairs == nullptr ? absl::MakeConstSpan(kWhole) : *pairs);
  for (int i = 0; i < tensors.num_tensors; ++i) {
    const ConstTensorView& from = tensors.from[i];
    const TensorView& to = tensors.to[i];
    if (to.empty()) continue;
    KVBLOCKS_RETURN_IF_ERROR(
        launcher.Add(pairs == nullptr ? BytesOf(from, to, 0, 0) : BlocksOf(from, to)));
  }
  return launcher.LaunchRest();
}

}  // namespace

absl::Status CudaCopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                            absl::Span<const BlockPair> pairs) {
  KVBLOCKS_RETURN_IF_ERROR(CheckCopyBlocks(context, caches, pairs));
  if (pairs.empty() || caches.empty()) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin("CopyBlocks", context));
  for (const KvCacheView& cache : caches) {
    BlockLauncher launcher(call, pairs);
    TensorView storage[kMostCacheTensors];
    for (const TensorView& tensor : CacheTensors(cache, storage)) {
      KVBLOCKS_RETURN_IF_ERROR(launcher.Add(BlocksOf(tensor, tensor)));
    }
    KVBLOCKS_RETURN_IF_ERROR(launcher.LaunchRest());
  }
  return absl::OkStatus();
}

absl::Status CudaSwapBlocks(const ExecContext& context, const ConstKvCacheView& src,
                            const KvCacheView& dst, absl::Span<const BlockPair> pairs) {
  constexpr char kName[] = "SwapBlocks";
  KVBLOCKS_ASSIGN_OR_RETURN(const ExecContext from, SideOf("src", context, src));
  KVBLOCKS_ASSIGN_OR_RETURN(const ExecContext to, SideOf("dst", context, dst));
  if (!context.device.on_host() && from.device.on_host() && to.device.on_host()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kName, ": src and dst are on ", Name(from.device), "; the host's SwapBlocks does that"));
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckSwapBlocks(from, src, to, dst, pairs));
  if (pairs.empty()) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin(kName, context));
  ConstTensorView from_storage[kMostCacheTensors];
  TensorView to_storage[kMostCacheTensors];
  const auto sources = CacheTensors(src, from_storage);
  const auto targets = CacheTensors(dst, to_storage);
  const bool over_the_bus = from.device.on_host() || to.device.on_host();
  BlockLauncher launcher(call, pairs);
  for (size_t i = 0; i < sources.size(); ++i) {
    const BlockBytes bytes = BlocksOf(sources[i], targets[i]);
    KVBLOCKS_RETURN_IF_ERROR(over_the_bus && bytes.rank == 0
                                 ? StatusOf(kName, CopyPairs(context.stream, pairs, bytes))
                                 : launcher.Add(bytes));
  }
  return launcher.LaunchRest();
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
  KVBLOCKS_RETURN_IF_ERROR(CheckFillBlocks(context, cache, ids));
  if (ids.empty()) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin("FillBlocks", context));
  std::vector<BlockPair> pairs;
  for (const int32_t id : ids) pairs.emplace_back(id, id);
  BlockLauncher launcher(call, pairs, byte);
  TensorView storage[kMostCacheTensors];
  for (const TensorView& tensor : CacheTensors(cache, storage)) {
    BlockBytes bytes = BlocksOf(tensor, tensor);
    bytes.from = nullptr;
    KVBLOCKS_RETURN_IF_ERROR(launcher.Add(bytes));
  }
  return launcher.LaunchRest();
}

absl::Status CudaFillTensor(const ExecContext& context, const TensorView& out, std::byte byte) {
  constexpr char kName[] = "FillTensor";
  ArgChecker check(context, kName);
  if (check.View("out", out, DTypeSet::All())) check.Writes("out", out);
  KVBLOCKS_RETURN_IF_ERROR(check.Finish());
  if (out.empty()) return absl::OkStatus();
  BlockBytes bytes = BytesOf(out, out, 0, 0);
  bytes.from = nullptr;
  if (bytes.rank == 0) {
    return StatusOf(kName,
                    FillAsync(bytes.to, std::to_integer<int>(byte),
                              static_cast<size_t>(bytes.run_units * bytes.unit), context.stream));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const CudaCall call, CudaCall::Begin(kName, context));
  BlockLauncher launcher(call, kWhole, byte);
  KVBLOCKS_RETURN_IF_ERROR(launcher.Add(bytes));
  return launcher.LaunchRest();
}

}  // namespace kvblocks::attention::cuda
