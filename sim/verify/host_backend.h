// HostBackend: a backend that computes on the CPU, complete for a whole layer: cache writes and
// attention.

#ifndef KVBLOCKS_SIM_VERIFY_HOST_BACKEND_H_
#define KVBLOCKS_SIM_VERIFY_HOST_BACKEND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/ops/attention_ops.h"

namespace kvblocks::sim {

// Attention by `attention`, which must outlive it; rows are written by the host's cache writers.
class HostBackend final : public attention::AttentionOps {
 public:
  explicit HostBackend(const attention::AttentionOps* attention) : attention_(attention) {}

  const char* name() const override { return attention_->name(); }
  absl::Status ReshapeAndCache(const attention::ExecContext& context,
                               const attention::ReshapeAndCacheArgs& args) const override;
  absl::Status ConcatAndCacheMla(const attention::ExecContext& context,
                                 const attention::ConcatAndCacheMlaArgs& args) const override;
  absl::Status PagedDecode(const attention::ExecContext& context,
                           const attention::PagedDecodeArgs& args) const override;
  absl::Status PagedPrefill(const attention::ExecContext& context,
                            const attention::PagedPrefillArgs& args) const override;
  absl::Status MlaDecode(const attention::ExecContext& context,
                         const attention::MlaDecodeArgs& args) const override;

 private:
  const attention::AttentionOps* attention_;
};

// "cpu", "cpu_reference".
std::vector<std::string> HostBackendNames();
// InvalidArgument for another name.
absl::StatusOr<HostBackend> FindHostBackend(const std::string& name);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_VERIFY_HOST_BACKEND_H_
