#include "kvblocks/block_pool.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/memory_limit.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {
constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 2;
constexpr int64_t kMaxComparedBlockSize = int64_t{1} << 20;

// How many blocks before its use a cache line is fetched where many blocks are handled in a row.
constexpr int64_t kNeighboursAhead = 8;
constexpr int64_t kRecordsAhead = 16;
// How many blocks are processed at once where one step's misses overlap before the next begins.
constexpr size_t kBatch = 32;
}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(const Options& options) {
  // One more id is the queue's sentinel, and one of each page class.
  const int64_t most = kMaxBlocks - static_cast<int64_t>(options.chunks.pages_per_chunk.size());
  if (options.num_blocks < 1 || options.num_blocks > most) {
    return InvalidArgument("num_blocks is ", options.num_blocks, ", expected 1 to ", most,
                           " (the null block counts)");
  }
  if (options.compared_block_size < 0 || options.compared_block_size > kMaxComparedBlockSize) {
    return InvalidArgument("compared_block_size is ", options.compared_block_size,
                           " tokens, expected 0 to ", kMaxComparedBlockSize);
  }
  if (options.history_keys < 0 || options.history_keys > kMaxBlocks) {
    return InvalidArgument("history_keys is ", options.history_keys, ", expected 0 to ",
                           kMaxBlocks);
  }
  if (absl::Status status = CheckEvictionOptions(options); !status.ok()) return status;
  const bool has_chunks = options.chunks.num_chunks != 0;
  const bool has_index = HasEvictionOrder(options);
  // Refused here rather than by the kernel, half-way through filling the arrays.
  int64_t bytes =
      options.num_blocks * static_cast<int64_t>(sizeof(KvCacheBlock) + sizeof(BlockHash)) +
      PrefixHashTable::BytesFor(options.num_blocks);
  bytes += options.num_blocks * options.compared_block_size * static_cast<int64_t>(sizeof(TokenId));
  if (options.history_keys > 0) bytes += LookupHistory::BytesFor(options.history_keys);
  if (has_index) {
    bytes += options.eviction_policy.order_bytes(options.eviction_policy, options.num_blocks);
  }
  if (has_chunks) bytes += PageChunks::BytesFor(options.chunks, options.num_blocks);
  const int64_t memory = MemoryLimit();
  if (bytes > memory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "num_blocks is ", options.num_blocks,
        options.history_keys > 0 ? absl::StrCat(" and history_keys ", options.history_keys)
                                 : std::string(),
        ", whose book-keeping takes ", bytes >> 20, " MiB of host memory; this process may take ",
        memory >> 20, " MiB"));
  }
  return std::unique_ptr<BlockPool>(new BlockPool(options));
}

BlockPool::BlockPool(const Options& options)
    : enable_caching_(options.enable_caching),
      enable_events_(options.enable_events),
      free_order_(options.free_order),
      one_event_per_registration_(options.one_event_per_registration),
      records_(static_cast<int32_t>(options.num_blocks),
               1 + (options.chunks.num_chunks == 0
                        ? 0
                        : static_cast<int32_t>(options.chunks.pages_per_chunk.size()))),
      queue_(&records_),
      table_(&records_) {
  if (enable_caching_ && options.compared_block_size > 0) {
    tokens_.emplace(options.num_blocks, options.compared_block_size);
  }
  records_[kNullBlockId].is_null = true;
  records_[kNullBlockId].ref_count = 1;
  if (options.chunks.num_chunks != 0) {
    chunks_ = PageChunks::Create(options.chunks, &records_);
  } else {
    for (BlockId id = 1; id < num_blocks(); ++id) queue_.LinkBack(id);
  }
  if (HasEvictionOrder(options)) {
    eviction_ = options.eviction_policy.make_order(
        options.eviction_policy, options.is_chained_group, &records_,
        static_cast<int32_t>(options.max_retained_blocks));
  }
  if (enable_caching_ && options.history_keys > 0) {
    history_ = LookupHistory::Create(options.history_keys);
  }
}

absl::Status BlockPool::CheckIds(absl::Span<const BlockId> ids, const char* operation) const {
  for (BlockId id : ids) {
    if (id < 0 || id >= num_blocks()) {
      return InvalidArgument(operation, ": block ", id, " is outside the pool's blocks 0..",
                             num_blocks() - 1);
    }
  }
  return absl::OkStatus();
}

