// CUDA's operations: each takes the fastest kernel that was built for its arguments and enqueues
// it. None allocates, synchronises or reads device memory.
//
// Dense decode with pieces needs a workspace: Fixed and Count always; Auto cuts no finer than what
// there is. PagedPrefill and VarlenSelfAttention take a row's keys in one piece unless the split is
// Auto. Cascade's two parts (attend_launch.h) need a workspace; without, or where tensor cores do
// not serve, one pass reads the shared keys through row 0 of the table. Sparse decode cuts lists as
// Auto cuts keys. SelectHkvd needs 8 bytes of workspace per token, ComputeKvScales and
// ScaleAndCache 3 * 528 * 4 per scale of the tensor with most of them, VarlenSelfAttention with
// kv_seq_lens 4 bytes per request.
//
// A plan of the host (PagedDecodeArgs::plan) says where pieces begin and end. It travels with the
// call, in parameters of kernels, 240 pieces to a launch; a captured graph keeps it. Which block of
// threads does which piece is up to the kernel. General attention (attend_rows.h), which serves
// what the fast decode is not built for, takes only the number of pieces from a plan.

#ifndef KVBLOCKS_ATTENTION_CUDA_ENQUEUE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_ENQUEUE_OPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cuda/cuda_call.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention::cuda {

#define KVBLOCKS_DECLARE_ENQUEUE(Op) \
  absl::Status Enqueue(CudaCall& call, const Checked<Op##Args>& checked);
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_DECLARE_ENQUEUE)
#undef KVBLOCKS_DECLARE_ENQUEUE

// What CUDA refuses: what every backend does (ops/checks.h), then what no kernel addresses, plans
// that do not fit, and, as Unimplemented, what is not built.
#define KVBLOCKS_DECLARE_CHECK_ON_CUDA(Op) \
  absl::Status CheckOnCuda(const ExecContext& context, const Op##Args& args);
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_DECLARE_CHECK_ON_CUDA)
#undef KVBLOCKS_DECLARE_CHECK_ON_CUDA

// Checks and runs an operation of a backend's class.
#define KVBLOCKS_DEFINE_ON_CUDA(Class, Op)                                                     \
  absl::Status Class::Refuse(const ExecContext& context, const Op##Args& args) const {         \
    return cuda::CheckOnCuda(context, args);                                                   \
  }                                                                                            \
  absl::Status Class::Run(const Checked<Op##Args>& checked) const {                            \
    absl::StatusOr<cuda::CudaCall> call = cuda::CudaCall::Begin(#Op, checked.context());       \
    return call.ok() ? cuda::Enqueue(*call, checked) : call.status();                          \
  }

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_ENQUEUE_OPS_H_
