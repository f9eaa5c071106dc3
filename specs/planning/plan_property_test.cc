// Whole plans of random models: every layer in one group, no two live pages in one place, workers
// that agree.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "rapidcheck/gtest.h"
#include "specs/planning/memory_map.h"
#include "specs/planning/testing/check_plans.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

// Any of them from the first case on; RapidCheck by itself begins with small ranges.
int64_t Drawn(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}
bool Coin() { return Drawn(0, 1) == 1; }

KvCacheSpec DrawnSpec() {
  const int64_t block = Coin() ? 4 : 8;
  const int64_t heads = Drawn(1, 4);
  switch (Drawn(0, 9)) {
    case 0:
    case 1:
      return FullSpec(block, heads, 16);
    case 2:
      return WindowSpec(block, heads, 16, Coin() ? 8 : 12);
    case 3:
      return ChunkedSpec(block, heads, 16, 16);
    case 4:
      return DeepseekV4("4")[Drawn(0, 4)].spec;
    case 5:
      return StateSpec(block, 64, 128 * Drawn(1, 3));
    case 6:
      return *FullAttentionSpec::Create({.block_size = block,
                                         .num_kv_heads = heads,
                                         .head_size = 24,
                                         .indexes_kv_by_block_stride = true});
    case 7:
      return *RingSpec::Create({.block_size = block, .head_size = 16 * Drawn(1, 4)});
    case 8:
      return *HiddenStateSpec::Create({.block_size = block, .head_size = 8 * Drawn(1, 4)});
    default:
      return *SinkFullAttentionSpec::Create(
          {.block_size = block, .num_kv_heads = heads, .head_size = 16, .sink_length = block * 2});
  }
}

std::vector<LayerCache> AnyModel() {
  std::vector<KvCacheSpec> palette;
  for (int64_t n = Drawn(1, 3); n > 0; --n) palette.push_back(DrawnSpec());
  const int64_t stages = Drawn(1, 3);
  std::vector<LayerCache> caches;
  for (int64_t i = 0, n = Drawn(1, 14); i < n; ++i) {
    const LayerCache cache = {.name = "layer" + std::to_string(i),
                              .spec = palette[Drawn(0, static_cast<int64_t>(palette.size()) - 1)],
                              .is_draft = Drawn(0, 9) == 0,
                              .worker = static_cast<int>(i * stages / n)};
    caches.push_back(cache);
    // Sometimes a second rank holds its part of the same cache.
    if (Drawn(0, 3) == 0) {
      caches.push_back(cache);
      caches.back().worker = 3;
    }
  }
  return caches;
}

PlanOptions AnyOptions() {
  PlanOptions options = {.policy = Coin() ? PlanPolicy::kExact : PlanPolicy::kUpstream,
                         .hybrid = Drawn(0, 4) != 0,
                         .limits = {.max_model_len = 0, .max_in_flight_tokens = 4},
                         .longest_automatic_len = 64,
                         .table_cost_bytes = Drawn(0, 100000)};
  if (options.policy == PlanPolicy::kExact && Coin()) {
    options.layout = static_cast<PoolLayout>(Drawn(0, 2));
  }
  if (options.policy == PlanPolicy::kUpstream && Coin()) {
    options.memory_layout = Coin() ? MemoryLayout::kBlockOutermost : MemoryLayout::kLayerOutermost;
  }
  if (Coin()) options.version = EngineVersion::kVllm025;
  if (Coin()) {
    options.num_blocks_override = Drawn(60, 90);
  } else {
    options.available_bytes = {Drawn(1, 4000000)};
  }
  return options;
}

int64_t AddressOf(const LayerDescriptor& d, int64_t block, bool native) {
  if (!native) return d.offset + block * d.block_stride;
  if (block == 0) return d.null_offset;
  const int64_t chunk = (block - 1) / d.ids_per_chunk;
  return d.offset + chunk * d.chunk_bytes + (block - 1) % d.ids_per_chunk * d.block_stride;
}

struct Page {
  int tensor;
  int64_t begin;
  int64_t end;
  int64_t block;
  int group;
};