void BlockPool::GetNewBlocks(int64_t k, std::vector<BlockId>& table, GroupId group) {
  if (chunks_ != nullptr) [[unlikely]]
    return TakePages(k, table, group);
  KVBLOCKS_CHECK(k >= 0 && k <= queue_.size(),
                 absl::StrCat(k, " blocks to take, ", queue_.size(), " free"));
  if (eviction_ != nullptr) [[unlikely]]
    return TakeByPolicy(k, table);
  if (k == 1) {  // a decode step
    BlockId id;
    queue_.PopFront(absl::MakeSpan(&id, 1));
    if (records_[id].has_key()) {
      --num_cached_unreferenced_;
      ++num_evictions_;
      EvictOne(table_.Place(id), id, RemovalReason::kReused);
    }
    records_[id].ref_count = 1;
    table.push_back(id);
    ++num_blocks_taken_;
    return;
  }
  const size_t old_size = table.size();
  table.resize(old_size + static_cast<size_t>(k));
  absl::Span<BlockId> rest = absl::MakeSpan(table).subspan(old_size);
  while (!rest.empty()) {
    const absl::Span<BlockId> batch = rest.first(std::min(rest.size(), kBatch));
    rest.remove_prefix(batch.size());
    if (num_keyed_blocks() > 0) {
      TakeAndEvict(batch);
      continue;
    }
    queue_.PopFront(batch);
    for (BlockId id : batch) records_[id].ref_count = 1;
  }
  // Behind the evictions: their age includes the blocks of the call that took them.
  num_blocks_taken_ += k;
}

// The same, with the cache misses of a batch overlapping: those of the hashes with the walk along
// the queue, whose links are a chain of misses, then those of the buckets with each other.
void BlockPool::TakeAndEvict(absl::Span<BlockId> batch) {
  BlockId next = queue_.front();
  for (BlockId& id : batch) {
    id = next;
    records_.PrefetchHash(id);
    next = queue_.next(id);
  }
  queue_.PopFront(batch);
  std::array<uint64_t, kBatch> places;
  for (size_t i = 0; i < batch.size(); ++i) {
    records_[batch[i]].ref_count = 1;
    if (!records_[batch[i]].has_key()) continue;
    places[i] = table_.Place(batch[i]);
    table_.Prefetch(places[i]);
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!records_[batch[i]].has_key()) continue;
    --num_cached_unreferenced_;
    ++num_evictions_;
    EvictOne(places[i], batch[i], RemovalReason::kReused);
  }
}

absl::StatusOr<std::vector<BlockId>> BlockPool::TakePermanentBlocks(int64_t k, GroupId group) {
  if (k < 0) {
    return InvalidArgument("TakePermanentBlocks: ", k, " blocks asked for, expected 0 or more");
  }
  if (absl::Status status = CheckGroup(group, "TakePermanentBlocks"); !status.ok()) return status;
  if (!Fits(k, group)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        k, " permanent blocks asked for, ", num_free(), " of ", num_blocks(), " blocks are free",
        chunks_ == nullptr ? std::string()
                           : absl::StrCat(" and ", chunks_->num_unassigned() + chunks_->num_idle(),
                                          " chunks available, for group ", group)));
  }
  std::vector<BlockId> ids;
  GetNewBlocks(k, ids, group);
  for (BlockId id : ids) {
    records_[id].is_permanent = true;
    if (chunks_ != nullptr) chunks_->OnMadePermanent(id);
  }
  num_permanent_ += static_cast<int32_t>(k);
  return ids;
}

void BlockPool::EvictOne(uint64_t place, BlockId id, RemovalReason reason) {
  const GroupId group = records_[id].key_group;
  if (history_ != nullptr && !records_[id].has_duplicates) {
    RememberRemoval(records_.hash(id), group, reason);
  }
  if (eviction_ != nullptr) [[unlikely]]
    ForgetKeyInPolicy(id, reason);
  table_.Erase(place, id);
  ++removal_epoch_;
  if (!partial_tokens_.empty()) partial_tokens_.erase(id);
  if (enable_events_) EmitRemoved(records_.hash(id), group, reason);
  if (!further_keys_.empty()) DropFurtherKeys(id, reason);
}

// The key goes from the last block that has it as its first one.
void BlockPool::RememberRemoval(const BlockHash& hash, GroupId group, RemovalReason reason) {
  // What was replaced is still there, in a block that stands for more.
  if (reason == RemovalReason::kReplaced || HasFurtherKey(hash, group)) return;
  history_->OnRemoved(
      hash, group,
      {.num_blocks_taken = num_blocks_taken_, .was_reused = reason == RemovalReason::kReused});
}

