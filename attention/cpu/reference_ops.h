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
#include "attention/cpu/host_ops.h"
#include "attention/ops/args.h"
#include "attention/ops/attention_ops.h"
#include "attention/ops/exec_context.h"

namespace kvblocks::attention {

class CpuReferenceOps : public HostOps {
 public:
  const char* name() const override { return "CPU_REFERENCE"; }

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
const AttentionOps& CpuReference();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_REFERENCE_OPS_H_
