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
#include "attention/cpu/host_ops.h"
#include "attention/ops/args.h"
#include "attention/ops/attention_ops.h"
#include "attention/ops/exec_context.h"

namespace kvblocks::attention {

class CpuOps : public HostOps {
 public:
  const char* name() const override { return "CPU"; }

  absl::Status PagedDecode(const ExecContext& context, const PagedDecodeArgs& args) const override;
  absl::Status PagedDecodePartial(const ExecContext& context,
                                  const PagedDecodePartialArgs& args) const override;
  absl::Status ReduceSplits(const ExecContext& context,
                            const ReduceSplitsArgs& args) const override;
  absl::Status PagedPrefill(const ExecContext& context,
                            const PagedPrefillArgs& args) const override;
  absl::Status VarlenSelfAttention(const ExecContext& context,
                                   const VarlenSelfAttentionArgs& args) const override;
  absl::Status Cascade(const ExecContext& context, const CascadeArgs& args) const override;
  absl::Status MlaDecode(const ExecContext& context, const MlaDecodeArgs& args) const override;
  absl::Status SparseMlaDecode(const ExecContext& context,
                               const SparseMlaDecodeArgs& args) const override;
  absl::Status SparseMlaPrefill(const ExecContext& context,
                                const SparseMlaPrefillArgs& args) const override;
  absl::Status MergeStates(const ExecContext& context, const MergeStatesArgs& args) const override;
};

// The one instance; it has no state.
const AttentionOps& Cpu();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_CPU_OPS_H_
