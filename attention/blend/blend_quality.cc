#include "kvblocks/attention/blend/blend_quality.h"

#include <cmath>

#include "kvblocks/attention/ops/arg_checker.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {

absl::StatusOr<BlendDeviation> CompareWithPrefill(const ConstTensorView& rows,
                                                  const ConstTensorView& positions,
                                                  const ConstTensorView& full,
                                                  int64_t first_position) {
  const ExecContext on_host;
  ArgChecker check(on_host, "CompareWithPrefill");
  Dim compared{"M"}, all{"n"}, width{"E"};
  check.In("rows", rows, kComputeTypes, {&compared, &width});
  check.In("positions", positions, DType::kI32, {&compared});
  check.In("full", full, kComputeTypes, {&all, &width});
  if (!check.ok()) return check.status();
  const HostArray<int32_t> position(positions);
  for (int64_t r = 0; r < compared.size; ++r) {
    const int64_t t = position[r] - first_position;
    if (t >= 0 && t < all.size) continue;
    check.OutOfRange("positions[", r, "] is ", position[r], "; full has rows of ", first_position,
                     " to below ", first_position + all.size);
    return check.status();
  }
  BlendDeviation deviation;
  double sum = 0, squares = 0, norm = 0;
  for (int64_t r = 0; r < compared.size; ++r) {
    for (int64_t e = 0; e < width.size; ++e) {
      const double expected = LoadElement(full.dtype, full.At(position[r] - first_position, e));
      const double difference = std::abs(LoadElement(rows.dtype, rows.At(r, e)) - expected);
      // NaN is larger than everything.
      if (!(difference <= deviation.largest)) deviation.largest = difference;
      sum += difference;
      squares += difference * difference;
      norm += expected * expected;
    }
  }
  const int64_t count = compared.size * width.size;
  if (count > 0) deviation.mean = sum / static_cast<double>(count);
  if (std::isnan(sum)) deviation.largest = sum;
  if (squares != 0) deviation.relative = std::sqrt(squares / norm);
  return deviation;
}

}  // namespace kvblocks::attention
