#include "kvblocks/plan.h"

#include <algorithm>
#include <cmath>

#include "checks/checked_int64.h"

namespace kvblocks {
namespace {

// Blocks of `requests` requests of one length in one group. Each holds its steady blocks and at
// most one more for a window that starts inside a block; what else they hold is covered by the
// tokens in flight, which exist once. No request holds more than one that owns all tokens in
// flight.
CheckedInt64 BlocksOfRequests(const GroupDemand& group, int64_t requests, int64_t length,
                              bool shared_transient) {
  const int64_t alone = group.alone.At(length);
  const CheckedInt64 separate = CheckedInt64(requests) * alone;
  if (!shared_transient || group.transient_blocks == 0) return separate;
  const int64_t steady = AddUpTo(group.steady.At(length), 1, alone);
  const CheckedInt64 together = CheckedInt64(requests) * steady + group.transient_blocks;
  return Saturated(together) < Saturated(separate) ? together : separate;
}

// The largest n in [0, limit] for which fits(n), given that fits(0) and that once it does not fit
// it never does again.
template <typename Fits>
int64_t LastThatFits(int64_t limit, Fits fits) {
  int64_t low = 0;
  while (low < limit) {
    const int64_t middle = low + (limit - low) / 2 + (limit - low) % 2;
    if (fits(middle)) {
      low = middle;
    } else {
      limit = middle - 1;
    }
  }
  return low;
}

}  // namespace

std::vector<int64_t> PoolCapacity::BlocksPerRequest(int64_t length) const {
  std::vector<int64_t> blocks;
  blocks.reserve(groups.size());
  for (const GroupDemand& group : groups) blocks.push_back(group.alone.At(length));
  return blocks;
}

int64_t PoolCapacity::TotalBlocksPerRequest(int64_t length) const {
  CheckedInt64 total(0);
  for (const GroupDemand& group : groups) total = total + group.alone.At(length);
  return Saturated(total);
}

int64_t PoolCapacity::UnitsNeeded(int64_t requests, int64_t length) const {
  std::vector<CheckedInt64> pages(pages_per_unit.size(), CheckedInt64(0));
  for (const GroupDemand& group : groups) {
    CheckedInt64& of_class = pages[group.page_class];
    of_class = of_class + group.permanent_blocks +
               BlocksOfRequests(group, requests, length, shared_transient);
  }
  CheckedInt64 needed(0);
  for (size_t c = 0; c < pages.size(); ++c) {
    needed = needed + CeilDiv(Saturated(pages[c]), pages_per_unit[c]);
  }
  return Saturated(needed);
}

int64_t PoolCapacity::MaxRequests(int64_t length) const {
  if (UnitsNeeded(0, length) > units) return 0;
  const int64_t most =
      Saturated(CheckedInt64(units) * *std::ranges::max_element(pages_per_unit) + 1);
  if (UnitsNeeded(most, length) <= units) return kNoCap;
  return LastThatFits(most, [&](int64_t n) { return UnitsNeeded(n, length) <= units; });
}

double PoolCapacity::Concurrency(int64_t length) const {
  const int64_t used_by_none = UnitsNeeded(0, length);
  if (used_by_none > units) return 0;
  const int64_t whole = MaxRequests(length);
  if (whole == kNoCap) return std::numeric_limits<double>::infinity();
  const int64_t used = UnitsNeeded(whole, length);
  const int64_t used_by_next = UnitsNeeded(whole + 1, length);
  return static_cast<double>(whole) +
         static_cast<double>(units - used) / static_cast<double>(used_by_next - used);
}

int64_t PoolCapacity::LongestLength(int64_t num_units, int64_t limit) const {
  const auto fits = [&](int64_t length) { return UnitsNeeded(1, length) <= num_units; };
  if (limit < 1 || !fits(1)) return 0;
  if (fits(limit)) return limit;
  const bool linear = std::ranges::all_of(pages_per_unit, [](int64_t pages) { return pages == 1; });
  return linear ? LongestLengthOfBlocks(num_units, limit) : LastThatFits(limit, fits);
}

// Between the lengths at which groups reach their caps, the sum of the staircases stays within one
// block per group of a straight line. So the answer is where the line meets the blocks that remain,
// or at most two steps per group further.
int64_t PoolCapacity::LongestLengthOfBlocks(int64_t num_blocks, int64_t limit) const {
  const auto fits = [&](int64_t length) { return UnitsNeeded(1, length) <= num_blocks; };
  // The groups still growing, in the order in which they stop.
  std::vector<const BlockStaircase*> growing;
  int64_t start = 1;  // fits; all stairs of `growing` are below their cap from here on
  for (const GroupDemand& group : groups) growing.push_back(&group.alone);
  const auto end_of_growth = [](const BlockStaircase* stairs) {
    return Saturated(CheckedInt64(stairs->cap) * stairs->step);
  };
  std::ranges::sort(growing, {}, end_of_growth);
  size_t stopped = 0;
  while (stopped < growing.size()) {
    const int64_t end = std::min(end_of_growth(growing[stopped]), limit);
    if (end > start && !fits(end)) break;
    start = std::max(start, end);
    ++stopped;
  }
  double blocks_per_token = 0;
  for (size_t i = stopped; i < growing.size(); ++i) blocks_per_token += 1.0 / growing[i]->step;
  const double spare = static_cast<double>(num_blocks - UnitsNeeded(1, start)) -
                       static_cast<double>(growing.size() - stopped);
  // Rounding may carry the line's end past what fits; then the walk begins at the start.
  int64_t length = start;
  if (spare > 0 && spare / blocks_per_token < static_cast<double>(limit - start)) {
    const int64_t jump = start + static_cast<int64_t>(spare / blocks_per_token);
    if (fits(jump)) length = jump;
  }
  while (true) {
    // No staircase steps up to here.
    int64_t flat = limit;
    for (size_t i = stopped; i < growing.size(); ++i) {
      const int64_t step = growing[i]->step;
      flat = std::min(flat, Saturated(CheckedInt64(CeilDiv(length, step)) * step));
    }
    if (flat == limit) return limit;
    if (!fits(flat + 1)) return flat;
    length = flat + 1;
  }
}

}  // namespace kvblocks
