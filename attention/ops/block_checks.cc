#include "attention/ops/block_checks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/ops/arg_checker.h"
#include "attention/ops/batch_checks.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

absl::Status CheckId(const char* op, const char* what, int64_t id, int64_t num_blocks) {
  if (id >= 0 && id < num_blocks) return absl::OkStatus();
  return OutOfRange(op, ": ", what, " block ", id, " of a cache of ", num_blocks, " blocks");
}

// Destinations must be distinct and, within one cache, no sources.
absl::Status CheckPairs(const char* op, absl::Span<const BlockPair> pairs, int64_t src_blocks,
                        int64_t dst_blocks, bool one_cache) {
  std::vector<int32_t> sources, destinations;
  for (const auto& [source, destination] : pairs) {
    KVBLOCKS_RETURN_IF_ERROR(CheckId(op, "source", source, src_blocks));
    KVBLOCKS_RETURN_IF_ERROR(CheckId(op, "destination", destination, dst_blocks));
    sources.push_back(source);
    destinations.push_back(destination);
  }
  std::sort(sources.begin(), sources.end());
  std::sort(destinations.begin(), destinations.end());
  if (auto twice = std::adjacent_find(destinations.begin(), destinations.end());
      twice != destinations.end()) {
    return InvalidArgument(op, ": destination block ", *twice, " is given twice; give it once");
  }
  if (!one_cache) return absl::OkStatus();
  for (const int32_t destination : destinations) {
    if (std::binary_search(sources.begin(), sources.end(), destination)) {
      return InvalidArgument(
          op, ": block ", destination,
          " is a source and a destination, so the result would depend on the order; "
          "use two calls");
    }
  }
  return absl::OkStatus();
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

// The scales of kNhd and kHnd alike: those of K, those of V.
template <typename View>
void ScalesTokenMajor(const BasicKvCacheView<View>& cache, View* scales) {
  scales[0] = cache.k_scales;
  scales[1] = cache.v_scales;
  if (cache.layout != KvLayout::kHnd) return;
  for (View* view : {&scales[0], &scales[1]}) {
    *view = view->rank == 4 ? *view->Permute({0, 2, 1, 3}) : *view->Permute({0, 2, 1});
  }
}

// That a cache's views are on the context's device, fit its layout, and nothing that is written
// overlaps.
absl::Status CheckBlockCache(const char* op, const char* name, const ExecContext& context,
                             const ConstKvCacheView& cache, bool written) {
  const std::string k = absl::StrCat(name, ".k"), v = absl::StrCat(name, ".v");
  const std::string k_scales = k + "_scales", v_scales = v + "_scales";
  ArgChecker check(context, op);
  CheckCache(check, {name, k.c_str(), v.c_str(), k_scales.c_str(), v_scales.c_str()}, cache,
             CacheFamily::kAny, written);
  return check.Finish();
}

// That none of the tensors of two caches share a byte.
absl::Status CheckCachesApart(const char* op, const ConstKvCacheView& one,
                              const ConstKvCacheView& other) {
  ConstTensorView of_one[kMostCacheTensors], of_other[kMostCacheTensors];
  for (const ConstTensorView& a : CacheTensors(one, of_one)) {
    for (const ConstTensorView& b : CacheTensors(other, of_other)) {
      if (MayOverlap(a, b)) {
        return InvalidArgument(op, ": caches ", a.DebugString(), " and ", b.DebugString(),
                               " share memory; give two caches");
      }
    }
  }
  return absl::OkStatus();
}

// That no two of the destinations share memory, where blocks may.
absl::Status CheckTargetsApart(const char* op, const ConstKvCacheView& dst,
                               absl::Span<const BlockPair> pairs) {
  if (!dst.overlapping_blocks || pairs.empty()) return absl::OkStatus();
  ConstTensorView storage[kMostCacheTensors];
  const std::byte *first = nullptr, *last = nullptr;  // of block 0
  for (ConstTensorView tensor : CacheTensors(dst, storage)) {
    tensor.extent[0] = 1;
    const std::byte* const end = tensor.data + *tensor.SpanBytes();
    if (first == nullptr || tensor.data < first) first = tensor.data;
    if (last == nullptr || end > last) last = end;
  }
  const int64_t step = dst.k.stride[0] * ElementBytes(dst.k.dtype), bytes = last - first;
  std::vector<int32_t> targets;
  for (const BlockPair& pair : pairs) targets.push_back(pair.second);
  std::sort(targets.begin(), targets.end());
  for (size_t i = 1; i < targets.size(); ++i) {
    if ((int64_t{targets[i]} - targets[i - 1]) * step < bytes) {
      return InvalidArgument(op, ": destination blocks ", targets[i - 1], " and ", targets[i],
                             " of dst share memory: a block has ", bytes,
                             " bytes, and the distance between block numbers is ", step,
                             "; give blocks that are in use together");
    }
  }
  return absl::OkStatus();
}

// That blocks of two tensors, the first dimension left out, have one shape and type.
absl::Status CheckSameBlocks(const char* op, const ConstTensorView& src,
                             const ConstTensorView& dst) {
  const bool same = src.dtype == dst.dtype && src.rank == dst.rank &&
                    std::equal(src.extent.begin() + 1, src.extent.end(), dst.extent.begin() + 1);
  if (same) return absl::OkStatus();
  return InvalidArgument(op, ": src ", src.DebugString(), " and dst ", dst.DebugString(),
                         " have blocks of other shapes or types");
}

}  // namespace

