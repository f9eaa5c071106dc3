// OffloadManager: which KV lies in which tier behind the device, and what of it a request can load.
//
// The index of an engine's connector, in the manner of vLLM's OffloadingManager: it moves no bytes.
// It says which slots to read or write; whoever moves the bytes says when that is done.
//
//   auto offload = OffloadManager::Create(*manager, {.tiers = {{.capacity_bytes = 64LL << 30}}});
//   const auto match = (*offload)->Lookup(content, num_hit_tokens, content.num_tokens() - 1);
//   auto load = (*offload)->PrepareLoad(request, content, num_hit_tokens, match.num_tokens);
//   ... AllocateSlots with num_external_computed_tokens, copy what load->reads names ...
//   (*offload)->CompleteLoad(load->ticket);
//
// What a prefix needs is what the managers of the groups say (SingleTypeManager::NumUnneededTokens):
// all blocks for full attention, the last ones for windows, one state for Mamba; a draft group also
// the block behind. Blocks that the device has need not be in a tier. A block is read from the
// fastest tier that has it, so a look-up goes on in the next tier where a faster one ends.
//
// Always: a chunk that is being written is not found readable; a slot that is read is not evicted;
// every reader and every slot being written belongs to an open ticket. So a request that is aborted
// or preempted leaves its tickets open until the transfers end: Complete or Fail them, or Abandon
// the owner when it is known that nobody will. Device blocks of an open ticket must be kept as well.
//
// Several managers, of several devices, may share a tier: what one of them stored, all find. They need
// models of equal blocks, and run in one thread.
//
// Threads: one at a time. Cost: Lookup O(blocks behind the device's hit) hash look-ups per tier that
// is asked; a transfer O(its chunks).

#ifndef KVBLOCKS_OFFLOAD_OFFLOAD_MANAGER_H_
#define KVBLOCKS_OFFLOAD_OFFLOAD_MANAGER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/kv_event.h"
#include "kvblocks/block_pool/prefix_content.h"
#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/offload/tier.h"
#include "kvblocks/offload/tier_options.h"

namespace kvblocks::offload {

using TierId = int32_t;    // index into OffloadOptions::tiers
using OwnerId = int64_t;   // whom a transfer belongs to: a request, or a user of a shared tier
using TicketId = int64_t;  // one transfer

inline constexpr TierId kDevice = -1;

struct OffloadOptions {
  std::vector<TierOptions> tiers = {};  // the fastest first
  // Bytes of a block per group. Default: the page of the group's spec times its layers, of this
  // rank. Groups that cannot be hit are not stored.
  std::vector<int64_t> group_block_bytes = {};
  bool enable_events = false;
  // In place of entries of `tiers`, by number: tiers that another manager made (shared_tier) and both
  // use. The tickets of each are its own. None, or null: the tier is made anew.
  std::vector<std::shared_ptr<Tier>> shared = {};
};

// Consecutive blocks of one group, to be read from one slot.
struct ChunkRead {
  TierId tier = 0;
  SlotId slot = kNoSlot;
  GroupId group = 0;
  int64_t first_block = 0;     // of the request's block table
  int64_t block_in_chunk = 0;  // where the first one lies in the slot, in blocks
  int64_t num_blocks = 0;
  int64_t bytes = 0;

  friend bool operator==(const ChunkRead&, const ChunkRead&) = default;
};

// One chunk to be written into one slot. From the device: the blocks of a request's table from
// first_block on, or the one block that was evicted. From another tier: its slot, which must be read
// before anything of the same plan is written into that slot.
struct ChunkWrite {
  TierId tier = 0;
  SlotId slot = kNoSlot;
  TierId from_tier = kDevice;
  SlotId from_slot = kNoSlot;
  ChunkKey key = {};
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  int64_t bytes = 0;

  friend bool operator==(const ChunkWrite&, const ChunkWrite&) = default;
};

struct ChunkEviction {
  TierId tier = 0;
  ChunkKey key = {};

  friend bool operator==(const ChunkEviction&, const ChunkEviction&) = default;
};

struct LoadPlan {
  TicketId ticket = 0;
  std::vector<ChunkRead> reads = {};  // by group, then by position
};

struct StorePlan {
  TicketId ticket = 0;  // 0: there is nothing to do
  std::vector<ChunkWrite> writes = {};  // in this order
  std::vector<ChunkEviction> evictions = {};  // to make room, those that moved down included
};

class OffloadManager {
 public:
  struct Match {
    int64_t num_tokens = 0;  // of the prefix that can be there after a load, the device's included
    // The same if the stores under way were finished: worth waiting for where it is more.
    int64_t num_tokens_with_pending = 0;

