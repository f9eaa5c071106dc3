#include "kvblocks/kv_cache_view.h"

#include <initializer_list>
#include <limits>

#include "attention/cache/quantised_rows.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

// Whether rows are records of bytes, whose dimensions their kind says.
bool IsRecords(const KvCacheGeometry& g) {
  return g.layout == KvLayout::kMlaFp8_656 || g.layout == KvLayout::kMlaFp8_584 ||
         IsMlaRecord(g.format);
}

template <typename... Why>
absl::Status Refuse(const KvCacheGeometry& geometry, const Why&... why) {
  return InvalidArgument("KvCacheGeometry of ", Name(geometry.layout), " ", Name(geometry.dtype),
                         ": ", why...);
}

// Of a format with scales of its own.
absl::Status CheckFormat(const KvCacheGeometry& g) {
  if (IsMlaRecord(g.format)) {
    return g.layout == KvLayout::kMlaLatent
               ? absl::OkStatus()
               : Refuse(g, "format ", Name(g.format), " is for mla_latent");
  }
  const bool packed = ValuesPerElement(g.format) > 1;
  if (!IsStrided(g.layout)) {
    return Refuse(g, "format ", Name(g.format), " is for nhd and hnd");
  }
  if (g.placement != KvPlacement::kInterleaved) {
    return Refuse(g, "format ", Name(g.format), " has K and V of a block together; ",
                                  "set placement to kInterleaved");
  }
  const bool known = packed ? g.dtype == DType::kU8
                            : g.dtype == DType::kI8 || g.dtype == DType::kF8E4M3;
  if (!known) {
    return Refuse(g, "format ", Name(g.format), " takes dtype ",
                                  packed ? "u8" : "i8 or f8e4m3");
  }
  // Scales of 4 bytes lie behind the codes.
  const int64_t multiple =
      g.format == KvRowFormat::kNvfp4 ? kNvfp4GroupValues : 4 * ValuesPerElement(g.format);
  for (const int64_t dim : {g.key_dim, g.value_dim}) {
    constexpr int64_t kMostValues = int64_t{1} << 60;
    if (dim % multiple != 0 || dim > kMostValues) {
      return Refuse(g, "format ", Name(g.format), " packs multiples of ", multiple,
                                    " values, at most 2^60; a vector has ", dim);
    }
  }
  if (g.format != KvRowFormat::kNvfp4 && g.block_padding_bytes % 4 != 0) {
    return Refuse(g, "block_padding_bytes ", g.block_padding_bytes,
                                  " is no multiple of 4, as float32 scales need");
  }
  return absl::OkStatus();
}

