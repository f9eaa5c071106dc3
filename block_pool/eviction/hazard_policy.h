// HazardPolicy: evicts the block whose reuse is least likely per unit of time that it would be
// kept, as learnt from the blocks seen so far.
//
// Time is counted in references to cached blocks. When a request ends, its blocks begin a wait that
// ends when a look-up hits them, or misses them after they were evicted (their keys are
// remembered). Waits are counted per age and per class of block, of which there are 96:
//   - turn: how often the conversation was continued: 1, 2, 3, 4, 5 to 8, more;
//   - growth: tokens that the request added to what was seen before;
//   - sharing: uses of the block beyond those of its own conversation.
// Hence the hazard of each class at each age: reuses per block and unit of time. The hazard of all
// classes together, made to rise and then fall, sets the shape; a class has a factor of its own,
// and its own shape as far as it was seen often enough. A block is worth the best rate of reuse
// that keeping it for any further time would bring (the index of Gittins), and the least worthy
// goes.
//
// What plain LRU would have hit is counted from the same waits. In the first four turnovers of the
// pool, and when the policy has lost to LRU lately, it leaves the choice to the pool's queue and
// only learns; the latter for a time that doubles with each relapse.
//
// Cost: O(1) per block amortised, except that naming a victim scans a bit set of 1,920 queues, and
// that the index is computed eight times per turnover of the pool (about 100 us). In pools
// above 32,768 blocks only a sample of the keys has its waits counted.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_HAZARD_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_HAZARD_POLICY_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/eviction_policy.h"

namespace kvblocks {

class HazardPolicy final : public EvictionPolicy {
 public:
  // `children` may be null: every shared prefix then counts as a conversation.
  HazardPolicy(int32_t num_blocks, const CachedPrefixes* children);

  void Insert(BlockId id, uint64_t key, int64_t num_tokens) override;
  void Hit(BlockId id) override;
  void Release(absl::Span<const BlockId> deepest_first) override;
  void Enter(BlockId id) override;
  void Leave(BlockId id) override;
  BlockId Victim() override;
  void Remove(BlockId id, bool was_evicted) override;
  void Clear() override;
  absl::Status CheckInvariants() const override;

  // Whether it leaves the choice to the pool's queue.
  bool follows_lru() const { return now_ < lru_until_; }

  static int64_t BytesFor(int64_t num_blocks);

 private:
  static constexpr int kTurns = 6;
  static constexpr int kGrowths = 4;
  static constexpr int kSharings = 4;
  static constexpr int kClasses = kTurns * kGrowths * kSharings;
  static constexpr int kAges = 20;
  static constexpr int kQueues = kClasses * kAges;
  static constexpr int64_t kNone = -1;

  using PerAge = std::array<double, kAges>;
  struct Block {
    uint64_t key = 0;
    int64_t released = 0;     // when
    int64_t wait = kNone;     // number of its wait, while that is counted
    int32_t turn = 0;         // of the conversation that used it last
    int32_t uses = 0;         // requests that gave it back
    int32_t num_tokens = 0;
    int16_t block_class = 0;
    int16_t queue = -1;       // -1: no candidate
    BlockId prev = kNullBlockId;  // in its queue, longest waiting first
    BlockId next = kNullBlockId;
  };
  struct Wait {
    int64_t began = 0;
    uint64_t key = 0;
    BlockId block = kNullBlockId;  // null: evicted
    int16_t block_class = 0;
    bool is_open = false;
  };
  struct Evicted {
    int64_t wait;
    int32_t turn;
    int32_t uses;
  };
  struct Queue {
    BlockId front = kNullBlockId;
    BlockId back = kNullBlockId;
  };

  Block& At(BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  const Block& At(BlockId id) const { return blocks_[static_cast<size_t>(id)]; }
  Wait& WaitAt(int64_t number) { return waits_[static_cast<size_t>(number - first_wait_)]; }
  int64_t end_of_waits() const { return first_wait_ + static_cast<int64_t>(waits_.size()); }
  bool IsSampled(uint64_t key) const { return (key & sample_mask_) == 0; }
  int AgeOf(int64_t waited) const;

  void BeginWait(BlockId id);
  void EndWait(int64_t number, bool was_hit);
  void CloseWait(int64_t number);
  void AgeWaits();
  void WatchLru();
  void Tick();
  void ComputeWorth();
  void MoveAgedCandidates();
  void Link(BlockId id, int queue);
  void Unlink(BlockId id);

  const CachedPrefixes* children_;
  double capacity_;
  uint64_t sample_mask_;
  std::array<double, kAges + 1> edges_;  // age a covers [edges_[a], edges_[a + 1])
  int64_t now_ = 0;

  std::vector<Block> blocks_;
  std::array<Queue, kQueues> queues_;
  std::array<int16_t, kQueues> rank_of_queue_;  // 0: its blocks go first
  std::array<int16_t, kQueues> queue_of_rank_;
  std::array<uint64_t, (kQueues + 63) / 64> filled_;  // by rank

  // In the order in which they began: an LRU stack.
  std::deque<Wait> waits_;
  int64_t first_wait_ = 0;
  std::array<int64_t, kAges> next_to_age_;  // per age, the first wait that has not outlived it
  absl::flat_hash_map<uint64_t, Evicted> evicted_;
  int64_t lru_begin_ = 0;  // of the waits that a cache of this size would hold under LRU
  int64_t num_lru_ = 0;    // open ones from there on

  std::array<PerAge, kClasses> reuses_;
  std::array<PerAge, kClasses> exposure_;  // block references waited at that age
  PerAge all_reuses_;
  PerAge all_exposure_;

  double mean_blocks_ = 0;   // per release, of late
  double lost_to_lru_ = 0;  // sampled blocks, fading
  int64_t lru_until_ = 0;
  int64_t lru_span_ = 0;
  int64_t worth_at_ = 0;  // when it was computed last
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_HAZARD_POLICY_H_
