// The pool of KV-cache blocks: free queue, prefix cache, references and events.

#ifndef KVBLOCKS_BLOCK_POOL_H_
#define KVBLOCKS_BLOCK_POOL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/eviction_policy.h"
#include "kvblocks/free_block_queue.h"
#include "kvblocks/kv_event.h"
#include "kvblocks/prefix_content.h"
#include "kvblocks/prefix_hash_table.h"

// LookupHistory: what a pool remembers of keys that are no longer in its prefix-hash table, so that
// a miss can be classed as "evicted", "never seen" or "cached under another salt".
//
// Two memories of the last `num_keys` events each:
//   removals   a key left the table: its last block lost it. With the number of blocks the pool had
//              handed out by then.
//   variants   a block was registered whose hash covers extra keys (salt, adapter, image), under
//              the hash that its tokens have without any; the latest for each.
// Variants are known of contents made from tokens only (PrefixContent::PlainHashOfBlock).
//
// Written by BlockPool only. Cost: O(1) per event; BytesFor says the memory, 96 bytes per key, all
// taken at construction (see RecentKeys).

namespace kvblocks {

class LookupHistory {
 public:
  struct Removal {
    int64_t num_blocks_taken = 0;  // BlockPool::num_blocks_taken() then
    bool was_reused = false;       // the block was handed out; else EvictBlocks or a reset took it
  };

  // REQUIRES: 1 <= num_keys < 2^31.
  static std::unique_ptr<LookupHistory> Create(int64_t num_keys);
  static int64_t BytesFor(int64_t num_keys);
  virtual ~LookupHistory() = default;

  virtual void OnRemoved(const BlockHash& hash, GroupId group, const Removal& removal) = 0;
  // `hash` covers extra keys, if any came so far; `plain` the same tokens without them.
  virtual void OnVariantStored(const BlockHash& plain, const BlockHash& hash) = 0;

  virtual std::optional<Removal> FindRemoval(const BlockHash& hash, GroupId group) const = 0;
  // Whether the latest variant of these tokens is another content than `hash`.
  virtual bool HasOtherVariant(const BlockHash& plain, const BlockHash& hash) const = 0;
  virtual int64_t num_keys() const = 0;
  virtual int64_t num_removals() const = 0;
  // False: some removals are forgotten, so content may have been seen although nothing says so.
  bool is_complete() const { return num_removals() <= num_keys(); }
};

// PageChunks: pages of several sizes in one memory, as BlockPool uses them.
//
// Memory is cut into chunks of equal bytes. A chunk is unassigned, or lent to one page class and
// cut into that class's pages_per_chunk pages. Ids: chunk c holds 1 + c * ids_per_chunk and up, of
// which a lent chunk uses the first pages_per_chunk of its class; the others, and all of an
// unassigned chunk, are ids without a page. A chunk is *idle* if it is lent but none of its pages
// is referenced: its pages wait in their class's queue, with what is cached in them, until the
// class uses them again or another class takes the chunk.
//
// The interface; ChunkLending has the rules. A pool whose blocks all have one size has none of it.
// Part of BlockPool, which owns references, keys and events.

struct ChunkLayout {
  int64_t num_chunks = 0;                     // 0: no chunks, every block serves every group
  std::vector<int64_t> pages_per_chunk = {};  // per page class
  std::vector<int32_t> class_of_group = {};   // per group
};

// Where a page lies: at byte chunk * bytes_per_chunk + index * bytes_per_page of its class.
struct PagePlace {
  int64_t chunk = 0;
  int64_t index = 0;  // among the chunk's pages

  friend bool operator==(const PagePlace&, const PagePlace&) = default;
};
// REQUIRES: id is not the null block, which has no place.
constexpr PagePlace PlaceOfPage(BlockId id, int64_t ids_per_chunk) {
  return {.chunk = (id - 1) / ids_per_chunk, .index = (id - 1) % ids_per_chunk};
}

// What one group is going to need: new pages, hits to be touched (referenced ones cost nothing),
// and what the request may need at the same time later on.
struct PageNeed {
  int64_t num_pages = 0;
  int64_t num_later = 0;
  absl::Span<const BlockId> hits = {};  // distinct, or null blocks
};

class PageChunks {
 public:
  // All chunks unassigned. `records` must outlive it and have a sentinel per class behind the
  // pool's own. REQUIRES: a layout that makes up the blocks, as Validate(KvCacheConfig) says.
  static std::unique_ptr<PageChunks> Create(const ChunkLayout& layout, BlockRecords* records);
  // Host memory of the books, records aside.
  static int64_t BytesFor(const ChunkLayout& layout, int64_t num_blocks);
  virtual ~PageChunks() = default;

