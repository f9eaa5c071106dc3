// OffloadIndex: the one OffloadManager. Look-ups are in offload_lookup.cc, loads and stores in
// offload_manager.cc.

#ifndef KVBLOCKS_OFFLOAD_OFFLOAD_INDEX_H_
#define KVBLOCKS_OFFLOAD_OFFLOAD_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/offload.h"
#include "offload/tier.h"

namespace kvblocks::offload {

class OffloadIndex final : public OffloadManager {
 public:
  static absl::StatusOr<std::unique_ptr<OffloadManager>> Make(const KvCacheManager& model,
                                                              OffloadOptions options);

  Match Lookup(const PrefixContent& content, int64_t num_computed_tokens,
               int64_t max_tokens) const override;
  absl::StatusOr<LoadPlan> PrepareLoad(OwnerId owner, const PrefixContent& content,
                                       int64_t num_computed_tokens, int64_t num_tokens) override;
  absl::Status CompleteLoad(TicketId ticket) override;
  absl::Status FailLoad(TicketId ticket, AfterFailure after) override;
  absl::StatusOr<StorePlan> PrepareStore(OwnerId owner, const PrefixContent& content,
                                         const StoreRange& range) override;
  StorePlan PrepareStoreOfEvicted(OwnerId owner, absl::Span<const EvictedBlock> blocks) override;
  absl::Status CompleteStore(TicketId ticket) override;
  absl::Status FailStore(TicketId ticket) override;
  void Touch(const PrefixContent& content, int64_t num_tokens) override;
  void RequestFinished(const PrefixContent& content, int64_t num_tokens) override;
  int64_t Abandon(OwnerId owner) override;
  absl::Status Evict(TierId tier, const ChunkKey& key) override;
  void Reset() override;
  int64_t NumOpenTickets(OwnerId owner) const override;
  LoadCost CostOfLoad(const PrefixContent& content, int64_t num_computed_tokens,
                      int64_t num_tokens) const override;
  absl::Status CheckInvariants() const override;
  std::vector<KvEvent> TakeEvents() override { return std::exchange(events_, {}); }
  int64_t num_tiers() const override { return static_cast<int64_t>(tiers_.size()); }
  const Tier& tier(TierId id) const override { return *tiers_[static_cast<size_t>(id)]; }
  std::shared_ptr<Tier> shared_tier(TierId id) const override {
    return tiers_[static_cast<size_t>(id)];
  }
  int64_t num_open_tickets() const override { return static_cast<int64_t>(tickets_.size()); }

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
  OffloadIndex(const KvCacheManager& model, OffloadOptions options);

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

#endif  // KVBLOCKS_OFFLOAD_OFFLOAD_INDEX_H_
