// AttentionOps: every operation of the attention floor, as a backend offers it.
//
// Op(context, args) for each Op of op_list.h takes an OpArgs of args.h, refuses bad ones with a
// Status that names operation, argument, value and limit before anything is written, and answers
// Unimplemented where the backend has no such operation. Thread-compatible; distinct contexts are
// independent.

#ifndef KVBLOCKS_ATTENTION_OPS_ATTENTION_OPS_H_
#define KVBLOCKS_ATTENTION_OPS_ATTENTION_OPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/op_list.h"
#include "kvblocks/attention/tensor/errors.h"

namespace kvblocks::attention {

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  virtual const char* name() const = 0;

#define KVBLOCKS_REFUSE_OP(Op)                                                      \
  virtual absl::Status Op(const ExecContext& context, const Op##Args& args) const { \
    (void)context, (void)args;                                                      \
    return Unimplemented(name(), " has no " #Op);                                   \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_REFUSE_OP)
#undef KVBLOCKS_REFUSE_OP

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
    return InvalidArgument(
        "MaskedAttention: params.mask is empty; give a mask or call the implicit operation");
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_ATTENTION_OPS_H_
