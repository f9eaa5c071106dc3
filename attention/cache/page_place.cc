#include "kvblocks/kv_cache_view.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/types/span.h"
#include "checks/checked_int64.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

absl::Status CheckPlace(const PagePlace& place, int64_t num_blocks, int64_t split) {
  if (num_blocks < 1 || num_blocks > kMaxInt32) {
    return InvalidArgument("num_blocks is ", num_blocks, "; from 1 to ", kMaxInt32);
  }
  if (place.offset < 0 || place.page_bytes < 1 || place.block_stride < place.page_bytes) {
    return InvalidArgument("pages of ", place.page_bytes, " bytes at ", place.offset, ", ",
                           place.block_stride,
                           " bytes of stride; expected an offset of at least 0, a "
                           "byte at least, and a stride of at least a page");
  }
  if (split < 1 || place.page_bytes % split != 0) {
    return InvalidArgument("split is ", split, "; it must divide the ", place.page_bytes,
                           " bytes of a page");
  }
  if (place.ids_per_chunk == 0) return absl::OkStatus();
  if (place.ids_per_chunk < 1 || (num_blocks - 1) % place.ids_per_chunk != 0) {
    return InvalidArgument("ids_per_chunk is ", place.ids_per_chunk, "; the ", num_blocks - 1,
                           " ids behind the null block must be a multiple");
  }
  if (place.pages_per_chunk < 1 || place.pages_per_chunk > place.ids_per_chunk ||
      place.pages_per_chunk > place.chunk_bytes / place.block_stride) {
    return InvalidArgument("pages_per_chunk is ", place.pages_per_chunk, "; from 1 to the ",
                           place.ids_per_chunk, " ids of a chunk, and within its ",
                           place.chunk_bytes, " bytes of ", place.block_stride, " each");
  }
  if (place.null_offset < place.offset) {
    return InvalidArgument("null_offset is ", place.null_offset, "; at least the offset, ",
                           place.offset);
  }
  return absl::OkStatus();
}

// Where the last page begins.
CheckedInt64 LastPage(const PagePlace& place, int64_t num_blocks) {
  if (place.ids_per_chunk == 0) {
    return CheckedInt64(num_blocks - 1) * place.block_stride + place.offset;
  }
  const int64_t num_chunks = (num_blocks - 1) / place.ids_per_chunk;
  const CheckedInt64 last = CheckedInt64(std::max<int64_t>(num_chunks - 1, 0)) * place.chunk_bytes +
                            (place.pages_per_chunk - 1) * place.block_stride + place.offset;
  if (last.overflowed()) return last;
  return CheckedInt64(std::max(*last.value(), place.null_offset));
}

absl::Status CheckElement(const PlacedPages& placed, DType dtype, int64_t offset) {
  const int64_t element = ElementBytes(dtype);
  if (placed.pages.stride[0] % element != 0 ||
      (reinterpret_cast<uintptr_t>(placed.pages.data) + static_cast<uintptr_t>(offset)) %
              static_cast<uintptr_t>(element) != 0) {
    return InvalidArgument("pages with a stride of ", placed.pages.stride[0], " bytes from byte ",
                           offset, " on hold no ", Name(dtype),
                           ": not all addresses are multiples of ", element,
                           " bytes; align the memory, or pad pages to a multiple");
  }
  return absl::OkStatus();
}

// The view of one block as a view of all.
void Spread(const TensorView& pages, TensorView* view) {
  if (view->absent() || pages.extent[0] == 1) return;
  view->extent[0] = pages.extent[0];
  view->stride[0] = pages.stride[0] / ElementBytes(view->dtype);
}

}  // namespace

