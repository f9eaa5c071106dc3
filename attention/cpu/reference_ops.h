// CPU_REFERENCE: attention in float64, rounded once; what every other backend is measured against.
//
// Inputs are converted exactly, 8-bit caches are code * scale. Per (token, head): the exact maximum
// of the scores, then exponentials and the value sum in key order; one rounding to the output type,
// to nearest even. Any head size, group, block size and cache layout. Results depend neither on the
// threads nor on the batch. Cost: about a nanosecond per multiplication, and memory for the scores of
// up to 64 rows per thread.

#ifndef KVBLOCKS_ATTENTION_CPU_REFERENCE_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_REFERENCE_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/cpu/host_ops.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/op_list.h"

namespace kvblocks::attention {

class CpuReferenceOps : public HostOps {
 public:
  const char* name() const override { return "CPU_REFERENCE"; }

  KVBLOCKS_ATTENDING_OPS(KVBLOCKS_OVERRIDE_RUN)
};

// The one instance; it has no state.
const AttentionOps& CpuReference();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_REFERENCE_OPS_H_
