#include "specs/planning/pool_sizing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "checks/checked_int64.h"
#include "kvblocks/request_footprint.h"
#include "specs/planning/layer_groups.h"

namespace kvblocks {
namespace {

int64_t SumOfPages(const Grouping& grouping, std::span<const int> layers) {
  int64_t sum = 0;
  for (const int layer : layers) sum += grouping.stored[layer].spec.page_bytes();
  return sum;
}

// One group: its layers side by side. Otherwise groups overlap, tensor by tensor (uniform) or from
// offset 0 of a slab; either way the largest group decides, for in the uniform layout all pages are
// equal.
int64_t StrideOf(std::span<const int64_t> group_page_bytes) {
  return group_page_bytes.empty() ? 0 : std::ranges::max(group_page_bytes);
}

// A chunk that suits one worker's pages may be absurd for another's.
int64_t Bytes(int64_t page_bytes, int64_t pages) {
  return Saturated(CheckedInt64(page_bytes) * pages);
}

PoolCapacity CapacityOf(const Grouping& grouping, const PlanOptions& options) {
  const bool exact = options.policy == PlanPolicy::kExact;
  PoolCapacity capacity;
  capacity.shared_transient = exact;
  for (const LayerGroup& group : grouping.groups) {
    capacity.groups.push_back(DemandOf(
        group.spec, options.limits,
        exact ? BlockCountFormula::kExact : BlockCountFormula::kUpstream, group.billed_window));
  }
  return capacity;
}

// Groups with the same page on every worker share a class. Classes in the order of their first
// group.
std::vector<int32_t> PageClasses(std::span<const WorkerPlan> workers, size_t num_groups) {
  std::map<std::vector<int64_t>, int32_t> class_of_pages;
  std::vector<int32_t> classes;
  for (size_t g = 0; g < num_groups; ++g) {
    std::vector<int64_t> pages;
    for (const WorkerPlan& worker : workers) pages.push_back(worker.group_page_bytes[g]);
    const auto entry =
        class_of_pages.emplace(std::move(pages), static_cast<int32_t>(class_of_pages.size()));
    classes.push_back(entry.first->second);
  }
  return classes;
}

class NativeSizer {
 public:
  NativeSizer(PoolSize* pool, const PlanOptions& options, int64_t length)
      : pool_(*pool), options_(options), length_(length) {}

  void Run() {
    const size_t num_groups = pool_.capacity.groups.size();
    NativeLayout layout = {.class_of_group = PageClasses(pool_.workers, num_groups)};
    for (size_t g = 0; g < num_groups; ++g) {
      pool_.capacity.groups[g].page_class = layout.class_of_group[g];
    }
    num_classes_ = 1 + std::ranges::max(layout.class_of_group);
    double best = -1;
    std::optional<Choice> chosen;
    for (const std::vector<int64_t>& pages : Candidates(layout)) {
      Choice choice = Evaluate(pages, layout);
      if (chosen.has_value() && choice.score <= best) continue;
      best = choice.score;
      chosen = std::move(choice);
    }
    Adopt(*std::move(chosen), std::move(layout));
  }

 private:
  struct Choice {
    std::vector<int64_t> pages_per_chunk = {};
    std::vector<int64_t> chunk_bytes = {};  // per worker
    std::vector<int64_t> own_chunks = {};   // per worker
    int64_t num_chunks = 0;
    double score = 0;
  };

  std::vector<int64_t> ClassPages(const WorkerPlan& worker, const NativeLayout& layout) const {
    std::vector<int64_t> pages(num_classes_, 0);
    for (size_t g = 0; g < layout.class_of_group.size(); ++g) {
      pages[layout.class_of_group[g]] = worker.group_page_bytes[g];
    }
    return pages;
  }

