#include "kvblocks/managers/sliding_window_manager.h"

#include <numeric>

namespace kvblocks {

SlidingWindowManager::SlidingWindowManager(const KvCacheSpec& spec, const Options& options,
                                           BlockPool* pool)
    : SingleTypeManager(spec, options, pool, {}),
      window_(spec.sliding_window().value()),
      tail_blocks_(std::max<int64_t>(1, block_size_.CeilDiv(window_ - 1))) {}

int64_t SlidingWindowManager::FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const {
  for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
  const int64_t num_groups = static_cast<int64_t>(query.groups.size());
  const int64_t margin = query.drop_last_block ? 1 : 0;
  const int64_t num_positions = block_size_.FloorDiv(query.max_tokens);
  // A hit of `end` blocks needs positions [end - tail_blocks_, end + margin). Among those probed,
  // only the latest such span matters, so a ring of that width holds what was found. It never spans
  // more positions than there are.
  const int64_t width = std::min(tail_blocks_ + margin, std::max<int64_t>(num_positions, 1));
  found_.resize(static_cast<size_t>(width * num_groups));

  // end * block_size() is a multiple of the alignment iff end is one of this.
  const int64_t step = query.alignment / std::gcd(query.alignment, block_size());
  const auto aligned_down = [step](int64_t end) { return end > 0 ? end - end % step : 0; };
  const auto probe = [&](int64_t position) {
    BlockId* ring = &found_[static_cast<size_t>(position % width * num_groups)];
    for (int64_t i = 0; i < num_groups; ++i) {
      ring[i] = pool_->FindCached(*query.content, position, hashes_per_block_,
                                  query.groups[static_cast<size_t>(i)]);
      if (ring[i] == kNullBlockId) return false;
    }
    return true;
  };

  int64_t end = aligned_down(num_positions - margin);
  // Positions [known_from, end + margin) are known to be cached.
  int64_t known_from = num_positions;
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - tail_blocks_);
    const int64_t probe_end = std::min(known_from, end + margin);
    int64_t position = begin;
    while (position < probe_end && probe(position)) ++position;
    if (position == probe_end) {
      for (int64_t i = 0; i < num_groups; ++i) {
        std::vector<BlockId>& list =
            lists[static_cast<size_t>(query.groups[static_cast<size_t>(i)])];
        list.assign(static_cast<size_t>(begin), kNullBlockId);
        for (int64_t p = begin; p < end; ++p) {
          list.push_back(found_[static_cast<size_t>(p % width * num_groups + i)]);
        }
      }
      return end * block_size();
    }
    // The miss lies in the window of every end in (position - margin, end]; what was found below it
    // stays known.
    known_from = begin;
    end = aligned_down(position - margin);
  }
  return 0;
}

}  // namespace kvblocks
