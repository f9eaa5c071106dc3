#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {

const AttentionOps& CpuReference() {
  static const CpuReferenceOps* const ops = new CpuReferenceOps;
  return *ops;
}

}  // namespace kvblocks::attention