absl::Status CheckGeometry(const KvCacheGeometry& g) {
  const auto at_least = [&](const char* name, int64_t value, int64_t least) {
    return value >= least ? absl::OkStatus()
                          : Refuse(g, name, " is ", value, "; at least ", least);
  };
  KVBLOCKS_RETURN_IF_ERROR(at_least("num_blocks", g.num_blocks, 0));
  KVBLOCKS_RETURN_IF_ERROR(at_least("block_size", g.block_size, 1));
  KVBLOCKS_RETURN_IF_ERROR(at_least("block_padding_bytes", g.block_padding_bytes, 0));
  if (IsRecords(g)) {
    if (g.dtype != DType::kU8) return Refuse(g, "its rows are records of bytes; dtype must be u8");
  } else {
    KVBLOCKS_RETURN_IF_ERROR(at_least("key_dim", g.key_dim, 1));
    KVBLOCKS_RETURN_IF_ERROR(at_least("value_dim", g.value_dim, 1));
  }
  if (IsMla(g.layout)) {
    if (g.num_kv_heads != 1) {
      return Refuse(g, "num_kv_heads is ", g.num_kv_heads, "; MLA has one");
    }
    if (!IsRecords(g) && g.value_dim > g.key_dim) {
      return Refuse(g, "value_dim ", g.value_dim, " exceeds key_dim ", g.key_dim,
                                    ", whose first columns it is");
    }
    if (g.layout == KvLayout::kMlaSplit && g.value_dim == g.key_dim) {
      return Refuse(
          g, "key_dim equals value_dim, so no rotary columns are left for the second tensor");
    }
  } else {
    KVBLOCKS_RETURN_IF_ERROR(at_least("num_kv_heads", g.num_kv_heads, 1));
  }
  if (g.format != KvRowFormat::kElements) {
    KVBLOCKS_RETURN_IF_ERROR(CheckFormat(g));
  }
  if (g.layout == KvLayout::kPagedX) {
    const int64_t x = 16 / ElementBytes(g.dtype);
    if (g.key_dim % x != 0) {
      return Refuse(g, "key_dim ", g.key_dim, " is no multiple of x = ", x);
    }
    if (g.placement == KvPlacement::kInterleaved) {
      return Refuse(g, "interleaved placement is for nhd and hnd");
    }
  }
  const bool block_is_one_run =
      IsMla(g.layout) ? g.layout != KvLayout::kMlaSplit : g.placement == KvPlacement::kInterleaved;
  if (g.block_padding_bytes != 0 && !block_is_one_run) {
    return Refuse(g,
                  "block_padding_bytes needs blocks that are one run: interleaved, or MLA in one "
                  "tensor");
  }
  if (g.block_padding_bytes % ElementBytes(g.dtype) != 0) {
    return Refuse(g, "block_padding_bytes ", g.block_padding_bytes,
                                  " is no multiple of the element size ", ElementBytes(g.dtype));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Product(const KvCacheGeometry& g, std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  bool fits = true;
  for (const int64_t factor : factors) fits &= !__builtin_mul_overflow(product, factor, &product);
  if (!fits) return Refuse(g, "its size is beyond 2^63 bytes; fewer blocks or smaller ones");
  return product;
}

// Bytes of a vector with its scales.
int64_t VectorBytes(const KvCacheGeometry& g, int64_t dim) {
  return CodeBytes(g.format, dim) + ScaleBytes(g.format, dim);
}

// Elements (bytes for the FP8 layouts and for formats with scales) of the K part of a block, and of
// its V part.
absl::StatusOr<int64_t> KeyElements(const KvCacheGeometry& g) {
  if (g.layout == KvLayout::kMlaFp8_656) return Product(g, {g.block_size, kMla656Bytes});
  if (g.layout == KvLayout::kMlaFp8_584) {
    // The formula adds up to one more multiple of 576 before it divides.
    KVBLOCKS_RETURN_IF_ERROR(Product(g, {g.block_size, 584 + 576}).status());
    return MlaFp8_584BlockBytes(g.block_size);
  }
  if (IsMlaRecord(g.format)) return Product(g, {g.block_size, ShapeOf(g.format).bytes});
  if (g.layout == KvLayout::kMlaSplit) return Product(g, {g.block_size, g.value_dim});
  if (g.format != KvRowFormat::kElements) {
    return Product(g, {g.block_size, g.num_kv_heads, VectorBytes(g, g.key_dim)});
  }
  return Product(g, {g.block_size, g.num_kv_heads, g.key_dim});
}

absl::StatusOr<int64_t> ValueElements(const KvCacheGeometry& g) {
  if (g.layout == KvLayout::kMlaSplit) return Product(g, {g.block_size, g.key_dim - g.value_dim});
  if (IsMla(g.layout)) return 0;
  if (g.format != KvRowFormat::kElements) {
    return Product(g, {g.block_size, g.num_kv_heads, VectorBytes(g, g.value_dim)});
  }
  return Product(g, {g.block_size, g.num_kv_heads, g.value_dim});
}

struct BlockElements {
  int64_t k = 0, v = 0, padding = 0;
  int64_t bytes = 0;
};

absl::StatusOr<BlockElements> ElementsOfBlock(const KvCacheGeometry& g) {
  KVBLOCKS_RETURN_IF_ERROR(CheckGeometry(g));
  BlockElements block;
  auto k = KeyElements(g);
  if (!k.ok()) return k.status();
  auto v = ValueElements(g);
  if (!v.ok()) return v.status();
  block.k = *k;
  block.v = *v;
  block.padding = g.block_padding_bytes / ElementBytes(g.dtype);
  int64_t sum;
  if (__builtin_add_overflow(block.k, block.v, &sum) ||
      __builtin_add_overflow(sum, block.padding, &sum)) {
    return Refuse(g, "a block is beyond 2^63 elements");
  }
  auto bytes = Product(g, {sum, ElementBytes(g.dtype)});
  if (!bytes.ok()) return bytes.status();
  block.bytes = *bytes;
  return block;
}

// Row-major, except for blocks, whose stride is `block` elements.
absl::StatusOr<TensorView> View(const KvCacheGeometry& g, std::byte* data,
                                absl::Span<const int64_t> extents, int64_t block, DeviceId device) {
  int64_t strides[kMaxRank] = {}, dense = 1;
  for (size_t i = extents.size() - 1; i > 0; dense *= extents[i--]) strides[i] = dense;
  strides[0] = block;
  return TensorView::Make(data, g.dtype, extents, absl::MakeConstSpan(strides, extents.size()),
                          device);
}

// Of the keys or the values of a layout with heads; x elements are 16 bytes.
std::vector<int64_t> HeadExtents(KvLayout layout, bool keys, int64_t nb, int64_t bs, int64_t heads,
                                 int64_t dim, int64_t x) {
  if (layout == KvLayout::kNhd) return {nb, bs, heads, dim};
  if (layout == KvLayout::kHnd) return {nb, heads, bs, dim};
  return keys ? std::vector<int64_t>{nb, heads, dim / x, bs, x}
              : std::vector<int64_t>{nb, heads, dim, bs};
}

// A format with scales of its own; `block_bytes` from one block to the next, `v_at` to its V.
absl::StatusOr<KvCacheView> QuantisedView(const KvCacheGeometry& g, std::byte* data,
                                          int64_t block_bytes, int64_t v_at, DeviceId device) {
  const bool nhd = g.layout == KvLayout::kNhd;
  const int64_t second = nhd ? g.block_size : g.num_kv_heads;
  const int64_t third = nhd ? g.num_kv_heads : g.block_size;
  const bool inline_scales = g.format != KvRowFormat::kNvfp4;
  const int64_t both = VectorBytes(g, g.key_dim) + VectorBytes(g, g.value_dim);
  KvCacheView cache;
  cache.layout = g.layout;
  cache.format = g.format;
  const auto place = [&](int64_t dim, int64_t at, TensorView* codes, TensorView* scales) {
    const int64_t code_bytes = CodeBytes(g.format, dim), scale_bytes = ScaleBytes(g.format, dim);
    const int64_t vector = inline_scales ? both : code_bytes;
    const int64_t scale_vector = scale_bytes;
    const int64_t scales_at = at + (inline_scales ? code_bytes : second * third * code_bytes);
    std::byte* const codes_data = data == nullptr ? nullptr : data + at;
    std::byte* const scales_data = data == nullptr ? nullptr : data + scales_at;
    auto made = TensorView::Make(codes_data, g.dtype, {g.num_blocks, second, third, code_bytes},
                                 {block_bytes, third * vector, vector, 1}, device);
    if (!made.ok()) return made.status();
    *codes = *made;
    if (inline_scales) {
      made = TensorView::Make(scales_data, DType::kF32, {g.num_blocks, second, third},
                              {block_bytes / 4, third * vector / 4, vector / 4}, device);
    } else {
      made = TensorView::Make(scales_data, DType::kF8E4M3,
                              {g.num_blocks, second, third, scale_bytes},
                              {block_bytes, third * scale_vector, scale_vector, 1}, device);
    }
    if (!made.ok()) return made.status();
    *scales = *made;
    return absl::OkStatus();
  };
  const int64_t v_offset = inline_scales ? VectorBytes(g, g.key_dim) : v_at;
  KVBLOCKS_RETURN_IF_ERROR(place(g.key_dim, 0, &cache.k, &cache.k_scales));
  KVBLOCKS_RETURN_IF_ERROR(place(g.value_dim, v_offset, &cache.v, &cache.v_scales));
  return cache;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> KvCacheShape(const KvCacheGeometry& g) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto block, ElementsOfBlock(g));
  switch (g.layout) {
    case KvLayout::kMlaSplit:
      return Refuse(g, "it is two tensors and has no single shape; use MakeKvCacheView");
    case KvLayout::kMlaLatent:
      return std::vector<int64_t>{g.num_blocks, g.block_size, block.k / g.block_size};
    case KvLayout::kMlaFp8_656:
      return std::vector<int64_t>{g.num_blocks, g.block_size, kMla656Bytes};
    case KvLayout::kMlaFp8_584:
      return std::vector<int64_t>{g.num_blocks, block.k};
    default:
      break;
  }
  if (g.format != KvRowFormat::kElements) {
    return Refuse(g, "codes and scales do not share a tensor; use MakeKvCacheView");
  }
  if (g.key_dim != g.value_dim) {
    return Refuse(g, "key_dim ", g.key_dim, " and value_dim ", g.value_dim,
                                  " do not share a tensor; use MakeKvCacheView");
  }
  if (g.layout == KvLayout::kPagedX) return std::vector<int64_t>{2, g.num_blocks, block.k};
  if (g.placement == KvPlacement::kInterleaved) {
    return std::vector<int64_t>{g.num_blocks, 2, g.block_size, g.num_kv_heads, g.key_dim};
  }
  return std::vector<int64_t>{2, g.num_blocks, g.block_size, g.num_kv_heads, g.key_dim};
}

absl::StatusOr<int> BlockDim(const KvCacheGeometry& g) {
  if (auto shape = KvCacheShape(g); !shape.ok()) return shape.status();
  return IsMla(g.layout) || g.placement == KvPlacement::kInterleaved ? 0 : 1;
}

absl::StatusOr<std::vector<int>> StrideOrder(const KvCacheGeometry& g, bool include_layer_dim) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto shape, KvCacheShape(g));
  auto block_dim = BlockDim(g);
  std::vector<int> order(shape.size());
  for (int i = 0; i < order.size(); ++i) order[i] = i;
  if (g.layout == KvLayout::kHnd) std::swap(order[2], order[3]);
  if (include_layer_dim) {
    for (int& dim : order) ++dim;
    order.erase(order.begin() + *block_dim);
    order.insert(order.begin(), {*block_dim + 1, 0});
  }
  return order;
}

