#include "kvblocks/attention/cache/row_layout.h"

#include <cstring>

namespace kvblocks::attention {
namespace {

template <int kBytes>
void CopyEach(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
              int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, kBytes);
  }
}

}  // namespace

void CopyElements(int64_t element_bytes, const std::byte* from, int64_t from_stride, std::byte* to,
                  int64_t to_stride, int64_t count) {
  if (from_stride == element_bytes && to_stride == element_bytes) {
    if (count > 0) std::memcpy(to, from, count * element_bytes);
    return;
  }
  switch (element_bytes) {
    case 1:
      return CopyEach<1>(from, from_stride, to, to_stride, count);
    case 2:
      return CopyEach<2>(from, from_stride, to, to_stride, count);
    case 4:
      return CopyEach<4>(from, from_stride, to, to_stride, count);
    default:
      return CopyEach<8>(from, from_stride, to, to_stride, count);
  }
}

void WriteRow(const RowLayout& layout, std::byte* row, const std::byte* from, int64_t stride) {
  const int64_t bytes = ElementBytes(layout.dtype);
  for (int64_t piece = 0; piece < layout.num_pieces; ++piece) {
    CopyElements(bytes, from + piece * layout.piece_elements * stride, stride,
                 row + piece * layout.piece_stride, layout.element_stride, layout.piece_elements);
  }
}

void ReadRow(const ConstRowLayout& layout, const std::byte* row, std::byte* to, int64_t stride) {
  const int64_t bytes = ElementBytes(layout.dtype);
  for (int64_t piece = 0; piece < layout.num_pieces; ++piece) {
    CopyElements(bytes, row + piece * layout.piece_stride, layout.element_stride,
                 to + piece * layout.piece_elements * stride, stride, layout.piece_elements);
  }
}

}  // namespace kvblocks::attention
