#include "kvblocks/plan.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "checks/checked_int64.h"
#include "specs/planning/grouping.h"
#include "specs/planning/layer_groups.h"
#include "specs/planning/memory_map.h"
#include "specs/planning/plan_inputs.h"
#include "specs/planning/pool_sizing.h"

namespace kvblocks {
namespace {

// --- The configured length if a request of it fits every worker, or the longest that does if the
// length is automatic. ---

// "16.00 GiB"; "131,072".
std::string Gibibytes(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first_digit = number < 0 ? 1 : 0;
  for (size_t i = text.size(); i > first_digit + 3;) {
    i -= 3;
    text.insert(i, ",");
  }
  return text;
}

std::string OnWorker(const Plan& plan, int worker) {
  return plan.workers.size() == 1 ? "" : "worker " + std::to_string(worker) + ": ";
}

// The two numbers so that they differ where they do.
std::pair<std::string, std::string> InReadableUnits(int64_t needed, int64_t available) {
  if (Gibibytes(needed) != Gibibytes(available)) return {Gibibytes(needed), Gibibytes(available)};
  return {Grouped(needed) + " bytes", Grouped(available) + " bytes"};
}

PlanError DoesNotFit(const Plan& plan, int worker, int64_t length, int64_t longest) {
  const int64_t needed = plan.NeededBytes(length, worker);
  const int64_t available = plan.workers[worker].available_bytes;
  const auto [needed_text, available_text] = InReadableUnits(needed, available);
  PlanError error = {.code = PlanErrorCode::kRequestDoesNotFit,
                     .message = OnWorker(plan, worker) + "one request of " + Grouped(length) +
                                " tokens needs " + needed_text + " of KV cache, " + available_text +
                                " are available",
                     .worker = worker,
                     .needed = needed,
                     .available = available};
  if (longest > 0) {
    error.message += "; longest length that fits: " + Grouped(longest);
    error.longest_length = longest;
  }
  return error;
}

PlanError NoLengthFits(const Plan& plan, int worker) {
  const int64_t needed = plan.NeededBytes(1, worker);
  const int64_t available = plan.workers[worker].available_bytes;
  return {.code = PlanErrorCode::kNoLengthFits,
          .message = OnWorker(plan, worker) + "no length fits: " + Grouped(available) +
                     " bytes are available for KV cache, a request of one token needs " +
                     Grouped(needed) + " bytes",
          .worker = worker,
          .needed = needed,
          .available = available};
}

struct FittedLength {
  int64_t length = 0;
  std::optional<int> limiting_worker = std::nullopt;  // where an automatic length was cut
};

// `plan` has its policy, layout, capacity and the sizes of its workers. Errors: E-11 per worker on
// which the length does not fit, E-12 per worker on which no length fits.
std::optional<FittedLength> FitLength(const Plan& plan, const PoolSize& pool,
                                      const PlanOptions& options, std::vector<PlanError>* errors) {
  const bool automatic = options.limits.max_model_len == 0;
  FittedLength fitted = {.length = automatic ? options.longest_automatic_len
                                             : options.limits.max_model_len};
  const int64_t wanted = fitted.length;
  bool ok = true;
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const WorkerPlan& worker = plan.workers[w];
    // A worker without layers fits everything.
    if (std::ranges::all_of(worker.group_page_bytes, [](int64_t page) { return page == 0; })) {
      continue;
    }
    const int64_t longest = plan.capacity.LongestLength(OwnUnits(pool, worker, options), wanted);
    if (longest == wanted) continue;
    if (automatic && longest > 0) {
      if (longest < fitted.length) fitted = {longest, static_cast<int>(w)};
      continue;
    }
    ok = false;
    errors->push_back(automatic ? NoLengthFits(plan, static_cast<int>(w))
                                : DoesNotFit(plan, static_cast<int>(w), wanted, longest));
  }
  if (!ok) return std::nullopt;
  return fitted;
}

// One attempt: a plan with one layout, or the errors that prevent it.
class LayoutPlanner {
 public:
  LayoutPlanner(const PlanInputs& inputs, const PlanOptions& options, PoolLayout layout)
      : inputs_(inputs), options_(options), layout_(layout) {}

  PlanResult Run() {
    std::optional<Grouping> grouping =
        GroupLayers(inputs_.distinct, options_, layout_, TypicalLength(), &result_.errors);
    if (!grouping.has_value()) return std::move(result_);
    grouping_ = *std::move(grouping);
    if (!CheckSumOfPages(grouping_.stored, &result_.errors) || !CheckOverride()) {
      return std::move(result_);
    }
    CheckKernelBlocks();
    const auto sizes = PlanBlockSizes(GroupSpecs(), options_.limits.decode_context_parallel,
                                      options_.hashes_needed, options_.match_unit, &result_.errors);
    Size();
    const std::optional<FittedLength> fitted = FitLength(plan_, pool_, options_, &result_.errors);
    if (!result_.errors.empty()) return std::move(result_);
    plan_.limits = options_.limits;
    plan_.limits.max_model_len = fitted->length;
    plan_.limiting_worker = fitted->limiting_worker;
    MapMemory(grouping_, projected_, layout_, &pool_);
    plan_.workers = std::move(pool_.workers);
    AddLayers();
    AddGroups();
    AddConfig(*sizes);
    result_.plan = std::move(plan_);
    return std::move(result_);
  }