  // --- What there is, O(1) but for usage ---

  int32_t num_chunks() const { return num_chunks_; }
  int32_t num_classes() const { return num_classes_; }
  int32_t ids_per_chunk() const { return ids_per_chunk_; }
  bool HasGroup(GroupId g) const { return g >= 0 && g < static_cast<GroupId>(groups_.size()); }
  // REQUIRES: HasGroup(group).
  int32_t ClassOfGroup(GroupId group) const { return groups_[static_cast<size_t>(group)]; }
  int32_t num_free() const { return num_free_; }  // pages in the queues, cached ones included
  int32_t num_ids_without_page() const { return num_ids_without_page_; }
  int32_t num_unassigned() const { return num_unassigned_; }
  int32_t num_idle() const { return num_idle_; }
  virtual int64_t pages_per_chunk(int32_t page_class) const = 0;
  // -1: the chunk is unassigned, respectively the id has no page. REQUIRES: id is not null.
  virtual int32_t ClassOfChunk(int32_t chunk) const = 0;
  virtual int32_t ClassOfPage(BlockId id) const = 0;
  // Referenced share of the bytes that can be handed out, O(classes).
  virtual double usage() const = 0;
  // Front to back, class by class. O(free pages).
  virtual std::vector<BlockId> WalkFree() const = 0;

  // --- For BlockPool ---

  // Whether all of `needs` (one per group) fits, with `reserved` further pages of every group's
  // class behind them, and `kept_chunks` chunks idle or unassigned all the while. If so, replaces
  // the promise that takes are made under, which includes the later pages of all groups if those
  // fit as well. Otherwise nothing changes. O(groups + hits).
  virtual bool Promise(absl::Span<const PageNeed> needs, int64_t kept_chunks,
                       int64_t reserved) = 0;
  // The same for pages of one group.
  virtual bool PromisePages(GroupId group, int64_t num_pages) = 0;
  // Appends k promised pages of a group's class, each with one reference; calls `evict` for those
  // that have a key, and for those of chunks that change hands.
  virtual void Take(int64_t k, std::vector<BlockId>& table, GroupId group,
                    absl::FunctionRef<void(BlockId)> evict) = 0;
  // Adds a reference to each; returns how many pages with a key had none. Null blocks are skipped.
  virtual int32_t Touch(absl::Span<const BlockId> ids) = 0;
  // Drops a reference from each; returns how many pages with a key have none now. Pages without a
  // key may go to the front, with others of their class, in list order.
  virtual int32_t Release(absl::Span<const BlockId> ids, bool from_back, bool unhashed_first) = 0;
  // A referenced page is never freed again.
  virtual void OnMadePermanent(BlockId id) = 0;
  // Makes all idle chunks unassigned. REQUIRES: no page in them has a key.
  virtual void ReturnIdle() = 0;

  // OK, or what disagrees with the records. O(number of blocks).
  virtual absl::Status CheckInvariants() const = 0;

