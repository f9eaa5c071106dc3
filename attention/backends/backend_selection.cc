#include "kvblocks/attention/backends/backend_selection.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/checks/status_macros.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention {

absl::StatusOr<const AttentionBackend*> SelectBackend(const BackendRegistry& registry,
                                                      const BackendConfig& config,
                                                      const std::string& forced) {
  std::vector<const AttentionBackend*> candidates;
  if (forced.empty()) {
    candidates = registry.backends();
  } else {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto found, registry.Find(forced));
    candidates = {found};
  }
  std::vector<std::string> refusals;
  for (const AttentionBackend* backend : candidates) {
    const std::vector<Reason> reasons = backend->Check(config);
    if (reasons.empty()) return backend;
    refusals.push_back(absl::StrCat(
        backend->name(), ": [",
        absl::StrJoin(reasons, ", ",
                      [](std::string* out, const Reason& reason) { *out += reason.text; }),
        "]"));
  }
  return NotFound("no backend for ", DebugString(config), ": ",
                  refusals.empty() ? "none is registered" : absl::StrJoin(refusals, "; "));
}

absl::StatusOr<const AttentionBackend*> BackendSelector::Select(const BackendConfig& config,
                                                                const std::string& forced) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const int64_t now = registry_->generation(); now != generation_) {
    decisions_.clear();
    generation_ = now;
  }
  const Key key(config, forced);
  auto found = decisions_.find(key);
  if (found == decisions_.end()) {
    found = decisions_.emplace(key, SelectBackend(*registry_, config, forced)).first;
  }
  return found->second;
}

int64_t BackendSelector::num_decisions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(decisions_.size());
}

}  // namespace kvblocks::attention