void BlockPool::EmitRemoved(const BlockHash& hash, GroupId group, RemovalReason reason) {
  // Built in place: g++ 12 -O2 warns of uninitialised members in a moved variant.
  events_.emplace_back(std::in_place_type<BlockRemoved>,
                       BlockRemoved{.block_hash = hash, .group_idx = group, .reason = reason});
}

absl::Status BlockPool::CheckTouchable(absl::Span<const BlockId> ids) const {
  if (absl::Status status = CheckIds(ids, "Touch"); !status.ok()) return status;
  for (BlockId id : ids) {
    if (records_[id].is_permanent) {
      return InvalidArgument("Touch: block ", id, " is permanent");
    }
    if (chunks_ != nullptr && id != kNullBlockId && chunks_->ClassOfPage(id) < 0) {
      return InvalidArgument("Touch: block ", id,
                             " has no page, its chunk is cut otherwise or unassigned");
    }
  }
  return absl::OkStatus();
}

void BlockPool::Touch(absl::Span<const BlockId> ids) {
  if (chunks_ != nullptr) [[unlikely]]
    return TouchPages(ids);
  if (eviction_ != nullptr) [[unlikely]]
    return TouchForPolicy(ids);
  const auto count = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < count; ++i) {
    if (i + kRecordsAhead < count) {
      records_.Prefetch(ids[static_cast<size_t>(i + kRecordsAhead)]);
    }
    if (i + kNeighboursAhead < count) {
      queue_.PrefetchNeighbours(ids[static_cast<size_t>(i + kNeighboursAhead)]);
    }
    const BlockId id = ids[static_cast<size_t>(i)];
    if (id == kNullBlockId) continue;
    KvCacheBlock& block = records_[id];
    if (block.ref_count++ == 0) {
      KVBLOCKS_CHECK(block.is_linked(),
                     absl::StrCat("block ", id, " has no reference but is not in the free queue"));
      queue_.Unlink(id);
      if (block.has_key()) --num_cached_unreferenced_;
    }
  }
}

void BlockPool::FreeBlocks(absl::Span<const BlockId> ids) {
  if (chunks_ != nullptr) return ReleasePages(ids, /*from_back=*/false);
  Release(ids.begin(), ids.end());
}

void BlockPool::FreeBlocksReversed(absl::Span<const BlockId> ids) {
  if (chunks_ != nullptr) [[unlikely]]
    return ReleasePages(ids, /*from_back=*/true);
  Release(ids.rbegin(), ids.rend());
}

template <typename Iterator>
void BlockPool::Release(Iterator begin, Iterator end) {
  BlockId last_in_front = kUnlinked;
  for (Iterator it = begin; it != end; ++it) {
    KvCacheBlock& block = records_[*it];
    if (block.is_null || --block.ref_count > 0) continue;
    KVBLOCKS_CHECK(block.ref_count == 0,
                   absl::StrCat("block ", *it, " was freed more often than it was referenced"));
    if (block.has_key()) {
      ++num_cached_unreferenced_;
      queue_.LinkBack(*it);
    } else if (free_order_ == FreeOrder::kUnhashedFirst) {
      queue_.LinkAfter(last_in_front, *it);
      last_in_front = *it;
    } else {
      queue_.LinkBack(*it);
    }
  }
  if (eviction_ != nullptr) [[unlikely]] {
    released_.assign(begin, end);
    eviction_->OnReleased(released_);
  }
}

size_t BlockPool::FindCachedRun(const PrefixContent& content, int64_t begin, int64_t per_block,
                                GroupId group, absl::Span<BlockId> out) const {
  const size_t found =
      table_.FindRun(content.hashes().subspan(static_cast<size_t>(begin * per_block)),
                     static_cast<size_t>(per_block), group, out);
  if (!tokens_) return found;
  size_t same = 0;
  while (same < found &&
         Matches(out[same], content, begin + static_cast<int64_t>(same), per_block)) {
    ++same;
  }
  return same;
}

