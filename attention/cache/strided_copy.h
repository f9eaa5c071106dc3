// CopyStrided: the elements of one view into another of the same shape and element size, bit by
// bit.
//
// Any strides; dimensions that are dense on both sides become one run of bytes. Host memory only.
// Cost: O(elements), no allocation.

#ifndef KVBLOCKS_ATTENTION_CACHE_STRIDED_COPY_H_
#define KVBLOCKS_ATTENTION_CACHE_STRIDED_COPY_H_

#include <array>
#include <cstdint>

#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

struct StridedDim {
  int64_t extent, from, to;  // strides in bytes
};

// How elements of two views of one shape are visited: dimensions of extent > 1, outermost first in
// `to`, those that are dense on both sides joined. REQUIRES: as CopyStrided, but no host memory.
struct StridedLoop {
  std::array<StridedDim, kMaxRank> dims;
  int rank = 0;

  StridedLoop(const ConstTensorView& from, const TensorView& to);
};

// REQUIRES: equal extents and element sizes, no overlap, no stride 0 in `to` but of extent 1.
void CopyStrided(const ConstTensorView& from, const TensorView& to);

// Every byte of every element becomes `byte`.
void FillStrided(const TensorView& to, std::byte byte);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_STRIDED_COPY_H_
