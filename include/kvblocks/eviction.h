// Eviction policies that a pool may be given, beside lru.

#ifndef KVBLOCKS_EVICTION_H_
#define KVBLOCKS_EVICTION_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/block.h"
#include "kvblocks/check.h"
#include "kvblocks/eviction_policy.h"

// BlockHeap: a set of blocks ordered by a key of two numbers, smallest first, from which any block
// can be taken.
//
// An indexed binary heap over block ids. Always: the block at the top has the smallest (first,
// second); position_[id] is where the block stands, or -1. Keys should differ, so that the order is
// defined. Cost: O(log n) to add and remove, O(1) to look at the top; 24 bytes per block of the
// pool, taken at construction, and nothing after it.

namespace kvblocks {

struct BlockRank {
  int64_t first = 0;
  int64_t second = 0;

  friend auto operator<=>(const BlockRank&, const BlockRank&) = default;
};

class BlockHeap {
 public:
  explicit BlockHeap(int32_t num_blocks)
      : ranks_(static_cast<size_t>(num_blocks)), position_(static_cast<size_t>(num_blocks), -1) {
    heap_.reserve(static_cast<size_t>(num_blocks));
  }

  bool empty() const { return heap_.empty(); }
  int32_t size() const { return static_cast<int32_t>(heap_.size()); }
  bool contains(BlockId id) const { return position_[static_cast<size_t>(id)] >= 0; }
  // REQUIRES: not empty.
  BlockId top() const { return heap_.front(); }
  // REQUIRES: contains(id).
  const BlockRank& rank(BlockId id) const { return ranks_[static_cast<size_t>(id)]; }

  // REQUIRES: not contained.
  void Add(BlockId id, const BlockRank& rank) {
    KVBLOCKS_DCHECK(!contains(id), "a block enters a heap twice");
    ranks_[static_cast<size_t>(id)] = rank;
    heap_.push_back(id);
    Place(heap_.size() - 1, id);
    Rise(heap_.size() - 1);
  }
  // No-op for a block that is not contained.
  void Remove(BlockId id) {
    if (!contains(id)) return;
    const auto at = static_cast<size_t>(position_[static_cast<size_t>(id)]);
    position_[static_cast<size_t>(id)] = -1;
    const BlockId last = heap_.back();
    heap_.pop_back();
    if (last == id) return;
    Place(at, last);
    Rise(at);
    Sink(static_cast<size_t>(position_[static_cast<size_t>(last)]));
  }
  void Clear() {
    for (const BlockId id : heap_) position_[static_cast<size_t>(id)] = -1;
    heap_.clear();
  }

  static int64_t BytesFor(int64_t num_blocks) {
    return num_blocks *
           static_cast<int64_t>(sizeof(BlockRank) + sizeof(int32_t) + sizeof(BlockId));
  }

  // Whether order and positions agree. O(size).
  bool IsConsistent() const {
    for (size_t i = 0; i < heap_.size(); ++i) {
      if (position_[static_cast<size_t>(heap_[i])] != static_cast<int32_t>(i)) return false;
      if (i > 0 && rank(heap_[i]) < rank(heap_[(i - 1) / 2])) return false;
    }
    return true;
  }