absl::StatusOr<PlacedPages> PlacePages(const PagePlace& place, int64_t num_blocks, int64_t split,
                                       const TensorView& memory) {
  KVBLOCKS_RETURN_IF_ERROR(CheckPlace(place, num_blocks, split));
  const bool in_chunks = place.ids_per_chunk > 0;
  const CheckedInt64 last = LastPage(place, num_blocks);
  const CheckedInt64 end = last + place.page_bytes;
  if (end.overflowed()) return InvalidArgument("the last page is beyond 2^63 bytes");
  if (!memory.contiguous()) return InvalidArgument("the memory of pages must be contiguous");
  const absl::StatusOr<int64_t> have = memory.SpanBytes();
  if (!have.ok()) return have.status();
  if (*end.value() > *have) {
    return OutOfRange("pages end at byte ", *end.value(), " of the memory, which has ", *have);
  }

  const int64_t block_bytes = place.page_bytes / split;
  int64_t step = place.block_stride;
  if (split > 1) step = std::gcd(step, block_bytes);
  if (in_chunks) {
    step = std::gcd(std::gcd(step, place.chunk_bytes), place.null_offset - place.offset);
  }
  PlacedPages placed;
  BlockMap& blocks = placed.blocks;
  blocks.page_stride = place.block_stride / step;
  blocks.block_stride = split > 1 ? block_bytes / step : 1;
  if (in_chunks) {
    blocks.ids_per_chunk = place.ids_per_chunk;
    blocks.pages_per_chunk = place.pages_per_chunk;
    blocks.chunk_stride = place.chunk_bytes / step;
    blocks.null_number = (place.null_offset - place.offset) / step;
  }
  const int64_t count =
      (*last.value() - place.offset) / step + (split - 1) * blocks.block_stride + 1;
  if (count > kMaxInt32) {
    return InvalidArgument("pages with a stride of ", place.block_stride, " bytes",
                           in_chunks ? " in chunks" : "", " have only steps of ", step,
                           " bytes in common, so block numbers reach ", count, ", beyond ",
                           kMaxInt32, "; pad pages (or chunks) to a larger common divisor");
  }
  auto pages = TensorView::Make(memory.data == nullptr ? nullptr : memory.data + place.offset,
                                DType::kU8, {count, block_bytes}, {step, 1}, memory.device);
  if (!pages.ok()) return pages.status();
  placed.pages = *pages;
  placed.overlapping = count > 1 && step < block_bytes;
  return placed;
}

absl::StatusOr<KvCacheView> PlacedKvCache(const PlacedPages& placed, KvCacheGeometry geometry,
                                          bool kv_in_one_row) {
  const TensorView& pages = placed.pages;
  const bool own_scales =
      geometry.format != KvRowFormat::kElements && !IsMlaRecord(geometry.format);
  geometry.num_blocks = 1;
  // The same for one block, but formats with scales know one of the two.
  geometry.placement = own_scales ? KvPlacement::kInterleaved : KvPlacement::kKThenV;
  geometry.block_padding_bytes = 0;
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t needed, BytesPerBlock(geometry));
  if (needed > pages.extent[1]) {
    return InvalidArgument("a block of ", geometry.block_size, " ", Name(geometry.layout),
                           " rows takes ", needed, " bytes; pages have ", pages.extent[1],
                           " for each");
  }
  const bool float_scales = own_scales && geometry.format != KvRowFormat::kNvfp4;
  const DType widest = float_scales ? DType::kF32 : geometry.dtype;
  KVBLOCKS_RETURN_IF_ERROR(CheckElement(placed, widest, 0));
  absl::StatusOr<KvCacheView> view = MakeKvCacheView(
      geometry,
      TensorView::Contiguous(pages.data, DType::kU8, {pages.extent[1]}, pages.device));
  if (!view.ok()) return view.status();
  if (kv_in_one_row) {
    if (geometry.layout != KvLayout::kNhd || own_scales) {
      return InvalidArgument("K and V of a head in one row is for nhd and elements, not ",
                             Name(geometry.layout), " and ", Name(geometry.format),
                             "; leave kv_in_one_row at false");
    }
    const int64_t row = geometry.key_dim + geometry.value_dim;
    for (TensorView* part : {&view->k, &view->v}) {
      KVBLOCKS_ASSIGN_OR_RETURN(
          auto strided,
          TensorView::Make(pages.data, geometry.dtype, absl::MakeConstSpan(part->extent.data(), 4),
                           {part->stride[0], geometry.num_kv_heads * row, row, 1}, pages.device));
      *part = strided;
    }
    view->v.data += geometry.key_dim * ElementBytes(geometry.dtype);
  }
  Spread(pages, &view->k);
  Spread(pages, &view->v);
  Spread(pages, &view->k_scales);
  Spread(pages, &view->v_scales);
  view->overlapping_blocks = placed.overlapping;
  return view;
}

absl::StatusOr<TensorView> PlacedTensor(const PlacedPages& placed, int64_t offset, DType dtype,
                                        absl::Span<const int64_t> extents) {
  const TensorView& pages = placed.pages;
  if (offset < 0 || offset > pages.extent[1]) {
    return OutOfRange("offset is ", offset, "; pages have ", pages.extent[1], " bytes");
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckElement(placed, dtype, offset));
  std::vector<int64_t> shape = {1};
  shape.insert(shape.end(), extents.begin(), extents.end());
  KVBLOCKS_ASSIGN_OR_RETURN(auto view,
                            TensorView::Make(pages.data + offset, dtype, shape, {}, pages.device));
  KVBLOCKS_RETURN_IF_ERROR(view.Validate(pages.extent[1] - offset));
  Spread(pages, &view);
  return view;
}

}  // namespace kvblocks::attention
