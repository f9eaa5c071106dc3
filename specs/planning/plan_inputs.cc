#include "specs/planning/plan_inputs.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "checks/checked_int64.h"
#include "checks/field_error.h"
#include "kvblocks/kv_cache_config.h"

namespace kvblocks {
namespace {

class InputChecker {
 public:
  InputChecker(std::span<const LayerCache> caches, const PlanOptions& options,
               std::vector<PlanError>* errors)
      : caches_(caches), options_(options), errors_(errors) {}

  PlanInputs Run() {
    CheckOptions();
    if (static_cast<int64_t>(caches_.size()) > kMaxCacheEntries) {
      BadValue("layer caches of all workers", static_cast<int64_t>(caches_.size()),
               "at most " + std::to_string(kMaxCacheEntries));
      return {};
    }
    CollectCaches();
    const auto distinct = static_cast<int64_t>(inputs_.distinct.size());
    if (distinct > kMaxPlannedCaches) {
      BadValue("distinct layer caches", distinct, "at most " + std::to_string(kMaxPlannedCaches));
    }
    CollectMemory();
    CheckEncoderTokens();
    CheckContextParallel();
    CheckStateModes();
    return std::move(inputs_);
  }

 private:
  void BadValue(std::string_view field, int64_t value, std::string_view allowed) {
    errors_->push_back(ValueError(field, std::to_string(value), allowed));
  }

  void CheckRange(std::string_view field, int64_t value, int64_t lowest, int64_t highest) {
    const absl::Status status = kvblocks::CheckRange(field, value, lowest, highest);
    if (status.ok()) return;
    errors_->push_back(
        {.code = PlanErrorCode::kBadValue, .message = std::string(status.message())});
  }

  void CheckOptions() {
    const PlanOptions& o = options_;
    if (o.limits.max_model_len < 0 || o.limits.max_model_len > kMaxPlannedTokens) {
      BadValue("limits.max_model_len", o.limits.max_model_len,
               "a number from 1 to " + std::to_string(kMaxPlannedTokens) + ", or 0 for automatic");
    }
    CheckRange("limits.max_in_flight_tokens", o.limits.max_in_flight_tokens, 1, kMaxPlannedTokens);
    CheckRange("limits.decode_context_parallel", o.limits.decode_context_parallel, 1, 1 << 16);
    CheckRange("longest_automatic_len", o.longest_automatic_len, 1, kMaxPlannedTokens);
    CheckRange("typical_len", o.typical_len, 0, kMaxPlannedTokens);
    CheckRange("table_cost_bytes", o.table_cost_bytes, 0, int64_t{1} << 44);
    CheckRange("state_chunk_tokens", o.state_chunk_tokens, 1, kMaxPlannedTokens);
    CheckRange("max_chunk_bytes", o.max_chunk_bytes, 1, int64_t{1} << 40);
    if (o.num_blocks_override.has_value()) {
      CheckRange("num_blocks_override", *o.num_blocks_override, 1, kMaxNumBlocks);
    }
    if (o.match_unit.has_value()) CheckRange("match_unit", *o.match_unit, 1, kMaxPlannedTokens);
    for (const int64_t size : o.kernel_block_sizes) {
      CheckRange("kernel_block_sizes", size, 1, kMaxPlannedTokens);
    }
    if (o.policy == PlanPolicy::kUpstream && o.layout.has_value()) {
      errors_->push_back(
          ValueError("layout", LayoutName(*o.layout),
                     "none under the upstream policy, whose layout follows from the groups"));
    }
    if (o.policy == PlanPolicy::kExact && o.memory_layout.has_value()) {
      errors_->push_back(ValueError(
          "memory_layout",
          *o.memory_layout == MemoryLayout::kBlockOutermost ? "block-outermost" : "layer-outermost",
          "none under the exact policy, which has `layout`"));
    }
  }

  // The state of every block is something that only 0.25 keeps.
  void CheckStateModes() {
    if (options_.version == EngineVersion::kVllm025) return;
    PlanError error = {.code = PlanErrorCode::kBadValue};
    for (const LayerCache& cache : inputs_.distinct) {
      const auto* mamba = cache.spec.get_if<MambaSpec>();
      if (mamba != nullptr && mamba->options().cache_mode == MambaCacheMode::kAll) {
        error.layers.push_back(cache.name);
      }
    }
    if (error.layers.empty()) return;
    error.message = "cache_mode of layer \"" + error.layers.front() +
                    "\": got all, expected none or align; only version 0.25 has mode all";
    errors_->push_back(std::move(error));
  }

  void CollectCaches() {
    absl::flat_hash_map<std::string_view, size_t> index_of_name;
    for (const LayerCache& cache : caches_) {
      if (cache.name.empty() || !std::ranges::all_of(cache.name, IsPrintable)) {
        errors_->push_back({.code = PlanErrorCode::kBadValue,
                            .message = "layer name \"" + Printable(cache.name) +
                                       "\": expected printable ASCII, at least one character",
                            .layers = {cache.name}});
        continue;
      }
      if (cache.worker < 0 || cache.worker >= kMaxPlannedWorkers) {
        BadValue("worker of layer \"" + cache.name + "\"", cache.worker,
                 "a number from 0 to " + std::to_string(kMaxPlannedWorkers - 1));
        continue;
      }
      num_workers_ = std::max(num_workers_, cache.worker + 1);
      if (cache.spec.kind() == KvCacheSpecKind::kEncoderOnlyAttention) continue;
      const auto [entry, is_new] = index_of_name.emplace(cache.name, inputs_.distinct.size());
      if (is_new) {
        inputs_.distinct.push_back(cache);
        inputs_.workers.push_back({cache.worker});
      } else {
        AddWorker(cache, entry->second);
      }
    }
    for (std::vector<int>& workers : inputs_.workers) std::ranges::sort(workers);
    CheckSumOfPages(inputs_.distinct, errors_);
  }

