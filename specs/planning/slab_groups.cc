#include "kvblocks/specs/planning/slab_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "kvblocks/checks/checked_int64.h"

namespace kvblocks {
namespace {

// Deals the layers of each page size in turn, the largest first, so that groups differ by little.
std::vector<std::vector<size_t>> DealByPage(const SlabBucket& bucket, int64_t num_groups) {
  std::map<int64_t, std::vector<size_t>, std::greater<>> by_page;
  for (size_t i = 0; i < bucket.layers.size(); ++i) by_page[bucket.page_bytes[i]].push_back(i);
  std::vector<std::vector<size_t>> groups(num_groups);
  int64_t next = 0;
  for (const auto& [page, members] : by_page) {
    for (const size_t member : members) {
      groups[next].push_back(member);
      next = (next + 1) % num_groups;
    }
  }
  for (std::vector<size_t>& group : groups) std::ranges::sort(group);
  return groups;
}

// The bytes of the largest group when pages, the largest first, are dealt into `num_groups`. As
// DealByPage does: it starts each page size where the one before stopped.
int64_t LargestGroupBytes(std::span<const int64_t> pages, int64_t num_groups) {
  std::vector<int64_t> bytes(num_groups, 0);
  for (size_t i = 0; i < pages.size(); ++i) bytes[i % num_groups] += pages[i];
  return std::ranges::max(bytes);
}

// The fewest groups of which none is larger than `stride`, where bytes_of[k - 1] is the largest of
// k.
int64_t FewestGroups(std::span<const int64_t> bytes_of, int64_t stride) {
  for (size_t k = 1; k <= bytes_of.size(); ++k) {
    if (bytes_of[k - 1] <= stride) return static_cast<int64_t>(k);
  }
  return 0;
}

}  // namespace

std::vector<std::vector<std::vector<int>>> CheapestSlabGroups(std::span<const SlabBucket> buckets,
                                                              int64_t table_cost_bytes) {
  std::vector<std::vector<int64_t>> bytes_of_cut(buckets.size());
  std::set<int64_t, std::greater<>> strides;  // large first: fewer groups win ties
  for (size_t t = 0; t < buckets.size(); ++t) {
    std::vector<int64_t> pages = buckets[t].page_bytes;
    std::ranges::sort(pages, std::greater<>());
    for (size_t k = 1; k <= pages.size(); ++k) {
      bytes_of_cut[t].push_back(LargestGroupBytes(pages, static_cast<int64_t>(k)));
    }
    strides.insert(bytes_of_cut[t].begin(), bytes_of_cut[t].end());
  }
  std::vector<int64_t> best(buckets.size(), 1);
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (const int64_t limit : strides) {
    std::vector<int64_t> cut;
    int64_t stride = 0;
    CheckedInt64 blocks(0);
    CheckedInt64 groups(0);
    for (size_t t = 0; t < buckets.size(); ++t) {
      const int64_t k = FewestGroups(bytes_of_cut[t], limit);
      if (k == 0) break;
      cut.push_back(k);
      stride = std::max(stride, bytes_of_cut[t][k - 1]);
      blocks = blocks + CheckedInt64(k) * buckets[t].blocks;
      groups = groups + k;
    }
    if (cut.size() != buckets.size()) break;  // nor would it below this stride
    const CheckedInt64 cost = CheckedInt64(stride) * blocks + groups * table_cost_bytes;
    if (!cost.overflowed() && *cost.value() < best_cost) {
      best_cost = *cost.value();
      best = cut;
    }
  }
  std::vector<std::vector<std::vector<int>>> result;
  for (size_t t = 0; t < buckets.size(); ++t) {
    std::vector<std::vector<int>>& groups = result.emplace_back();
    for (const std::vector<size_t>& members : DealByPage(buckets[t], best[t])) {
      std::vector<int>& group = groups.emplace_back();
      for (const size_t member : members) group.push_back(buckets[t].layers[member]);
    }
  }
  return result;
}

}  // namespace kvblocks
