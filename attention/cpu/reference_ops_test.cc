#include "attention/testing/ops_suite.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() { return CpuReference(); }
Tolerance ToleranceUnderTest(DType out) { return ReferenceTolerance(out); }
SuiteTraits TraitsUnderTest() { return {}; }
Tolerance CodeProductsToleranceUnderTest(DType out) { return ReferenceTolerance(out); }
Tolerance TileScaledToleranceUnderTest(DType out) { return ReferenceTolerance(out); }

}  // namespace kvblocks::attention