  // Pages per chunk must be the same everywhere, since block ids are. Each worker proposes what
  // suits its own pages; classes that it has no layer of get one page there.
  std::vector<std::vector<int64_t>> Candidates(const NativeLayout& layout) const {
    std::vector<std::vector<int64_t>> candidates;
    for (const WorkerPlan& worker : pool_.workers) {
      std::vector<int64_t> pages = ClassPages(worker, layout);
      const int64_t largest = std::ranges::max(pages);
      if (largest == 0) continue;
      for (int64_t& page : pages) page = page == 0 ? largest : page;
      int64_t limit = options_.max_chunk_bytes;
      if (!options_.num_blocks_override.has_value()) {
        limit = std::min(limit, worker.available_bytes / (8 * num_classes_));
      }
      for (ChunkSize& chunk : ChunkSizes(pages, limit))
        candidates.push_back(std::move(chunk.pages));
      if (pool_.workers.size() > 1 && candidates.size() > 256) break;
    }
    return candidates;
  }

  Choice Evaluate(const std::vector<int64_t>& pages_per_chunk, const NativeLayout& layout) const {
    Choice choice = {.pages_per_chunk = pages_per_chunk};
    const int64_t ids = std::ranges::max(pages_per_chunk);
    int64_t chunks = (kMaxNumBlocks - 1) / ids;
    if (options_.num_blocks_override.has_value()) {
      chunks = std::max((*options_.num_blocks_override - 1) / ids, int64_t{1});
    }
    double used = 0;
    double paid = 0;
    for (const WorkerPlan& worker : pool_.workers) {
      const std::vector<int64_t> pages = ClassPages(worker, layout);
      int64_t bytes = 0;
      for (int c = 0; c < num_classes_; ++c) {
        bytes = std::max(bytes, Bytes(pages[c], pages_per_chunk[c]));
      }
      const int64_t null_page = std::ranges::max(pages);
      int64_t own = chunks;
      if (bytes > 0 && !options_.num_blocks_override.has_value()) {
        own = std::min(own, std::max(worker.available_bytes - null_page, int64_t{0}) / bytes);
      }
      choice.chunk_bytes.push_back(bytes);
      choice.own_chunks.push_back(own);
      for (int c = 0; c < num_classes_; ++c) {
        used += static_cast<double>(Bytes(pages[c], pages_per_chunk[c]));
      }
      paid += static_cast<double>(bytes) * num_classes_;
    }
    choice.num_chunks = std::ranges::min(choice.own_chunks);
    if (options_.num_blocks_override.has_value()) {
      // The memory follows from the choice, so what counts is how well chunks are filled.
      choice.score = used / paid;
      if (choice.num_chunks < num_classes_) choice.score -= 1;
    } else {
      PoolCapacity capacity = pool_.capacity;
      capacity.pages_per_unit = pages_per_chunk;
      capacity.units = choice.num_chunks;
      choice.score = capacity.Concurrency(length_);
    }
    return choice;
  }

  void Adopt(Choice choice, NativeLayout layout) {
    layout.num_chunks = choice.num_chunks;
    layout.pages_per_chunk = choice.pages_per_chunk;
    pool_.capacity.pages_per_unit = choice.pages_per_chunk;
    pool_.capacity.units = choice.num_chunks;
    const int64_t ids = layout.ids_per_chunk();
    pool_.num_blocks = 1 + choice.num_chunks * ids;
    for (size_t w = 0; w < pool_.workers.size(); ++w) {
      WorkerPlan& worker = pool_.workers[w];
      worker.chunk_bytes = choice.chunk_bytes[w];
      worker.null_page_bytes = StrideOf(worker.group_page_bytes);
      worker.own_num_blocks = 1 + choice.own_chunks[w] * ids;
      if (options_.num_blocks_override.has_value()) {
        worker.available_bytes = choice.num_chunks * worker.chunk_bytes + worker.null_page_bytes;
      }
    }
    pool_.native = std::move(layout);
  }

