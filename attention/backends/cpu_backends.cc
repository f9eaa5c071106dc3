#include "attention/backends/cpu_backends.h"

#include <vector>

#include "attention/cpu/blend_ops.h"
#include "attention/cpu/cache_ops.h"
#include "attention/cpu/reference_ops.h"

namespace kvblocks::attention {
namespace {

// Attention of `Attention`, and the host's one way of moving rows.
template <typename Attention>
class HostOps final : public Attention {
 public:
#define KVBLOCKS_HOST_OP(Op)                                                         \
  absl::Status Op(const ExecContext& context, const Op##Args& args) const override { \
    return Cpu##Op(context, args);                                                   \
  }
  KVBLOCKS_HOST_OP(ReshapeAndCache)
  KVBLOCKS_HOST_OP(ConcatAndCacheMla)
  KVBLOCKS_HOST_OP(ComputeKvScales)
  KVBLOCKS_HOST_OP(GatherCache)
  KVBLOCKS_HOST_OP(SelectHkvd)
  KVBLOCKS_HOST_OP(FuseKv)
  KVBLOCKS_HOST_OP(RotateKeys)
#undef KVBLOCKS_HOST_OP
};

BackendSupport HostSupport(std::vector<DType> q_dtypes) {
  BackendSupport support;
  for (int op = 0; op < kNumOpKinds; ++op) support.ops.push_back(static_cast<OpKind>(op));
  support.cache_dtypes = q_dtypes;
  for (DType code : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kU8}) {
    support.cache_dtypes.push_back(code);  // kU8: rows that carry their own scales
  }
  support.q_dtypes = std::move(q_dtypes);
  support.layouts = {KvLayout::kPagedX,    KvLayout::kNhd,      KvLayout::kHnd,
                     KvLayout::kMlaLatent, KvLayout::kMlaSplit, KvLayout::kMlaFp8_656,
                     KvLayout::kMlaFp8_584};
  support.block_sizes = {.multiple_of = 1};
  support.types = {AttentionType::kDecoder, AttentionType::kEncoder, AttentionType::kEncoderOnly,
                   AttentionType::kEncoderDecoder};
  support.features = FeatureSet::All();
  return support;
}

template <typename Attention>
class HostBackend final : public AttentionBackend {
 public:
  explicit HostBackend(std::vector<DType> q_dtypes) : support_(HostSupport(std::move(q_dtypes))) {}
  const char* name() const override { return ops_.name(); }
  const AttentionOps& ops() const override { return ops_; }
  const BackendSupport& support() const override { return support_; }

 private:
  HostOps<Attention> ops_;
  BackendSupport support_;
};

}  // namespace

const AttentionBackend& CpuReferenceBackend() {
  static const auto* const backend =
      new HostBackend<CpuReferenceOps>({DType::kF64, DType::kF32, DType::kF16, DType::kBF16});
  return *backend;
}

absl::Status RegisterCpuBackends(BackendRegistry& registry) {
  return registry.Register(&CpuReferenceBackend(), kCpuReferencePriority);
}

BackendRegistry& DefaultBackendRegistry() {
  static const absl::Status registered = RegisterCpuBackends(GlobalBackendRegistry());
  (void)registered;  // fails only if somebody took the name, whose backend is then used
  return GlobalBackendRegistry();
}

}  // namespace kvblocks::attention
