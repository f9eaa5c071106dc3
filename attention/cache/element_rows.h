// Rows of elements to and from float64: LoadElement and StoreElement in bulk.
//
// The same results, bit for bit, as one element at a time (small_floats.h defines them), with the
// choice of type outside the loop and conversions that stay in registers: a few nanoseconds an
// element. Strides count elements. No alignment needed.

#ifndef KVBLOCKS_ATTENTION_CACHE_ELEMENT_ROWS_H_
#define KVBLOCKS_ATTENTION_CACHE_ELEMENT_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/tensor/dtype.h"

namespace kvblocks::attention {

void LoadElements(DType dtype, const std::byte* from, int64_t stride, int64_t count, double* out);

// Stores values[i] rounded by small_floats.h, one element after another. The cache codes kI8 are
// those of DoubleToInt8Code: -128 is never written.
void StoreElements(DType dtype, const double* values, int64_t count, std::byte* to);

// The largest magnitude of the finite values, or 0: one infinity must not turn what shares its scale
// into zeros.
double FiniteAmax(const double* values, int64_t count);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_ELEMENT_ROWS_H_