  void AddWorker(const LayerCache& cache, size_t index) {
    LayerCache& first = inputs_.distinct[index];
    std::vector<int>& workers = inputs_.workers[index];
    if (std::ranges::find(workers, cache.worker) != workers.end()) {
      errors_->push_back({.code = PlanErrorCode::kNotInOneGroup,
                          .message = "layer cache \"" + cache.name +
                                     "\" is there twice on worker " + std::to_string(cache.worker) +
                                     " and would be in two groups; expected each name once",
                          .layers = {cache.name},
                          .worker = cache.worker});
      return;
    }
    workers.push_back(cache.worker);
    first.is_draft |= cache.is_draft;
    if (cache.spec == first.spec) return;
    errors_->push_back({.code = PlanErrorCode::kConflictingSpecs,
                        .message = "layer cache \"" + cache.name + "\" is " +
                                   first.spec.ToString() + " on worker " +
                                   std::to_string(first.worker) + " and " + cache.spec.ToString() +
                                   " on worker " + std::to_string(cache.worker) +
                                   "; expected one spec on all workers",
                        .layers = {cache.name},
                        .worker = cache.worker});
  }

  void CollectMemory() {
    const std::vector<int64_t>& given = options_.available_bytes;
    if (given.size() <= 1) {
      num_workers_ = std::max(num_workers_, 1);
    } else if (static_cast<int>(given.size()) < num_workers_ || given.size() > kMaxPlannedWorkers) {
      BadValue("available_bytes", static_cast<int64_t>(given.size()),
               "one entry, or one per worker, of which there are " + std::to_string(num_workers_));
      return;
    } else {
      num_workers_ = static_cast<int>(given.size());
    }
    inputs_.available_bytes.assign(num_workers_, 0);
    if (options_.num_blocks_override.has_value() || inputs_.distinct.empty()) return;
    if (given.empty()) {
      BadValue("available_bytes", 0, "one entry, or one per worker, or num_blocks_override");
      return;
    }
    for (int w = 0; w < num_workers_; ++w) {
      const int64_t bytes = given.size() == 1 ? given.front() : given[w];
      inputs_.available_bytes[w] = bytes;
      if (bytes > kMaxWorkerBytes) {
        BadValue("available_bytes", bytes, "at most " + std::to_string(kMaxWorkerBytes));
        return;
      }
      if (bytes <= 0) {
        errors_->push_back({.code = PlanErrorCode::kNoMemory,
                            .message = "worker " + std::to_string(w) + " has " +
                                       std::to_string(bytes) +
                                       " bytes available for the KV cache; raise the fraction of "
                                       "memory that it may use, or give it more memory",
                            .worker = w,
                            .available = bytes});
        if (given.size() == 1) break;
      }
    }
  }

  void CheckEncoderTokens() {
    for (const LayerCache& cache : inputs_.distinct) {
      if (cache.spec.kind() != KvCacheSpecKind::kCrossAttention) continue;
      CheckRange("limits.max_encoder_tokens, which cross attention needs,",
                 options_.limits.max_encoder_tokens, 1, kMaxPlannedTokens);
      return;
    }
  }

  void CheckContextParallel() {
    const int64_t ranks = options_.limits.decode_context_parallel;
    if (ranks <= 1) return;
    PlanError error = {.code = PlanErrorCode::kContextParallelWindow};
    for (const LayerCache& cache : inputs_.distinct) {
      if (cache.spec.sliding_window().has_value() ||
          cache.spec.attention_chunk_size().has_value()) {
        error.layers.push_back(cache.name);
      }
    }
    if (error.layers.empty()) return;
    error.message = "decode_context_parallel is " + std::to_string(ranks) +
                    ", expected 1 with window or chunk layers, of which there are " +
                    std::to_string(error.layers.size()) + " (\"" + error.layers.front() +
                    "\" for one)";
    errors_->push_back(std::move(error));
  }

  static bool IsPrintable(char c) { return c >= 0x20 && c < 0x7f; }
  static std::string Printable(std::string text) {
    for (char& c : text) {
      if (!IsPrintable(c)) c = '?';
    }
    return text;
  }

  const std::span<const LayerCache> caches_;
  const PlanOptions& options_;
  std::vector<PlanError>* const errors_;
  int num_workers_ = 0;
  PlanInputs inputs_;
};

}  // namespace

bool CheckSumOfPages(std::span<const LayerCache> caches, std::vector<PlanError>* errors) {
  CheckedInt64 pages(0);
  for (const LayerCache& cache : caches) pages = pages + cache.spec.page_bytes();
  if (pages.value().value_or(kMaxPlannedPages + 1) <= kMaxPlannedPages) return true;
  errors->push_back({.code = PlanErrorCode::kBadValue,
                     .message = "pages of all layer caches, one each: expected a sum of at most " +
                                std::to_string(kMaxPlannedPages) +
                                " bytes, which no model comes near"});
  return false;
}

PlanInputs CheckInputs(std::span<const LayerCache> caches, const PlanOptions& options,
                       std::vector<PlanError>* errors) {
  return InputChecker(caches, options, errors).Run();
}

}  // namespace kvblocks
