// The operations of the CPU's backends (kvblocks/attention_cpu.h): which contexts they refuse, what
// they do with rows of the cache, and by which engine they attend.

#ifndef KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/cpu/attend_engine.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention {

class HostOps final : public AttentionOps {
 public:
  // `simd` attends to everything but float64; null: float64 does all.
  HostOps(const char* name, const AttendEngine* simd) : name_(name), simd_(simd) {}

  const char* name() const override { return name_; }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_OVERRIDE_RUN)

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
  template <typename... View>
  bool InFloat64(const View&... views) const {
    return simd_ == nullptr || ((!views.absent() && views.dtype == DType::kF64) || ...);
  }
  template <typename... View>
  const AttendEngine& EngineFor(const View&... views) const {
    return InFloat64(views...) ? Float64Engine() : *simd_;
  }

  const char* const name_;
  const AttendEngine* const simd_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
