#include "offload/offload_index.h"

#include "checks/checked_int64.h"
#include "kvblocks/check.h"
#include "kvblocks/offload.h"

namespace kvblocks::offload {
namespace {

constexpr std::string_view TierMediumName(TierMedium medium) {
  return medium == TierMedium::kCpu ? "CPU" : "STORAGE";
}
constexpr std::string_view TierLocalityName(TierLocality locality) {
  return locality == TierLocality::kLocal ? "LOCAL" : "REMOTE";
}

absl::Status CheckTiers(const std::vector<TierOptions>& tiers) {
  if (tiers.empty()) return InvalidArgument("tiers: there is none; name at least one");
  for (size_t t = 0; t < tiers.size(); ++t) {
    const TierOptions& tier = tiers[t];
    for (size_t other = 0; other < t; ++other) {
      if (tiers[other].name == tier.name) {
        return InvalidArgument("tiers: two have the name \"", tier.name, "\"");
      }
    }
    if (tier.write_policy != WritePolicy::kOnEvict) continue;
    const int64_t above = t == 0 ? 1 : tiers[t - 1].blocks_per_chunk;
    if (tier.blocks_per_chunk != above) {
      return InvalidArgument("tier \"", tier.name, "\": blocks_per_chunk is ",
                             tier.blocks_per_chunk, ", expected ", above,
                             " with write policy on-evict: what the level before it evicts");
    }
    if (tier.prompt_only) {
      return InvalidArgument("tier \"", tier.name,
                             "\": prompt_only is set with write policy on-evict, but of what is "
                             "evicted nobody knows whether it was a prompt's");
    }
  }
  return absl::OkStatus();
}

}  // namespace

OffloadIndex::OffloadIndex(const KvCacheManager& model, OffloadOptions options)
    : options_(std::move(options)),
      hash_block_size_(model.hash_block_size()),
      alignment_(model.scheduler_block_size()) {}

absl::StatusOr<std::unique_ptr<OffloadManager>> OffloadManager::Create(const KvCacheManager& model,
                                                                       OffloadOptions options) {
  return OffloadIndex::Make(model, std::move(options));
}

const TierOptions& OffloadManager::tier_options(TierId id) const { return tier(id).options(); }
const TierCapacity& OffloadManager::tier_capacity(TierId id) const { return tier(id).capacity(); }
const TierStats& OffloadManager::tier_stats(TierId id) const { return tier(id).stats(); }

absl::StatusOr<std::unique_ptr<OffloadManager>> OffloadIndex::Make(const KvCacheManager& model,
                                                                   OffloadOptions options) {
  if (absl::Status status = CheckTiers(options.tiers); !status.ok()) return status;
  const auto num_groups = static_cast<size_t>(model.num_groups());
  std::vector<int64_t> block_bytes = options.group_block_bytes;
  if (block_bytes.empty()) {
    for (const KvCacheGroup& group : model.config().groups) {
      const CheckedInt64 bytes =
          CheckedInt64(group.spec.page_bytes()) *
          std::max<int64_t>(1, static_cast<int64_t>(group.layer_names.size()));
      if (bytes.overflowed()) return InvalidArgument("a block of a group has more than 2^63 bytes");
      block_bytes.push_back(*bytes.value());
    }
  }
  if (block_bytes.size() != num_groups) {
    return InvalidArgument("group_block_bytes has ", block_bytes.size(), " entries, expected ",
                           num_groups, ", one per group");
  }
  for (size_t g = 0; g < num_groups; ++g) {
    if (block_bytes[g] < 1) {
      return InvalidArgument("group_block_bytes[", g, "] is ", block_bytes[g],
                             ", expected at least 1");
    }
    if (!model.group(static_cast<GroupId>(g)).is_cacheable()) block_bytes[g] = 0;
  }

  auto manager =
      std::unique_ptr<OffloadIndex>(new OffloadIndex(model, std::move(options)));
  manager->groups_.reserve(num_groups);
  for (size_t g = 0; g < num_groups; ++g) {
    if (block_bytes[g] == 0) continue;
    const SingleTypeManager& rules = model.group(static_cast<GroupId>(g));
    manager->groups_.push_back({.id = static_cast<GroupId>(g),
                                .rules = &rules,
                                .block_size = rules.block_size(),
                                .hashes_per_block = rules.block_size() / model.hash_block_size(),
                                .block_bytes = block_bytes[g],
                                .margin_blocks = rules.draft_margin() > 0 ? 1 : 0});
  }
  manager->group_of_.resize(num_groups);
  for (const Group& group : manager->groups_) {
    manager->group_of_[static_cast<size_t>(group.id)] = &group;
  }
  for (const TierOptions& tier : manager->options_.tiers) {
    absl::StatusOr<TierCapacity> capacity = ResolveCapacity(tier, block_bytes);
    if (!capacity.ok()) return capacity.status();
    const size_t t = manager->tiers_.size();
    const auto& shared = manager->options_.shared;
    if (t >= shared.size() || shared[t] == nullptr) {
      manager->tiers_.push_back(std::make_shared<Tier>(tier, *std::move(capacity)));
      continue;
    }
    if (shared[t]->capacity().num_slots != capacity->num_slots ||
        shared[t]->capacity().bytes_taken != capacity->bytes_taken ||
        shared[t]->options().blocks_per_chunk != tier.blocks_per_chunk) {
      return InvalidArgument("tier \"", tier.name,
                             "\": shared with a manager of other blocks or other "
                             "options, whose tier has ",
                             shared[t]->capacity().num_slots, " slots instead of ",
                             capacity->num_slots);
    }
    manager->tiers_.push_back(shared[t]);
  }
  return manager;
}

// --- Loads ---

absl::StatusOr<LoadPlan> OffloadIndex::PrepareLoad(OwnerId owner, const PrefixContent& content,
                                                     int64_t num_computed_tokens,
                                                     int64_t num_tokens) {
  if (num_computed_tokens < 0 || num_computed_tokens % alignment_ != 0 ||
      num_tokens <= num_computed_tokens || num_tokens % alignment_ != 0 ||
      num_tokens > content.num_hashed_tokens()) {
    return InvalidArgument("PrepareLoad: tokens ", num_computed_tokens, " to ", num_tokens,
                           ", expected multiples of ", alignment_,
                           ", the second above the first, of a ", "content with ",
                           content.num_hashed_tokens(), " hashed tokens");
  }
  LoadPlan plan;
  const Group* missing_group = nullptr;
  int64_t missing = 0;
  for (const Group& group : groups_) {
    VisitNeeded(group, num_computed_tokens, num_tokens, [&](int64_t position) {
      const Place place = Locate(group, content, position);
      if (!place.is_readable) {
        if (missing_group == nullptr) missing = position;
        missing_group = &group;
        return;
      }
      if (!plan.reads.empty() && plan.reads.back().tier == place.tier &&
          plan.reads.back().slot == place.slot) {
        ++plan.reads.back().num_blocks;
        plan.reads.back().bytes += group.block_bytes;
        return;
      }
      plan.reads.push_back(
          {.tier = place.tier,
           .slot = place.slot,
           .group = group.id,
           .first_block = position,
           .block_in_chunk = position % tier(place.tier).options().blocks_per_chunk,
           .num_blocks = 1,
           .bytes = group.block_bytes});
    });
    if (missing_group != nullptr) {
      return InvalidArgument("PrepareLoad: block ", missing, " of group ", group.id,
                             " is in no tier, or being written; ask Lookup in the same step");
    }
  }
  Ticket ticket{.owner = owner, .is_load = true};
  for (const ChunkRead& read : plan.reads) {
    tiers_[static_cast<size_t>(read.tier)]->AddReader(read.slot);
    ticket.slots.push_back({.tier = read.tier, .slot = read.slot, .bytes = read.bytes});
    ++reading_[{read.tier, read.slot}];
  }
  plan.ticket = ++last_ticket_;
  tickets_.emplace(plan.ticket, std::move(ticket));
  return plan;
}

absl::StatusOr<OffloadIndex::Ticket> OffloadIndex::TakeTicket(TicketId id, bool is_load,
                                                                  absl::string_view call) {
  const auto it = tickets_.find(id);
  if (it == tickets_.end() || it->second.is_load != is_load) {
    return NotFound(call, ": ticket ", id, " is not that of an open ", is_load ? "load" : "store");
  }
  Ticket ticket = std::move(it->second);
  tickets_.erase(it);
  return ticket;
}

void OffloadIndex::EndLoad(const Ticket& ticket, bool was_read, AfterFailure after) {
  for (const SlotInUse& used : ticket.slots) {
    Tier& tier = *tiers_[static_cast<size_t>(used.tier)];
    if (was_read) tier.stats().bytes_read += used.bytes;
    const auto reading = reading_.find({used.tier, used.slot});
    if (--reading->second == 0) reading_.erase(reading);
    const bool was_doomed = tier.is_doomed(used.slot);
    tier.RemoveReader(used.slot, was_read);
    if (was_doomed) continue;
    if (was_read ? tier.options().exclusive : after == AfterFailure::kDrop) {
      Drop(used.tier, used.slot);
    }
  }
}

absl::Status OffloadIndex::CompleteLoad(TicketId id) {
  absl::StatusOr<Ticket> ticket = TakeTicket(id, /*is_load=*/true, "CompleteLoad");
  if (!ticket.ok()) return ticket.status();
  EndLoad(*ticket, /*was_read=*/true, AfterFailure::kKeep);
  return absl::OkStatus();
}

absl::Status OffloadIndex::FailLoad(TicketId id, AfterFailure after) {
  absl::StatusOr<Ticket> ticket = TakeTicket(id, /*is_load=*/true, "FailLoad");
  if (!ticket.ok()) return ticket.status();
  EndLoad(*ticket, /*was_read=*/false, after);
  return absl::OkStatus();
}

// --- Stores ---

bool OffloadIndex::IsWorthStoring(const Offer& offer, int64_t blocks_per_chunk,
                                    const StoreRange& range) const {
  const int64_t begin = offer.chunk * blocks_per_chunk;
  bool is_usable = false;
  for (int64_t position = begin; position < begin + blocks_per_chunk; ++position) {
    if (!range.tables.empty()) {
      const auto table = range.tables[static_cast<size_t>(offer.group->id)];
      if (position >= static_cast<int64_t>(table.size()) ||
          table[static_cast<size_t>(position)] == kNullBlockId) {
        return false;
      }
    }
    is_usable = is_usable || offer.group->rules->IsReachable(position);
  }
  return is_usable;
}

void OffloadIndex::CollectOffers(TierId id, const PrefixContent& content,
                                   const StoreRange& range) {
  offers_.clear();
  const TierOptions& options = tier(id).options();
  const int64_t end =
      options.prompt_only ? std::min(range.end, range.num_prompt_tokens) : range.end;
  for (const Group& group : groups_) {
    const int64_t chunk_tokens = group.block_size * options.blocks_per_chunk;
    for (int64_t chunk = range.begin / chunk_tokens;
         (chunk + 1) * chunk_tokens <= end &&
         HasKey(group, content, chunk, options.blocks_per_chunk);
         ++chunk) {
      const Offer offer{.group = &group, .chunk = chunk, .end = (chunk + 1) * chunk_tokens};
      if (IsWorthStoring(offer, options.blocks_per_chunk, range)) offers_.push_back(offer);
    }
  }
  // The front of the prompt first, in all groups: if room ends, the end of the prompt is left out.
  std::stable_sort(offers_.begin(), offers_.end(),
                   [](const Offer& a, const Offer& b) { return a.end < b.end; });
}

absl::StatusOr<StorePlan> OffloadIndex::PrepareStore(OwnerId owner, const PrefixContent& content,
                                                       const StoreRange& range) {
  if (range.begin < 0 || range.end < range.begin || range.end > content.num_tokens() ||
      range.num_prompt_tokens < 0) {
    return InvalidArgument("PrepareStore: tokens ", range.begin, " to ", range.end, " with ",
                           range.num_prompt_tokens, " of the prompt, expected 0 to ",
                           content.num_tokens(), " in order");
  }
  if (!range.tables.empty() && range.tables.size() != group_of_.size()) {
    return InvalidArgument("PrepareStore: ", range.tables.size(), " block tables, expected ",
                           group_of_.size(), ", one per group, or none");
  }
  StorePlan plan;
  Ticket ticket{.owner = owner};
  for (TierId t = 0; t < static_cast<TierId>(tiers_.size()); ++t) {
    Tier& tier = *tiers_[static_cast<size_t>(t)];
    const int64_t per_chunk = tier.options().blocks_per_chunk;
    if (tier.options().write_policy == WritePolicy::kOnEvict) continue;
    CollectOffers(t, content, range);
    // What is there of the request must not make room for the rest of it.
    std::vector<SlotId> kept;
    for (const Offer& offer : offers_) {
      const SlotId slot = tier.Find(KeyOf(*offer.group, content, offer.chunk, per_chunk));
      if (slot != kNoSlot) kept.push_back(slot);
    }
    tier.Protect(kept);
    for (const Offer& offer : offers_) {
      const Group& group = *offer.group;
      const ChunkKey key = KeyOf(group, content, offer.chunk, per_chunk);
      if (!tier.WantsOffered(key)) continue;
      const int64_t chunk_tokens = per_chunk * group.block_size;
      const Tier::Chunk chunk{.key = key,
                              .num_tokens = chunk_tokens};
      if (!Write(t, chunk, {.key = key, .first_block = offer.chunk * per_chunk}, ticket, plan)) {
        break;
      }
    }
    tier.Unprotect(kept);
  }
  return Issue(std::move(ticket), std::move(plan));
}

StorePlan OffloadIndex::PrepareStoreOfEvicted(OwnerId owner,
                                                absl::Span<const EvictedBlock> blocks) {
  StorePlan plan;
  Ticket ticket{.owner = owner};
  Tier& first = *tiers_.front();
  if (first.options().write_policy == WritePolicy::kOnEvict) {
    for (const EvictedBlock& block : blocks) {
      const auto group = static_cast<size_t>(block.key.group);
      if (group >= group_of_.size() || group_of_[group] == nullptr) continue;
      if (!first.WantsOffered(block.key)) continue;
      const Tier::Chunk chunk{.key = block.key,
                              .num_tokens = group_of_[group]->block_size};
      Write(0, chunk, {.key = block.key, .first_block = block.block}, ticket, plan);
    }
  }
  return Issue(std::move(ticket), std::move(plan));
}

bool OffloadIndex::Write(TierId id, const Tier::Chunk& chunk, ChunkWrite write, Ticket& ticket,
                           StorePlan& plan) {
  Tier& tier = *tiers_[static_cast<size_t>(id)];
  std::vector<Tier::Evicted> evicted;
  const SlotId slot = tier.StartWrite(chunk, &evicted);
  for (const Tier::Evicted& gone : evicted) {
    plan.evictions.push_back({.tier = id, .key = gone.chunk.key});
    ReportRemoved(id, gone.chunk.key, RemovalReason::kReused);
    const auto next = static_cast<size_t>(id) + 1;
    if (next == tiers_.size() ||
        tiers_[next]->options().write_policy != WritePolicy::kOnEvict ||
        !tiers_[next]->WantsOffered(gone.chunk.key)) {
      continue;
    }
    tier.stats().num_moved_down +=
        Write(id + 1, gone.chunk,
              {.from_tier = id, .from_slot = gone.slot, .key = gone.chunk.key}, ticket, plan);
  }
  if (slot == kNoSlot) return false;
  write.tier = id;
  write.slot = slot;
  write.num_blocks = tier.options().blocks_per_chunk;
  write.bytes =
      write.num_blocks * group_of_[static_cast<size_t>(chunk.key.group)]->block_bytes;
  ticket.slots.push_back({.tier = id, .slot = slot, .bytes = write.bytes});
  plan.writes.push_back(write);
  return true;
}

StorePlan OffloadIndex::Issue(Ticket ticket, StorePlan plan) {
  if (ticket.slots.empty()) return plan;
  plan.ticket = ++last_ticket_;
  tickets_.emplace(plan.ticket, std::move(ticket));
  return plan;
}

void OffloadIndex::EndStore(const Ticket& ticket, bool was_written) {
  for (TierId t = 0; t < static_cast<TierId>(tiers_.size()); ++t) {
    Tier& tier = *tiers_[static_cast<size_t>(t)];
    slots_.clear();
    for (const SlotInUse& used : ticket.slots) {
      if (used.tier != t) continue;
      if (was_written) {
        slots_.push_back(used.slot);
        tier.stats().bytes_written += used.bytes;
      } else {
        tier.FailWrite(used.slot);
      }
    }
    if (slots_.empty()) continue;
    std::vector<SlotId> readable;
    tier.FinishWrites(slots_, &readable);
    ReportStored(t, readable);
  }
}

absl::Status OffloadIndex::CompleteStore(TicketId id) {
  absl::StatusOr<Ticket> ticket = TakeTicket(id, /*is_load=*/false, "CompleteStore");
  if (!ticket.ok()) return ticket.status();
  EndStore(*ticket, /*was_written=*/true);
  return absl::OkStatus();
}

absl::Status OffloadIndex::FailStore(TicketId id) {
  absl::StatusOr<Ticket> ticket = TakeTicket(id, /*is_load=*/false, "FailStore");
  if (!ticket.ok()) return ticket.status();
  EndStore(*ticket, /*was_written=*/false);
  return absl::OkStatus();
}

// --- Around the transfers ---

int64_t OffloadIndex::NumOpenTickets(OwnerId owner) const {
  return std::count_if(tickets_.begin(), tickets_.end(),
                       [&](const auto& entry) { return entry.second.owner == owner; });
}

int64_t OffloadIndex::Abandon(OwnerId owner) {
  std::vector<TicketId> ids;
  for (const auto& [id, ticket] : tickets_) {
    if (ticket.owner == owner) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const TicketId id : ids) {
    const auto it = tickets_.find(id);
    const Ticket ticket = std::move(it->second);
    tickets_.erase(it);
    if (ticket.is_load) {
      EndLoad(ticket, /*was_read=*/false, AfterFailure::kKeep);
    } else {
      EndStore(ticket, /*was_written=*/false);
    }
  }
  return static_cast<int64_t>(ids.size());
}

void OffloadIndex::Touch(const PrefixContent& content, int64_t num_tokens) {
  WalkChunks(content, num_tokens, /*is_use=*/true);
}

void OffloadIndex::RequestFinished(const PrefixContent& content, int64_t num_tokens) {
  WalkChunks(content, num_tokens, /*is_use=*/false);
}

void OffloadIndex::WalkChunks(const PrefixContent& content, int64_t num_tokens, bool is_use) {
  for (const auto& tier : tiers_) {
    const int64_t per_chunk = tier->options().blocks_per_chunk;
    walked_.clear();
    for (const Group& group : groups_) {
      const int64_t chunk_tokens = group.block_size * per_chunk;
      for (int64_t chunk = 0;
           chunk * chunk_tokens < num_tokens && HasKey(group, content, chunk, per_chunk); ++chunk) {
        const SlotId slot = tier->Find(KeyOf(group, content, chunk, per_chunk));
        if (slot != kNoSlot && tier->IsReadable(slot)) {
          walked_.emplace_back((chunk + 1) * chunk_tokens, slot);
        }
      }
    }
    std::stable_sort(walked_.begin(), walked_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    slots_.clear();
    for (const auto& [end, slot] : walked_) slots_.push_back(slot);
    tier->Touch(slots_, is_use);
  }
}

void OffloadIndex::Drop(TierId id, SlotId slot) {
  Tier& tier = *tiers_[static_cast<size_t>(id)];
  const ChunkKey key = tier.key(slot);
  const bool was_readable = tier.IsReadable(slot);
  tier.Doom(slot);
  if (was_readable) ReportRemoved(id, key, RemovalReason::kEvicted);
}

absl::Status OffloadIndex::Evict(TierId id, const ChunkKey& key) {
  if (id < 0 || id >= num_tiers()) {
    return InvalidArgument("Evict: tier ", id, ", expected 0 to ", num_tiers() - 1);
  }
  const SlotId slot = tier(id).Find(key);
  if (slot == kNoSlot) {
    return NotFound("Evict: tier \"", tier(id).options().name, "\" has no chunk ",
                    key.hash.ToHex(), " of group ", key.group);
  }
  Drop(id, slot);
  return absl::OkStatus();
}

void OffloadIndex::Reset() {
  for (TierId t = 0; t < static_cast<TierId>(tiers_.size()); ++t) {
    for (const SlotId slot : tier(t).FoundSlots()) Drop(t, slot);
  }
}

void OffloadIndex::ReportStored(TierId id, absl::Span<const SlotId> slots) {
  if (!options_.enable_events) return;
  const TierOptions& options = tier(id).options();
  for (const Group& group : groups_) {
    BlockStored stored{.block_size = group.block_size * options.blocks_per_chunk,
                       .medium = TierMediumName(options.medium),
                       .group_idx = group.id,
                       .kv_cache_spec_kind = group.rules->spec().kind_name(),
                       .kv_cache_spec_sliding_window = group.rules->spec().sliding_window(),
                       .locality = std::string(TierLocalityName(options.locality))};
    if (id > 0) stored.ownership = options.name;
    for (const SlotId slot : slots) {
      if (tier(id).key(slot).group == group.id)
        stored.block_hashes.push_back(tier(id).key(slot).hash);
    }
    stored.extra_keys.resize(stored.block_hashes.size());
    if (!stored.block_hashes.empty()) events_.emplace_back(std::move(stored));
  }
}

void OffloadIndex::ReportRemoved(TierId id, const ChunkKey& key, RemovalReason reason) {
  if (!options_.enable_events) return;
  const TierOptions& options = tier(id).options();
  BlockRemoved removed{.block_hash = key.hash,
                       .medium = TierMediumName(options.medium),
                       .group_idx = key.group,
                       .reason = reason,
                       .locality = std::string(TierLocalityName(options.locality))};
  if (id > 0) removed.ownership = options.name;
  events_.emplace_back(std::move(removed));
}

absl::Status OffloadIndex::CheckInvariants() const {
  absl::flat_hash_map<std::pair<TierId, SlotId>, int64_t> readers;
  absl::flat_hash_map<std::pair<TierId, SlotId>, int64_t> writers;
  for (const auto& [id, ticket] : tickets_) {
    for (const SlotInUse& used : ticket.slots) {
      ++(ticket.is_load ? readers : writers)[{used.tier, used.slot}];
    }
  }
  for (TierId t = 0; t < static_cast<TierId>(tiers_.size()); ++t) {
    if (absl::Status status = tier(t).CheckInvariants(); !status.ok()) return status;
    // Others have tickets, too.
    const bool is_shared = tiers_[static_cast<size_t>(t)].use_count() > 1;
    int64_t in_use = 0;
    for (SlotId slot = 1; slot <= tier(t).last_slot(); ++slot) {
      const auto read = readers.find({t, slot});
      const int64_t num_readers = read == readers.end() ? 0 : read->second;
      const bool is_writing = tier(t).state(slot) == Tier::State::kWriting;
      const bool has_writer = writers.contains({t, slot});
      const bool agrees = is_shared ? tier(t).num_readers(slot) >= num_readers &&
                                          (is_writing || !has_writer)
                                    : tier(t).num_readers(slot) == num_readers &&
                                          has_writer == is_writing;
      if (!agrees) {
        return BrokenInvariant("tier \"", tier(t).options().name, "\": slot ", slot, " has ",
                               tier(t).num_readers(slot), " readers and is ",
                               is_writing ? "" : "not ", "being written; the open tickets have ",
                               num_readers, " readers and ", has_writer ? "a" : "no",
                               " writer");
      }
      in_use += num_readers > 0 || is_writing;
    }
    if (tickets_.empty() && in_use > 0 && !is_shared)
      return BrokenInvariant("slots in use without tickets");
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::offload
