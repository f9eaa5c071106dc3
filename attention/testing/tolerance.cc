#include "attention/testing/tolerance.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "attention/tensor/small_floats.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

// Half a unit in the last place of a number just above a power of two, relative to it.
double HalfUlp(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF8E4M3:
      return 0x1p-4;
    default:
      return 0x1p-3;  // e5m2
  }
}

bool SameSpecial(double actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual);
  return actual == expected;
}

}  // namespace

Tolerance ReferenceTolerance(DType out) {
  const double rounding = HalfUlp(out) * 1.001 + 1e-12;
  return {rounding, rounding, 1e-12, 0x1.01p-24};
}

Tolerance CpuTolerance(DType out) {
  // Outputs are float32 first; rounding twice is a little more than rounding once.
  const bool narrow = out != DType::kF32 && out != DType::kF64;
  const double rounding = narrow ? HalfUlp(out) * 1.001 : 0;
  return {1e-6 + rounding, 1e-6 + rounding, 1e-6, 0x1p-24, 0.1};
}

Tolerance CudaTolerance(DType out) {
  switch (out) {
    case DType::kF16:
      return {1e-3, 2e-3, 2e-5, 1e-5};
    case DType::kBF16:
      return {6e-3, 1.5e-2, 2e-5, 1e-5};
    case DType::kF8E4M3:
      return {7e-2, 7e-2, 2e-5, 1e-5};
    case DType::kF8E5M2:  // one bit less than e4m3
      return {1.4e-1, 1.4e-1, 2e-5, 1e-5};
    default:
      return {1e-5, 3e-5, 2e-5, 0x1p-24};
  }
}

Tolerance CudaCodeProductsTolerance(DType out) {
  // Sums that are cut at 2^-13 of their largest part: of scores up to 8, 1e-3 at most, and so much
  // of each weight.
  Tolerance tolerance = CudaTolerance(out);
  tolerance.relative_l2 += 1e-3;
  tolerance.absolute += 1e-3;
  tolerance.lse_absolute = 1e-3;
  return tolerance;
}

Tolerance CudaTileScaledTolerance(DType out) {
  if (out != DType::kBF16 && out != DType::kF16) return CudaTolerance(out);
  return {1e-2, 2e-2, 5e-3, 1e-5};
}

std::string Mismatch(const DenseResult& expected, const ConstTensorView& out,
                     const ConstTensorView& lse, const Tolerance& tolerance) {
  const int64_t num_heads = out.extent[1], value_dim = out.extent[2];
  const int64_t rows = static_cast<int64_t>(expected.lse.size()) / std::max<int64_t>(1, num_heads);
  if (out.extent[0] < rows) return absl::StrCat(out.extent[0], " rows of output, not ", rows);
  std::string worst;
  double worst_excess = 1;
  const auto offend = [&](double excess, auto&&... text) {
    if (!(excess <= worst_excess)) worst_excess = excess, worst = absl::StrCat(text...);
  };
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const int64_t row = t * num_heads + h;
      const double m = std::max(1.0, expected.value_range[row]);
      double error2 = 0, norm2 = 0;
      for (int64_t d = 0; d < value_dim; ++d) {
        const double want = expected.out[row * value_dim + d];
        const double got = LoadElement(out.dtype, out.At(t, h, d));
        if (!std::isfinite(want) || !std::isfinite(got)) {
          if (!SameSpecial(got, want)) {
            offend(INFINITY, "out[", t, ", ", h, ", ", d, "] is ", got, ", not ", want);
          }
          continue;
        }
        const double error = std::abs(got - want);
        error2 += error * error;
        norm2 += want * want;
        if (error > tolerance.absolute * m) {
          offend(error / (tolerance.absolute * m), "out[", t, ", ", h, ", ", d, "] is ", got,
                 ", not ", want, ": off by ", error, ", limit ", tolerance.absolute * m);
        }
      }
      const double relative = std::sqrt(error2 / norm2);
      if (std::sqrt(norm2) >= tolerance.relative_from && relative > tolerance.relative_l2) {
        offend(relative / tolerance.relative_l2, "out[", t, ", ", h,
               "] has a relative L2 error of ", relative, ", limit ", tolerance.relative_l2);
      }
      if (lse.absent()) continue;
      const double want = expected.lse[row], got = LoadElement(lse.dtype, lse.At(t, h));
      if (!std::isfinite(want) || !std::isfinite(got)) {
        if (!SameSpecial(got, want)) {
          offend(INFINITY, "lse[", t, ", ", h, "] is ", got, ", not ", want);
        }
        continue;
      }
      const double limit = tolerance.lse_absolute + tolerance.lse_relative * std::abs(want);
      if (std::abs(got - want) > limit) {
        offend(std::abs(got - want) / limit, "lse[", t, ", ", h, "] is ", got, ", not ", want,
               ", limit ", limit);
      }
    }
  }
  return worst;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& expected, double limit) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(got[i], expected[i]) << "element " << i;
    } else {
      ASSERT_NEAR(got[i], expected[i], limit) << "element " << i;
    }
  }
}

}  // namespace kvblocks::attention
