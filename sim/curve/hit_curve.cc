#include "sim/curve/hit_curve.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvblocks::sim {

void HitCurve::Finish() {
  pieces_.clear();
  for (const auto& [size, change] : changes_) {
    if (change != 0) pieces_.push_back({size, change, 0});
  }
  changes_ = {};
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.first < b.first; });
  for (size_t i = 1; i < pieces_.size(); ++i) {
    const Piece& before = pieces_[i - 1];
    pieces_[i].gain += before.gain;
    pieces_[i].hits_before = before.hits_before + before.gain * (pieces_[i].first - before.first);
  }
}

int64_t HitCurve::Hits(int64_t num_blocks) const {
  const auto after =
      std::upper_bound(pieces_.begin(), pieces_.end(), num_blocks,
                       [](int64_t size, const Piece& piece) { return size < piece.first; });
  if (after == pieces_.begin()) return 0;
  const Piece& piece = *(after - 1);
  return piece.hits_before + piece.gain * (num_blocks - piece.first + 1);
}

int64_t HitCurve::SmallestPool(int64_t hits) const {
  if (hits <= 0) return 0;
  if (hits > max_hits()) return -1;
  const auto after = std::lower_bound(
      pieces_.begin(), pieces_.end(), hits,
      [](const Piece& piece, int64_t wanted) { return piece.hits_before < wanted; });
  const Piece& piece = *(after - 1);
  return piece.first + (hits - piece.hits_before - 1) / piece.gain;
}

ReleaseHistory::Batch ReleaseHistory::Push(int64_t value) {
  if (num_batches_ == capacity_) Grow();
  const size_t leaf = capacity_ + num_batches_;
  // What was added before it came is not for it.
  size_t depth = 0;
  while ((size_t{1} << depth) < capacity_) ++depth;
  for (size_t level = depth; level > 0; --level) HandDown(leaf >> level);
  nodes_[leaf] = {value, value};
  return num_batches_++;
}

void ReleaseHistory::Grow() {
  for (size_t node = 1; node < capacity_; ++node) HandDown(node);
  std::vector<Node> larger(4 * capacity_);
  std::copy(nodes_.begin() + static_cast<std::ptrdiff_t>(capacity_), nodes_.end(),
            larger.begin() + static_cast<std::ptrdiff_t>(2 * capacity_));
  capacity_ *= 2;
  nodes_ = std::move(larger);
}

void ReleaseHistory::AddFrom(size_t first, int64_t delta) {
  if (first >= num_batches_) return;
  const Node added{delta, std::max<int64_t>(delta, 0)};
  size_t node = 1;
  size_t width = capacity_;  // leaves below the node
  size_t left = 0;           // the first of them
  while (left < first) {
    HandDown(node);
    width /= 2;
    node *= 2;
    if (first >= left + width) {
      left += width;
      ++node;
    } else {
      nodes_[node + 1].Apply(added);
    }
  }
  nodes_[node].Apply(added);
}

void ReleaseHistory::AddToNewer(Batch batch, int64_t delta) {
  AddFrom(static_cast<size_t>(batch) + 1, delta);
}

void ReleaseHistory::Raise(size_t node, size_t left, size_t width, size_t first, size_t last,
                           int64_t delta) {
  if (last < left || left + width <= first) return;
  if (width == 1) {
    nodes_[node].sum += delta;
    nodes_[node].largest += delta;
    return;
  }
  HandDown(node);
  Raise(2 * node, left, width / 2, first, last, delta);
  Raise(2 * node + 1, left + width / 2, width / 2, first, last, delta);
}

int64_t ReleaseHistory::Largest(Batch batch) const {
  size_t node = capacity_ + batch;
  Node value = nodes_[node];
  for (node /= 2; node > 0; node /= 2) value.Apply(nodes_[node]);
  return value.largest;
}

int64_t SizeHistory::SizeFor(Batch batch, int64_t depth) const {
  int64_t size = history_.Largest(batch) + depth + 1;
  for (const Correction& correction : corrections_) {
    if (size < correction.size) break;
    if (correction.first <= batch && batch <= correction.last) ++size;
  }
  return size;
}

void SizeHistory::TakeOneOf(Batch older, Batch newer, int64_t depth) {
  new_corrections_.push_back({older + 1, newer, SizeFor(older, depth), depth + 1});
}

void SizeHistory::SettleAll() {
  if (!new_corrections_.empty()) {
    corrections_.insert(corrections_.end(), new_corrections_.begin(), new_corrections_.end());
    new_corrections_.clear();
    std::stable_sort(corrections_.begin(), corrections_.end(),
                     [](const Correction& a, const Correction& b) { return a.size < b.size; });
  }
  std::erase_if(corrections_, [&](const Correction& correction) {
    // It concerns only places behind this one.
    if (history_.Largest(correction.last) + correction.next_depth + 1 < correction.size) {
      return false;
    }
    history_.Raise(correction.first, correction.last, 1);
    return true;
  });
}

}  // namespace kvblocks::sim
