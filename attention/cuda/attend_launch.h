// Launching AttendRows whole or in pieces that are merged.
//
// Nothing here allocates, synchronises or reads device memory. Pieces leave float32 states in the
// workspace; how many there are follows from bounds and the workspace, not from lengths.

#ifndef KVBLOCKS_ATTENTION_CUDA_ATTEND_LAUNCH_H_
#define KVBLOCKS_ATTENTION_CUDA_ATTEND_LAUNCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/prefill.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention::cuda {

// Enqueues the sums that a mask of ragged bits needs.
absl::Status CountMaskBits(CudaCall& call, MaskBitsParams bits, MaskRule& mask);

// The same where `params`, AttendRowsParams or DenseAttention, have such a mask; REQUIRES
// query_start_loc, lengths and starts in them.
template <typename Params>
absl::Status PrepareMask(CudaCall& call, Params& params) {
  MaskRule& mask = params.scoring.mask;
  if (mask.form != static_cast<uint8_t>(MaskForm::kRaggedBits)) return absl::OkStatus();
  MaskBitsParams bits;
  bits.num_requests = params.num_requests;
  bits.query_start_loc = params.query_start_loc;
  bits.kv_start_loc = params.kv_start_loc;
  if (bits.kv_start_loc == nullptr) bits.seq_lens = params.keys.seq_lens;
  return CountMaskBits(call, bits, mask);
}

// How `split` cuts keys, with max_keys an upper bound of their number. Auto cuts as long as
// multiprocessors would be idle, up to what the workspace holds.
absl::StatusOr<Pieces> PiecesOf(const CudaCall& call, const SplitPolicy& split,
                                const AttendRowsParams& params, int64_t max_keys);

// Launches AttendRows and, if params.pieces are several, the merge of their states; or kernels in
// their place.
using AttendLauncher = Error (*)(const LaunchContext&, const AttendRowsParams&);
using MergeLauncher = Error (*)(const LaunchContext&, const MergeStatesParams&);
absl::Status AttendInPieces(CudaCall& call, const AttendRowsParams& params,
                            AttendLauncher launch = LaunchAttendRows,
                            MergeLauncher merge = LaunchMergeStates);

// PagedPrefill and VarlenSelfAttention on tensor cores.
//
// Enqueues one kernel or, where keys are cut, two. A workspace is used where there is one and keys
// are worth cutting, which bounds decide, and SplitPolicy: only Auto cuts, so that with other
// policies a request does not depend on its batch.

// Cuts keys as far as the workspace has room. REQUIRES: TakesPrefill(params).
absl::Status RunPrefill(CudaCall& call, const SplitPolicy& split, PrefillParams params);

// Gives params `count` pieces of the workspace, fewer if there is no room for their states; false
// if there is not even room for one. REQUIRES: count >= 1.
bool PlacePieces(CudaCall& call, int32_t count, PrefillParams* params);

// Cascade on tensor cores: the shared prefix once for all queries, the rest per request, merged.
//
// Both parts are PagedPrefill to the kernels of decode and prefill, the prefix as one request whose
// keys are cut into pieces where row tiles are few; it begins while the last of the other part are
// still under way. The workspace takes float32 states of all rows for each piece, one of q's type
// of the part behind the prefix, and what decode needs for its own plan. How many pieces follows
// from bounds and the workspace.

// Whether it was enqueued; else nothing of the workspace is taken. Not for what these kernels are
// not built for (float32, ALiBi, positions, scales per request) nor where the workspace is too
// small. REQUIRES: checked arguments.
absl::StatusOr<bool> RunCascadeInParts(const CudaCall& call, const CascadeArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_ATTEND_LAUNCH_H_