    friend bool operator==(const Match&, const Match&) = default;
  };
  // Blocks of a content that became full: those that end behind the first `begin` tokens and not
  // behind the first `end`.
  struct StoreRange {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t num_prompt_tokens = 0;
    // The request's block tables, per group: chunks without all their blocks are left out, as windows
    // and states have them. Empty: all blocks are there.
    std::vector<absl::Span<const BlockId>> tables = {};
  };
  // A block that the device is about to reuse.
  struct EvictedBlock {
    ChunkKey key = {};
    BlockId block = kNullBlockId;  // comes back as ChunkWrite::first_block
  };
  // What a failed load says of the slots it read.
  enum class AfterFailure : uint8_t { kKeep, kDrop };

  // `model` gives block sizes and the rules of its groups, and must outlive the manager; several
  // users of one tier need equal models. InvalidArgument names the tier and the field.
  static absl::StatusOr<std::unique_ptr<OffloadManager>> Create(const KvCacheManager& model,
                                                                OffloadOptions options);

  // The longest prefix of at most `max_tokens` that the device's first `num_computed_tokens` and the
  // tiers hold together, a multiple of the model's scheduler block size; num_computed_tokens if
  // nothing is to be gained, or if these end inside a block. Changes nothing.
  Match Lookup(const PrefixContent& content, int64_t num_computed_tokens, int64_t max_tokens) const;

  // Loads tokens [num_computed_tokens, num_tokens); `num_tokens` at most what Lookup says.
  // InvalidArgument, and nothing changed, for other numbers or where something is missing.
  absl::StatusOr<LoadPlan> PrepareLoad(OwnerId owner, const PrefixContent& content,
                                       int64_t num_computed_tokens, int64_t num_tokens);
  // NotFound for a ticket that is not open, or of a store.
  absl::Status CompleteLoad(TicketId ticket);
  absl::Status FailLoad(TicketId ticket, AfterFailure after);

  // Offers what was computed to the tiers that take it. As many chunks as there is room for, from
  // the front. InvalidArgument for a range outside of the content.
  absl::StatusOr<StorePlan> PrepareStore(OwnerId owner, const PrefixContent& content,
                                         const StoreRange& range);
  // Offers what the device evicts to the first tier, if that takes it.
  StorePlan PrepareStoreOfEvicted(OwnerId owner, absl::Span<const EvictedBlock> blocks);
  // Readable from now on. NotFound for a ticket that is not open, or of a load.
  absl::Status CompleteStore(TicketId ticket);
  absl::Status FailStore(TicketId ticket);

  // A request uses these tokens, wherever they are: chunks of them become the latest.
  void Touch(const PrefixContent& content, int64_t num_tokens);
  // A request ended, by itself or aborted: its chunks become the latest, the first ones last of all,
  // as the pool orders blocks that are given back. Its tickets stay open.
  void RequestFinished(const PrefixContent& content, int64_t num_tokens);
  // Ends all tickets of an owner as failed: its transfers are known to be over, or dead. What its
  // loads read stays. Returns how many there were.
  int64_t Abandon(OwnerId owner);

  // Takes a chunk out of a tier, at once or when its transfers end. NotFound if it is not there.
  absl::Status Evict(TierId tier, const ChunkKey& key);
  // Empties all tiers; slots in use are free when their transfers end.
  void Reset();

  // Events since the last call: BlockStored and BlockRemoved with the tier's medium and locality,
  // and its name as the ownership behind the first tier.
  std::vector<KvEvent> TakeEvents() { return std::exchange(events_, {}); }

  int64_t num_tiers() const { return static_cast<int64_t>(tiers_.size()); }
  const Tier& tier(TierId id) const { return *tiers_[static_cast<size_t>(id)]; }
  std::shared_ptr<Tier> shared_tier(TierId id) const { return tiers_[static_cast<size_t>(id)]; }
  int64_t num_open_tickets() const { return static_cast<int64_t>(tickets_.size()); }
  int64_t NumOpenTickets(OwnerId owner) const;
  // What a load of these tokens would read: bytes per tier, and whether another load of this manager
  // reads some of it now, so that waiting for that one may save the transfer.
  struct LoadCost {
    std::vector<int64_t> bytes = {};
    bool is_being_read = false;
  };
  LoadCost CostOfLoad(const PrefixContent& content, int64_t num_computed_tokens,
                      int64_t num_tokens) const;

