#include "attention/testing/ops_suite.h"

#include <algorithm>
#include <cmath>

namespace kvblocks::attention {
namespace {

constexpr int64_t kDim = 32;

PagedCaseOptions ScoresOptions(const std::vector<std::vector<double>>& scores,
                               const std::vector<int64_t>& q_lens, int64_t block_size) {
  PagedCaseOptions options;
  options.lengths.clear();
  for (const std::vector<double>& of_request : scores) {
    options.lengths.push_back(static_cast<int64_t>(of_request.size()));
  }
  options.q_lens = q_lens;
  options.num_heads = options.num_kv_heads = 1;
  options.key_dim = options.value_dim = kDim;
  options.block_size = block_size;
  return options;
}

std::vector<double> OnFirstAxis(double value) {
  std::vector<double> row(kDim);
  row[0] = value;
  return row;
}

}  // namespace

ScoresCase::ScoresCase(std::vector<std::vector<double>> scores,
                       std::vector<std::vector<double>> values, std::vector<int64_t> q_lens,
                       int64_t block_size)
    : PagedCase(ScoresOptions(scores, q_lens, block_size)) {
  params.scale = 1;
  for (size_t b = 0; b < scores.size(); ++b) {
    for (size_t j = 0; j < scores[b].size(); ++j) {
      SetKey(b, j, 0, OnFirstAxis(scores[b][j]));
      SetValue(b, j, 0, std::vector<double>(kDim, values[b][j]));
    }
  }
  for (int64_t t = 0; t < num_tokens(); ++t) SetQuery(t, 0, OnFirstAxis(1));
}

PagedCaseOptions VariedDecodeOptions() {
  PagedCaseOptions options;
  options.lengths = {1, 70, 0, 16, 33, 131};
  options.key_dim = options.value_dim = 64;
  return options;
}

void ExpectExample(double actual, double expected) {
  if (!std::isfinite(expected)) {
    EXPECT_EQ(actual, expected);
    return;
  }
  const Tolerance tolerance = ToleranceUnderTest(DType::kF32);
  // The numbers are given to seven places.
  EXPECT_NEAR(actual, expected, tolerance.absolute * std::max(1.0, std::abs(expected)) + 1e-7);
}

void RunDecode(PagedCase& paged) {
  paged.ClearOutputs();
  ASSERT_EQ(OpsUnderTest().PagedDecode({}, paged.DecodeArgs()), absl::OkStatus());
}

void RunPrefill(PagedCase& paged) {
  paged.ClearOutputs();
  ASSERT_EQ(OpsUnderTest().PagedPrefill({}, paged.PrefillArgs()), absl::OkStatus());
}

void RunVarlen(PagedCase& paged) {
  paged.ClearOutputs();
  ASSERT_EQ(OpsUnderTest().VarlenSelfAttention({}, paged.VarlenArgs()), absl::OkStatus());
}

void ExpectDecodeIsExact(PagedCase& paged) {
  RunDecode(paged);
  EXPECT_EQ(paged.Mismatch(ToleranceUnderTest(paged.out.view.dtype)), "");
}

Tolerance PrefillTolerance(const PagedCase& paged) {
  const DType out = paged.out.view.dtype;
  const bool codes =
      paged.options().q_dtype == DType::kF8E4M3 && paged.options().cache_dtype == DType::kF8E4M3;
  return codes ? CodeProductsToleranceUnderTest(out) : ToleranceUnderTest(out);
}

void ExpectPrefillIsExact(PagedCase& paged) {
  RunPrefill(paged);
  EXPECT_EQ(paged.Mismatch(PrefillTolerance(paged)), "");
}

void ExpectVarlenIsExact(PagedCase& paged) {
  RunVarlen(paged);
  EXPECT_EQ(paged.Mismatch(PrefillTolerance(paged)), "");
}

void ExpectClose(const std::vector<double>& a, const std::vector<double>& b, DType out) {
  ASSERT_EQ(a.size(), b.size());
  const double limit = 2 * ToleranceUnderTest(out).absolute;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      ASSERT_NEAR(a[i], b[i], limit * std::max(1.0, std::abs(a[i]))) << "element " << i;
    } else {
      ASSERT_EQ(a[i], b[i]) << "element " << i;
    }
  }
}

}  // namespace kvblocks::attention