void BlockPool::CacheFullBlocks(const PrefixContent& content, absl::Span<const BlockId> table,
                                int64_t from, int64_t to, int64_t block_size, GroupId group,
                                absl::Span<const uint8_t> mask) {
  const int64_t per_block = block_size / content.hash_block_size();
  std::array<uint64_t, kBatch> places;
  int64_t batch_begin = from;
  int64_t batch_end = from;
  int64_t run_begin = -1;  // first position of the run being registered, -1: none
  for (int64_t i = from; i < to; ++i) {
    if (i == batch_end) {
      batch_begin = batch_end;
      batch_end = std::min(to, batch_begin + static_cast<int64_t>(kBatch));
      for (int64_t j = batch_begin; j < batch_end; ++j) {
        uint64_t& place = places[static_cast<size_t>(j - batch_begin)];
        place = table_.Place(content.HashOfBlock(j, per_block), group);
        table_.Prefetch(place);
      }
    }
    const BlockId id = table[static_cast<size_t>(i)];
    if (id == kNullBlockId || (!mask.empty() && mask[static_cast<size_t>(i - from)] == 0)) {
      if (run_begin >= 0 && !one_event_per_registration_) {
        EmitStored(content, run_begin, i, block_size, group);
      }
      run_begin = -1;
      continue;
    }
    if (!partial_tokens_.empty() && partial_tokens_.contains(id)) DropPartialKey(id);
    table_.Insert(places[static_cast<size_t>(i - batch_begin)], content.HashOfBlock(i, per_block),
                  group, id);
    TellPolicyOfKey(id, i > 0 ? table[static_cast<size_t>(i - 1)] : kNullBlockId, block_size);
    if (tokens_) tokens_->Store(id, content, i * block_size, (i + 1) * block_size);
    if (records_[id].ref_count == 0) ++num_cached_unreferenced_;
    if (history_ != nullptr) RememberVariant(content, i, per_block);
    if (run_begin < 0) run_begin = i;
  }
  if (one_event_per_registration_ && to > from) {
    EmitStored(content, from, to, block_size, group, [&](int64_t i) {
      const auto at = static_cast<size_t>(i - from);
      return table[static_cast<size_t>(i)] != kNullBlockId && (mask.empty() || mask[at] != 0);
    });
  } else if (run_begin >= 0) {
    EmitStored(content, run_begin, to, block_size, group);
  }
}

void BlockPool::EmitStored(const PrefixContent& content, int64_t from, int64_t to,
                           int64_t block_size, GroupId group,
                           absl::FunctionRef<bool(int64_t)> is_kept) {
  if (!enable_events_) return;
  const int64_t per_block = block_size / content.hash_block_size();
  BlockStored event;
  event.block_size = block_size;
  event.group_idx = group;
  event.lora_id = content.lora_id();
  event.lora_name = content.lora_name();
  event.session_id = content.session_id();
  if (from > 0) event.parent_block_hash = content.HashOfBlock(from - 1, per_block);
  event.block_hashes.reserve(static_cast<size_t>(to - from));
  event.extra_keys.reserve(static_cast<size_t>(to - from));
  for (int64_t i = from; i < to; ++i) {
    if (!is_kept(i)) continue;
    event.block_hashes.push_back(content.HashOfBlock(i, per_block));
    ExtraKeys keys = content.ReportedExtraKeysOf(i * block_size, (i + 1) * block_size);
    event.extra_keys.push_back(keys.empty() ? std::nullopt
                                            : std::optional<ExtraKeys>(std::move(keys)));
  }
  if (content.has_token_ids()) {
    event.token_ids.assign(content.token_ids().begin() + from * block_size,
                           content.token_ids().begin() + to * block_size);
  }
  if (content.has_token_ids() && content.num_lookahead_tokens() > 0) {
    for (int64_t i = from; i < to; ++i) {
      if (!is_kept(i)) continue;
      if (!event.lookahead_token_ids) event.lookahead_token_ids.emplace();
      const auto tokens = content.LookaheadTokens((i + 1) * block_size);
      event.lookahead_token_ids->emplace_back(tokens.begin(), tokens.end());
    }
  }
  events_.emplace_back(std::in_place_type<BlockStored>, std::move(event));
}

// --- Taking keys away ---

absl::Status BlockPool::EvictBlocks(absl::Span<const BlockId> ids) {
  if (absl::Status status = CheckIds(ids, "EvictBlocks"); !status.ok()) return status;
  std::vector<BlockId> ascending(ids.begin(), ids.end());
  std::sort(ascending.begin(), ascending.end());
  for (BlockId id : ascending) {
    if (!records_[id].has_key()) continue;
    if (records_[id].ref_count == 0) --num_cached_unreferenced_;
    EvictOne(table_.Place(id), id, RemovalReason::kEvicted);
  }
  return absl::OkStatus();
}