  PoolSize& pool_;
  const PlanOptions& options_;
  const int64_t length_;
  int num_classes_ = 0;
};

void SizeByStride(PoolSize* pool, const Grouping& grouping, const ProjectedGroups& projected,
                  const PlanOptions& options) {
  const bool exact = options.policy == PlanPolicy::kExact;
  pool->num_blocks = kMaxNumBlocks;
  for (size_t w = 0; w < pool->workers.size(); ++w) {
    WorkerPlan& worker = pool->workers[w];
    // One group of several layers has a tensor for each, so the group's page is what a block costs.
    worker.stride_bytes =
        *RoundUp(CheckedInt64(StrideOf(worker.group_page_bytes)), grouping.stride_alignment)
             .value();
    if (options.num_blocks_override.has_value()) {
      worker.available_bytes = *options.num_blocks_override * worker.stride_bytes;
      worker.own_num_blocks = *options.num_blocks_override;
    } else if (worker.stride_bytes > 0) {
      worker.own_num_blocks = std::min(worker.available_bytes / worker.stride_bytes, kMaxNumBlocks);
    } else {
      worker.own_num_blocks = kMaxNumBlocks;
    }
    pool->num_blocks = std::min(pool->num_blocks, worker.own_num_blocks);
    if (!exact && grouping.by_tuples) {
      worker.check_bytes_per_block = TupleProductBytes(grouping.stored, projected[w]);
    }
  }
  // The null block is in the pool but of no request. Upstream counts it in what it reports, and
  // from 0.29 on leaves it out of its checks.
  pool->capacity.units = exact ? pool->num_blocks - 1 : pool->num_blocks;
}

}  // namespace

ProjectedGroups ProjectGroups(std::span<const LayerGroup> groups,
                              std::span<const std::vector<int>> workers_of_layer, int num_workers) {
  ProjectedGroups projected(num_workers, std::vector<std::vector<int>>(groups.size()));
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const int layer : groups[g].layers) {
      for (const int worker : workers_of_layer[layer]) projected[worker][g].push_back(layer);
    }
  }
  return projected;
}

int64_t OwnUnits(const PoolSize& pool, const WorkerPlan& worker, const PlanOptions& options) {
  if (pool.native.has_value()) {
    return (worker.own_num_blocks - 1) / pool.native->ids_per_chunk();
  }
  if (ReservesNullBlock(options.policy, options.version)) return worker.own_num_blocks - 1;
  if (worker.check_bytes_per_block.value_or(0) > 0) {
    return worker.available_bytes / *worker.check_bytes_per_block;
  }
  return worker.own_num_blocks;
}

PoolSize SizePool(const Grouping& grouping, const ProjectedGroups& projected,
                  const PlanInputs& inputs, const PlanOptions& options, PoolLayout layout,
                  int64_t length) {
  PoolSize pool;
  pool.capacity = CapacityOf(grouping, options);
  for (size_t w = 0; w < projected.size(); ++w) {
    WorkerPlan& worker = pool.workers.emplace_back();
    worker.available_bytes = inputs.available_bytes[w];
    for (const std::vector<int>& layers : projected[w]) {
      worker.group_page_bytes.push_back(SumOfPages(grouping, layers));
    }
  }
  if (grouping.groups.empty()) {
    pool.num_blocks = 1;  // the null block
    pool.capacity.units = options.policy == PlanPolicy::kExact ? 0 : 1;
  } else if (layout == PoolLayout::kNative) {
    NativeSizer(&pool, options, length).Run();
  } else {
    SizeByStride(&pool, grouping, projected, options);
  }
  return pool;
}

namespace {

constexpr int64_t kMostMultiples = 4096;

ChunkSize CutInto(std::span<const int64_t> page_bytes, int64_t bytes) {
  ChunkSize chunk = {.bytes = bytes};
  int64_t most_left = 0;
  for (const int64_t page : page_bytes) {
    chunk.pages.push_back(bytes / page);
    most_left = std::max(most_left, bytes % page);
  }
  chunk.largest_remainder = static_cast<double>(most_left) / static_cast<double>(bytes);
  return chunk;
}

}  // namespace

