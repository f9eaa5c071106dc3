// CopyStrided: the elements of one view into another of the same shape and element size, bit by
// bit.
//
// Any strides; dimensions that are dense on both sides become one run of bytes. Host memory only.
// Cost: O(elements), no allocation.

#ifndef KVBLOCKS_ATTENTION_CACHE_STRIDED_COPY_H_
#define KVBLOCKS_ATTENTION_CACHE_STRIDED_COPY_H_

#include "attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// REQUIRES: equal extents and element sizes, no overlap, no stride 0 in `to` but of extent 1.
void CopyStrided(const ConstTensorView& from, const TensorView& to);

// Every byte of every element becomes `byte`.
void FillStrided(const TensorView& to, std::byte byte);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_STRIDED_COPY_H_
