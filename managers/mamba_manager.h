// MambaManager: groups that keep a state instead of a row per token. Only the state at the last
// computed token matters; states at block boundaries may be reused by other requests.
//
// By the spec's cache mode, with k speculative blocks:
//   none   a block table as for attention, with k blocks more; nothing is registered
//   all    the same, and the state at every block boundary is registered
//   align  the table has as many positions, but a step writes the state at its end only:
//
//            0 ... 0  [previous state]  0 ... 0  state  scratch x k
//
//          so a request holds at most 2 + k blocks (and one more for each further step in flight).
//          When the table grows, scratch blocks move along and the positions between become null. A
//          state is registered if the step that writes it ends at a block boundary.
//
// A state is ready when its step has run, not while other requests of that step are scheduled: such
// hits wait for NewStepStarts.

#ifndef KVBLOCKS_MANAGERS_MAMBA_MANAGER_H_
#define KVBLOCKS_MANAGERS_MAMBA_MANAGER_H_

#include "absl/container/flat_hash_set.h"
#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class MambaManager : public SingleTypeManager {
 public:
  MambaManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool);

  // Right to left for one cached state: O(positions without one, or hash boundaries where hits may
  // end inside a block). Ignores drop_last_block, since draft models have no states.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override;

  bool MayUseHits(absl::Span<const BlockId> hits) const override {
    return hits.empty() || !registered_in_step_.contains(hits.back());
  }
  void NewStepStarts() override { registered_in_step_.clear(); }

  // One state per interval, and those at the boundaries.
  bool IsRetained(int64_t position, const ReuseBoundaries& boundaries) const override;

 protected:
  int64_t NumSkippedTokensImpl(int64_t n) const override { return std::max<int64_t>(0, n - 1); }
  int64_t NumNewBlocks(const GroupBlocks* held, int64_t size, const SlotDemand& demand,
                       int64_t total_computed, bool apply_cap) const override;
  void AllocateNewImpl(GroupBlocks& held, const SlotDemand& demand) override;
  void CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                       const ReuseBoundaries& boundaries) override;
  // A state that is registered inside its block moves to a block of its own before the request
  // writes the next one over it.
  int64_t StateToCopy(const GroupBlocks& held, const SlotDemand& demand) const override;
  void CopyOverwrittenState(GroupBlocks& held, const SlotDemand& demand,
                            std::vector<BlockCopy>& copies) override;
  bool HoldsTail(const GroupBlocks& held, int64_t tail) const override {
    return held.chunk_end == tail;
  }
  void OnTailRegistered(BlockId id) override { registered_in_step_.insert(id); }

 private:
  // Entries of the table that has these slots.
  int64_t TableSize(const SlotDemand& demand) const;
  // Scratch blocks of a table of `size` entries that move when it grows to `target`.
  int64_t NumScratchToMove(const GroupBlocks& held, int64_t target) const;

  const MambaCacheMode mode_;
  const int64_t num_speculative_blocks_;
  absl::flat_hash_set<BlockId> registered_in_step_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_MAMBA_MANAGER_H_
