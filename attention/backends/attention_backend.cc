#include "kvblocks/attention_backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attention/ops/arg_checker.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

// Zeros from dimension `dim` on, at `data`.
void Zero(const TensorView& view, int dim, std::byte* data, int dense_from) {
  const int64_t size = ElementBytes(view.dtype);
  if (dim == dense_from) {
    int64_t elements = 1;
    for (int i = dim; i < view.rank; ++i) elements *= view.extent[i];
    std::memset(data, 0, elements * size);
    return;
  }
  for (int64_t i = 0; i < view.extent[dim]; ++i) {
    Zero(view, dim + 1, data + i * view.stride[dim] * size, dense_from);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionImpl>> AttentionBackend::MakeImpl(
    const LayerConfig& layer) const {
  return layer.sparse.enabled() ? SparseMlaLayer::Create(layer, this)
                                : AttentionLayer::Create(layer, this);
}

absl::Status AttentionBackend::BuildList(const ExecContext&, const WindowIndicesArgs& args) const {
  return BuildSwaIndices(args);
}
absl::Status AttentionBackend::BuildList(const ExecContext&,
                                         const DenseCompressedIndicesArgs& args) const {
  return BuildDenseCompressedIndices(args);
}
absl::Status AttentionBackend::BuildList(const ExecContext&, const TopkSlotsArgs& args) const {
  return BuildTopkSlots(args);
}

int64_t AttentionBackend::PreferredBlockSize(int64_t default_size) const {
  const BlockSizes& sizes = SupportedKernelBlockSizes();
  default_size = std::clamp<int64_t>(default_size, 1, INT64_MAX / 2);
  if (sizes.contains(default_size)) return default_size;
  int64_t best = 0;
  if (sizes.multiple_of > 0) {
    best = RoundUp(default_size, sizes.multiple_of);
  }
  int64_t largest = best;
  for (int64_t size : sizes.exact) {
    if (size > default_size && (best == 0 || size < best)) best = size;
    largest = std::max(largest, size);
  }
  return best > 0 ? best : largest;
}

int32_t AttentionBackend::num_multiprocessors(const ExecContext& context) const {
  return NumThreads(context.threads);
}

absl::Status AttentionBackend::PlanDecode(const ExecContext&, const PagedDecodeArgs&,
                                          DeviceDecodePlan*) const {
  return Unimplemented(name(), " plans no decodes");
}

absl::Status AttentionBackend::FillZeros(const ExecContext& context, const TensorView& out) const {
  if (!context.device.on_host() || !out.device.on_host()) {
    return Unimplemented(name(), " cannot fill tensors on ", Name(out.device), " with zeros");
  }
  ArgChecker check(context, "FillZeros");
  if (!check.View("out", out, DTypeSet::All())) return check.status();
  if (out.empty()) return absl::OkStatus();
  int dense_from = out.rank;
  int64_t dense = 1;
  while (dense_from > 0 &&
         (out.extent[dense_from - 1] == 1 || out.stride[dense_from - 1] == dense)) {
    dense *= out.extent[--dense_from];
  }
  Zero(out, 0, out.data, dense_from);
  return absl::OkStatus();
}

// --- Choosing ---

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
