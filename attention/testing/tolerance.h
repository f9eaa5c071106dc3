// Tolerance: how far an output may be from the float64 oracle, by element type, and the comparison.
//
// Per (token, head): relative L2 error, absolute error in units of m = max(1, max |v| over the rows
// the query sees), and the error of the lse. Rows whose values cancel out, with a reference norm
// below relative_from, use the absolute limit only. NaN and infinities must be where the reference
// has them, -infinity in lse exactly.

#ifndef KVBLOCKS_ATTENTION_TESTING_TOLERANCE_H_
#define KVBLOCKS_ATTENTION_TESTING_TOLERANCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attention/testing/dense_oracle.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

struct Tolerance {
  double relative_l2 = 0;
  double absolute = 0;  // times m
  double lse_absolute = 0, lse_relative = 0;
  // Rows whose reference norm is below this have only the absolute limit.
  double relative_from = 1e-3;
};

// Of a float64 computation that rounds once to `out`.
Tolerance ReferenceTolerance(DType out);
// Of CPU kernels in float32. A rounding error of values of the size of 1 is 6e-8: it is 1e-6 of
// rows that cancel out to less than a tenth.
Tolerance CpuTolerance(DType out);
// Of CUDA kernels that compute in `out`.
Tolerance CudaTolerance(DType out);
// ... from scores of codes on both sides, where the GPU adds up products in some 14 bits.
Tolerance CudaCodeProductsTolerance(DType out);
// ... from rows that they round to 16 bits after scaling, tile by tile; float32 is not rounded.
Tolerance CudaTileScaledTolerance(DType out);

// Empty if `out` [rows, H, Dv] and `lse` [rows, H] (or absent) are within the limits, else the
// worst offence in words. `expected` as the oracle gives it, rows one after another.
std::string Mismatch(const DenseResult& expected, const ConstTensorView& out,
                     const ConstTensorView& lse, const Tolerance& tolerance);

// That numbers differ by no more than the limit; infinities not at all.
void ExpectNear(const std::vector<double>& got, const std::vector<double>& expected, double limit);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_TOLERANCE_H_
