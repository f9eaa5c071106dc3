// Plan's accounts of memory that holds nothing.

#include <algorithm>
#include <limits>
#include <utility>

#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/specs/planning/plan.h"
#include "kvblocks/specs/planning/request_demand.h"
#include "kvblocks/specs/planning/row_layout.h"

namespace kvblocks {
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
  switch (reason) {
    case WasteReason::kPaddingLayers:
      return "padding layers";
    case WasteReason::kSlabOverlap:
      return "slab overlap";
    case WasteReason::kPagePadding:
      return "page padding";
    case WasteReason::kChunkRemainder:
      return "chunk remainder";
    case WasteReason::kPartialChunk:
      return "partial chunks";
    case WasteReason::kNullBlock:
      return "null block";
    case WasteReason::kSinkBlocks:
      return "sink blocks";
    case WasteReason::kUnusedMemory:
      return "unused memory";
    case WasteReason::kUpstreamCap:
      return "upstream's cap surplus";
  }
  return "unknown";
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
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return {.bytes_used = used.value().value_or(kMost),
          .bytes_charged = charged.value().value_or(kMost)};
}

}  // namespace kvblocks
