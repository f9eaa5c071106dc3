#include "sim/curve/belady_bound.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

namespace kvblocks::sim {

void BeladyBound::Add(const CurveRequest& request, absl::Span<const BlockPaths::Segment> segments) {
  const auto num_keyed = static_cast<uint32_t>(request.keys.size());
  requests_.push_back({.first_segment = segments_.size(),
                       .num_eligible = static_cast<uint32_t>(request.num_eligible),
                       .num_keyed = num_keyed,
                       .num_blocks = static_cast<uint32_t>(request.num_blocks())});
  if (num_keyed > 0) segments_.insert(segments_.end(), segments.begin(), segments.end());
}

void BeladyBound::Prepare(BlockPaths paths) {
  const auto never = static_cast<uint32_t>(requests_.size());
  paths.ResetUses(never);
  std::vector<BlockPaths::Segment> eligible;
  first_use_.assign(requests_.size() + 1, 0);
  for (size_t r = requests_.size(); r > 0; --r) {
    Request& request = requests_[r - 1];
    const size_t end = r < requests_.size() ? requests_[r].first_segment : segments_.size();
    const auto segments =
        absl::MakeConstSpan(segments_).subspan(request.first_segment, end - request.first_segment);
    request.first_run = runs_.size();
    paths.ForEachRun(segments, request.num_keyed, [&](const BlockPaths::Run& run) {
      if (run.use == never) return;
      const auto begin = static_cast<uint32_t>(run.begin);
      const auto count = static_cast<uint32_t>(run.end - run.begin);
      if (runs_.size() > request.first_run && runs_.back().next_request == run.use &&
          runs_.back().begin + runs_.back().count == begin) {
        runs_.back().count += count;
        return;
      }
      runs_.push_back({begin, count, run.use});
      ++first_use_[run.use + 1];
    });
    // Before this request, what it computes anyway is of no use.
    eligible.clear();
    int64_t left = request.num_eligible;
    for (const BlockPaths::Segment& segment : segments) {
      if (left <= 0) break;
      const auto count = std::min<int64_t>(left, segment.num_blocks);
      eligible.push_back({segment.piece, static_cast<uint32_t>(count)});
      left -= count;
    }
    paths.Touch(segments, never);
    paths.Touch(eligible, static_cast<uint32_t>(r - 1));
  }
  for (size_t r = 0; r < requests_.size(); ++r) first_use_[r + 1] += first_use_[r];
  uses_.resize(runs_.size());
  std::vector<uint32_t> at(first_use_.begin(), first_use_.end());
  for (size_t run = 0; run < runs_.size(); ++run) {
    uses_[at[runs_[run].next_request]++] = static_cast<uint32_t>(run);
  }
  std::vector<BlockPaths::Segment>().swap(segments_);
}

absl::Span<const BeladyBound::Run> BeladyBound::RunsOf(size_t request) const {
  const size_t begin = requests_[request].first_run;
  const size_t end = request == 0 ? runs_.size() : requests_[request - 1].first_run;
  return absl::MakeConstSpan(runs_).subspan(begin, end - begin);
}

int64_t BeladyBound::Hits(int64_t num_blocks, Bypass bypass) const {
  struct Candidate {
    uint64_t order;  // next use, then depth
    uint32_t run;
    bool operator<(const Candidate& other) const { return order < other.order; }
  };
  std::priority_queue<Candidate> candidates;    // used farthest first; some were used since
  std::vector<uint32_t> kept(runs_.size(), 0);  // of each run, from its root on
  int64_t hits = 0;
  int64_t resident = 0;  // blocks with a next use that no request uses now

  const auto shrink_to = [&](int64_t most) {
    while (resident > most && !candidates.empty()) {
      const uint32_t run = candidates.top().run;
      const auto evicted = std::min<int64_t>(kept[run], resident - most);
      kept[run] -= static_cast<uint32_t>(evicted);
      resident -= evicted;
      if (kept[run] == 0) candidates.pop();
    }
  };
  for (size_t r = 0; r < requests_.size(); ++r) {
    for (uint32_t use = first_use_[r]; use < first_use_[r + 1]; ++use) {
      uint32_t& run = kept[uses_[use]];
      hits += run;
      resident -= run;
      run = 0;
    }
    if (bypass == Bypass::kNo) {
      shrink_to(std::max<int64_t>(num_blocks - int64_t{requests_[r].num_blocks}, 0));
    }
    const auto runs = RunsOf(r);
    const size_t first = requests_[r].first_run;
    for (size_t i = 0; i < runs.size(); ++i) {
      kept[first + i] = runs[i].count;
      resident += runs[i].count;
      candidates.push({(uint64_t{runs[i].next_request} << 32) | runs[i].begin,
                       static_cast<uint32_t>(first + i)});
    }
    shrink_to(num_blocks);
  }
  return hits;
}

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
