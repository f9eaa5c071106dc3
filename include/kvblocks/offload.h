// kvblocks/offload.h: tiers of memory behind the device - host, disks, remote stores - as an index
// of what lies where.
//
// This header offers:
//   manager  OffloadManager: look-up, loads and stores in the manner of vLLM's connectors
//   tiers    TierOptions: capacity, layout of slots, eviction and write policy of one tier
//
//   auto offload = OffloadManager::Create(
//       *manager, {.tiers = {{.name = "host", .capacity_bytes = 64LL << 30},
//                            {.name = "disk", .capacity_bytes = 1LL << 40,
//                             .write_policy = WritePolicy::kOnEvict}}});
//   auto hits = manager->GetComputedBlocks(*request);
//   auto match = (*offload)->Lookup(request->content(), hits->num_tokens(), num_tokens - 1);
//   // AllocateSlots with num_external_computed_tokens = match.num_tokens - hits->num_tokens() and
//   // delay_cache_blocks; then:
//   auto load = (*offload)->PrepareLoad(id, request->content(), hits->num_tokens(),
//                                       match.num_tokens);
//   ... copy what load->reads names into the request's blocks ...
//   (*offload)->CompleteLoad(load->ticket);
//
// It moves no bytes and needs no device. docs/tiers.md describes all of it.

#ifndef KVBLOCKS_OFFLOAD_H_
#define KVBLOCKS_OFFLOAD_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/eviction.h"
#include "kvblocks/eviction_policy.h"
#include "kvblocks/kv_cache.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_event.h"
#include "kvblocks/prefix_content.h"

// TierOptions: one level of memory behind the device's - how much it holds, in what shape, what
// enters it and what leaves it first.
//
// Tiers are listed from the fastest to the slowest. A tier stores chunks: `blocks_per_chunk`
// consecutive device blocks of one KV-cache group, named by the hash of the last one (so by all
// content up to there) and by the group.

namespace kvblocks::offload {

// Medium and locality of a tier in its events, as in vLLM's.
enum class TierMedium : uint8_t { kCpu, kStorage };
enum class TierLocality : uint8_t { kLocal, kRemote };

constexpr std::string_view TierMediumName(TierMedium medium) {
  return medium == TierMedium::kCpu ? "CPU" : "STORAGE";
}
constexpr std::string_view TierLocalityName(TierLocality locality) {
  return locality == TierLocality::kLocal ? "LOCAL" : "REMOTE";
}

// How the bytes of a tier are cut up. With one group all are the same.
enum class SlotLayout : uint8_t {
  // A chunk takes the bytes of its group. Nothing is lost, and slots have no fixed place: the
  // connector places the bytes.
  kPacked,
  // Fixed slots, each as large as the largest group's chunk.
  kLargestGroup,
  // Fixed slots, each with room for a chunk of every group, although a chunk is of one group: the
  // layout of vLLM's CPU offloading where groups do not share their memory. Of G equal groups it
  // holds a G-th (vllm#56871).
  kAllGroups,
};

enum class WritePolicy : uint8_t {
  kWriteThrough,  // what was computed, at once
  kOnEvict,       // what the next faster level evicts
  kOnSecondUse,   // what was computed, when it is offered for the second time
};

std::string_view SlotLayoutName(SlotLayout layout);    // "packed", "largest-group", "all-groups"
std::string_view WritePolicyName(WritePolicy policy);  // "write-through", "on-evict", ...
// InvalidArgument, with the list of names, for another one.
absl::StatusOr<SlotLayout> ParseSlotLayout(std::string_view name);
absl::StatusOr<WritePolicy> ParseWritePolicy(std::string_view name);
// A policy for tiers. Those that rank retained blocks are refused, because tiers retain nothing.
absl::StatusOr<EvictionPolicyFactory> ParseTierPolicy(std::string_view name);

struct TierOptions {
  std::string name = "host";
  // Exactly one of the two is above 0. With slots, every chunk takes one slot, whatever its bytes.
  int64_t capacity_bytes = 0;
  int64_t capacity_slots = 0;
  int64_t blocks_per_chunk = 1;
  SlotLayout layout = SlotLayout::kPacked;
  // Fixed slots are rounded up to a multiple of this, in bytes.
  int64_t slot_alignment = 1;
  EvictionPolicyFactory policy = {};
  WritePolicy write_policy = WritePolicy::kWriteThrough;
  // A chunk that was loaded leaves the tier.
  bool exclusive = false;
  bool prompt_only = false;
  // For kOnSecondUse: how many chunks that were offered once are remembered.
  int64_t second_use_memory = 64'000;
  TierMedium medium = TierMedium::kCpu;
  TierLocality locality = TierLocality::kLocal;
};

// A tier cannot have more chunks than this: 2^27, which take about 25 GB of memory in the index.
inline constexpr int64_t kMostSlots = int64_t{1} << 27;

// The capacity for chunks of these bytes (one number per group, 0: not stored).
struct TierCapacity {
  int64_t num_slots = 0;
  int64_t bytes = 0;                      // 0: only slots count
  std::vector<int64_t> bytes_taken = {};  // per group, by one chunk
};
// InvalidArgument that names the tier, the field, the value and the limit.
absl::StatusOr<TierCapacity> ResolveCapacity(const TierOptions& options,
                                             const std::vector<int64_t>& group_block_bytes);

// Tier: what one tier holds - a table of chunks, each in a slot, and the order in which they leave.
//
// A slot is free, being written, readable, or doomed. A doomed slot is no longer found, and becomes
// free when its writers and readers are done. Always: the table has exactly the slots that are
// written or readable; the policy's candidates are the readable slots without readers; the bytes
// taken are those of all slots that are not free, and never above the capacity.
//
// Cost: O(1) per call and slot plus what the policy takes. About 190 bytes per slot, most of them
// taken at construction. Called by OffloadManager only.

// The name of a chunk: the content up to its end, and the group.
struct ChunkKey {
  BlockHash hash = {};
  GroupId group = 0;

