#include "attention/cache/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "attention/cache/row_layout.h"

namespace kvblocks::attention {
namespace {

struct Dim {
  int64_t extent, from, to;  // strides in bytes
};

// Dimensions of extent > 1, outermost first in `to`, runs that are dense on both sides joined.
struct Loop {
  std::array<Dim, kMaxRank> dims;
  int rank = 0;

  Loop(const ConstTensorView& from, const TensorView& to) {
    const int64_t bytes = ElementBytes(to.dtype);
    for (int i = 0; i < to.rank; ++i) {
      if (to.extent[i] == 1) continue;
      dims[rank++] = {to.extent[i], from.stride[i] * bytes, to.stride[i] * bytes};
    }
    std::sort(dims.begin(), dims.begin() + rank,
              [](const Dim& a, const Dim& b) { return a.to > b.to; });
    int joined = 0;
    for (int i = 1; i < rank; ++i) {
      Dim& outer = dims[joined];
      const Dim& inner = dims[i];
      if (outer.from == inner.from * inner.extent && outer.to == inner.to * inner.extent) {
        outer = {outer.extent * inner.extent, inner.from, inner.to};
      } else {
        dims[++joined] = inner;
      }
    }
    if (rank > 0) rank = joined + 1;
  }

  // Calls run(from, to, innermost) for every run of the innermost dimension; offsets in bytes.
  template <typename Run>
  void ForRuns(const Run& run, int64_t bytes, int dim = 0, int64_t from = 0, int64_t to = 0) const {
    if (dim + 1 >= rank) {
      return run(from, to, rank == 0 ? Dim{1, bytes, bytes} : dims[dim]);
    }
    for (int64_t i = 0; i < dims[dim].extent; ++i) {
      ForRuns(run, bytes, dim + 1, from + i * dims[dim].from, to + i * dims[dim].to);
    }
  }
};

}  // namespace

void CopyStrided(const ConstTensorView& from, const TensorView& to) {
  if (to.empty()) return;
  const int64_t bytes = ElementBytes(to.dtype);
  Loop(from, to).ForRuns(
      [&](int64_t from_offset, int64_t to_offset, const Dim& dim) {
        CopyElements(bytes, from.data + from_offset, dim.from, to.data + to_offset, dim.to,
                     dim.extent);
      },
      bytes);
}

void FillStrided(const TensorView& to, std::byte byte) {
  if (to.empty()) return;
  const int64_t bytes = ElementBytes(to.dtype);
  Loop(to, to).ForRuns(
      [&](int64_t, int64_t offset, const Dim& dim) {
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
