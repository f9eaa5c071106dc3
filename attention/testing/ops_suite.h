// What the suites in this folder (ops_suite_*.cc) need to know about the backend they run against.
//
// Each test binary links the suites it wants and defines these functions, so that one text holds
// all backends to the same behaviour. Arguments are in host memory; a backend of another device is
// put behind an AttentionOps that copies.

#ifndef KVBLOCKS_ATTENTION_TESTING_OPS_SUITE_H_
#define KVBLOCKS_ATTENTION_TESTING_OPS_SUITE_H_

#include <cstddef>
#include <vector>

#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention {

// --- Defined by the test binary ---

const AttentionOps& OpsUnderTest();
// Of outputs of this type.
Tolerance ToleranceUnderTest(DType out);
// ... of prefill from codes on both sides of Q K (e4m3).
Tolerance CodeProductsToleranceUnderTest(DType out);
// ... from rows of codes with a scale per tile that is no power of two (kMlaFp8_656).
Tolerance TileScaledToleranceUnderTest(DType out);
// What the rules leave to a backend's device.
struct SuiteTraits {
  // Rows and blocks of tensors begin at multiples of so many bytes (AT-5).
  int64_t alignment = 1;
  // Lengths and states are where the host sees them: plans for others, and an lse of +infinity, are
  // refused. Else they are skipped and flagged.
  bool host_sees_values = true;
};
SuiteTraits TraitsUnderTest();

// --- For the suites ---

// Attention of one query over given scores and values, as the worked examples have it: dimensions
// of 32, the query and each key on the first axis, values the same in all columns. Float32, scale
// 1.
class ScoresCase : public PagedCase {
 public:
  // Requests' scores and values, one each per key; the last q_len keys of a request are its new
  // tokens.
  ScoresCase(std::vector<std::vector<double>> scores, std::vector<std::vector<double>> values,
             std::vector<int64_t> q_lens, int64_t block_size);
  // One request with one query.
  ScoresCase(std::vector<double> scores, std::vector<double> values, int64_t block_size = 2)
      : ScoresCase(std::vector<std::vector<double>>{std::move(scores)},
                   std::vector<std::vector<double>>{std::move(values)}, {1}, block_size) {}

  double out_at(int64_t row) const { return ValueAt(out, row * 32); }
  double lse_at(int64_t row) const { return ValueAt(lse, row); }

 private:
  static double ValueAt(const Tensor& tensor, int64_t i) { return tensor.Get()[i]; }
};

// Decode rows of varied lengths, one of them empty; head sizes of 64.
PagedCaseOptions VariedDecodeOptions();

// A number of a worked example, within the tolerance of float32.
void ExpectExample(double actual, double expected);

// Runs the operation on the case and expects success.
void RunDecode(PagedCase& paged);
void RunPrefill(PagedCase& paged);
void RunVarlen(PagedCase& paged);
// ... and agreement with the dense oracle.
void ExpectDecodeIsExact(PagedCase& paged);
// What such a case's prefill may differ by.
Tolerance PrefillTolerance(const PagedCase& paged);
void ExpectPrefillIsExact(PagedCase& paged);
void ExpectVarlenIsExact(PagedCase& paged);

// That two computations of the same outputs differ by no more than both may be off.
void ExpectClose(const std::vector<double>& a, const std::vector<double>& b, DType out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_OPS_SUITE_H_