absl::Status CheckCopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                             absl::Span<const BlockPair> pairs) {
  constexpr char kOp[] = "CopyBlocks";
  for (const KvCacheView& cache : caches) {
    KVBLOCKS_RETURN_IF_ERROR(CheckBlockCache(kOp, "caches", context, cache, true));
    const int64_t blocks = cache.num_blocks();
    KVBLOCKS_RETURN_IF_ERROR(CheckPairs(kOp, pairs, blocks, blocks, true));
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      KVBLOCKS_RETURN_IF_ERROR(CheckCachesApart(kOp, caches[j], caches[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSwapBlocks(const ExecContext& src_context, const ConstKvCacheView& src,
                             const ExecContext& dst_context, const KvCacheView& dst,
                             absl::Span<const BlockPair> pairs) {
  constexpr char kOp[] = "SwapBlocks";
  KVBLOCKS_RETURN_IF_ERROR(CheckBlockCache(kOp, "src", src_context, src, false));
  KVBLOCKS_RETURN_IF_ERROR(CheckBlockCache(kOp, "dst", dst_context, dst, true));
  if (src.layout != dst.layout || src.planar_block_size != dst.planar_block_size) {
    return InvalidArgument(kOp, ": src is ", Name(src.layout), ", dst ", Name(dst.layout),
                           "; use ConvertLayout");
  }
  if (src.format != dst.format) {
    return InvalidArgument(kOp, ": src has vectors of ", Name(src.format), ", dst of ",
                           Name(dst.format), "; blocks are moved as they are");
  }
  ConstTensorView src_storage[kMostCacheTensors];
  TensorView dst_storage[kMostCacheTensors];
  const auto from = CacheTensors(src, src_storage);
  const auto to = CacheTensors(dst, dst_storage);
  for (size_t i = 0; i < from.size(); ++i) {
    KVBLOCKS_RETURN_IF_ERROR(CheckSameBlocks(kOp, from[i], to[i]));
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckPairs(kOp, pairs, src.num_blocks(), dst.num_blocks(), false));
  return CheckCachesApart(kOp, src, dst);
}

absl::Status CheckConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                                const KvCacheView& dst, const absl::Span<const BlockPair>* pairs,
                                LayoutConversion* conversion) {
  constexpr char kOp[] = "ConvertLayout";
  KVBLOCKS_RETURN_IF_ERROR(CheckBlockCache(kOp, "src", context, src, false));
  KVBLOCKS_RETURN_IF_ERROR(CheckBlockCache(kOp, "dst", context, dst, true));
  if (pairs == nullptr && (src.overlapping_blocks || dst.overlapping_blocks)) {
    return InvalidArgument(
        kOp, ": ", src.overlapping_blocks ? "src" : "dst",
        " has blocks that share memory, so not all of them are there to convert; "
        "give pairs of the blocks in use");
  }
  const auto fp8 = [](KvLayout layout) {
    return layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
  };
  const bool records = fp8(src.layout) || IsMlaRecord(src.format);
  const bool convertible = src.layout == dst.layout || (IsMla(src.layout) == IsMla(dst.layout) &&
                                                        !fp8(src.layout) && !fp8(dst.layout));
  const bool same_shape = (pairs != nullptr || src.num_blocks() == dst.num_blocks()) &&
                          src.block_size() == dst.block_size() &&
                          src.num_kv_heads() == dst.num_kv_heads() &&
                          src.key_dim() == dst.key_dim() && src.value_dim() == dst.value_dim() &&
                          src.k.dtype == dst.k.dtype && src.v.dtype == dst.v.dtype &&
                          src.format == dst.format;
  if (!convertible || !same_shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": src ", Name(src.layout), " ", src.k.DebugString(),
                     " does not convert to dst ", Name(dst.layout), " ", dst.k.DebugString(),
                     "; ", pairs == nullptr ? "blocks, " : "",
                     "block size, heads, dims and types must be equal"));
  }
  if (pairs != nullptr) {
    KVBLOCKS_RETURN_IF_ERROR(CheckPairs(kOp, *pairs, src.num_blocks(), dst.num_blocks(), false));
    KVBLOCKS_RETURN_IF_ERROR(CheckTargetsApart(kOp, dst, *pairs));
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckCachesApart(kOp, src, dst));

  auto& [from, to, num_tensors] = *conversion;
  if (records) {
    from[0] = src.k;
    to[0] = dst.k;
    num_tensors = 1;
  } else {
    TokenMajor(src, src.value_dim(), &from[0], &from[1]);
    TokenMajor(dst, dst.value_dim(), &to[0], &to[1]);
    // Only kPagedX splits rows into pieces; its x follows from the type.
    if (from[0].rank < to[0].rank) from[0] = *from[0].SplitLast(to[0].extent[4]);
    if (to[0].rank < from[0].rank) to[0] = *to[0].SplitLast(from[0].extent[4]);
  }
  if (!src.k_scales.absent()) {
    ScalesTokenMajor(src, &from[2]);
    ScalesTokenMajor(dst, &to[2]);
    num_tensors = 4;
  }
  for (int i = 0; i < num_tensors; ++i) {
    KVBLOCKS_RETURN_IF_ERROR(CheckSameBlocks(kOp, from[i], to[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckFillBlocks(const ExecContext& context, const KvCacheView& cache,
                             absl::Span<const int32_t> ids) {
  constexpr char kOp[] = "FillBlocks";
  KVBLOCKS_RETURN_IF_ERROR(CheckBlockCache(kOp, "cache", context, cache, true));
  for (const int32_t id : ids) {
    KVBLOCKS_RETURN_IF_ERROR(CheckId(kOp, "ids", id, cache.num_blocks()));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