  friend bool operator==(const ChunkKey&, const ChunkKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ChunkKey& key) {
    return H::combine(std::move(state), key.hash, key.group);
  }
  // For policies and for the memory of what was offered once.
  uint64_t Mixed() const {
    const uint64_t salt = 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(group) + 1);
    return hash.words[0] ^ (hash.words[1] + salt);
  }
};

using SlotId = int32_t;  // from 1
inline constexpr SlotId kNoSlot = 0;

struct TierStats {
  // Chunks.
  int64_t num_written = 0;           // stores that were completed
  int64_t num_failed_writes = 0;
  int64_t num_found_stored = 0;      // offered, and there or on their way already
  int64_t num_awaiting_second_use = 0;
  int64_t num_refused = 0;           // offered, and all slots in use by transfers
  int64_t num_evicted = 0;           // to make room
  int64_t num_moved_down = 0;        // of these, into the next tier
  int64_t num_read = 0;              // by completed loads
  int64_t num_failed_reads = 0;
  int64_t num_useful = 0;            // written chunks that were read at least once
  // Of the model's KV, without what layouts waste.
  int64_t bytes_written = 0;
  int64_t bytes_read = 0;            // blocks that loads needed

  friend bool operator==(const TierStats&, const TierStats&) = default;
};

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

// OffloadManager: which KV lies in which tier behind the device, and what of it a request can load.
//
// The index of an engine's connector, in the manner of vLLM's OffloadingManager: it moves no bytes.
// It says which slots to read or write; the connector that moves the bytes says when that is done.
//
//   auto offload = OffloadManager::Create(*manager, {.tiers = {{.capacity_bytes = 64LL << 30}}});
//   const auto match = (*offload)->Lookup(content, num_hit_tokens, content.num_tokens() - 1);
//   auto load = (*offload)->PrepareLoad(request, content, num_hit_tokens, match.num_tokens);
//   ... AllocateSlots with num_external_computed_tokens, copy what load->reads names ...
//   (*offload)->CompleteLoad(load->ticket);
//
// The managers of the groups say what a prefix needs (SingleTypeManager::NumUnneededTokens): all
// blocks for full attention, the last ones for windows, one state for Mamba; a draft group needs
// one block more. Blocks that the device has need not be in a tier. A block is read from the
// fastest tier that has it, so a look-up continues in the next tier where a faster one ends.
//
// Always: a chunk that is being written is not found readable; a slot that is read is not evicted;
// every reader and every slot being written belongs to an open ticket. So a request that is aborted
// or preempted leaves its tickets open until the transfers end. Complete or Fail them then, or
// Abandon the owner if they will never end. Device blocks of an open ticket must be kept as long.
//
// Several managers, of several devices, may share a tier: all find what one of them stored. They
// need models of equal blocks, and run in one thread.
//
// Threads: one at a time. Cost: Lookup O(blocks behind the device's hit) hash look-ups per tier
// that is asked; a transfer O(its chunks).

