#include "kvblocks/attention/cpu/block_ops.h"

#include "kvblocks/attention/cache/strided_copy.h"
#include "kvblocks/attention/cpu/thread_pool.h"
#include "kvblocks/attention/ops/block_checks.h"
#include "kvblocks/attention/tensor/errors.h"

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

// K and V of kPagedX, kNhd and kHnd, or the latent and rotary columns, with dimensions in the order
// of kNhd, so that two layouts can be copied element by element.
template <typename View>
void TokenMajor(const BasicKvCacheView<View>& cache, int64_t latent_rank, View* k, View* v) {
  *k = cache.k;
  *v = cache.v;
  switch (cache.layout) {
    case KvLayout::kPagedX:
      *k = *cache.k.Permute({0, 3, 1, 2, 4});
      *v = *cache.v.Permute({0, 3, 1, 2});
      return;
    case KvLayout::kHnd:
      *k = *cache.k.Permute({0, 2, 1, 3});
      *v = *cache.v.Permute({0, 2, 1, 3});
      return;
    case KvLayout::kMlaLatent:
      *k = *cache.k.Slice(2, 0, latent_rank);
      *v = *cache.k.Slice(2, latent_rank, cache.k.extent[2]);
      return;
    default:
      return;
  }
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
                TensorView storage[2];
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
  ConstTensorView src_storage[2];
  TensorView dst_storage[2];
  const auto from = CacheTensors(src, src_storage);
  const auto to = CacheTensors(dst, dst_storage);
  ParallelFor(context.threads, pairs.size(), [&](int64_t item, int) {
    for (int i = 0; i < from.size(); ++i) {
      CopyStrided(Block(from[i], pairs[item].first), Block(to[i], pairs[item].second));
    }
  });
  return absl::OkStatus();
}

absl::Status ConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                           const KvCacheView& dst) {
  constexpr char kOp[] = "ConvertLayout";
  if (auto s = CheckOnHost(kOp, context); !s.ok()) return s;
  if (auto s = CheckBlockCache(kOp, "src", context, src, false); !s.ok()) return s;
  if (auto s = CheckBlockCache(kOp, "dst", context, dst, true); !s.ok()) return s;
  const auto fp8 = [](KvLayout layout) {
    return layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
  };
  const bool convertible = src.layout == dst.layout || (IsMla(src.layout) == IsMla(dst.layout) &&
                                                        !fp8(src.layout) && !fp8(dst.layout));
  const bool same_shape = src.num_blocks() == dst.num_blocks() &&
                          src.block_size() == dst.block_size() &&
                          src.num_kv_heads() == dst.num_kv_heads() &&
                          src.key_dim() == dst.key_dim() && src.value_dim() == dst.value_dim() &&
                          src.k.dtype == dst.k.dtype && src.v.dtype == dst.v.dtype;
  if (!convertible || !same_shape) {
    return InvalidArgument(kOp, ": src ", Name(src.layout), " ", src.k.DebugString(),
                           " does not convert to dst ", Name(dst.layout), " ", dst.k.DebugString(),
                           "; blocks, block size, heads, dims and types must be equal");
  }
  if (auto s = CheckCachesApart(kOp, src, dst); !s.ok()) return s;

  ConstTensorView from[2];
  TensorView to[2];
  int num_tensors = 2;
  if (fp8(src.layout)) {
    if (auto s = CheckSameBlocks(kOp, src.k, dst.k); !s.ok()) return s;
    from[0] = src.k;
    to[0] = dst.k;
    num_tensors = 1;
  } else {
    TokenMajor(src, src.value_dim(), &from[0], &from[1]);
    TokenMajor(dst, dst.value_dim(), &to[0], &to[1]);
    // Only kPagedX splits rows into pieces; its x follows from the type.
    if (from[0].rank < to[0].rank) from[0] = *from[0].SplitLast(to[0].extent[4]);
    if (to[0].rank < from[0].rank) to[0] = *to[0].SplitLast(from[0].extent[4]);
    for (int i = 0; i < num_tensors; ++i) {
      if (auto s = CheckSameBlocks(kOp, from[i], to[i]); !s.ok()) return s;
    }
  }
  ParallelFor(context.threads, src.num_blocks(), [&](int64_t block, int) {
    for (int i = 0; i < num_tensors; ++i) CopyStrided(Block(from[i], block), Block(to[i], block));
  });
  return absl::OkStatus();
}

absl::Status FillBlocks(const ExecContext& context, const KvCacheView& cache,
                        absl::Span<const int32_t> ids, std::byte byte) {
  absl::Status status = CheckOnHost("FillBlocks", context);
  if (status.ok()) status = CheckFillBlocks(context, cache, ids);
  if (!status.ok()) return status;
  TensorView storage[2];
  for (const TensorView& tensor : CacheTensors(cache, storage)) {
    for (const int32_t id : ids) FillStrided(Block(tensor, id), byte);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
