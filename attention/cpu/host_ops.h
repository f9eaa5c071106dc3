// The operations of the CPU's backends (kvblocks/attention_cpu.h) as classes.
//
// HostOps is what both share: which contexts they refuse, and the operations that write and gather
// rows of the paged cache and those of CacheBlend. What differs is how they attend.

#ifndef KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention {

class HostOps : public AttentionOps {
 public:
  KVBLOCKS_KV_ROW_OPS(KVBLOCKS_OVERRIDE_RUN)

 protected:
#define KVBLOCKS_REFUSE_ON_HOST(Op)                                                                \
  absl::Status Refuse(const ExecContext& context, const Op##Args& args) const final {              \
    return context.device.on_host() ? attention::Check(context, args) : NotOnHost(context.device); \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_REFUSE_ON_HOST)
#undef KVBLOCKS_REFUSE_ON_HOST

 private:
  static absl::Status NotOnHost(const DeviceId& device) {
    return absl::InvalidArgumentError(absl::StrCat("the context is on ", Name(device),
                                                   "; operations of the CPU run on the host"));
  }
};

class CpuOps : public HostOps {
 public:
  const char* name() const override { return "CPU"; }

  KVBLOCKS_ATTENDING_OPS(KVBLOCKS_OVERRIDE_RUN)
};

class CpuReferenceOps : public HostOps {
 public:
  const char* name() const override { return "CPU_REFERENCE"; }

  KVBLOCKS_ATTENDING_OPS(KVBLOCKS_OVERRIDE_RUN)
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