 private:
  int64_t ConfiguredLength() const {
    return options_.limits.max_model_len > 0 ? options_.limits.max_model_len
                                             : options_.longest_automatic_len;
  }
  int64_t TypicalLength() const {
    return options_.typical_len > 0 ? options_.typical_len : ConfiguredLength();
  }

  std::vector<KvCacheSpec> GroupSpecs() const {
    std::vector<KvCacheSpec> specs;
    for (const LayerGroup& group : grouping_.groups) specs.push_back(group.spec);
    return specs;
  }

  // Block sizes may have grown since the input was checked.
  bool CheckOverride() {
    if (!options_.num_blocks_override.has_value()) return true;
    CheckedInt64 bytes(0);
    for (const LayerCache& cache : grouping_.stored) bytes = bytes + cache.spec.page_bytes();
    bytes = bytes * *options_.num_blocks_override;
    if (bytes.value().value_or(kMaxWorkerBytes + 1) <= kMaxWorkerBytes) return true;
    result_.errors.push_back(
        {.code = PlanErrorCode::kBadValue,
         .message = "num_blocks_override: got " + std::to_string(*options_.num_blocks_override) +
                    ", expected a pool of at most " + std::to_string(kMaxWorkerBytes) + " bytes"});
    return false;
  }

  void CheckKernelBlocks() {
    const std::vector<int64_t>& allowed = options_.kernel_block_sizes;
    if (allowed.empty()) return;
    std::string text;
    for (const int64_t size : allowed) text += (text.empty() ? "" : ", ") + std::to_string(size);
    for (const LayerCache& cache : grouping_.stored) {
      const int64_t block = cache.spec.block_size();
      if (cache.spec.kind() == KvCacheSpecKind::kMamba ||
          std::ranges::any_of(allowed, [&](int64_t size) { return block % size == 0; })) {
        continue;
      }
      PlanError error =
          ValueError("block_size of layer \"" + cache.name + "\"", std::to_string(block),
                     "a multiple of a block size of the attention kernels: " + text);
      error.layers = {cache.name};
      error.available = block;
      result_.errors.push_back(std::move(error));
    }
  }

  void Size() {
    plan_.policy = options_.policy;
    plan_.version = options_.version;
    // Layers of one group lie side by side whatever was asked for, unless in chunks.
    if (layout_ == PoolLayout::kSlab && grouping_.groups.size() <= 1) {
      layout_ = PoolLayout::kUniform;
    }
    if (options_.policy == PlanPolicy::kUpstream && grouping_.groups.size() > 1 &&
        (grouping_.by_tuples || grouping_.block_outermost)) {
      layout_ = PoolLayout::kSlab;
    }
    if (grouping_.groups.empty()) layout_ = PoolLayout::kUniform;
    plan_.layout = layout_;
    projected_ = ProjectGroups(grouping_.groups, inputs_.workers,
                               static_cast<int>(inputs_.available_bytes.size()));
    pool_ = SizePool(grouping_, projected_, inputs_, options_, layout_, ConfiguredLength());
    plan_.capacity = pool_.capacity;
    plan_.workers = pool_.workers;
  }

  void AddLayers() {
    for (size_t i = 0; i < inputs_.distinct.size(); ++i) {
      const LayerCache& declared = inputs_.distinct[i];
      plan_.layers.push_back({.name = declared.name,
                              .declared = declared.spec,
                              .stored = grouping_.stored[i].spec,
                              .is_draft = declared.is_draft,
                              .workers = inputs_.workers[i]});
    }
  }

  void AddGroups() {
    size_t most_layers = 0;
    for (const LayerGroup& group : grouping_.groups) {
      most_layers = std::max(most_layers, group.layers.size());
    }
    bool any_draft = false;
    for (size_t g = 0; g < grouping_.groups.size(); ++g) {
      const LayerGroup& source = grouping_.groups[g];
      PlannedGroup group = {.layers = source.layers,
                            .spec = source.spec,
                            .is_aggregate = source.is_aggregate,
                            .page_class = plan_.capacity.groups[g].page_class,
                            .billed_window = source.billed_window};
      for (const int layer : source.layers) {
        group.is_draft |= plan_.layers[layer].is_draft;
        group.page_bytes += plan_.layers[layer].stored.page_bytes();
      }
      any_draft |= group.is_draft;
      if (layout_ == PoolLayout::kUniform) {
        group.padding_layers = static_cast<int64_t>(most_layers - source.layers.size());
      }
      group.metadata_key = MetadataKey(group);
      plan_.groups.push_back(std::move(group));
    }
    if (options_.use_eagle && !any_draft && HasCompressedRows(grouping_.stored)) FlagLastGroup();
  }

