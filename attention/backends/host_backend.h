// HostBackend: a backend in host memory, from its operations. The class is for the
// CPU's backends only.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_HOST_BACKEND_H_
#define KVBLOCKS_ATTENTION_BACKENDS_HOST_BACKEND_H_

#include <utility>
#include <vector>

#include "kvblocks/attention_backend.h"

namespace kvblocks::attention {

// Everything that operations know, with queries of these types; CUDA's backend begins with it, too.
inline BackendSupport HostSupport(std::vector<DType> q_dtypes) {
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
  support.row_formats.clear();
  for (int format = 0; format < kNumKvRowFormats; ++format) {
    support.row_formats.push_back(static_cast<KvRowFormat>(format));
  }
  support.block_sizes = {.multiple_of = 1};
  support.types = {AttentionType::kDecoder, AttentionType::kEncoder, AttentionType::kEncoderOnly,
                   AttentionType::kEncoderDecoder};
  support.features = FeatureSet::All();
  return support;
}

class HostBackend final : public AttentionBackend {
 public:
  HostBackend(const AttentionOps& ops, std::vector<DType> q_dtypes)
      : ops_(ops), support_(HostSupport(std::move(q_dtypes))) {}
  const char* name() const override { return ops_.name(); }
  const AttentionOps& ops() const override { return ops_; }
  const BackendSupport& support() const override { return support_; }
  BackendFlags flags() const override { return {.supports_quantized_query = true}; }

 private:
  const AttentionOps& ops_;
  BackendSupport support_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_HOST_BACKEND_H_
