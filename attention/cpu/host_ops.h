// HostOps: the operations that all CPU backends share: moving and quantising rows of the cache and
// those of CacheBlend. What differs between backends is how they attend.

#ifndef KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_

#include "absl/status/status.h"
#include "attention/cpu/blend_ops.h"
#include "attention/cpu/cache_ops.h"
#include "attention/ops/attention_ops.h"

namespace kvblocks::attention {

class HostOps : public AttentionOps {
 public:
  absl::Status ReshapeAndCache(const ExecContext& context,
                               const ReshapeAndCacheArgs& args) const final {
    return CpuReshapeAndCache(context, args);
  }
  absl::Status ConcatAndCacheMla(const ExecContext& context,
                                 const ConcatAndCacheMlaArgs& args) const final {
    return CpuConcatAndCacheMla(context, args);
  }
  absl::Status ComputeKvScales(const ExecContext& context,
                               const ComputeKvScalesArgs& args) const final {
    return CpuComputeKvScales(context, args);
  }
  absl::Status GatherCache(const ExecContext& context, const GatherCacheArgs& args) const final {
    return CpuGatherCache(context, args);
  }
  absl::Status SelectHkvd(const ExecContext& context, const SelectHkvdArgs& args) const final {
    return CpuSelectHkvd(context, args);
  }
  absl::Status FuseKv(const ExecContext& context, const FuseKvArgs& args) const final {
    return CpuFuseKv(context, args);
  }
  absl::Status RotateKeys(const ExecContext& context, const RotateKeysArgs& args) const final {
    return CpuRotateKeys(context, args);
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_HOST_OPS_H_