 protected:
  int32_t num_chunks_ = 0;
  int32_t num_classes_ = 0;
  int32_t ids_per_chunk_ = 0;
  std::vector<int32_t> groups_;  // class of each group
  int32_t num_free_ = 0;
  int32_t num_ids_without_page_ = 0;
  int32_t num_unassigned_ = 0;
  int32_t num_idle_ = 0;
};

// BlockPool: the physical KV-cache blocks of one worker - their references, which are free,
// which are cached.
//
// Counts blocks, not bytes, and knows nothing of requests. A block is taken from the front of the
// free queue, referenced by any number of holders, and goes back to the queue when the last one
// frees it. A block that was registered under a key (CacheFullBlocks) keeps key and content while
// it waits in the queue: a look-up can find it and Touch pins it again, until GetNewBlocks reaches
// it and drops its key.
//
//   auto pool = BlockPool::Create({.num_blocks = 1000}).value();
//   if (pool->Fits(4, /*group=*/0)) pool->GetNewBlocks(4, table);
//
// The managers know which request holds which block, so the methods that they call validate
// nothing. What comes from outside through them (pins, evictions) is checked.
//
// With Options::chunks, memory is cut into chunks that are lent to classes of pages (PageChunks): a
// block is then a page of one class, serves the groups of that class only, and waits in that
// class's queue. Ids may then have no page at the moment.
//
// With another Options::eviction_policy than LRU, an EvictionOrder beside the queue says which
// cached block is reused next; the queue still holds all free blocks. The same object keeps what
// callers asked to retain (Options::max_retained_blocks).
//
// Always: 1 (null) + permanent + live + cached + free (+ ids without a page) = num_blocks, where
// live blocks are referenced, cached ones are not but have a key, and free ones are neither; a
// non-permanent block is in the free queue iff nothing references it. Cost: O(1) per block moved,
// plus O(1) expected per key removed (with chunks: see PageChunks). No allocation except
// returned lists and events. Thread-compatible: one thread at a time.

enum class FreeOrder {
  // Freed blocks without a key go to the front as one batch, since they can never be hit; those
  // with a key to the back.
  kUnhashedFirst,
  // Every freed block goes to the back, as older engines do.
  kAppendAll,
};

class BlockPool {
 public:
  struct Options {
    int64_t num_blocks = 0;  // null block included; 1 .. 2^31-2
    bool enable_caching = true;
    bool enable_events = false;
    FreeOrder free_order = FreeOrder::kUnhashedFirst;
    // One BlockStored per CacheFullBlocks, also where the mask leaves nothing, with the tokens of
    // all its positions; otherwise one per run.
    bool one_event_per_registration = false;
    // Size of the largest blocks whose tokens are kept and compared on a hit, with the lookahead
    // tokens of their hashes (see BlockTokens); 0: hits trust the hash.
    int64_t compared_block_size = 0;
    // Keys that left the cache to be remembered for explanations; 0: none. 96 bytes each.
    int64_t history_keys = 0;
    // Which cached block goes next. Any but the default, lru, keeps an index beside the queue and
    // takes free blocks without a key first; it needs caching and kUnhashedFirst, and has no
    // chunks.
    EvictionPolicyFactory eviction_policy = {};
    // Per group, for the policy: whether its hits begin at the first block, so that a block is of
    // no use without those before it. Empty: all groups.
    std::vector<uint8_t> is_chained_group = {};
    // How many blocks Retain may keep from being reused before others; above 0 there is an index,
    // also under lru, with the same conditions, and eviction_policy comes from block_pool/eviction
    // (ParseEvictionPolicy("lru")). 0 to num_blocks - 1.
    int64_t max_retained_blocks = 0;
    // Page classes in chunks, which make up num_blocks as Validate(KvCacheConfig) demands. Default:
    // every block can serve every group.
    ChunkLayout chunks = {};
  };

  // InvalidArgument for an impossible number of blocks, ResourceExhausted for one whose records do
  // not fit this machine's memory (about 60 bytes a block).
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(const Options& options);

  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // --- Taking and giving back ---

  // Whether k new blocks can be taken for a group. With chunks, a yes is the promise that the
  // group's class gets them (see PageChunks). REQUIRES: k >= 0; with chunks, a group that has a
  // class.
  bool Fits(int64_t k, GroupId group);
  // With chunks, for all groups at once: see PageChunks::Promise. REQUIRES: chunks; an entry per
  // group.
  bool Promise(absl::Span<const PageNeed> needs, int64_t kept_chunks, int64_t reserved) {
    return chunks_->Promise(needs, kept_chunks, reserved);
  }
  // Appends k blocks off the front of the queue to a table; each loses its key and has one
  // reference. With chunks they are pages of the group's class; otherwise the group does not
  // matter. REQUIRES: they fit, or were promised.
  void GetNewBlocks(int64_t k, std::vector<BlockId>& table, GroupId group = 0);

  // Adds a reference to each block, taking unreferenced ones out of the queue. Null blocks are
  // skipped. REQUIRES: what CheckTouchable finds good.
  void Touch(absl::Span<const BlockId> ids);
  // InvalidArgument for an id outside the pool or without a page, and for a permanent block.
  absl::Status CheckTouchable(absl::Span<const BlockId> ids) const;

  // Drops a reference from each block, in list order or from back to front, which is the order of
  // their eviction. Null blocks are skipped. REQUIRES: as many references, no permanent block.
  void FreeBlocks(absl::Span<const BlockId> ids);
  void FreeBlocksReversed(absl::Span<const BlockId> ids);

