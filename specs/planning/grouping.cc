#include "specs/planning/grouping.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "checks/checked_int64.h"
#include "kvblocks/request_footprint.h"
#include "specs/planning/layer_groups.h"
#include "specs/planning/stored_specs.h"

namespace kvblocks {
namespace {

std::vector<KvCacheSpec> SpecsOf(std::span<const LayerCache> caches) {
  std::vector<KvCacheSpec> specs;
  specs.reserve(caches.size());
  for (const LayerCache& cache : caches) specs.push_back(cache.spec);
  return specs;
}

bool HaveEqualPages(std::span<const LayerCache> caches) {
  return std::ranges::all_of(caches, [&](const LayerCache& cache) {
    return cache.spec.page_bytes() == caches.front().spec.page_bytes();
  });
}

class Grouper {
 public:
  Grouper(std::span<const LayerCache> caches, const PlanOptions& options, PoolLayout layout,
          int64_t typical_len, std::vector<PlanError>* errors)
      : options_(options), layout_(layout), typical_len_(typical_len), errors_(errors) {
    result_.stored.assign(caches.begin(), caches.end());
    if (!exact()) {
      result_.block_outermost = MemoryLayoutFor(caches, options) == MemoryLayout::kBlockOutermost;
    }
  }

  // There will be groups beside these, so that one group may not hold pages of several sizes where
  // groups share memory by the page.
  void ExpectMoreGroups() { must_have_equal_pages_ = !result_.block_outermost; }

  bool Run() {
    if (result_.stored.empty()) return true;
    if (!exact() && !CountInt4WindowsUnpacked()) return false;
    if (!options_.hybrid) {
      if (!Store(StoreInFull(result_.stored, errors_))) return false;
      if (labels_apart()) return GroupByLayout();
      if (!CheckOneType(result_.stored, SpecsOf(result_.stored), errors_)) return false;
    }
    return TryOneGroup() || GroupByLayout();
  }

  Grouping Take() { return std::move(result_); }

 private:
  bool exact() const { return options_.policy == PlanPolicy::kExact; }
  bool is_025() const { return options_.version == EngineVersion::kVllm025; }
  LabelRule label_rule() const {
    if (labels_apart()) return LabelRule::kApart;
    return is_025() ? LabelRule::kAgree : LabelRule::kIgnore;
  }
  bool labels_apart() const {
    return exact() && !options_.hybrid && options_.bill_promoted_at_window;
  }

  // Upstream forgets, for window kinds, that int4 values are packed.
  bool CountInt4WindowsUnpacked() {
    bool ok = true;
    for (LayerCache& cache : result_.stored) {
      KvCacheSpecOptions options = cache.spec.options();
      const bool is_window = cache.spec.sliding_window().has_value();
      if (!is_window || options.quant_mode != QuantMode::kInt4PerTokenHead) continue;
      options.page_bytes_formula = PageBytesFormula::kUpstreamCompatible;
      absl::StatusOr<KvCacheSpec> counted = cache.spec.WithOptions(options);
      if (counted.ok()) {
        cache.spec = *std::move(counted);
        continue;
      }
      ok = false;
      errors_->push_back({.code = PlanErrorCode::kPaddingTooSmall,
                          .message = "layer \"" + cache.name + "\" as upstream counts its bytes: " +
                                     std::string(counted.status().message()),
                          .layers = {cache.name}});
    }
    return ok;
  }

  bool Store(std::optional<std::vector<KvCacheSpec>> specs) {
    if (!specs.has_value()) return false;
    for (size_t i = 0; i < specs->size(); ++i) result_.stored[i].spec = (*specs)[i];
    return true;
  }

  // A group of these layers: one spec if they merge, an aggregate otherwise.
  void AddGroup(std::vector<int> layers) {
    std::vector<KvCacheSpec> specs;
    for (const int layer : layers) specs.push_back(result_.stored[layer].spec);
    const absl::StatusOr<KvCacheSpec> merged = MergeByRule(specs, label_rule());
    LayerGroup group = {.layers = std::move(layers),
                        .spec = merged.ok() ? *merged : specs.front(),
                        .is_aggregate = !merged.ok()};
    if (labels_apart()) {
      const auto* full = group.spec.get_if<FullAttentionSpec>();
      const bool all_labelled = std::ranges::all_of(specs, HasLocalLabel);
      if (full != nullptr && all_labelled && !group.is_aggregate) {
        group.billed_window = full->options().sliding_window;
      }
    }
    result_.groups.push_back(std::move(group));
  }

