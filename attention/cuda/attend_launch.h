// What the attention operations of CUDA share on the host: what they refuse beyond the checks of
// all backends, and launching AttendRows whole or in pieces that are merged.
//
// Nothing here allocates, synchronises or reads device memory. Pieces leave float32 states in the
// workspace; how many there are follows from bounds and the workspace, not from lengths.

#ifndef KVBLOCKS_ATTENTION_CUDA_ATTEND_LAUNCH_H_
#define KVBLOCKS_ATTENTION_CUDA_ATTEND_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kvblocks/attention/backends/workspace.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"
#include "kvblocks/attention/cuda/kernels/merge_states.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/params.h"

namespace kvblocks::attention::cuda {

// Collects what CUDA's operations refuse: InvalidArgument for views no kernel addresses and for
// contexts of the host, Unimplemented for what is not built. Keeps the first finding.
class CudaChecker {
 public:
  CudaChecker(const char* op, const ExecContext& context);

  // Rows of values: not float64, innermost stride 1, fewer than 2^31 rows.
  CudaChecker& Values(const char* name, const ConstTensorView& view);
  // Index arrays, sinks, slopes: the innermost stride is 1.
  CudaChecker& Dense(const char* name, const ConstTensorView& view);
  CudaChecker& KvCache(const char* name, const ConstKvCacheView& cache);
  CudaChecker& Params(const AttnParams& params);
  CudaChecker& HeadDims(int64_t key_dim, int64_t value_dim);

  const absl::Status& status() const { return status_; }

 private:
  template <typename... Text>
  void Invalid(const Text&... text);
  void Stride(const char* name, const ConstTensorView& view, int dim, int64_t wanted);

  const char* op_;
  absl::Status status_;
};

// A launch context and the workspace behind it.
struct CudaCall {
  LaunchContext launch;
  WorkspaceArena arena;
};
absl::StatusOr<CudaCall> BeginCall(const char* op, const ExecContext& context);

// A piece of the workspace for `count` numbers.
template <typename T>
absl::StatusOr<T*> TakeArray(const char* op, CudaCall& call, int64_t count);

// Fills what a mask of ragged bits needs; REQUIRES query_start_loc, lengths and starts in `params`.
absl::Status PrepareMask(const char* op, CudaCall& call, const AttnParams& attn,
                         AttendRowsParams& params);

// How `split` cuts keys, with max_keys an upper bound of their number. Auto cuts as long as
// multiprocessors would be idle, up to what the workspace holds.
absl::StatusOr<Pieces> PiecesOf(const char* op, const CudaCall& call, const SplitPolicy& split,
                                const AttendRowsParams& params, int64_t max_keys);

// Launches AttendRows and, if params.pieces are several, the merge of their states; or kernels in
// their place.
using AttendLauncher = Error (*)(const LaunchContext&, const AttendRowsParams&);
using MergeLauncher = Error (*)(const LaunchContext&, const MergeStatesParams&);
absl::Status AttendInPieces(const char* op, CudaCall& call, const AttendRowsParams& params,
                            AttendLauncher launch = LaunchAttendRows,
                            MergeLauncher merge = LaunchMergeStates);

// --- Implementation ---

template <typename T>
absl::StatusOr<T*> TakeArray(const char* op, CudaCall& call, int64_t count) {
  const absl::StatusOr<absl::Span<std::byte>> piece = call.arena.Take(count * sizeof(T));
  if (!piece.ok()) {
    return absl::Status(piece.status().code(),
                        absl::StrCat(op, ": ", std::string(piece.status().message())));
  }
  return reinterpret_cast<T*>(piece->data());
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_ATTEND_LAUNCH_H_