  // Takes k blocks for the life of the pool (attention sinks). ResourceExhausted if they are not
  // free, InvalidArgument if k is negative.
  absl::StatusOr<std::vector<BlockId>> TakePermanentBlocks(int64_t k, GroupId group = 0);

  // --- Prefix cache ---

  // The earliest registered block of a group whose content has this hash; kNullBlockId: a miss.
  BlockId FindCached(const BlockHash& hash, GroupId group) const {
    const BlockId id = table_.Find(hash, group);
    return further_keys_.empty() ? id : EarlierOf(id, hash, group);
  }
  // The same for block `position` of a content at `per_block` hash blocks each, compared token by
  // token if the pool keeps tokens.
  BlockId FindCached(const PrefixContent& content, int64_t position, int64_t per_block,
                     GroupId group) const {
    const BlockId id = FindCached(content.HashOfBlock(position, per_block), group);
    return id == kNullBlockId || Matches(id, content, position, per_block) ? id : kNullBlockId;
  }
  // The block that holds tokens [begin, end) of a content, with `end` inside it or at its end, and
  // is cached under the key of the first `end`; it may hold more of them. Compared as above.
  BlockId FindCachedTail(const PrefixContent& content, int64_t begin, int64_t end,
                         GroupId group) const {
    const BlockId id =
        FindCached(content.HashOfBlock(end / content.hash_block_size() - 1, 1), group);
    return id == kNullBlockId || StartsWith(id, content, begin, end) ? id : kNullBlockId;
  }
  // As FindCached for out.size() positions from `begin` on, until one is missing: writes their
  // blocks and returns their number.
  size_t FindCachedRun(const PrefixContent& content, int64_t begin, int64_t per_block,
                       GroupId group, absl::Span<BlockId> out) const;
  // Whether the block's tokens are those of the position; true if the pool keeps none.
  bool Matches(BlockId id, const PrefixContent& content, int64_t position,
               int64_t per_block) const {
    return !tokens_ ||
           tokens_->Matches(id, content, position * per_block * content.hash_block_size(),
                            (position + 1) * per_block * content.hash_block_size());
  }
  // Whether the block's tokens begin with these of the content; true if the pool keeps none.
  bool StartsWith(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) const {
    return !tokens_ || tokens_->StartsWith(id, content, begin, end);
  }
  bool compares_tokens() const { return tokens_.has_value(); }

  // Registers positions [from, to) of a block table whose blocks hold `content`. Null blocks and
  // positions whose mask entry is 0 are left out (an empty mask registers all). REQUIRES: caching;
  // block_size is a multiple of the content's hash block size, and that many tokens are hashed; the
  // blocks are distinct, have no key but for fewer tokens, and are pages of the group's class.
  void CacheFullBlocks(const PrefixContent& content, absl::Span<const BlockId> table, int64_t from,
                       int64_t to, int64_t block_size, GroupId group,
                       absl::Span<const uint8_t> mask = {});

  // Registers a block of `block_size` tokens under the key of its content's first num_tokens, which
  // end inside it or at its end; a key for fewer tokens is replaced, and CacheFullBlocks replaces
  // this one when the block is full. Where the block's key covers more tokens, this one is a
  // further key of it with adds_further_keys; otherwise nothing changes. False if nothing changed.
  // REQUIRES: num_tokens is a multiple of the hash block size and hashed.
  bool RegisterPartialBlock(const PrefixContent& content, BlockId id, int64_t num_tokens,
                            int64_t block_size, GroupId group, bool adds_further_keys = false);
  struct FurtherKey {
    BlockHash hash;
    GroupId group;

    friend bool operator==(const FurtherKey&, const FurtherKey&) = default;
  };
  // Keys of shorter prefixes that a block has beside its own.
  absl::Span<const FurtherKey> further_keys(BlockId id) const {
    const auto it = further_keys_.find(id);
    return it == further_keys_.end() ? absl::Span<const FurtherKey>() : it->second;
  }
  // Whether a block has this key, as its own or as a further one.
  bool HasKey(BlockId id, const BlockHash& hash, GroupId group) const {
    const KvCacheBlock& block = records_[id];
    if (!block.has_key()) return false;
    if (block.key_group == group && records_.hash(id) == hash) return true;
    const auto further = further_keys(id);
    return std::find(further.begin(), further.end(), FurtherKey{hash, group}) != further.end();
  }
  // The prefix length that such a key stands for; 0 for all other blocks.
  int64_t partial_tokens(BlockId id) const {
    const auto it = partial_tokens_.find(id);
    return it == partial_tokens_.end() ? 0 : it->second.num_tokens;
  }
  // Gives such a key to another block, which is to get the same content; no event. Look-ups made
  // before are no longer fresh. REQUIRES: both referenced, `to` without key.
  void MovePartialKey(BlockId from, BlockId to);