using TierId = int32_t;    // index into OffloadOptions::tiers
using OwnerId = int64_t;   // of a transfer: a request, or a user of a shared tier
using TicketId = int64_t;  // one transfer

inline constexpr TierId kDevice = -1;

struct OffloadOptions {
  std::vector<TierOptions> tiers = {};  // the fastest first
  // Bytes of a block per group. Default: the page of the group's spec times its layers, of this
  // rank. Groups that cannot be hit are not stored.
  std::vector<int64_t> group_block_bytes = {};
  bool enable_events = false;
  // In place of entries of `tiers`, by number: tiers that another manager made (shared_tier) and
  // both use. The tickets of each are its own. None, or null: the tier is made anew.
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
// first_block on, or the one block that was evicted. From another tier: its slot, which must be
// read before anything of the same plan is written into that slot.
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
    // The request's block tables, per group. Chunks that lack a block are left out, which happens
    // with windows and states. Empty: all blocks are there.
    std::vector<absl::Span<const BlockId>> tables = {};
  };
  // A block that the device is about to reuse.
  struct EvictedBlock {
    ChunkKey key = {};
    BlockId block = kNullBlockId;  // comes back as ChunkWrite::first_block
  };
  // Whether a failed load keeps or drops the slots that it read.
  enum class AfterFailure : uint8_t { kKeep, kDrop };

  // `model` gives block sizes and the rules of its groups, and must outlive the manager; several
  // users of one tier need equal models. InvalidArgument names the tier and the field.
  static absl::StatusOr<std::unique_ptr<OffloadManager>> Create(const KvCacheManager& model,
                                                                OffloadOptions options);

  // The longest prefix of at most `max_tokens` that the device's first `num_computed_tokens` and
  // the tiers hold together, a multiple of the model's scheduler block size. It is
  // num_computed_tokens if tiers add nothing, or if these end inside a block. Changes nothing.
  Match Lookup(const PrefixContent& content, int64_t num_computed_tokens, int64_t max_tokens) const;

  // Loads tokens [num_computed_tokens, num_tokens); `num_tokens` at most what Lookup says.
  // InvalidArgument, and nothing changed, for other numbers or where something is missing.
  absl::StatusOr<LoadPlan> PrepareLoad(OwnerId owner, const PrefixContent& content,
                                       int64_t num_computed_tokens, int64_t num_tokens);
  // NotFound for a ticket that is not open, or of a store.
  absl::Status CompleteLoad(TicketId ticket);
  absl::Status FailLoad(TicketId ticket, AfterFailure after);

  // Offers computed blocks to the tiers that take them: as many chunks as fit, from the front of
  // the range. InvalidArgument for a range outside of the content.
  absl::StatusOr<StorePlan> PrepareStore(OwnerId owner, const PrefixContent& content,
                                         const StoreRange& range);
  // Offers what the device evicts to the first tier, if that takes it.
  StorePlan PrepareStoreOfEvicted(OwnerId owner, absl::Span<const EvictedBlock> blocks);
  // Readable from now on. NotFound for a ticket that is not open, or of a load.
  absl::Status CompleteStore(TicketId ticket);
  absl::Status FailStore(TicketId ticket);

  // A request uses these tokens: chunks of them become the most recently used.
  void Touch(const PrefixContent& content, int64_t num_tokens);
  // A request ended or was aborted. Its chunks become the most recently used, those of the prompt's
  // front last of all, as in the pool. Its tickets stay open.
  void RequestFinished(const PrefixContent& content, int64_t num_tokens);
  // Ends all tickets of an owner as failed, once its transfers are over or dead. Chunks that its
  // loads read stay. Returns the number of tickets.
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
  // The bytes that a load of these tokens would read, per tier, and whether another load of this
  // manager reads some of them now; waiting for that one may then save the transfer.
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

  // Where block `position` of a group is: in the fastest tier that has it readable, else in one
  // that is getting it.
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

#endif  // KVBLOCKS_OFFLOAD_H_
