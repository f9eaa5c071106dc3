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

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/eviction_policy.h"
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

// Of "packed", "largest-group", "all-groups"; of "write-through", "on-evict", "on-second-use".
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

class Tier;

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
  virtual ~OffloadManager() = default;

  // The longest prefix of at most `max_tokens` that the device's first `num_computed_tokens` and
  // the tiers hold together, a multiple of the model's scheduler block size. It is
  // num_computed_tokens if tiers add nothing, or if these end inside a block. Changes nothing.
  virtual Match Lookup(const PrefixContent& content, int64_t num_computed_tokens,
                       int64_t max_tokens) const = 0;

  // Loads tokens [num_computed_tokens, num_tokens); `num_tokens` at most what Lookup says.
  // InvalidArgument, and nothing changed, for other numbers or where something is missing.
  virtual absl::StatusOr<LoadPlan> PrepareLoad(OwnerId owner, const PrefixContent& content,
                                               int64_t num_computed_tokens, int64_t num_tokens) = 0;
  // NotFound for a ticket that is not open, or of a store.
  virtual absl::Status CompleteLoad(TicketId ticket) = 0;
  virtual absl::Status FailLoad(TicketId ticket, AfterFailure after) = 0;

  // Offers computed blocks to the tiers that take them: as many chunks as fit, from the front of
  // the range. InvalidArgument for a range outside of the content.
  virtual absl::StatusOr<StorePlan> PrepareStore(OwnerId owner, const PrefixContent& content,
                                                 const StoreRange& range) = 0;
  // Offers what the device evicts to the first tier, if that takes it.
  virtual StorePlan PrepareStoreOfEvicted(OwnerId owner, absl::Span<const EvictedBlock> blocks) = 0;
  // Readable from now on. NotFound for a ticket that is not open, or of a load.
  virtual absl::Status CompleteStore(TicketId ticket) = 0;
  virtual absl::Status FailStore(TicketId ticket) = 0;

  // A request uses these tokens: chunks of them become the most recently used.
  virtual void Touch(const PrefixContent& content, int64_t num_tokens) = 0;
  // A request ended or was aborted. Its chunks become the most recently used, those of the prompt's
  // front last of all, as in the pool. Its tickets stay open.
  virtual void RequestFinished(const PrefixContent& content, int64_t num_tokens) = 0;
  // Ends all tickets of an owner as failed, once its transfers are over or dead. Chunks that its
  // loads read stay. Returns the number of tickets.
  virtual int64_t Abandon(OwnerId owner) = 0;

  // Takes a chunk out of a tier, at once or when its transfers end. NotFound if it is not there.
  virtual absl::Status Evict(TierId tier, const ChunkKey& key) = 0;
  // Empties all tiers; slots in use are free when their transfers end.
  virtual void Reset() = 0;

  // Events since the last call: BlockStored and BlockRemoved with the tier's medium and locality,
  // and its name as the ownership behind the first tier.
  virtual std::vector<KvEvent> TakeEvents() = 0;

  virtual int64_t num_tiers() const = 0;
  const TierOptions& tier_options(TierId id) const;
  const TierCapacity& tier_capacity(TierId id) const;
  const TierStats& tier_stats(TierId id) const;
  // For OffloadOptions::shared.
  virtual std::shared_ptr<Tier> shared_tier(TierId id) const = 0;
  virtual const Tier& tier(TierId id) const = 0;
  virtual int64_t num_open_tickets() const = 0;
  virtual int64_t NumOpenTickets(OwnerId owner) const = 0;
  // The bytes that a load of these tokens would read, per tier, and whether another load of this
  // manager reads some of them now; waiting for that one may then save the transfer.
  struct LoadCost {
    std::vector<int64_t> bytes = {};
    bool is_being_read = false;
  };
  virtual LoadCost CostOfLoad(const PrefixContent& content, int64_t num_computed_tokens,
                              int64_t num_tokens) const = 0;

  // OK, or what is wrong, in words. O(slots).
  virtual absl::Status CheckInvariants() const = 0;
};

}  // namespace kvblocks::offload

#endif  // KVBLOCKS_OFFLOAD_H_
