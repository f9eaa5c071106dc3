#include "kvblocks/specs/planning/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kvblocks/checks/checked_int64.h"

namespace kvblocks {
namespace {

int64_t Saturated(CheckedInt64 value) {
  return value.value().value_or(std::numeric_limits<int64_t>::max());
}

}  // namespace

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

}  // namespace kvblocks
