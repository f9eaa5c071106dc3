// HostOps: what all CPU backends share: which contexts they refuse, and the operations that write
// and gather rows of the paged cache and those of CacheBlend. What differs is how they attend.
//
// Contexts of other devices are refused, whose memory the host could not read. Rows of the cache's
// own type are copied bit by bit; others go through float64 and are rounded once. Tokens are spread
// over the context's threads; results do not depend on them. A conversion uses one row of scratch
// per thread; copies allocate nothing.
//
// SelectHkvd ranks a NaN among the differences as +infinity and sets kNonFiniteInput; a prefix that
// is selected at some ratio is selected at every larger one. Cost: O(n * Hkv * D), and O(n) expected
// for the selection plus its sort. RotateKeys copies columns past rotary_dim, and rows that are
// rotated by nothing; in place every call rotates once more.

#ifndef KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/op_list.h"

namespace kvblocks::attention {

class HostOps : public AttentionOps {
 public:
  KVBLOCKS_KV_ROW_OPS(KVBLOCKS_OVERRIDE_RUN)

 protected:
#define KVBLOCKS_REFUSE_ON_HOST(Op)                                                      \
  absl::Status Refuse(const ExecContext& context, const Op##Args& args) const final {   \
    return context.device.on_host() ? attention::Check(context, args) : NotOnHost(context.device);  \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_REFUSE_ON_HOST)
#undef KVBLOCKS_REFUSE_ON_HOST

 private:
  static absl::Status NotOnHost(const DeviceId& device) {
    return absl::InvalidArgumentError(absl::StrCat("the context is on ", Name(device),
                                                   "; operations of the CPU run on the host"));
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
