// HitCurve: how many blocks a pool of each size would have hit.
//
//   HitCurve curve;
//   curve.AddRun(3, 2);        // two blocks that need pools of 3 and 4 blocks
//   curve.Finish();
//   curve.Hits(3)              // 1
//   curve.SmallestPool(2)      // 4
//
// Sizes count usable blocks: an engine's pool has the null block beside them. Size 0 stands for
// blocks that somebody held at that time, which every pool hits.
//
// Always: hits never fall with the size. Cost and memory follow the runs, not the sizes: O(1) per
// run, Finish O(runs log runs), after which look-ups are O(log runs); about 40 bytes per size at
// which a run begins or ends.

#ifndef KVBLOCKS_SIM_CURVE_HIT_CURVE_H_
#define KVBLOCKS_SIM_CURVE_HIT_CURVE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvblocks::sim {

class HitCurve {
 public:
  // Sizes from `first` on, up to the next piece: each has `gain` more hits than the one before.
  struct Piece {
    int64_t first;
    int64_t gain;
    int64_t hits_before;  // of the size before the first
  };

  // Blocks that need pools of first, first + 1, ... first + count - 1 blocks. REQUIRES: 0 <= first,
  // 0 <= count.
  void AddRun(int64_t first, int64_t count) { Add(first, first + count, 1); }
  // `count` blocks that need a pool of num_blocks.
  void AddAt(int64_t num_blocks, int64_t count) { Add(num_blocks, num_blocks + 1, count); }
  void Finish();

  // REQUIRES: Finish was called.
  int64_t Hits(int64_t num_blocks) const;
  int64_t max_hits() const { return pieces_.empty() ? 0 : pieces_.back().hits_before; }
  // With at least so many hits; -1 if no pool has them.
  int64_t SmallestPool(int64_t hits) const;
  // Ascending. The last one gains nothing.
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  void Add(int64_t first, int64_t end, int64_t gain) {
    if (first == end) return;
    changes_[first] += gain;
    changes_[end] -= gain;
  }

  absl::flat_hash_map<int64_t, int64_t> changes_;  // of what each size gains, by size
  std::vector<Piece> pieces_;
};

// ReleaseHistory: how large a pool must have been to keep what was released, batch by batch.
//
// A batch is the blocks that one request gave back at one time, the root of its path on top. Blocks
// nobody references are kept in the order of their release, newest first. With p blocks referenced,
// a block at rank r is resident in a pool of C blocks if and only if r + p never exceeded C since
// it was released. Every event changes r + p of all blocks of a batch alike, because who takes a
// block takes all blocks before it on its path, too. So one number per batch is enough: the block
// at depth i (from 0) of batch b needs a pool of i + 1 + Largest(b) blocks, where Largest is the
// highest value that the batch's number ever had. The number itself changes like this:
//   a block leaves batch b by a hit     +1 for batches newer than b (AddToNewer)
//   a block is taken new                +1 for all (AddToAll)
//   blocks with keys are released       0 for all; their batch starts at p - depth of the first
//   a block without a key is released   0 if it goes to the back of the queue, else -1 for all
//
// Always: numbers and maxima are exact; batches are numbered from 0 by release. Implementation: a
// binary tree over the batches whose nodes hold the sum of pending additions and its largest
// prefix. Cost: AddToAll O(1), the others but Raise O(log batches); 32 to 64 bytes per batch.
// Single-threaded.

class ReleaseHistory {
 public:
  using Batch = uint32_t;

  ReleaseHistory() : nodes_(2 * capacity_) {}

  Batch num_batches() const { return num_batches_; }

  // A batch that begins with this number.
  Batch Push(int64_t value);
  void AddToAll(int64_t delta) { nodes_[1].Apply({delta, std::max<int64_t>(delta, 0)}); }
  void AddToNewer(Batch batch, int64_t delta);
  // Adds to the numbers of batches first .. last and to their maxima, as if it had been there since
  // they were reached. O(last - first).
  void Raise(Batch first, Batch last, int64_t delta) { Raise(1, 0, capacity_, first, last, delta); }
  // The largest number that a batch has had. REQUIRES: it was pushed.
  int64_t Largest(Batch batch) const;

 private:
  // Of an inner node: what was added to all below it and has not been handed down, and the largest
  // sum on the way there, at least 0. Of a leaf: the number and its maximum.
  struct Node {
    int64_t sum = 0;
    int64_t largest = 0;

    void Apply(const Node& later) {
      largest = std::max(largest, sum + later.largest);
      sum += later.sum;
    }
  };

  void HandDown(size_t node) {
    Node& tag = nodes_[node];
    if (tag.sum == 0 && tag.largest == 0) return;
    nodes_[2 * node].Apply(tag);
    nodes_[2 * node + 1].Apply(tag);
    tag = Node();
  }
  // To all leaves from `first` on.
  void AddFrom(size_t first, int64_t delta);
  void Raise(size_t node, size_t left, size_t width, size_t first, size_t last, int64_t delta);
  void Grow();

  size_t capacity_ = 64;  // a power of two; leaf i is node capacity_ + i
  Batch num_batches_ = 0;
  std::vector<Node> nodes_;  // root at 1
};

// SizeHistory: a ReleaseHistory with corrections that hold for some pool sizes only.
//
// A block may be cached twice. A look-up takes the copy that was registered first, where the pool
// still has it, and the next one elsewhere. If the older copy stands further back, pools of `size`
// blocks or more (those that still have it) take it and leave the newer one where it is; smaller
// ones take the newer one. From then on all blocks that stand between the two are one place further
// back in the former pools. Which of the two worlds a block is in follows from its own place: it is
// found in the smallest pool that has it in either. Once all blocks concerned stand behind `size`,
// the correction is made part of their history.
//
// Cost: as ReleaseHistory, and for each look-up O(corrections not settled), usually none.

class SizeHistory {
 public:
  using Batch = ReleaseHistory::Batch;

  // See ReleaseHistory.
  Batch Push(int64_t value) { return history_.Push(value); }
  void AddToAll(int64_t delta) { history_.AddToAll(delta); }
  void AddToNewer(Batch batch, int64_t delta) { history_.AddToNewer(batch, delta); }

  // The smallest pool that has the block at `depth` of a batch.
  int64_t SizeFor(Batch batch, int64_t depth) const;
  // Whether blocks of a batch that follow each other need pools that do, too.
  bool is_plain() const { return corrections_.empty(); }

  // A look-up takes the older of two copies at `depth` of their paths where the pool has it, and
  // the newer one in others. Counts from the next Settle on. REQUIRES: older < newer.
  void TakeOneOf(Batch older, Batch newer, int64_t depth);
  // Takes up what TakeOneOf said since the last call, and settles what it can: once per request,
  // behind its look-up.
  void Settle() {
    if (!new_corrections_.empty() || !corrections_.empty()) SettleAll();
  }

 private:
  // In pools of `size` or more, blocks of batches first .. last stand one place further back.
  struct Correction {
    Batch first;
    Batch last;
    int64_t size;
    int64_t next_depth;  // of what batch `last` may still hold
  };

  void SettleAll();

  ReleaseHistory history_;
  std::vector<Correction> corrections_;  // by size
  std::vector<Correction> new_corrections_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_HIT_CURVE_H_
