#include "kvblocks/attention/backends/kv_scale_state.h"

namespace kvblocks::attention {

absl::Status KvScaleState::ComputeOnce(const AttentionOps& ops, const ExecContext& context,
                                       ComputeKvScalesArgs args) {
  if (frozen_ || args.k.empty()) return absl::OkStatus();
  if (!args.q.absent()) args.q_scale = q_scale_;
  args.k_scale = k_scale_;
  args.v_scale = v_scale_;
  absl::Status status = ops.ComputeKvScales(context, args);
  frozen_ = status.ok();
  return status;
}

}  // namespace kvblocks::attention