absl::StatusOr<int64_t> BytesPerBlock(const KvCacheGeometry& g) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto block, ElementsOfBlock(g));
  return block.bytes;
}

absl::StatusOr<int64_t> KvCacheBytes(const KvCacheGeometry& g) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto block, ElementsOfBlock(g));
  return Product(g, {g.num_blocks, block.bytes});
}

absl::StatusOr<KvCacheView> MakeKvCacheView(const KvCacheGeometry& g, const TensorView& memory) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto block, ElementsOfBlock(g));
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t bytes, KvCacheBytes(g));
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t have, memory.SpanBytes());
  if (!memory.contiguous()) return Refuse(g, "its memory must be contiguous");
  if (have < bytes) {
    return ResourceExhausted("MakeKvCacheView: ", Name(g.layout), " needs ", bytes,
                             " bytes; memory has ", have);
  }
  const bool float_scales = g.format == KvRowFormat::kPerTokenHead ||
                            g.format == KvRowFormat::kInt4PerTokenHead;
  const int64_t element = ElementBytes(g.dtype), alignment = float_scales ? 4 : element;
  if (reinterpret_cast<uintptr_t>(memory.data) % alignment != 0) {
    return Refuse(g, "its memory is not aligned to ", alignment, " bytes");
  }
  if (g.format != KvRowFormat::kElements && !IsMlaRecord(g.format)) {
    return QuantisedView(g, memory.data, block.bytes, block.k, memory.device);
  }

  // Elements from one block to the next, and from a block's K to its V.
  const bool one_run =
      IsMla(g.layout) ? g.layout != KvLayout::kMlaSplit : g.placement == KvPlacement::kInterleaved;
  const int64_t whole = block.bytes / element;
  const int64_t k_block = one_run ? whole : block.k;
  const int64_t v_block = one_run ? whole : block.v;
  std::byte* const k_data = memory.data;
  std::byte* const v_data =
      k_data == nullptr ? nullptr : k_data + element * (one_run ? block.k : g.num_blocks * block.k);
  const int64_t nb = g.num_blocks, bs = g.block_size, heads = g.num_kv_heads;
  const int64_t d = g.key_dim, dv = g.value_dim;
  const DeviceId device = memory.device;

  absl::StatusOr<TensorView> k, v = TensorView();
  switch (g.layout) {
    case KvLayout::kPagedX:
    case KvLayout::kNhd:
    case KvLayout::kHnd: {
      const int64_t x = 16 / element;
      k = View(g, k_data, HeadExtents(g.layout, true, nb, bs, heads, d, x), k_block, device);
      v = View(g, v_data, HeadExtents(g.layout, false, nb, bs, heads, dv, x), v_block, device);
      break;
    }
    case KvLayout::kMlaLatent: {
      const int64_t row = block.k / bs;
      k = View(g, k_data, {nb, bs, row}, k_block, device);
      if (k.ok() && !IsMlaRecord(g.format)) return MakeMlaLatentView(*k, dv);
      break;
    }
    case KvLayout::kMlaSplit:
      k = View(g, k_data, {nb, bs, dv}, k_block, device);
      v = View(g, v_data, {nb, bs, d - dv}, v_block, device);
      break;
    case KvLayout::kMlaFp8_656:
      k = View(g, k_data, {nb, bs, kMla656Bytes}, k_block, device);
      break;
    case KvLayout::kMlaFp8_584:
      k = View(g, k_data, {nb, block.k}, k_block, device);
      break;
  }
  if (!k.ok()) return k.status();
  if (!v.ok()) return v.status();
  KvCacheView view(g.layout, *k, *v, g.layout == KvLayout::kMlaFp8_584 ? bs : 0);
  view.format = g.format;
  return view;
}

