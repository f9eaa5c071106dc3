#include "attention/cpu/cpu_ops.h"
#include "attention/oracle/ops_suite.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() { return Cpu(); }
Tolerance ToleranceUnderTest(DType out) { return CpuTolerance(out); }
Tolerance TileScaledToleranceUnderTest(DType out) { return CpuTolerance(out); }

}  // namespace kvblocks::attention