  bool TryOneGroup() {
    const std::vector<KvCacheSpec> specs = SpecsOf(result_.stored);
    if (!IsMergeable(specs) && !IsUniformType(specs)) return false;
    if (must_have_equal_pages_ && !HaveEqualPages(result_.stored)) return false;
    std::vector<int> all(specs.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    AddGroup(std::move(all));
    return true;
  }

  bool GroupByLayout() {
    if (!exact() && is_025()) return GroupByTupleOrPage();
    if (!exact()) return result_.block_outermost ? GroupByPacking() : GroupByPage();
    switch (layout_) {
      case PoolLayout::kUniform:
        return GroupByPage();
      case PoolLayout::kSlab:
        return GroupByStride();
      case PoolLayout::kNative:
        for (LayerBucket& bucket : BucketByUniformType(SpecsOf(result_.stored), labels_apart())) {
          AddGroup(std::move(bucket.layers));
        }
        return true;
    }
    return false;
  }

  bool GroupByTupleOrPage() {
    if (!CallsForTuples(result_.stored)) return GroupByPage();
    std::optional<TupleGroups> tuples = GroupByTuples(result_.stored, errors_);
    if (!tuples.has_value()) return false;
    for (std::vector<int>& layers : tuples->groups) {
      AddGroup(std::move(layers));
      result_.groups.back().is_aggregate = true;
    }
    result_.by_tuples = true;
    return true;
  }

  // States shape the blocks of attention before any question of layout.
  bool StoreAlignedStates() {
    const int64_t kernel_block =
        options_.kernel_block_sizes.empty() ? 1 : std::ranges::min(options_.kernel_block_sizes);
    return Store(AlignStates(result_.stored, kernel_block, options_.state_chunk_tokens, errors_));
  }

  bool GroupByPacking() {
    if (!StoreAlignedStates()) return false;
    if (HaveEqualPages(result_.stored)) return GroupByPage();
    for (std::vector<int>& layers : PackGroups(result_.stored)) AddGroup(std::move(layers));
    return true;
  }

  bool GroupByPage() {
    if (!StoreAlignedStates()) return false;
    std::vector<PlanError> not_equal;
    if (!Store(EqualisePages(result_.stored, options_.version, &not_equal))) {
      if (StoreMlaModelInFull()) return true;
      errors_->insert(errors_->end(), not_equal.begin(), not_equal.end());
      return false;
    }
    std::vector<LayerBucket> buckets = BucketBySpec(SpecsOf(result_.stored), label_rule());
    const int64_t size = GroupSize(buckets);
    for (LayerBucket& bucket : buckets) {
      const int64_t count = static_cast<int64_t>(bucket.layers.size());
      for (std::vector<int>& layers : Distribute(bucket.layers, CeilDiv(count, size))) {
        AddGroup(std::move(layers));
      }
    }
    return true;
  }

  int64_t GroupSize(std::span<const LayerBucket> buckets) const {
    if (!exact()) {
      std::vector<int64_t> counts;
      for (const LayerBucket& bucket : buckets) {
        counts.push_back(static_cast<int64_t>(bucket.layers.size()));
      }
      return UpstreamGroupSize(counts);
    }
    std::vector<BucketCost> costs;
    for (const LayerBucket& bucket : buckets) {
      costs.push_back({.layers = static_cast<int64_t>(bucket.layers.size()),
                       .blocks = TypicalBlocks(bucket.spec)});
    }
    return CheapestGroupSize(costs, buckets.front().spec.page_bytes(), options_.table_cost_bytes);
  }

  // The way out for MLA models with plain window layers whose pages do not equalise.
  bool StoreMlaModelInFull() {
    bool any_mla = false;
    for (const LayerCache& cache : result_.stored) {
      const bool mla = cache.spec.kind() == KvCacheSpecKind::kMlaAttention;
      if (!mla && cache.spec.kind() != KvCacheSpecKind::kSlidingWindow) return false;
      any_mla |= mla;
    }
    std::vector<PlanError> ignored;
    std::optional<std::vector<KvCacheSpec>> specs = StoreInFull(result_.stored, &ignored);
    if (!any_mla || !specs.has_value() || !IsUniformType(*specs)) return false;
    return Store(std::move(specs)) && TryOneGroup();
  }

  bool GroupByStride() {
    std::vector<SlabBucket> buckets;
    for (LayerBucket& bucket : BucketByUniformType(SpecsOf(result_.stored), labels_apart())) {
      SlabBucket slab = {.blocks = TypicalBlocks(bucket.spec)};
      for (const int layer : bucket.layers) {
        slab.page_bytes.push_back(result_.stored[layer].spec.page_bytes());
      }
      slab.layers = std::move(bucket.layers);
      buckets.push_back(std::move(slab));
    }
    for (auto& groups : CheapestSlabGroups(buckets, options_.table_cost_bytes)) {
      for (std::vector<int>& layers : groups) AddGroup(std::move(layers));
    }
    return true;
  }

  int64_t TypicalBlocks(const KvCacheSpec& spec) const {
    return DemandOf(spec, options_.limits, BlockCountFormula::kExact).alone.At(typical_len_);
  }

  const PlanOptions& options_;
  const PoolLayout layout_;
  const int64_t typical_len_;
  std::vector<PlanError>* const errors_;
  bool must_have_equal_pages_ = false;
  Grouping result_;
};

// Blocks of a slab begin aligned for every layer if what one costs is a multiple of all alignments.
bool AlignStride(Grouping* grouping, std::vector<PlanError>* errors) {
  constexpr int64_t kMost = int64_t{1} << 30;
  CheckedInt64 common(1);
  for (const LayerCache& cache : grouping->stored) {
    const int64_t own = cache.spec.options().alignment.value_or(1);
    common = common * (own / std::gcd(*common.value(), own));
    if (common.value().value_or(kMost + 1) > kMost) {
      errors->push_back({.code = PlanErrorCode::kBadValue,
                         .message = "alignments of the layer caches: expected a common multiple of "
                                    "at most " +
                                    std::to_string(kMost) + " bytes, exceeded by layer \"" +
                                    cache.name + "\" with " + std::to_string(own),
                         .layers = {cache.name}});
      return false;
    }
  }
  grouping->stride_alignment = *common.value();
  return true;
}

// The groups of `rest`, which are the layers `others` of `caches`, and one more for each of
// `hidden`.
std::optional<Grouping> WithHiddenStates(std::span<const LayerCache> caches, Grouping rest,
                                         std::span<const int> others, std::span<const int> hidden,
                                         std::vector<PlanError>* errors) {
  Grouping all = std::move(rest);
  int64_t block_unit = 0;
  for (LayerGroup& group : all.groups) {
    block_unit = std::gcd(block_unit, group.spec.block_size());
    for (int& layer : group.layers) layer = others[layer];
  }
  std::vector<LayerCache> stored(caches.begin(), caches.end());
  for (size_t i = 0; i < others.size(); ++i) stored[others[i]] = std::move(all.stored[i]);
  const int64_t page_bytes = stored[others.front()].spec.page_bytes();
  for (const int layer : hidden) {
    if (!all.block_outermost) {
      auto fitted = FitHiddenState(caches[layer], block_unit, page_bytes, errors);
      if (!fitted.has_value()) return std::nullopt;
      stored[layer].spec = *std::move(fitted);
    }
    all.groups.push_back({.layers = {layer}, .spec = stored[layer].spec});
  }
  all.stored = std::move(stored);
  return all;
}

std::optional<Grouping> GroupUpstream(std::span<const LayerCache> caches,
                                      const PlanOptions& options, std::vector<PlanError>* errors) {
  std::vector<int> others;
  std::vector<int> hidden;
  std::vector<LayerCache> rest;
  for (size_t i = 0; i < caches.size(); ++i) {
    const bool is_hidden = caches[i].spec.kind() == KvCacheSpecKind::kHiddenState;
    (is_hidden ? hidden : others).push_back(static_cast<int>(i));
    if (!is_hidden) rest.push_back(caches[i]);
  }
  // 0.25 lets hidden states share the table of full attention where that is all there is.
  const bool shares_a_table =
      options.version == EngineVersion::kVllm025 && IsUniformType(SpecsOf(caches));
  const bool separate = !hidden.empty() && !others.empty() && !shares_a_table;
  Grouper grouper(separate ? std::span<const LayerCache>(rest) : caches, options,
                  PoolLayout::kUniform,
                  /*typical_len=*/0, errors);
  if (separate) grouper.ExpectMoreGroups();
  if (!grouper.Run()) return std::nullopt;
  if (!separate) return grouper.Take();
  return WithHiddenStates(caches, grouper.Take(), others, hidden, errors);
}

}  // namespace

std::optional<Grouping> GroupLayers(std::span<const LayerCache> caches, const PlanOptions& options,
                                    PoolLayout layout, int64_t typical_len,
                                    std::vector<PlanError>* errors) {
  if (options.policy == PlanPolicy::kExact) {
    Grouper grouper(caches, options, layout, typical_len, errors);
    if (!grouper.Run()) return std::nullopt;
    return grouper.Take();
  }
  std::optional<Grouping> grouping = GroupUpstream(caches, options, errors);
  const bool aligned = grouping.has_value() && grouping->block_outermost &&
                       grouping->groups.size() > 1 && options.version == EngineVersion::kVllm033;
  if (aligned && !AlignStride(&*grouping, errors)) return std::nullopt;
  return grouping;
}

}  // namespace kvblocks
