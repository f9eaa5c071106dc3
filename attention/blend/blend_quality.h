// CompareWithPrefill: how far a blended prefill's final rows are from those of a full one.
//
// On the host, in float64: O(rows * E). For examples, benchmarks and tests.

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_QUALITY_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_QUALITY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

struct BlendDeviation {
  double largest = 0, mean = 0;  // of |blended - full| over all elements; a NaN in either stays one
  double relative = 0;           // |blended - full| / |full| as vectors; 0 where they are equal
};

// rows [M, E] of a blend at positions i32 [M], against full [n, E], the rows of a full prefill from
// `first_position` on.
absl::StatusOr<BlendDeviation> CompareWithPrefill(const ConstTensorView& rows,
                                                  const ConstTensorView& positions,
                                                  const ConstTensorView& full,
                                                  int64_t first_position = 0);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_QUALITY_H_