  // Groups are alike if their layers show attention the same windows, shapes and block size.
  int MetadataKey(const PlannedGroup& group) {
    std::vector<KvCacheSpec> facts;
    for (const int layer : group.layers) {
      for (const KvCacheSpec& spec : {plan_.layers[layer].declared, plan_.layers[layer].stored}) {
        if (std::ranges::find(facts, spec) == facts.end()) facts.push_back(spec);
      }
    }
    const auto same = std::ranges::find(metadata_, facts);
    if (same != metadata_.end()) return static_cast<int>(same - metadata_.begin());
    metadata_.push_back(std::move(facts));
    return static_cast<int>(metadata_.size()) - 1;
  }

  // The drafter runs on the last registered layer.
  void FlagLastGroup() {
    const int last = static_cast<int>(plan_.layers.size()) - 1;
    for (PlannedGroup& group : plan_.groups) {
      if (std::ranges::find(group.layers, last) != group.layers.end()) group.is_draft = true;
    }
  }

  void AddConfig(const PlannedBlockSizes& sizes) {
    KvCacheConfig& config = plan_.config;
    config.num_blocks = pool_.num_blocks;
    config.native = pool_.native;
    if (plan_.groups.empty()) return;
    config.scheduler_block_size = sizes.scheduler;
    config.hash_block_size = sizes.hash;
    for (const PlannedGroup& group : plan_.groups) {
      KvCacheGroup of_manager = {.spec = ManagerSpec(group.spec), .is_draft = group.is_draft};
      for (const int layer : group.layers) {
        of_manager.layer_names.push_back(plan_.layers[layer].name);
      }
      config.groups.push_back(std::move(of_manager));
    }
  }

  // A block manager counts the tokens that a block covers over all context-parallel ranks.
  KvCacheSpec ManagerSpec(const KvCacheSpec& spec) const {
    const int64_t block = EffectiveBlockSize(spec, options_.limits.decode_context_parallel);
    if (block == spec.block_size()) return spec;
    absl::StatusOr<KvCacheSpec> covering = spec.WithPageSizePadded(std::nullopt);
    if (covering.ok()) covering = covering->WithBlockSize(block);
    return covering.ok() ? *std::move(covering) : spec;
  }

  const PlanInputs& inputs_;
  const PlanOptions& options_;
  PoolLayout layout_;
  Grouping grouping_;
  ProjectedGroups projected_;
  PoolSize pool_;
  std::vector<std::vector<KvCacheSpec>> metadata_;
  Plan plan_;
  PlanResult result_;
};

// Of two plans, whether the second serves more; a tie goes to fewer groups.
bool IsBetter(const Plan& plan, const Plan& best) {
  if (plan.limits.max_model_len != best.limits.max_model_len) {
    return plan.limits.max_model_len > best.limits.max_model_len;
  }
  const double capacity = plan.Concurrency(plan.limits.max_model_len);
  const double best_capacity = best.Concurrency(plan.limits.max_model_len);
  if (capacity != best_capacity) return capacity > best_capacity;
  return plan.groups.size() < best.groups.size();
}

int64_t LongestLength(const std::vector<PlanError>& errors) {
  int64_t longest = -1;
  for (const PlanError& error : errors) {
    if (error.code != PlanErrorCode::kRequestDoesNotFit) return -1;
    const int64_t length = error.longest_length.value_or(0);
    longest = longest < 0 ? length : std::min(longest, length);
  }
  return longest;
}

}  // namespace

PlanResult MakePlan(std::span<const LayerCache> caches, const PlanOptions& options) {
  PlanResult result;
  const PlanInputs inputs = CheckInputs(caches, options, &result.errors);
  if (!result.errors.empty()) return result;
  if (options.policy == PlanPolicy::kUpstream || options.layout.has_value()) {
    return LayoutPlanner(inputs, options, options.layout.value_or(PoolLayout::kUniform)).Run();
  }
  // If no layout will do, the errors are those of the one that comes nearest.
  for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    PlanResult attempt = LayoutPlanner(inputs, options, layout).Run();
    if (attempt.ok()) {
      if (!result.ok() || IsBetter(*attempt.plan, *result.plan)) result = std::move(attempt);
    } else if (!result.ok() && (result.errors.empty() ||
                                LongestLength(attempt.errors) > LongestLength(result.errors))) {
      result = std::move(attempt);
    }
  }
  return result;
}

}  // namespace kvblocks
