#include "sim/verify/host_backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attention/cpu/cache_ops.h"
#include "attention/cpu/cpu_ops.h"
#include "attention/cpu/reference_ops.h"

namespace kvblocks::sim {

absl::Status HostBackend::ReshapeAndCache(const attention::ExecContext& context,
                                          const attention::ReshapeAndCacheArgs& args) const {
  return attention::CpuReshapeAndCache(context, args);
}

absl::Status HostBackend::ConcatAndCacheMla(const attention::ExecContext& context,
                                            const attention::ConcatAndCacheMlaArgs& args) const {
  return attention::CpuConcatAndCacheMla(context, args);
}

absl::Status HostBackend::PagedDecode(const attention::ExecContext& context,
                                      const attention::PagedDecodeArgs& args) const {
  return attention_->PagedDecode(context, args);
}

absl::Status HostBackend::PagedPrefill(const attention::ExecContext& context,
                                       const attention::PagedPrefillArgs& args) const {
  return attention_->PagedPrefill(context, args);
}

absl::Status HostBackend::MlaDecode(const attention::ExecContext& context,
                                    const attention::MlaDecodeArgs& args) const {
  return attention_->MlaDecode(context, args);
}

std::vector<std::string> HostBackendNames() { return {"cpu", "cpu_reference"}; }

absl::StatusOr<HostBackend> FindHostBackend(const std::string& name) {
  if (name == "cpu") return HostBackend(&attention::Cpu());
  if (name == "cpu_reference") return HostBackend(&attention::CpuReference());
  return absl::InvalidArgumentError(absl::StrCat("got \"", name, "\", expected one of ",
                                                 absl::StrJoin(HostBackendNames(), ", ")));
}

}  // namespace kvblocks::sim
