#include "sim/gen/reuse_tree.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sim/gen/fixed_math.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kFirstRoom = 1 << 12;
// Of a search: depths on either side, blocks on either side of the distance at each depth, and how
// far off a depth may be.
constexpr int64_t kDepthsAside = 8;
constexpr int kBlocksAside = 4;
constexpr double kDepthTolerance = 0.3;
// What being off by all of the path weighs, beside a distance off by an octave.
constexpr double kDepthWeight = 2;
constexpr double kSharedWeight = 2;
constexpr double kLnTwo = 0.693147180559945309417;

double Log2(double x) { return FixedLn(x) / kLnTwo; }

}  // namespace

int ReuseTree::Add(int parent) {
  blocks_.push_back({.parent = parent,
                     .depth = parent == kNoBlock ? 1 : static_cast<int32_t>(depth(parent)) + 1});
  return static_cast<int>(blocks_.size()) - 1;
}

void ReuseTree::Use(const std::vector<int>& path) {
  for (size_t i = path.size(); i > 0; --i) Touch(path[i - 1]);
  ++num_requests_;
}

void ReuseTree::Touch(int block) {
  if (next_slot_ + 1 >= static_cast<int64_t>(uses_.size())) MakeRoom();
  Block& b = blocks_[static_cast<size_t>(block)];
  const auto add = [&](int64_t slot, int64_t value) {
    for (auto i = static_cast<size_t>(slot) + 1; i < uses_.size(); i += i & (~i + 1)) {
      uses_[i] += value;
    }
  };
  if (b.slot >= 0) {
    add(b.slot, -1);
    block_at_[static_cast<size_t>(b.slot)] = kNoBlock;
  } else {
    ++num_used_;
  }
  if (searchable_) {
    if (static_cast<int64_t>(levels_.size()) < b.depth)
      levels_.resize(static_cast<size_t>(b.depth));
    Level& level = levels_[static_cast<size_t>(b.depth) - 1];
    if (b.slot < 0) {
      level.emplace(next_use_, block);
    } else {
      auto node = level.extract({b.use, block});
      node.value().first = next_use_;
      level.insert(level.end(), std::move(node));
    }
  }
  b.use = next_use_++;
  b.slot = next_slot_++;
  b.request = num_requests_;
  add(b.slot, 1);
  block_at_[static_cast<size_t>(b.slot)] = block;
}

// Slots that are nobody's last use are given up.
void ReuseTree::MakeRoom() {
  std::vector<int> live;
  for (const int block : block_at_) {
    if (block != kNoBlock) live.push_back(block);
  }
  const auto room = static_cast<size_t>(std::max<int64_t>(kFirstRoom, 2 * num_used_ + 2));
  block_at_.assign(room, kNoBlock);
  uses_.assign(room + 1, 0);
  for (size_t i = 0; i < live.size(); ++i) {
    blocks_[static_cast<size_t>(live[i])].slot = static_cast<int64_t>(i);
    block_at_[i] = live[i];
    uses_[i + 1] = 1;
  }
  for (size_t i = 1; i < uses_.size(); ++i) {
    const size_t next = i + (i & (~i + 1));
    if (next < uses_.size()) uses_[next] += uses_[i];
  }
  next_slot_ = static_cast<int64_t>(live.size());
}

int64_t ReuseTree::UsedBefore(int64_t slot) const {
  int64_t sum = 0;
  for (auto i = static_cast<size_t>(slot); i > 0; i -= i & (~i + 1)) sum += uses_[i];
  return sum;
}

int64_t ReuseTree::Distance(int block) const {
  return num_used_ - UsedBefore(blocks_[static_cast<size_t>(block)].slot);
}

int64_t ReuseTree::Shared(int block) const {
  const int64_t request = blocks_[static_cast<size_t>(block)].request;
  while (block != kNoBlock && blocks_[static_cast<size_t>(block)].request == request) {
    block = parent(block);
  }
  return block == kNoBlock ? 0 : depth(block);
}

// REQUIRES: 1 <= distance <= num_used_.
int ReuseTree::BlockAtDistance(int64_t distance) const {
  int64_t left = num_used_ - distance + 1;  // its place from the oldest use on
  size_t step = 1;
  while (step * 2 < uses_.size()) step *= 2;
  size_t slot = 0;
  for (; step > 0; step /= 2) {
    if (slot + step < uses_.size() && uses_[slot + step] < left) {
      slot += step;
      left -= uses_[slot];
    }
  }
  return block_at_[slot];
}

void ReuseTree::Consider(int block, int64_t wanted, double log_distance, int64_t shared,
                         double* best, int* found) const {
  const double scale = 1 / static_cast<double>(wanted);
  double cost = std::abs(Log2(static_cast<double>(Distance(block))) - log_distance) +
                kDepthWeight * scale * static_cast<double>(std::abs(depth(block) - wanted));
  if (cost >= *best) return;
  cost += kSharedWeight * scale * static_cast<double>(std::abs(Shared(block) - shared));
  if (cost >= *best) return;
  *best = cost;
  *found = block;
}

int ReuseTree::Nearest(int64_t wanted, double distance, int64_t shared) const {
  if (levels_.empty()) return kNoBlock;
  const auto deepest = static_cast<int64_t>(levels_.size());
  wanted = std::clamp<int64_t>(wanted, 1, deepest);
  distance = std::clamp(distance, 1.0, static_cast<double>(num_used_));
  const double log_distance = Log2(distance);
  const int pivot = BlockAtDistance(static_cast<int64_t>(distance));
  const std::pair<int64_t, int> place(blocks_[static_cast<size_t>(pivot)].use, kNoBlock);
  const auto reach =
      static_cast<int64_t>(kDepthTolerance * static_cast<double>(wanted));
  const int64_t stride = std::max<int64_t>(1, (reach + kDepthsAside - 1) / kDepthsAside);
  double best = 1e300;
  int found = kNoBlock;
  for (int64_t aside = 0; aside <= reach; aside += stride) {
    for (const int64_t at : {wanted - aside, wanted + aside}) {
      if (at < 1 || at > deepest || (aside == 0 && found != kNoBlock)) continue;
      const Level& level = levels_[static_cast<size_t>(at) - 1];
      const auto from = level.lower_bound(place);
      auto it = from;
      for (int i = 0; i < kBlocksAside && it != level.end(); ++i, ++it) {
        Consider(it->second, wanted, log_distance, shared, &best, &found);
      }
      it = from;
      for (int i = 0; i < kBlocksAside && it != level.begin(); ++i) {
        Consider((--it)->second, wanted, log_distance, shared, &best, &found);
      }
    }
  }
  return found;
}

}  // namespace kvblocks::sim