absl::StatusOr<KvCacheView> SplitKvCache(const TensorView& cache, int64_t num_kv_heads,
                                         int64_t head_size, KvLayout layout) {
  const auto refuse = [&](const auto&... why) {
    return InvalidArgument("SplitKvCache: cache ", cache.DebugString(), ": ", why...);
  };
  if (IsMla(layout)) return refuse("layout ", Name(layout), " has no separate K and V");
  if (cache.rank != 3 || cache.extent[0] != 2) return refuse("expected [2, NB, BS * Hkv * D]");
  constexpr int64_t kAnyBytes = std::numeric_limits<int64_t>::max();
  if (absl::Status status = cache.Validate(kAnyBytes); !status.ok()) {
    return refuse(std::string(status.message()));
  }
  if (num_kv_heads < 1 || head_size < 1) {
    return refuse("num_kv_heads ", num_kv_heads, " and head_size ", head_size,
                               " must be at least 1");
  }
  int64_t token;
  if (__builtin_mul_overflow(num_kv_heads, head_size, &token) || cache.extent[2] % token != 0 ||
      cache.extent[2] == 0) {
    return refuse("a block of ", cache.extent[2], " elements is no whole number of ",
                               num_kv_heads, " heads * ", head_size);
  }
  const int64_t x = 16 / ElementBytes(cache.dtype);
  if (layout == KvLayout::kPagedX && head_size % x != 0) {
    return refuse("head_size ", head_size, " is no multiple of x = ", x);
  }
  const int64_t nb = cache.extent[1];
  const int64_t bs = cache.extent[2] / token;
  const auto part = [&](int64_t index) {
    return cache.Select(0, index)->Reshape(
        HeadExtents(layout, index == 0, nb, bs, num_kv_heads, head_size, x));
  };
  KVBLOCKS_ASSIGN_OR_RETURN(const TensorView k, part(0));
  KVBLOCKS_ASSIGN_OR_RETURN(const TensorView v, part(1));
  return KvCacheView(layout, k, v);
}

absl::StatusOr<KvCacheView> MakeMlaLatentView(const TensorView& rows, int64_t latent_rank) {
  if (rows.rank != 3 || latent_rank < 1 || latent_rank > rows.extent[2]) {
    return InvalidArgument("MakeMlaLatentView: rows ", rows.DebugString(), " with latent_rank ",
                           latent_rank,
                           "; expected [NB, BS, R_kv + R_pe] with 1 <= latent_rank <= the "
                           "last extent");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto v, rows.Slice(2, 0, latent_rank));
  return KvCacheView(KvLayout::kMlaLatent, rows, v);
}

}  // namespace kvblocks::attention
