#include "attention/cpu/block_ops.h"

#include "attention/cache/element_rows.h"
#include "attention/ops/block_checks.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

template <typename View>
View Block(const View& tensor, int64_t id) {
  return *tensor.Select(0, id);
}

absl::Status CheckOnHost(const char* op, const ExecContext& context) {
  if (context.device.on_host()) return absl::OkStatus();
  return Unimplemented(op, ": the context is on ", Name(context.device), "; this is the host's");
}

// Without pairs every block keeps its id.
absl::Status Convert(const ExecContext& context, const ConstKvCacheView& src,
                     const KvCacheView& dst, const absl::Span<const BlockPair>* pairs) {
  LayoutConversion tensors;
  absl::Status status = CheckOnHost("ConvertLayout", context);
  if (status.ok()) status = CheckConvertLayout(context, src, dst, pairs, &tensors);
  if (!status.ok()) return status;
  const int64_t count = pairs == nullptr ? src.num_blocks() : static_cast<int64_t>(pairs->size());
  ParallelFor(context.threads, count, [&](int64_t item, int) {
    const auto id = static_cast<int32_t>(item);
    const auto& [from, to] = pairs == nullptr ? BlockPair(id, id) : (*pairs)[item];
    for (int i = 0; i < tensors.num_tensors; ++i) {
      CopyStrided(Block(tensors.from[i], from), Block(tensors.to[i], to));
    }
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status CopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                        absl::Span<const BlockPair> pairs) {
  absl::Status status = CheckOnHost("CopyBlocks", context);
  if (status.ok()) status = CheckCopyBlocks(context, caches, pairs);
  if (!status.ok()) return status;
  const int64_t num_pairs = pairs.size();
  ParallelFor(context.threads, num_pairs * static_cast<int64_t>(caches.size()),
              [&](int64_t item, int) {
                const auto& [source, destination] = pairs[item % num_pairs];
                TensorView storage[kMostCacheTensors];
                for (const TensorView& tensor : CacheTensors(caches[item / num_pairs], storage)) {
                  CopyStrided(Block(tensor, source), Block(tensor, destination));
                }
              });
  return absl::OkStatus();
}

absl::Status SwapBlocks(const ExecContext& context, const ConstKvCacheView& src,
                        const KvCacheView& dst, absl::Span<const BlockPair> pairs) {
  absl::Status status = CheckOnHost("SwapBlocks", context);
  if (status.ok()) status = CheckSwapBlocks(context, src, context, dst, pairs);
  if (!status.ok()) return status;
  ConstTensorView src_storage[kMostCacheTensors];
  TensorView dst_storage[kMostCacheTensors];
  const auto from = CacheTensors(src, src_storage);
  const auto to = CacheTensors(dst, dst_storage);
  ParallelFor(context.threads, pairs.size(), [&](int64_t item, int) {
    for (size_t i = 0; i < from.size(); ++i) {
      CopyStrided(Block(from[i], pairs[item].first), Block(to[i], pairs[item].second));
    }
  });
  return absl::OkStatus();
}

absl::Status ConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                           const KvCacheView& dst) {
  return Convert(context, src, dst, nullptr);
}

absl::Status ConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                           const KvCacheView& dst, absl::Span<const BlockPair> pairs) {
  return Convert(context, src, dst, &pairs);
}

absl::Status FillBlocks(const ExecContext& context, const KvCacheView& cache,
                        absl::Span<const int32_t> ids, std::byte byte) {
  absl::Status status = CheckOnHost("FillBlocks", context);
  if (status.ok()) status = CheckFillBlocks(context, cache, ids);
  if (!status.ok()) return status;
  TensorView storage[kMostCacheTensors];
  for (const TensorView& tensor : CacheTensors(cache, storage)) {
    for (const int32_t id : ids) FillStrided(Block(tensor, id), byte);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
