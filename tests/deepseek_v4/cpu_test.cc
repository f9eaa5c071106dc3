// The stack suite on the CPU.

#include "kvblocks/attention/cpu/cpu_ops.h"
#include "kvblocks/attention/testing/ops_suite.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() { return Cpu(); }
Tolerance ToleranceUnderTest(DType out) { return CpuTolerance(out); }
SuiteTraits TraitsUnderTest() { return {}; }
Tolerance TileScaledToleranceUnderTest(DType out) { return CpuTolerance(out); }

}  // namespace kvblocks::attention