  // OK, or what is wrong, in words. O(slots).
  absl::Status CheckInvariants() const;

 private:
  struct Group {
    GroupId id = 0;
    const SingleTypeManager* rules = nullptr;
    int64_t block_size = 0;
    int64_t hashes_per_block = 0;
    int64_t block_bytes = 0;
    int64_t margin_blocks = 0;  // behind a hit, of draft groups
  };
  struct SlotInUse {
    TierId tier = 0;
    SlotId slot = kNoSlot;
    int64_t bytes = 0;
  };
  struct Ticket {
    OwnerId owner = 0;
    bool is_load = false;
    std::vector<SlotInUse> slots = {};
  };
  // A chunk that is offered.
  struct Offer {
    const Group* group = nullptr;
    int64_t chunk = 0;
    int64_t end = 0;  // in tokens
  };
  struct Place {
    TierId tier = 0;
    SlotId slot = kNoSlot;
    bool is_readable = false;
  };
  OffloadManager(const KvCacheManager& model, OffloadOptions options);

  // Where block `position` of a group is: in the fastest tier that has it readable, else in one that
  // is getting it.
  Place Locate(const Group& group, const PrefixContent& content, int64_t position) const;
  bool HasKey(const Group& group, const PrefixContent& content, int64_t chunk,
              int64_t blocks_per_chunk) const;
  ChunkKey KeyOf(const Group& group, const PrefixContent& content, int64_t chunk,
                 int64_t blocks_per_chunk) const;
  int64_t LongestPrefix(const PrefixContent& content, int64_t num_computed, int64_t max_tokens,
                        bool* met_pending, bool counts_pending) const;
  // The longest prefix of at most `most` tokens that the group can have, not aligned.
  int64_t LimitOf(const Group& group, const PrefixContent& content, int64_t num_computed,
                  int64_t most, bool* met_pending, bool counts_pending) const;
  // The blocks of tokens [num_computed, num_tokens) that the group needs, by position.
  template <typename Visit>
  void VisitNeeded(const Group& group, int64_t num_computed, int64_t num_tokens,
                   Visit visit) const {
    const int64_t begin = std::max(num_computed, group.rules->NumUnneededTokens(num_tokens));
    for (int64_t position = begin / group.block_size; position < num_tokens / group.block_size;
         ++position) {
      visit(position);
    }
  }
  // Whether a hit can use it and the request has it.
  bool IsWorthStoring(const Offer& offer, int64_t blocks_per_chunk, const StoreRange& range) const;
  void CollectOffers(TierId tier, const PrefixContent& content, const StoreRange& range);
  // False: there is no room.
  bool Write(TierId tier, const Tier::Chunk& chunk, ChunkWrite write, Ticket& ticket,
             StorePlan& plan);
  StorePlan Issue(Ticket ticket, StorePlan plan);
  absl::StatusOr<Ticket> TakeTicket(TicketId id, bool is_load, absl::string_view call);
  void EndLoad(const Ticket& ticket, bool was_read, AfterFailure after);
  void EndStore(const Ticket& ticket, bool was_written);
  void WalkChunks(const PrefixContent& content, int64_t num_tokens, bool is_use);
  // A failed, exclusive or unwanted one.
  void Drop(TierId tier, SlotId slot);
  void ReportStored(TierId tier, absl::Span<const SlotId> slots);
  void ReportRemoved(TierId tier, const ChunkKey& key, RemovalReason reason);

  const OffloadOptions options_;
  std::vector<Group> groups_;  // that can be hit
  std::vector<const Group*> group_of_;  // per group id, null where nothing can be hit
  int64_t hash_block_size_ = 0;
  int64_t alignment_ = 1;
  std::vector<std::shared_ptr<Tier>> tiers_;
  absl::flat_hash_map<std::pair<TierId, SlotId>, int64_t> reading_;  // loads of open tickets
  absl::flat_hash_map<TicketId, Ticket> tickets_;
  TicketId last_ticket_ = 0;
  std::vector<KvEvent> events_;
  std::vector<Offer> offers_;  // scratch
  std::vector<SlotId> slots_;  // scratch
  std::vector<std::pair<int64_t, SlotId>> walked_;  // scratch: end in tokens, slot
};

}  // namespace kvblocks::offload

#endif  // KVBLOCKS_OFFLOAD_OFFLOAD_MANAGER_H_
