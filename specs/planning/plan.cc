#include "kvblocks/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "checks/checked_int64.h"
#include "checks/field_error.h"
#include "specs/planning/memory_map.h"

namespace kvblocks {
namespace {}  // namespace

int64_t Plan::num_allocatable_blocks() const {
  int64_t blocks = num_blocks() - 1;
  for (const PlannedGroup& group : groups) {
    blocks -= group.spec.sink_length() / group.spec.block_size();
  }
  return std::max(blocks, int64_t{0});
}

int64_t Plan::RequestBytes(int64_t length, int worker) const {
  const WorkerPlan& w = workers[worker];
  const CheckedInt64 units = capacity.UnitsNeeded(1, length);
  if (layout == PoolLayout::kNative) return Saturated(units * w.chunk_bytes);
  return Saturated(units * w.check_bytes_per_block.value_or(w.stride_bytes));
}

int64_t Plan::NeededBytes(int64_t length, int worker) const {
  const WorkerPlan& w = workers[worker];
  const CheckedInt64 of_request = RequestBytes(length, worker);
  if (layout == PoolLayout::kNative) return Saturated(of_request + w.null_page_bytes);
  return Saturated(of_request + (ReservesNullBlock(policy, version) ? w.stride_bytes : 0));
}

int64_t Plan::TokenCapacity(int64_t length) const {
  const double tokens = Concurrency(length) * static_cast<double>(length);
  return tokens < 9.2e18 ? static_cast<int64_t>(tokens) : std::numeric_limits<int64_t>::max();
}

int64_t Plan::LongestContext(int64_t limit) const {
  if (policy == PlanPolicy::kExact) return capacity.LongestLength(capacity.units, limit);
  const int64_t reserved = ReservesNullBlock(policy, version) ? 1 : 0;
  int64_t longest = capacity.LongestLength(capacity.units - reserved, limit);
  for (const WorkerPlan& worker : workers) {
    if (worker.check_bytes_per_block.value_or(0) == 0) continue;
    longest = std::min(longest, capacity.LongestLength(
                                    worker.available_bytes / *worker.check_bytes_per_block, limit));
  }
  return longest;
}

RequestCost Plan::CostOfRequest() const {
  RequestCost cost;
  for (const GroupDemand& group : capacity.groups) {
    const BlockStaircase& stairs = group.alone;
    if (stairs.cap == kNoCap) {
      cost.fixed_blocks = Saturated(CheckedInt64(cost.fixed_blocks) + stairs.added);
      cost.blocks_per_token += 1.0 / static_cast<double>(stairs.step);
    } else {
      cost.fixed_blocks = Saturated(CheckedInt64(cost.fixed_blocks) + stairs.cap + stairs.added);
    }
  }
  return cost;
}

// Plan's accounts of memory that holds nothing.

namespace {

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

class WasteCollector {
 public:
  explicit WasteCollector(const Plan& plan) : plan_(plan) {
    for (const WorkerPlan& worker : plan.workers) {
      stride_ += plan.layout == PoolLayout::kNative ? worker.chunk_bytes : worker.stride_bytes;
      for (const PlannedTensor& tensor : worker.tensors) pool_bytes_ += tensor.bytes;
    }
  }

  std::vector<Waste> Collect() && {
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      CollectGroup(static_cast<int>(g));
    }
    CollectPool();
    CollectUpstreamCaps();
    return std::move(wastes_);
  }

 private:
  void Add(WasteReason reason, std::optional<int> group, int64_t bytes, int64_t whole) {
    if (bytes > 0) {
      wastes_.push_back(
          {.reason = reason, .group = group, .bytes = bytes, .share = Share(bytes, whole)});
    }
  }

  void CollectGroup(int g) {
    int64_t unused = 0;
    int64_t padding = 0;
    for (const WorkerPlan& worker : plan_.workers) {
      const int64_t page = worker.group_page_bytes[g];
      if (plan_.layout == PoolLayout::kNative) {
        const int32_t page_class = plan_.groups[g].page_class;
        unused += worker.chunk_bytes - page * plan_.config.native->pages_per_chunk[page_class];
      } else {
        unused += worker.stride_bytes - page;
      }
      for (const LayerDescriptor& d : worker.descriptors) {
        if (d.group == g) padding += d.page_bytes - d.rows * d.row_bytes;
      }
    }
    switch (plan_.layout) {
      case PoolLayout::kUniform:
        Add(WasteReason::kPaddingLayers, g, unused, stride_);
        break;
      case PoolLayout::kSlab:
        Add(WasteReason::kSlabOverlap, g, unused, stride_);
        break;
      case PoolLayout::kNative:
        Add(WasteReason::kChunkRemainder, g, unused, stride_);
        padding *= plan_.config.native->pages_per_chunk[plan_.groups[g].page_class];
        break;
    }
    Add(WasteReason::kPagePadding, g, padding, stride_);
  }