  // Reports blocks that hold the first num_tokens of a content as stored events, as if they were
  // registered now: one per run of real blocks, and one for a tail if the tokens end inside the
  // last block and it is cached as such. With one_event_per_registration one for all positions, as
  // CacheFullBlocks. Nothing else changes. REQUIRES: real blocks are cached under the content's
  // hashes.
  void ReportStored(const PrefixContent& content, absl::Span<const BlockId> blocks,
                    int64_t num_tokens, int64_t block_size, GroupId group);

  // Takes these blocks out of the prefix cache, in ascending order; blocks in use stay in use,
  // queued ones keep their place. InvalidArgument, and nothing changed, if an id is outside the
  // pool.
  absl::Status EvictBlocks(absl::Span<const BlockId> ids);

  // --- Retention: see class Retention, and KvCacheManager::Retain ---

  // Asks to keep the cached ones of these blocks, which hold a prefix from its start, until others
  // are used up or `expires_at`. REQUIRES: max_retained_blocks > 0; ids of the pool; a priority of
  // 1 to kHighestPriority; an end in the future.
  RetainOutcome Retain(absl::Span<const BlockId> ids, int32_t priority, int64_t expires_at);
  // Ends the retentions that end by now. REQUIRES: max_retained_blocks > 0; never goes back.
  void AdvanceTime(int64_t now);
  // Null unless max_retained_blocks > 0.
  const Retention* retention() const;

  // Forgets all cached content; chunks without permanent blocks become unassigned. False, and
  // nothing changed, while any block is referenced.
  bool ResetPrefixCache();

  // --- Counts, all O(1) ---

  int32_t num_blocks() const { return records_.num_blocks(); }
  int32_t num_permanent() const { return num_permanent_; }
  // In the queues, cached ones included. With chunks: of those lent, so neither what one class can
  // get, which unassigned chunks add to, nor what all can get together.
  int32_t num_free() const { return chunks_ == nullptr ? queue_.size() : chunks_->num_free(); }
  int32_t num_live() const {
    return num_blocks() - 1 - num_permanent_ - num_free() -
           (chunks_ == nullptr ? 0 : chunks_->num_ids_without_page());
  }
  int32_t num_cached_unreferenced() const { return num_cached_unreferenced_; }
  // Distinct contents; O(further keys), see RegisterPartialBlock.
  int32_t num_keys() const;
  int32_t num_keyed_blocks() const { return table_.num_blocks(); }  // blocks, duplicates included
  // Referenced share of what can be handed out, in bytes; 0 if nothing can.
  double usage() const;

  bool enable_caching() const { return enable_caching_; }
  FreeOrder free_order() const { return free_order_; }
  const KvCacheBlock& block(BlockId id) const { return records_[id]; }
  // REQUIRES: the block has a key.
  const BlockHash& hash(BlockId id) const { return records_.hash(id); }
  // The only queue; empty with chunks. In the order of reuse, but for cached blocks under another
  // eviction policy than LRU.
  const FreeBlockQueue& free_queue() const { return queue_; }
  // Front to back; with chunks, class by class. O(number of free blocks).
  std::vector<BlockId> WalkFree() const;
  // Null unless Options::chunks asks for them.
  const PageChunks* chunks() const { return chunks_.get(); }
  const PrefixHashTable& table() const { return table_; }
  // Null under LRU without retention.
  const EvictionOrder* eviction_order() const { return eviction_.get(); }

  // Grows whenever a block loses its key: hits looked up at the same value are still good.
  uint64_t removal_epoch() const { return removal_epoch_; }
  // Cached blocks lost to reuse since construction.
  int64_t num_evictions() const { return num_evictions_; }

  // Blocks handed out since construction: the clock by which the age of an eviction is measured.
  int64_t num_blocks_taken() const { return num_blocks_taken_; }
  // Null unless Options::history_keys asks for it.
  const LookupHistory* history() const { return history_.get(); }

