#include "kvblocks/sim/curve/static_bound.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

namespace kvblocks::sim {

void StaticBound::Add(const CurveRequest& request,
                      absl::Span<const BlockPaths::Segment> segments) {
  if (request.keys.empty()) return;
  int64_t left = request.num_eligible;
  for (const BlockPaths::Segment& segment : segments) {
    if (segment.piece >= pieces_.size()) {  // laid down by this request
      pieces_.resize(segment.piece + 1);
      pieces_.back().num_blocks = segment.num_blocks;
      return;
    }
    const auto hits = static_cast<uint32_t>(std::min<int64_t>(left, segment.num_blocks));
    if (hits > 0 && hits == pieces_[segment.piece].num_blocks) {
      ++pieces_[segment.piece].num_uses;
    } else if (hits > 0) {
      partial_uses_.push_back({segment.piece, hits});
    }
    left -= hits;
  }
}

void StaticBound::Prepare() {
  std::sort(partial_uses_.begin(), partial_uses_.end(), [](const auto& a, const auto& b) {
    return std::tie(a.piece, b.num_blocks) < std::tie(b.piece, a.num_blocks);
  });
  // From the end of each piece to its root, where every partial use adds one.
  std::map<int64_t, int64_t, std::greater<>> num_blocks_hit;  // by hits
  auto use = partial_uses_.begin();
  for (uint32_t piece = 0; piece < pieces_.size(); ++piece) {
    int64_t end = pieces_[piece].num_blocks;
    int64_t num_hits = pieces_[piece].num_uses;
    for (; use != partial_uses_.end() && use->piece == piece; ++use, ++num_hits) {
      num_blocks_hit[num_hits] += end - use->num_blocks;
      end = use->num_blocks;
    }
    num_blocks_hit[num_hits] += end;
  }
  levels_.assign(1, {0, 0, 0});
  for (const auto& [num_hits, num_blocks] : num_blocks_hit) {
    levels_.push_back({num_hits, levels_.back().num_blocks + num_blocks,
                       levels_.back().sum_hits + num_hits * num_blocks});
  }
  std::vector<BlockPaths::Segment>().swap(partial_uses_);
}

int64_t StaticBound::Hits(int64_t num_blocks) const {
  const auto level = std::lower_bound(
      levels_.begin() + 1, levels_.end(), num_blocks,
      [](const Level& a, int64_t blocks) { return a.num_blocks < blocks; });
  const Level& before = *(level - 1);
  if (level == levels_.end()) return before.sum_hits;
  return before.sum_hits + (num_blocks - before.num_blocks) * level->num_hits;
}

}  // namespace kvblocks::sim
