#include "kvblocks/attention/backends/kv_scale_state.h"

namespace kvblocks::attention {

void KvScaleState::SetOutputs(ComputeKvScalesArgs& args) const {
  if (!args.q.absent()) args.q_scale = q_scale_;
  args.k_scale = k_scale_;
  args.v_scale = v_scale_;
}

absl::Status KvScaleState::ComputeOnce(const AttentionOps& ops, const ExecContext& context,
                                       ComputeKvScalesArgs args) {
  if (frozen_ || args.k.empty()) return absl::OkStatus();
  SetOutputs(args);
  absl::Status status = ops.ComputeKvScales(context, args);
  frozen_ = status.ok();
  return status;
}

absl::Status KvScaleState::ComputeAndStoreOnce(const AttentionOps& ops, const ExecContext& context,
                                               ScaleAndCacheArgs args) {
  if (frozen_ || args.scales.k.empty()) return absl::OkStatus();
  SetOutputs(args.scales);
  absl::Status status = ops.ScaleAndCache(context, args);
  frozen_ = status.ok();
  return status;
}

}  // namespace kvblocks::attention
