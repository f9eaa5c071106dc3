#include "kvblocks/attention/cache/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "kvblocks/attention/cache/row_layout.h"

namespace kvblocks::attention {
namespace {

// Calls run(from, to, innermost) for every run of the innermost dimension; offsets in bytes.
template <typename Run>
void ForRuns(const StridedLoop& loop, const Run& run, int64_t bytes, int dim = 0, int64_t from = 0,
             int64_t to = 0) {
  if (dim + 1 >= loop.rank) {
    return run(from, to, loop.rank == 0 ? StridedDim{1, bytes, bytes} : loop.dims[dim]);
  }
  for (int64_t i = 0; i < loop.dims[dim].extent; ++i) {
    ForRuns(loop, run, bytes, dim + 1, from + i * loop.dims[dim].from, to + i * loop.dims[dim].to);
  }
}

}  // namespace

StridedLoop::StridedLoop(const ConstTensorView& from, const TensorView& to) {
  const int64_t bytes = ElementBytes(to.dtype);
  for (int i = 0; i < to.rank; ++i) {
    if (to.extent[i] == 1) continue;
    dims[rank++] = {to.extent[i], from.stride[i] * bytes, to.stride[i] * bytes};
  }
  std::sort(dims.begin(), dims.begin() + rank,
            [](const StridedDim& a, const StridedDim& b) { return a.to > b.to; });
  int joined = 0;
  for (int i = 1; i < rank; ++i) {
    StridedDim& outer = dims[joined];
    const StridedDim& inner = dims[i];
    if (outer.from == inner.from * inner.extent && outer.to == inner.to * inner.extent) {
      outer = {outer.extent * inner.extent, inner.from, inner.to};
    } else {
      dims[++joined] = inner;
    }
  }
  if (rank > 0) rank = joined + 1;
}

void CopyStrided(const ConstTensorView& from, const TensorView& to) {
  if (to.empty()) return;
  const int64_t bytes = ElementBytes(to.dtype);
  ForRuns(
      StridedLoop(from, to),
      [&](int64_t from_offset, int64_t to_offset, const StridedDim& dim) {
        CopyElements(bytes, from.data + from_offset, dim.from, to.data + to_offset, dim.to,
                     dim.extent);
      },
      bytes);
}

void FillStrided(const TensorView& to, std::byte byte) {
  if (to.empty()) return;
  const int64_t bytes = ElementBytes(to.dtype);
  ForRuns(
      StridedLoop(to, to),
      [&](int64_t, int64_t offset, const StridedDim& dim) {
        if (dim.to == bytes) {
          std::memset(to.data + offset, std::to_integer<int>(byte), dim.extent * bytes);
        } else {
          for (int64_t i = 0; i < dim.extent; ++i) {
            std::memset(to.data + offset + i * dim.to, std::to_integer<int>(byte), bytes);
          }
        }
      },
      bytes);
}

}  // namespace kvblocks::attention