bool BlockPool::ResetPrefixCache() {
  if (num_live() > 0) return false;
  if (history_ != nullptr) RememberAll();
  table_.Clear();
  partial_tokens_.clear();
  further_keys_.clear();
  blocks_of_further_keys_.clear();
  if (chunks_ != nullptr) chunks_->ReturnIdle();
  if (eviction_ != nullptr) eviction_->Clear();
  num_cached_unreferenced_ = 0;
  ++removal_epoch_;
  if (enable_events_) events_.emplace_back(std::in_place_type<AllBlocksCleared>);
  return true;
}

double BlockPool::usage() const {
  if (chunks_ != nullptr) return chunks_->usage();
  const int32_t usable = num_blocks() - 1 - num_permanent_;
  return usable == 0 ? 0.0 : 1.0 - static_cast<double>(num_free()) / usable;
}

std::vector<KvEvent> BlockPool::TakeEvents() {
  if (events_.empty()) return {};
  // An event is large, and the next batch about as long: moved as it grows it would cost more.
  std::vector<KvEvent> next;
  next.reserve(events_.size());
  return std::exchange(events_, std::move(next));
}

absl::Status BlockPool::CheckInvariants() const {
  if (absl::Status status =
          chunks_ == nullptr ? queue_.CheckInvariants() : chunks_->CheckInvariants();
      !status.ok()) {
    return status;
  }
  if (absl::Status status = table_.CheckInvariants(); !status.ok()) return status;
  if (eviction_ != nullptr) {
    if (absl::Status status = eviction_->CheckInvariants(); !status.ok()) return status;
  }
  const KvCacheBlock& null_block = records_[kNullBlockId];
  if (!null_block.is_null || null_block.has_key() || null_block.is_linked() ||
      null_block.is_permanent || null_block.ref_count != 1) {
    return BrokenInvariant("the null block has a key, is queued or changed its reference count");
  }
  int32_t permanent = 0;
  int32_t live = 0;
  int32_t cached = 0;
  int32_t free = 0;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    const KvCacheBlock& block = records_[id];
    if (block.is_null) return BrokenInvariant("block ", id, " is marked null");
    if (block.ref_count < 0) {
      return BrokenInvariant("block ", id, " has ", block.ref_count, " references");
    }
    if (block.is_permanent) {
      ++permanent;
      if (block.ref_count < 1 || block.is_linked() || block.has_key()) {
        return BrokenInvariant("permanent block ", id, " is queued, unreferenced or has a key");
      }
      continue;
    }
    if (chunks_ != nullptr && chunks_->ClassOfPage(id) < 0) continue;  // checked by chunks_
    if (block.is_linked() != (block.ref_count == 0)) {
      return BrokenInvariant("block ", id, " has ", block.ref_count, " references and is ",
                             block.is_linked() ? "" : "not ", "in the free queue");
    }
    if (block.has_key() && !enable_caching_) {
      return BrokenInvariant("block ", id, " has a key although caching is off");
    }
    ++(block.ref_count > 0 ? live : block.has_key() ? cached : free);
  }
  if (permanent != num_permanent_ || cached != num_cached_unreferenced_) {
    return BrokenInvariant("pool counts ", num_permanent_, " permanent and ",
                           num_cached_unreferenced_, " cached blocks, found ", permanent, " and ",
                           cached);
  }
  for (const auto& [id, partial] : partial_tokens_) {
    if (!records_[id].has_key() || partial.num_tokens < 1) {
      return BrokenInvariant("block ", id, " counts as partly filled with ", partial.num_tokens,
                             " tokens and has ", records_[id].has_key() ? "a" : "no", " key");
    }
  }
  for (const auto& [id, hashes] : further_keys_) {
    if (!records_[id].has_key() || hashes.empty()) {
      return BrokenInvariant("block ", id, " has ", hashes.size(), " further keys and ",
                             records_[id].has_key() ? "a" : "no", " key of its own");
    }
  }
  // Found by their records, here by the queue.
  if (live != num_live() || cached + free != num_free()) {
    return BrokenInvariant(live, " live, ", cached, " cached and ", free,
                           " free blocks do not add up with ", num_free(), " queued ones of ",
                           num_blocks());
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
