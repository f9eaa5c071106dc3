// CPU: attention with SIMD instructions and threads, the backend that users run.
//
// Every op takes any dense or latent layout, f32, f16 and bf16 and the 8-bit cache types, any head
// sizes, and all features of AttnParams. Results are within float32 accuracy (relative 1e-6; see
// the tests), rounded to the output type through float32. They are the same bit for bit whatever
// the threads, the other requests of the batch and the ids of the blocks; a decode equals the same
// row of a prefill, an explicit mask the rule it spells out. They may differ between instruction
// sets.
//
// Only pieces change numbers, within the accuracy: a SplitPolicy, a plan or the prefix of a Cascade
// cut the keys, Auto without a plan does not. Float64 tensors go to CPU_REFERENCE.
//
// Cost: keys and values are read once per request, and once per 32 query tokens of a prefill at
// groups of 4. A thread keeps scratch of the order of a megabyte between calls.

#ifndef KVBLOCKS_ATTENTION_CPU_CPU_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_CPU_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/cpu/host_ops.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/op_list.h"

namespace kvblocks::attention {

class CpuOps : public HostOps {
 public:
  const char* name() const override { return "CPU"; }

  KVBLOCKS_ATTENDING_OPS(KVBLOCKS_OVERRIDE_RUN)
};

// The one instance; it has no state.
const AttentionOps& Cpu();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_CPU_OPS_H_