// The best chunk of n pages of some class or other ends where a page of some class ends: shorter by
// the smallest remainder it would hold the same pages.
std::vector<ChunkSize> ChunkSizes(std::span<const int64_t> page_bytes, int64_t max_bytes) {
  const int64_t largest_page = std::ranges::max(page_bytes);
  const int64_t limit = std::max(max_bytes, largest_page);
  std::vector<int64_t> distinct(page_bytes.begin(), page_bytes.end());
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<int64_t> sizes = {largest_page};
  for (const int64_t page : distinct) {
    const int64_t most = limit / page;
    for (int64_t n = std::max(most - kMostMultiples, int64_t{0}) + 1; n <= most; ++n) {
      if (n * page > largest_page) sizes.push_back(n * page);
    }
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<ChunkSize> chunks;
  for (const int64_t bytes : sizes) {
    int64_t most_left = 0;
    for (const int64_t page : distinct) most_left = std::max(most_left, bytes % page);
    const double remainder = static_cast<double>(most_left) / static_cast<double>(bytes);
    if (chunks.empty() || remainder < chunks.back().largest_remainder) {
      chunks.push_back(CutInto(page_bytes, bytes));
    }
  }
  return chunks;
}

namespace {

bool KeepsFewStates(const KvCacheSpec& spec) {
  const auto* mamba = spec.get_if<MambaSpec>();
  return mamba != nullptr && mamba->options().cache_mode != MambaCacheMode::kAlign;
}

std::string Listed(std::span<const int64_t> numbers) {
  std::string text;
  for (const int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

}  // namespace

int64_t EffectiveBlockSize(const KvCacheSpec& spec, int64_t decode_context_parallel) {
  if (spec.kind() == KvCacheSpecKind::kMamba) return spec.block_size();
  return (CheckedInt64(spec.block_size()) * decode_context_parallel)
      .value()
      .value_or(kMaxPlannedTokens + 1);
}

std::optional<PlannedBlockSizes> PlanBlockSizes(std::span<const KvCacheSpec> groups,
                                                int64_t decode_context_parallel, bool hashes_needed,
                                                std::optional<int64_t> match_unit,
                                                std::vector<PlanError>* errors) {
  PlannedBlockSizes sizes;
  if (groups.empty()) return sizes;
  std::vector<int64_t> blocks;
  CheckedInt64 lcm = 1;
  int64_t gcd = 0;
  // What no prefix is kept in does not limit where one may end.
  const bool any_cacheable = std::ranges::any_of(groups, &KvCacheSpec::is_prefix_cacheable);
  for (const KvCacheSpec& spec : groups) {
    if (any_cacheable && !spec.is_prefix_cacheable()) continue;
    const int64_t block = EffectiveBlockSize(spec, decode_context_parallel);
    blocks.push_back(block);
    gcd = std::gcd(gcd, block);
    if (!lcm.overflowed()) lcm = lcm * (block / std::gcd(*lcm.value(), block));
  }
  sizes.scheduler = lcm.value().value_or(kMaxPlannedTokens + 1);
  if (sizes.scheduler > kMaxPlannedTokens) {
    errors->push_back(ValueError(
        "block sizes of the groups", Listed(blocks),
        "a least common multiple of at most " + std::to_string(kMaxPlannedTokens) + " tokens"));
    return std::nullopt;
  }
  sizes.hash = sizes.scheduler;
  if (groups.size() == 1 || !hashes_needed || std::ranges::any_of(groups, KeepsFewStates)) {
    return sizes;
  }
  sizes.hash = match_unit.value_or(gcd);
  if (gcd % sizes.hash != 0) {
    errors->push_back({.code = PlanErrorCode::kMatchUnit,
                       .message = "match unit of " + std::to_string(sizes.hash) +
                                  " tokens: expected a divisor of every group's block size, " +
                                  Listed(blocks),
                       .needed = sizes.hash,
                       .available = gcd});
    return std::nullopt;
  }
  return sizes;
}

}  // namespace kvblocks