  // Returns and clears the events so far; always empty unless enabled.
  std::vector<KvEvent> TakeEvents();
  bool has_events() const { return !events_.empty(); }

  // OK, or what is wrong, in words. O(number of blocks).
  absl::Status CheckInvariants() const;

 private:
  explicit BlockPool(const Options& options);
  static bool HasEvictionOrder(const Options& options);
  static absl::Status CheckEvictionOptions(const Options& options);

  absl::Status CheckIds(absl::Span<const BlockId> ids, const char* operation) const;
  void EvictOne(uint64_t place, BlockId id, RemovalReason reason);
  void TakeAndEvict(absl::Span<BlockId> batch);
  void DropPartialKey(BlockId id);
  void AddFurtherKey(const BlockHash& hash, GroupId group, BlockId id);
  void DropFurtherKeys(BlockId id, RemovalReason reason);
  BlockId EarlierOf(BlockId first, const BlockHash& hash, GroupId group) const;
  bool HasFurtherKey(const BlockHash& hash, GroupId group) const {
    return !further_keys_.empty() && blocks_of_further_keys_.contains({hash, group});
  }
  void RememberVariant(const PrefixContent& content, int64_t position, int64_t per_block) {
    if (history_ == nullptr || !content.has_extra_keys() || !content.knows_plain_hashes()) return;
    history_->OnVariantStored(content.PlainHashOfBlock(position, per_block),
                              content.HashOfBlock(position, per_block));
  }
  void RememberRemoval(const BlockHash& hash, GroupId group, RemovalReason reason);
  void EmitRemoved(const BlockHash& hash, GroupId group, RemovalReason reason);
  void RememberAll();
  void EmitStored(
      const PrefixContent& content, int64_t from, int64_t to, int64_t block_size, GroupId group,
      absl::FunctionRef<bool(int64_t)> is_kept = [](int64_t) { return true; });
  template <typename Iterator>
  void Release(Iterator begin, Iterator end);
  // With an eviction policy.
  void TakeByPolicy(int64_t k, std::vector<BlockId>& table);
  void TouchForPolicy(absl::Span<const BlockId> ids);
  // The block got the key in its record, behind that of `parent`, for num_tokens.
  void TellPolicyOfKey(BlockId id, BlockId parent, int64_t num_tokens) {
    if (eviction_ == nullptr) [[likely]]
      return;
    AddKeyToPolicy(id, parent, num_tokens);
  }
  void AddKeyToPolicy(BlockId id, BlockId parent, int64_t num_tokens);
  void ForgetKeyInPolicy(BlockId id, RemovalReason reason);
  // With chunks.
  absl::Status CheckGroup(GroupId group, const char* operation) const;
  void TakePages(int64_t k, std::vector<BlockId>& table, GroupId group);
  void EvictCached(BlockId id);
  void TouchPages(absl::Span<const BlockId> ids);
  void ReleasePages(absl::Span<const BlockId> ids, bool from_back);

  const bool enable_caching_;
  const bool enable_events_;
  const FreeOrder free_order_;
  const bool one_event_per_registration_;
  BlockRecords records_;
  FreeBlockQueue queue_;
  std::unique_ptr<PageChunks> chunks_;
  std::unique_ptr<EvictionOrder> eviction_;
  std::vector<BlockId> released_;  // scratch, with an eviction policy
  PrefixHashTable table_;
  std::optional<BlockTokens> tokens_;
  int32_t num_permanent_ = 0;
  int32_t num_cached_unreferenced_ = 0;
  uint64_t removal_epoch_ = 0;
  int64_t num_evictions_ = 0;
  int64_t num_blocks_taken_ = 0;
  std::unique_ptr<LookupHistory> history_;
  // Of blocks whose key ends inside them: at how many tokens, and in which order they got it.
  struct PartialKey {
    int64_t num_tokens;
    int64_t order;
  };
  absl::flat_hash_map<BlockId, PartialKey> partial_tokens_;
  absl::flat_hash_map<BlockId, std::vector<FurtherKey>> further_keys_;
  struct FurtherHolder {
    BlockId id;
    int64_t order;
  };
  absl::flat_hash_map<std::pair<BlockHash, GroupId>, std::vector<FurtherHolder>>
      blocks_of_further_keys_;
  int64_t num_tail_keys_ = 0;  // ever given
  std::vector<KvEvent> events_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_H_
