#include "kvblocks/attention_backend.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

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

absl::Status BackendRegistry::Register(const AttentionBackend* backend, int priority) {
  if (backend == nullptr) return InvalidArgument("a null attention backend");
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string name = backend->name();
  for (const Entry& entry : entries_) {
    if (name == entry.backend->name()) {
      return absl::AlreadyExistsError(
          absl::StrCat("an attention backend ", name, " is registered; choose another name"));
    }
  }
  const auto place = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.priority > priority; });
  entries_.insert(place, {priority, backend});
  return absl::OkStatus();
}

absl::StatusOr<const AttentionBackend*> BackendRegistry::Find(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Entry& entry : entries_) {
    if (name == entry.backend->name()) return entry.backend;
  }
  return NotFound(
      "no attention backend ", name, "; there are {",
      absl::StrJoin(entries_, ", ",
                    [](std::string* out, const Entry& entry) { *out += entry.backend->name(); }),
      "}");
}

std::vector<const AttentionBackend*> BackendRegistry::backends() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<const AttentionBackend*> result;
  for (const Entry& entry : entries_) result.push_back(entry.backend);
  return result;
}

int64_t BackendRegistry::generation() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

BackendRegistry& GlobalBackendRegistry() {
  static BackendRegistry* const registry = new BackendRegistry;
  return *registry;
}

}  // namespace kvblocks::attention
