#include "kvblocks/attention/cuda/prefill_ops.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "kvblocks/attention/cuda/attend_launch.h"
#include "kvblocks/attention/cuda/kernels/prefill_merge.h"

namespace kvblocks::attention::cuda {

bool PlacePieces(CudaCall& call, int32_t count, PrefillParams* params) {
  const int64_t fitting = call.RoomFor(2) / PrefillPieceBytes(*params);
  count = static_cast<int32_t>(std::min<int64_t>(count, fitting));
  if (count < 1) return false;
  const int64_t rows = int64_t{params->num_tokens} * params->num_heads * count;
  const auto outs = call.Take<float>(rows * params->value_dim), stats = call.Take<float>(rows * 2);
  if (!outs.ok() || !stats.ok()) return false;
  params->pieces = {count, *outs, *stats};
  return true;
}

absl::Status RunPrefill(CudaCall& call, const SplitPolicy& split, PrefillParams params) {
  if (absl::Status prepared = PrepareMask(call, params); !prepared.ok()) return prepared;
  if (split.kind == SplitPolicy::Kind::kAuto) {
    const int32_t count = PiecesForPrefill(call.launch(), params);
    if (count > 1 && PlacePieces(call, count, &params) && params.pieces.count == 1) {
      params.pieces = {};  // no room for more
    }
  }
  const absl::Status status = call.Launch(LaunchPrefill, params);
  if (!status.ok() || params.pieces.outs == nullptr) return status;
  return call.Launch(LaunchPrefillMerge, MergeOf(params));
}

}  // namespace kvblocks::attention::cuda