// Block ids get random owners as a pool would give them: a group each, or in the native layout a
// class per chunk. Then no two pages may overlap, and all lie inside their tensors.
void CheckPagesAreApart(const Plan& plan, const WorkerPlan& worker) {
  const bool native = plan.layout == PoolLayout::kNative;
  std::vector<int> owner(plan.num_blocks(), -1);
  std::vector<int32_t> class_of_chunk;
  const auto num_groups = static_cast<int64_t>(plan.groups.size());
  if (native) {
    const auto classes = static_cast<int64_t>(plan.config.native->pages_per_chunk.size());
    for (int64_t c = 0; c < plan.config.native->num_chunks; ++c) {
      class_of_chunk.push_back(static_cast<int32_t>(Drawn(0, classes - 1)));
    }
  }
  for (int64_t block = 1; block < plan.num_blocks(); ++block) {
    const int group = static_cast<int>(Drawn(0, num_groups - 1));
    if (native) {
      const int64_t ids = plan.config.native->ids_per_chunk();
      const int32_t page_class = plan.groups[group].page_class;
      if (class_of_chunk[(block - 1) / ids] != page_class) continue;
      if ((block - 1) % ids >= plan.config.native->pages_per_chunk[page_class]) continue;
    }
    owner[block] = group;
  }
  std::vector<Page> pages;
  for (const LayerDescriptor& d : worker.descriptors) {
    for (int64_t block = 0; block < plan.num_blocks(); ++block) {
      // The null block may be in any table, so only one group's view of it is compared.
      if (block == 0 ? d.group != 0 : owner[block] != d.group) continue;
      const int64_t begin = AddressOf(d, block, native);
      pages.push_back({d.tensor, begin, begin + d.page_bytes, block, d.group});
      RC_ASSERT(begin >= 0);
      RC_ASSERT(begin + d.page_bytes <= worker.tensors[d.tensor].bytes);
    }
  }
  std::ranges::sort(pages, [](const Page& a, const Page& b) {
    return std::pair(a.tensor, a.begin) < std::pair(b.tensor, b.begin);
  });
  for (size_t i = 1; i < pages.size(); ++i) {
    if (pages[i].tensor == pages[i - 1].tensor) RC_ASSERT(pages[i].begin >= pages[i - 1].end);
  }
}

TEST(PlanPropertyTest, P3EveryLayerIsInOneGroupOnce) {
  CheckPlans(50, [] {
    const std::vector<LayerCache> caches = AnyModel();
    const PlanResult result = MakePlan(caches, AnyOptions());
    RC_ASSERT(result.ok() == result.errors.empty());
    if (!result.ok()) return false;
    std::vector<int> seen;
    for (const PlannedGroup& group : result.plan->groups) {
      RC_ASSERT(!group.layers.empty());
      RC_ASSERT(std::ranges::is_sorted(group.layers));
      seen.insert(seen.end(), group.layers.begin(), group.layers.end());
      for (const int layer : group.layers) {
        RC_ASSERT(result.plan->layers[layer].stored.block_size() == group.spec.block_size());
      }
    }
    std::ranges::sort(seen);
    std::set<std::string> names;
    for (const LayerCache& cache : caches) names.insert(cache.name);
    RC_ASSERT(seen.size() == names.size());
    for (size_t i = 0; i < seen.size(); ++i) RC_ASSERT(seen[i] == static_cast<int>(i));
    RC_ASSERT(Validate(result.plan->config).ok());
    return true;
  });
}

// Names, and nothing else about a layer's identity, do not matter.
TEST(PlanPropertyTest, P3GroupsDependOnRegistrationOrderOnly) {
  CheckPlans(50, [] {
    std::vector<LayerCache> caches = AnyModel();
    const PlanOptions options = AnyOptions();
    const PlanResult first = MakePlan(caches, options);
    std::map<std::string, std::string> renamed;
    for (LayerCache& cache : caches) {
      const auto entry = renamed.emplace(cache.name, "z" + std::to_string(100 - renamed.size()));
      cache.name = entry.first->second;
    }
    const PlanResult second = MakePlan(caches, options);
    RC_ASSERT(first.ok() == second.ok());
    if (!first.ok()) return false;
    RC_ASSERT(first.plan->groups.size() == second.plan->groups.size());
    for (size_t g = 0; g < first.plan->groups.size(); ++g) {
      RC_ASSERT(first.plan->groups[g].layers == second.plan->groups[g].layers);
    }
    RC_ASSERT(first.plan->num_blocks() == second.plan->num_blocks());
    RC_ASSERT(first.plan->layout == second.plan->layout);
    return true;
  });
}

TEST(PlanPropertyTest, P4LivePagesNeverOverlap) {
  CheckPlans(50, [] {
    PlanOptions options = AnyOptions();
    options.available_bytes.clear();
    options.num_blocks_override = Drawn(60, 90);
    const PlanResult result = MakePlan(AnyModel(), options);
    if (!result.ok()) return false;
    for (const WorkerPlan& worker : result.plan->workers) CheckPagesAreApart(*result.plan, worker);
    return true;
  });
}

TEST(PlanPropertyTest, P6WorkersTogetherHoldTheGroups) {
  CheckPlans(50, [] {
    const std::vector<LayerCache> caches = AnyModel();
    const PlanOptions options = AnyOptions();
    const PlanResult result = MakePlan(caches, options);
    if (!result.ok()) return false;
    const Plan& plan = *result.plan;
    std::set<std::pair<std::string, int>> expected;
    for (const LayerCache& cache : caches) expected.emplace(cache.name, cache.worker);
    std::set<std::pair<std::string, int>> found;
    for (size_t w = 0; w < plan.workers.size(); ++w) {
      const WorkerPlan& worker = plan.workers[w];
      int64_t bytes = 0;
      for (const PlannedTensor& tensor : worker.tensors) bytes += tensor.bytes;
      // All workers have the same number of blocks, and none takes more than it has.
      RC_ASSERT(bytes <= worker.available_bytes);
      if (plan.layout != PoolLayout::kNative) {
        RC_ASSERT(bytes == plan.num_blocks() * worker.stride_bytes);
      } else if (!worker.tensors.empty()) {
        RC_ASSERT(bytes ==
                  plan.config.native->num_chunks * worker.chunk_bytes + worker.null_page_bytes);
      }
      RC_ASSERT(worker.own_num_blocks >= plan.num_blocks());
      for (const LayerDescriptor& d : worker.descriptors) {
        const std::vector<int>& members = plan.groups[d.group].layers;
        RC_ASSERT(std::ranges::find(members, d.layer) != members.end());
        found.emplace(plan.layers[d.layer].name, static_cast<int>(w));
      }
    }
    RC_ASSERT(found == expected);
    return true;
  });
}