 private:
  void Place(size_t at, BlockId id) {
    heap_[at] = id;
    position_[static_cast<size_t>(id)] = static_cast<int32_t>(at);
  }
  void Rise(size_t at) {
    const BlockId id = heap_[at];
    while (at > 0 && rank(id) < rank(heap_[(at - 1) / 2])) {
      Place(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    Place(at, id);
  }
  void Sink(size_t at) {
    const BlockId id = heap_[at];
    while (2 * at + 1 < heap_.size()) {
      size_t child = 2 * at + 1;
      if (child + 1 < heap_.size() && rank(heap_[child + 1]) < rank(heap_[child])) ++child;
      if (!(rank(heap_[child]) < rank(id))) break;
      Place(at, heap_[child]);
      at = child;
    }
    Place(at, id);
  }

  std::vector<BlockRank> ranks_;
  std::vector<int32_t> position_;
  std::vector<BlockId> heap_;
};

// EvictedKeys: the keys evicted last, up to a limit, for policies that learn from what they lost;
// each with a number of the policy's own.
//
// Always: at most `capacity` keys, none older than 2 * capacity additions; the oldest is forgotten
// first. Cost: O(1) expected.

class EvictedKeys {
 public:
  explicit EvictedKeys(int64_t capacity) : capacity_(capacity) {}

  int64_t size() const { return static_cast<int64_t>(number_of_.size()); }
  // As the latest; a key that is there already moves.
  void Add(uint64_t key, int64_t value = 0) {
    number_of_[key] = {.number = ++last_number_, .value = value};
    order_.emplace_back(key, last_number_);
    while (size() > capacity_ || static_cast<int64_t>(order_.size()) > 2 * capacity_ ||
           IsStale(order_.front())) {
      if (!IsStale(order_.front())) number_of_.erase(order_.front().first);
      order_.pop_front();
    }
  }
  // Whether the key was there; it no longer is. Writes its value then.
  bool Take(uint64_t key, int64_t* value = nullptr) {
    const auto it = number_of_.find(key);
    if (it == number_of_.end()) return false;
    if (value != nullptr) *value = it->second.value;
    number_of_.erase(it);
    return true;
  }
  void Clear() {
    number_of_.clear();
    order_.clear();
  }
  // 1/2 of the entries of a hash table may be empty; a taken key stays in the order for a while.
  static int64_t BytesFor(int64_t capacity) { return capacity * 112; }

 private:
  using Entry = std::pair<uint64_t, uint64_t>;  // key, number
  struct Known {
    uint64_t number;
    int64_t value;
  };
  bool IsStale(const Entry& entry) const {
    const auto it = number_of_.find(entry.first);
    return it == number_of_.end() || it->second.number != entry.second;
  }

  int64_t capacity_;
  uint64_t last_number_ = 0;
  absl::flat_hash_map<uint64_t, Known> number_of_;
  std::deque<Entry> order_;
};

// The eviction policies that come with kvblocks, by name.
//
//   options.eviction_policy = *ParseEvictionPolicy("hazard");
//
//   lru       least recently released: the pool's own queue
//   arc       adaptive replacement: recency and frequency, balanced by what was evicted too early
//   hazard    lowest chance of reuse per unit of time, as learnt so far (see HazardPolicy)
//   priority  lowest priority of retention, then least recently released
//   ttl       earliest end of retention or last release
//
// Any of them, lru included, lets blocks be retained. docs/policies.md has what they bring;
// examples/custom_eviction_policy.cc brings another one.

// A policy of your own.
EvictionPolicyFactory CustomEvictionPolicy(std::string name, EvictionPolicyFactory::Make make);

// InvalidArgument, with the list of names, for another one.
absl::StatusOr<EvictionPolicyFactory> ParseEvictionPolicy(std::string_view name);
// "arc|hazard|..." for usage texts and errors; without those that rank retained blocks for caches
// that retain none.
std::string EvictionPolicyNames(bool with_retention = true);

// Retention: which cached blocks a caller asked to keep, with which priority and until when.
//
// A preference among blocks that may be reused, never a claim: retained blocks stay free, count as
// free, and are taken when nothing else is left. At most `most` blocks are retained. Whoever comes
// beyond that takes the place of a retention of lower priority, or of the same priority and older;
// where there is none it is refused.
//
// One call retains the blocks of a prefix, the first block first. Of these an earlier block has a
// higher number than a later one, and a block that is retained again keeps the higher priority and
// the later end. So a block is never behind one that builds upon it, neither in the order of giving
// up nor in that of ending.
//
// Time is the caller's, in its unit, and never goes back. Cost: O(log n) per block; 84 bytes per
// block of the pool, taken at construction, and nothing after it. Single-threaded (see BlockPool).

// The priority of a block that is not retained, where retained ones compete with it (eviction
// policy "priority").
inline constexpr int32_t kUnretainedPriority = 35;

struct BlockRetention {
  int32_t priority = kUnretainedPriority;
  int64_t expires_at = kNeverExpires;
};

// Blocks since construction. Every retention that began goes on or ended in one of four ways:
// num_begun = retained now + displaced + expired + taken + removed.
struct RetentionTotals {
  int64_t num_begun = 0;
  int64_t num_renewed = 0;
  int64_t num_refused = 0;
  int64_t num_displaced = 0;
  int64_t num_expired = 0;
  int64_t num_taken = 0;    // reused all the same, since nothing else was free
  int64_t num_removed = 0;  // taken out of the cache by EvictBlocks or a reset
  int64_t num_hits = 0;     // a request got a block that was retained
  int64_t peak = 0;         // most retained at once

  friend bool operator==(const RetentionTotals&, const RetentionTotals&) = default;
};

class Retention {
 public:
  Retention(int32_t num_blocks, int32_t most)
      : most_(most),
        items_(static_cast<size_t>(num_blocks)),
        by_rank_(num_blocks),
        by_end_(num_blocks),
        candidates_(num_blocks) {}

  int32_t size() const { return by_rank_.size(); }
  int32_t most() const { return most_; }
  bool is_full() const { return size() >= most_; }
  bool contains(BlockId id) const { return by_rank_.contains(id); }
  // REQUIRES: contains(id).
  const BlockRetention& item(BlockId id) const { return items_[static_cast<size_t>(id)]; }
  const RetentionTotals& totals() const { return totals_; }
  RetentionTotals& totals() { return totals_; }

  // Numbers for a call with so many blocks: the i-th block gets the result less i, and all of them
  // are above `lowest_of_call`.
  int64_t TakeNumbers(int64_t count, int64_t* lowest_of_call) {
    *lowest_of_call = last_number_;
    return last_number_ += count;
  }
  // Whether a call that began above this number may take the place of the lowest one.
  bool MayDisplaceLowest(int32_t priority, int64_t lowest_of_call) const {
    if (by_rank_.empty()) return false;
    const BlockRank& rank = by_rank_.rank(by_rank_.top());
    return rank.first <= priority && rank.second <= lowest_of_call;
  }
  // REQUIRES: not empty.
  BlockId lowest() const { return by_rank_.top(); }

  // Adds a block, or renews it. REQUIRES: contained, or not full; no candidate.
  void Set(BlockId id, int32_t priority, int64_t expires_at, int64_t number);
  // REQUIRES: contained; no candidate.
  void Drop(BlockId id) {
    by_rank_.Remove(id);
    by_end_.Remove(id);
  }
  // The block whose retention ended first by `now`; kNullBlockId: none did.
  BlockId FirstExpired(int64_t now) const {
    return !by_end_.empty() && by_end_.rank(by_end_.top()).first <= now ? by_end_.top()
                                                                        : kNullBlockId;
  }

  // Of blocks that could be reused: the lowest goes first.
  void Enter(BlockId id) { candidates_.Add(id, by_rank_.rank(id)); }
  void Leave(BlockId id) { candidates_.Remove(id); }
  BlockId Victim() const { return candidates_.empty() ? kNullBlockId : candidates_.top(); }
  bool is_candidate(BlockId id) const { return candidates_.contains(id); }

  void Clear();
  absl::Status CheckInvariants() const;

  static int64_t BytesFor(int64_t num_blocks) { return num_blocks * 84; }

 private:
  const int32_t most_;
  int64_t last_number_ = 0;
  std::vector<BlockRetention> items_;
  BlockHeap by_rank_;     // of all retained blocks: priority, number
  BlockHeap by_end_;      // of those that end: when, number
  BlockHeap candidates_;  // as by_rank_
  RetentionTotals totals_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_EVICTION_H_
