// Tier: what one tier holds - a table of chunks, each in a slot, and the order in which they leave.
//
// A slot is free, being written, readable, or doomed. A doomed slot is no longer found, and becomes
// free when its writers and readers are done. Always: the table has exactly the slots that are
// written or readable; the policy's candidates are the readable slots without readers; the bytes
// taken are those of all slots that are not free, and never above the capacity.
//
// Cost: O(1) per call and slot plus what the policy takes. About 190 bytes per slot, most of them
// taken at construction. Called by OffloadManager only.

#ifndef KVBLOCKS_OFFLOAD_TIER_H_
#define KVBLOCKS_OFFLOAD_TIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "block_pool/eviction/evicted_keys.h"
#include "kvblocks/block.h"
#include "kvblocks/eviction_policy.h"
#include "kvblocks/offload.h"

namespace kvblocks::offload {

class Tier final : private CachedPrefixes {
 public:
  struct Chunk {
    ChunkKey key = {};
    int64_t num_tokens = 0;
  };
  struct Evicted {
    Chunk chunk = {};
    SlotId slot = kNoSlot;
  };
  enum class State : uint8_t { kFree, kWriting, kReadable };

  Tier(TierOptions options, TierCapacity capacity);
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  // kNoSlot: not there.
  SlotId Find(const ChunkKey& key) const {
    const auto it = table_.find(key);
    return it == table_.end() ? kNoSlot : it->second;
  }
  bool IsReadable(SlotId slot) const { return At(slot).state == State::kReadable; }

  // Whether the chunk shall be stored now that it is offered; counts the offer.
  bool WantsOffered(const ChunkKey& key);
  // A slot to be written. Evicts for it, and appends what went; kNoSlot, and nothing changed, if
  // too much else is in use.
  // REQUIRES: the chunk is not there.
  SlotId StartWrite(const Chunk& chunk, std::vector<Evicted>* evicted);
  // Deepest last. A doomed one is freed. Returns how many became readable, and appends them.
  void FinishWrites(absl::Span<const SlotId> slots, std::vector<SlotId>* readable);
  void FailWrite(SlotId slot);

  // Keeps readable slots from being evicted until Unprotect.
  void Protect(absl::Span<const SlotId> slots);
  void Unprotect(absl::Span<const SlotId> slots);

  void AddReader(SlotId slot);
  // `was_read`: the load succeeded.
  void RemoveReader(SlotId slot, bool was_read);
  // Readable slots were used (`is_use`), or a request that used them ended; deepest last.
  void Touch(absl::Span<const SlotId> slots, bool is_use);
  // No longer found; free when its transfers end.
  void Doom(SlotId slot);

  const TierOptions& options() const { return options_; }
  const TierCapacity& capacity() const { return capacity_; }
  const ChunkKey& key(SlotId slot) const { return At(slot).chunk.key; }
  const Chunk& chunk(SlotId slot) const { return At(slot).chunk; }
  State state(SlotId slot) const { return At(slot).state; }
  // Slots used so far have ids up to it.
  SlotId last_slot() const { return static_cast<SlotId>(slots_.size()) - 1; }
  bool is_doomed(SlotId slot) const { return At(slot).is_doomed; }
  int64_t num_readers(SlotId slot) const { return At(slot).num_readers; }
  int64_t num_used_slots() const { return num_used_; }
  int64_t bytes_taken() const { return bytes_taken_; }
  int64_t num_found() const { return static_cast<int64_t>(table_.size()); }
  TierStats& stats() { return stats_; }
  const TierStats& stats() const { return stats_; }
  // All that are in the table, in no order.
  std::vector<SlotId> FoundSlots() const;

  absl::Status CheckInvariants() const;

 private:
  struct Slot {
    Chunk chunk = {};
    int32_t num_readers = 0;
    State state = State::kFree;
    bool is_doomed = false;
    bool is_candidate = false;
    bool was_read = false;
  };
  Slot& At(SlotId slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& At(SlotId slot) const { return slots_[static_cast<size_t>(slot)]; }
  int32_t NumChildren(BlockId) const override { return 0; }

  int64_t BytesOf(GroupId group) const {
    return capacity_.bytes == 0 ? 0 : capacity_.bytes_taken[static_cast<size_t>(group)];
  }
  bool HasRoom(int64_t bytes) const {
    return num_used_ < capacity_.num_slots &&
           (capacity_.bytes == 0 || bytes_taken_ + bytes <= capacity_.bytes);
  }
  // The same if all candidates went.
  bool CanHaveRoom(int64_t bytes) const {
    return num_used_ - num_candidates_ < capacity_.num_slots &&
           (capacity_.bytes == 0 || bytes_taken_ - candidate_bytes_ + bytes <= capacity_.bytes);
  }
  // Makes the same call to all policies.
  template <typename Call>
  void Notify(const Call& call) {
    call(*policy_);
    if (fallback_ != nullptr) call(*fallback_);
  }
  SlotId Victim() {
    const SlotId victim = policy_->Victim();
    return victim == kNullBlockId && fallback_ != nullptr ? fallback_->Victim() : victim;
  }
  void EnterCandidates(SlotId slot);
  void LeaveCandidates(SlotId slot);
  void FreeSlot(SlotId slot);

  const TierOptions options_;
  const TierCapacity capacity_;
  absl::flat_hash_map<ChunkKey, SlotId> table_;
  std::vector<Slot> slots_;       // grows to num_slots + 1; the first is unused
  std::vector<SlotId> free_;      // given back; those never used stand behind slots_
  int64_t num_used_ = 0;
  int64_t bytes_taken_ = 0;
  int64_t num_candidates_ = 0;
  int64_t candidate_bytes_ = 0;
  std::unique_ptr<EvictionPolicy> policy_;
  // The order of last use, for a policy that leaves choices to the pool's queue; else null.
  std::unique_ptr<EvictionPolicy> fallback_;
  EvictedKeys offered_once_;
  std::vector<SlotId> scratch_;
  TierStats stats_;
};

}  // namespace kvblocks::offload

#endif  // KVBLOCKS_OFFLOAD_TIER_H_