  void CollectPool() {
    int64_t null_bytes = 0;
    int64_t available = 0;
    for (const WorkerPlan& worker : plan_.workers) {
      null_bytes +=
          plan_.layout == PoolLayout::kNative ? worker.null_page_bytes : worker.stride_bytes;
      if (!worker.tensors.empty()) available += worker.available_bytes;
    }
    if (plan_.layout == PoolLayout::kNative) {
      const auto classes = static_cast<int64_t>(plan_.config.native->pages_per_chunk.size());
      Add(WasteReason::kPartialChunk, std::nullopt, stride_ * classes, pool_bytes_);
    }
    Add(WasteReason::kNullBlock, std::nullopt, null_bytes, pool_bytes_);
    Add(WasteReason::kUnusedMemory, std::nullopt, available - pool_bytes_, available);
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      const KvCacheSpec& spec = plan_.groups[g].spec;
      int64_t block_bytes = 0;
      for (const WorkerPlan& worker : plan_.workers) {
        block_bytes +=
            plan_.layout == PoolLayout::kNative ? worker.group_page_bytes[g] : worker.stride_bytes;
      }
      Add(WasteReason::kSinkBlocks, static_cast<int>(g),
          spec.sink_length() / spec.block_size() * block_bytes, pool_bytes_);
    }
  }

  // Of one request of the configured length.
  void CollectUpstreamCaps() {
    if (plan_.policy != PlanPolicy::kUpstream) return;
    const int64_t length = plan_.limits.max_model_len;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      const PlannedGroup& group = plan_.groups[g];
      const GroupDemand exact =
          DemandOf(group.spec, plan_.limits, BlockCountFormula::kExact, group.billed_window);
      const int64_t surplus = plan_.capacity.groups[g].alone.At(length) - exact.alone.At(length);
      Add(WasteReason::kUpstreamCap, static_cast<int>(g), surplus * stride_, pool_bytes_);
    }
  }

  const Plan& plan_;
  int64_t stride_ = 0;  // or the chunk, over all workers
  int64_t pool_bytes_ = 0;
  std::vector<Waste> wastes_;
};

}  // namespace

std::string_view WasteReasonName(WasteReason reason) {
  constexpr std::string_view kNames[] = {
      "padding layers", "slab overlap", "page padding",  "chunk remainder",       "partial chunks",
      "null block",     "sink blocks",  "unused memory", "upstream's cap surplus"};
  return kNames[static_cast<size_t>(reason)];
}

std::vector<Waste> Plan::StandingWaste() const { return WasteCollector(*this).Collect(); }

RequestWaste Plan::WasteOfRequest(int64_t length) const {
  CheckedInt64 used(0);
  CheckedInt64 charged(0);
  const std::vector<int64_t> blocks = BlocksPerRequest(length);
  for (const WorkerPlan& worker : workers) {
    for (size_t g = 0; g < groups.size(); ++g) {
      used = used + CheckedInt64(blocks[g]) * worker.group_page_bytes[g];
      if (layout == PoolLayout::kNative) {
        const int64_t pages = config.native->pages_per_chunk[groups[g].page_class];
        charged = charged + CheckedInt64(blocks[g]) * CeilDiv(worker.chunk_bytes, pages);
      } else {
        charged = charged + CheckedInt64(blocks[g]) * worker.stride_bytes;
      }
    }
  }
  return {.bytes_used = Saturated(used), .bytes_charged = Saturated(charged)};
}

std::string_view PolicyName(PlanPolicy policy) {
  return policy == PlanPolicy::kUpstream ? "upstream" : "exact";
}

std::string_view LayoutName(PoolLayout layout) {
  constexpr std::string_view kNames[] = {"uniform", "slab", "native"};
  return kNames[static_cast<size_t>(layout)];
}

MemoryLayout MemoryLayoutFor(std::span<const LayerCache> caches, const PlanOptions& options) {
  if (options.memory_layout.has_value()) return *options.memory_layout;
  if (options.version == EngineVersion::kVllm025) return MemoryLayout::kLayerOutermost;
  const bool sparse = std::ranges::any_of(caches, [](const LayerCache& cache) {
    return cache.spec.options().model_version != ModelVersion::kNone ||
           cache.spec.kind() == KvCacheSpecKind::kSlidingWindowMla ||
           cache.spec.kind() == KvCacheSpecKind::kRing;
  });
  return sparse ? MemoryLayout::kBlockOutermost : MemoryLayout::kLayerOutermost;
}

bool ReservesNullBlock(PlanPolicy policy, EngineVersion version) {
  return policy == PlanPolicy::kExact || version == EngineVersion::kVllm033;
}

std::string PlanErrorName(PlanErrorCode code) {
  return "E-" + std::to_string(static_cast<int>(code));
}

PlanError ValueError(std::string_view field, std::string_view got, std::string_view expected) {
  return {.code = PlanErrorCode::kBadValue,
          .message = std::string(FieldError(field, got, expected).message())};
}

}  // namespace kvblocks