TEST(PlanPropertyTest, P2NeededBytesNeverDecrease) {
  CheckPlans(50, [] {
    const PlanResult result = MakePlan(AnyModel(), AnyOptions());
    if (!result.ok()) return false;
    const Plan& plan = *result.plan;
    const int64_t fits = plan.limits.max_model_len;
    for (size_t w = 0; w < plan.workers.size(); ++w) {
      const int worker = static_cast<int>(w);
      for (int64_t length = 1; length < 64; ++length) {
        RC_ASSERT(plan.NeededBytes(length, worker) <= plan.NeededBytes(length + 1, worker));
      }
      if (plan.workers[w].tensors.empty()) continue;
      RC_ASSERT(plan.NeededBytes(fits, worker) <= plan.workers[w].available_bytes);
      if (plan.limiting_worker == worker) {
        RC_ASSERT(plan.NeededBytes(fits + 1, worker) > plan.workers[w].available_bytes);
      }
    }
    RC_ASSERT(plan.LongestContext(64) == fits);
    return true;
  });
}

// A length given as such is planned like the one found for it.
TEST(PlanPropertyTest, AutomaticLengthCanBeGiven) {
  CheckPlans(50, [] {
    const std::vector<LayerCache> caches = AnyModel();
    PlanOptions options = AnyOptions();
    options.typical_len = 64;  // or groups are weighed at another length
    if (!options.layout.has_value()) options.policy = PlanPolicy::kUpstream;
    if (options.layout == PoolLayout::kNative) options.layout = PoolLayout::kSlab;
    const PlanResult automatic = MakePlan(caches, options);
    if (!automatic.ok()) return false;
    options.limits.max_model_len = automatic.plan->limits.max_model_len;
    RC_ASSERT(MakePlan(caches, options).ok());
    if (options.limits.max_model_len == 64) return true;
    options.limits.max_model_len += 1;
    const PlanResult longer = MakePlan(caches, options);
    RC_ASSERT(!longer.ok());
    for (const PlanError& error : longer.errors) {
      RC_ASSERT(error.code == PlanErrorCode::kRequestDoesNotFit);
    }
    return true;
  });
}

RC_GTEST_PROP(PlanPropertyTest, P5ShapeTimesElementIsThePage, ()) {
  const int64_t block = 16 * Drawn(1, 4);
  const int64_t heads = Drawn(1, 8);
  const int64_t head_size = 32 * Drawn(1, 8);
  const int64_t num_blocks = Drawn(1, 100);
  int stored = 0;
  for (const QuantMode mode :
       {QuantMode::kNone, QuantMode::kFp8PerTensor, QuantMode::kInt8PerTokenHead,
        QuantMode::kFp8PerTokenHead, QuantMode::kInt4PerTokenHead, QuantMode::kNvfp4,
        QuantMode::kFp8DsMla}) {
    std::vector<KvCacheSpec> specs;
    if (mode == QuantMode::kNone || mode == QuantMode::kFp8DsMla) {
      specs.push_back(LatentSpec(block, mode));
    }
    if (mode != QuantMode::kFp8DsMla) {
      specs.push_back(FullSpec(block, heads, head_size, mode));
      specs.push_back(WindowSpec(block, heads, head_size, 64, mode));
      specs.push_back(*FullAttentionSpec::Create({.block_size = block,
                                                  .num_kv_heads = heads,
                                                  .head_size = head_size,
                                                  .head_size_v = 64,
                                                  .dtype = specs[0].dtype(),
                                                  .quant_mode = mode}));
    }
    for (const KvCacheSpec& spec : specs) {
      const RowLayout rows = RowsOf(spec);
      RC_ASSERT(rows.rows * rows.row_bytes == spec.page_bytes());
      for (int f = 0; f <= static_cast<int>(BackendFamily::kLatent); ++f) {
        const auto shape = ShapeOf(static_cast<BackendFamily>(f), spec, num_blocks);
        if (!shape.ok()) continue;
        ++stored;
        int64_t bytes = shape->element_bytes;
        for (const int64_t dim : shape->dims) bytes *= dim;
        RC_ASSERT(bytes == spec.page_bytes() * num_blocks);
        RC_ASSERT(shape->names[shape->block_dim] == "block");
        RC_ASSERT(shape->dims[shape->block_dim] == num_blocks);
      }
    }
  }
  RC_ASSERT(stored > 20);
}

}  // namespace
}  // namespace kvblocks
