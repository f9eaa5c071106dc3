// The stack suite on the CPU.

#include "attention/testing/ops_suite.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() { return Cpu(); }
Tolerance ToleranceUnderTest(DType out) { return CpuTolerance(out); }
SuiteTraits TraitsUnderTest() { return {}; }
Tolerance TileScaledToleranceUnderTest(DType out) { return CpuTolerance(out); }

}  // namespace kvblocks::attention
