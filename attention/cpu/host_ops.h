// HostOps: the operations that all CPU backends share: moving and quantising rows of the cache and
// those of CacheBlend. What differs between backends is how they attend.

#ifndef KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/cpu/blend_ops.h"
#include "kvblocks/attention/cpu/cache_ops.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/op_list.h"

namespace kvblocks::attention {

class HostOps : public AttentionOps {
 public:
#define KVBLOCKS_CALL_CPU_OP(Op)                                                  \
  absl::Status Op(const ExecContext& context, const Op##Args& args) const final { \
    return Cpu##Op(context, args);                                                \
  }
  KVBLOCKS_KV_ROW_OPS(KVBLOCKS_CALL_CPU_OP)
#undef KVBLOCKS_CALL_CPU_OP
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
