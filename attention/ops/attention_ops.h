// AttentionOps: every operation of the attention floor, as a backend offers it.
//
// Each takes its arguments by the structures of args.h, refuses bad ones with a Status that names
// operation, argument, value and limit before anything is written, and answers Unimplemented where
// the backend has no such operation. Thread-compatible; distinct contexts are independent.

#ifndef KVBLOCKS_ATTENTION_OPS_ATTENTION_OPS_H_
#define KVBLOCKS_ATTENTION_OPS_ATTENTION_OPS_H_


#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "attention/ops/args.h"
#include "attention/ops/exec_context.h"

namespace kvblocks::attention {

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  virtual const char* name() const = 0;

#define KVBLOCKS_ATTENTION_OP(Op)                                                   \
  virtual absl::Status Op(const ExecContext& context, const Op##Args& args) const { \
    (void)context, (void)args;                                                      \
    return absl::UnimplementedError(absl::StrCat(name(), " has no " #Op));          \
  }

  KVBLOCKS_ATTENTION_OP(ReshapeAndCache)
  KVBLOCKS_ATTENTION_OP(ConcatAndCacheMla)
  KVBLOCKS_ATTENTION_OP(ComputeKvScales)
  KVBLOCKS_ATTENTION_OP(PagedDecode)
  KVBLOCKS_ATTENTION_OP(PagedDecodePartial)
  KVBLOCKS_ATTENTION_OP(ReduceSplits)
  KVBLOCKS_ATTENTION_OP(PagedPrefill)
  KVBLOCKS_ATTENTION_OP(VarlenSelfAttention)
  KVBLOCKS_ATTENTION_OP(Cascade)
  KVBLOCKS_ATTENTION_OP(MlaDecode)
  KVBLOCKS_ATTENTION_OP(SparseMlaDecode)
  KVBLOCKS_ATTENTION_OP(SparseMlaPrefill)
  KVBLOCKS_ATTENTION_OP(MergeStates)
  KVBLOCKS_ATTENTION_OP(GatherCache)
  KVBLOCKS_ATTENTION_OP(SelectHkvd)
  KVBLOCKS_ATTENTION_OP(FuseKv)
  KVBLOCKS_ATTENTION_OP(RotateKeys)

#undef KVBLOCKS_ATTENTION_OP

  // PagedPrefill and VarlenSelfAttention that must be given an explicit mask.
  absl::Status MaskedAttention(const ExecContext& context, const PagedPrefillArgs& args) const {
    if (!args.params.mask.enabled()) return NoMask();
    return PagedPrefill(context, args);
  }
  absl::Status MaskedAttention(const ExecContext& context,
                               const VarlenSelfAttentionArgs& args) const {
    if (!args.params.mask.enabled()) return NoMask();
    return VarlenSelfAttention(context, args);
  }

 private:
  static absl::Status NoMask() {
    return absl::InvalidArgumentError(
        "MaskedAttention: params.mask is empty; give a mask or call the implicit operation");
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_ATTENTION_OPS_H_
