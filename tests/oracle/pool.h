// Content: what a request's blocks hold, named by plain strings instead of hashes.
//
// The name of a prefix is everything that decides its KV, written out: the tokens and the extra
// keys of every hash block. Two prefixes have equal names iff they may share blocks, so the
// library's hashes must be a bijection of these names.

#ifndef KVBLOCKS_TESTS_ORACLE_POOL_H_
#define KVBLOCKS_TESTS_ORACLE_POOL_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/block.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/prefix_content.h"

namespace kvblocks::oracle {

struct Content {
  std::vector<TokenId> tokens;
  std::string lora_name = {};
  std::string lora_path = {};
  std::string cache_salt = {};
  std::vector<MultimodalFeature> features = {};

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// Extra keys of tokens [begin, end), in the order of BM-24.
ExtraKeys ExtraKeysOf(const Content& content, int64_t begin, int64_t end);

// Entry k names the first (k + 1) * hash_block_size tokens; only complete runs have one. Where
// hashes have lookahead, only runs with so many tokens behind them, which are in the name (V-10).
std::vector<std::string> PrefixNames(const Content& content, int64_t hash_block_size,
                                     int64_t num_lookahead = 0);

// Pool: the block pool written down as its rules say (BM-10 to BM-53), with containers anyone can
// read.
//
// A list for each queue, a map for the prefix table, a vector for the blocks. Slow and obvious:
// every operation may walk everything. Reference for tests; shares no code with the library.
//
// With a native layout (page classes in chunks) there is a queue per class, and what fits is found
// by distributing chunks in every possible way.

// What a block holds, and for which group.
struct Key {
  std::string prefix;
  GroupId group = 0;

  friend auto operator<=>(const Key&, const Key&) = default;
};

// An event with prefix names where the library has hashes.
struct Event {
  enum class Kind { kStored, kReused, kEvicted, kCleared };

  Kind kind = Kind::kCleared;
  GroupId group = 0;
  std::vector<std::string> prefixes = {};
  std::string parent = {};  // empty: the run starts at token 0
  std::vector<TokenId> token_ids = {};
  int64_t block_size = 0;
  std::string lora_name = {};
  std::vector<ExtraKeys> extra_keys = {};
  std::vector<std::vector<TokenId>> lookahead = {};  // V-60: one list per prefix, or none
  std::string spec_kind = {};
  std::optional<int64_t> sliding_window = std::nullopt;

  friend bool operator==(const Event&, const Event&) = default;
};

struct Block {
  int ref_count = 0;
  bool is_permanent = false;
  std::optional<Key> key;
  int64_t partial_tokens = 0;  // of a key that ends inside the block
  std::vector<Key> further;    // V-20: beside `key`, of shorter prefixes
  int64_t freed_at = 0;        // or lent
};

// Pages of one group that a call is going to take, and hits it touches before.
struct PageNeed {
  int64_t pages = 0;
  int64_t later = 0;
  std::vector<BlockId> unreferenced_hits = {};
};

// One request's blocks of one group, to be registered.
struct Registration {
  const Content* content = nullptr;
  const std::vector<std::string>* prefix_names = nullptr;  // per hash block
  int64_t hash_block_size = 0;
  int64_t block_size = 0;
  GroupId group = 0;
  int64_t num_lookahead = 0;  // V-10
};

class Pool {
 public:
  Pool(int64_t num_blocks, bool enable_caching, bool enable_events, bool unhashed_first,
       std::optional<NativeLayout> native = std::nullopt, bool one_event_per_registration = false);

  int64_t num_free() const { return static_cast<int64_t>(queue().size()); }
  int64_t num_permanent() const;
  double usage() const;
  // Class by class.
  std::vector<BlockId> queue() const;
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::map<Key, std::vector<BlockId>>& table() const { return table_; }

  // The earliest registered block, or the null block.
  BlockId Find(const Key& key) const;
  bool HasKey(BlockId id, const Key& key) const;

  bool is_native() const { return native_.has_value(); }
  // -1: the id has no page. Without chunks all blocks are of class 0.
  int ClassOf(BlockId id) const;
  int ClassOfGroup(GroupId group) const;  // -1: none
  // How often a chunk was taken from another class, and a page taken out of order to save a chunk.
  int64_t num_steals() const { return num_steals_; }
  int64_t num_packed() const { return num_packed_; }
  // Blocks that lost their keys because they were handed out.
  int64_t num_evictions() const { return num_evictions_; }

  // Free pages of all classes, the one freed or lent first at the front.
  std::vector<BlockId> FreedInOrder() const;

  // Whether the needs of all groups fit, with `reserved` pages of each group's class and `kept`
  // chunks to spare; then TakePromised may take them. Chunks only.
  bool Promise(const std::vector<PageNeed>& needs, int64_t kept, int64_t reserved);
  std::vector<BlockId> TakePromised(int64_t k, GroupId group);

  // Empty: too few are free, and nothing changed.
  std::optional<std::vector<BlockId>> Take(int64_t k, GroupId group = 0);
  std::vector<BlockId> TakePermanent(int64_t k, GroupId group = 0);
  void Touch(const std::vector<BlockId>& ids);
  // False, and nothing changed, for what may not be freed.
  bool Free(const std::vector<BlockId>& ids);
  // Registers positions [from, to) of a table, except nulls and those with a false mask entry.
  void Register(const Registration& what, const std::vector<BlockId>& table, int64_t from,
                int64_t to, const std::vector<bool>& mask);
  // Gives a block the key of the first `tokens`, which end inside it (BM-120, V-20). False, and no
  // change, if it has that key, or one of more tokens and may have no further key.
  bool RegisterPartial(const Registration& what, BlockId id, int64_t tokens, bool may_be_further);
  void MoveKey(BlockId from, BlockId to);  // BM-122
  bool Evict(const std::vector<BlockId>& ids);
  bool Reset();

  // Returns and clears.
  std::vector<Event> TakeEvents();

 private:
  bool IsValid(BlockId id) const { return id >= 0 && id < static_cast<BlockId>(blocks_.size()); }
  void DropKey(BlockId id, Event::Kind reason);
  void Emit(Event event);
  // A BlockStored for positions from..to-1 of `unit` tokens each, those that are kept.
  Event Stored(const Registration& what, int64_t unit, int64_t from, int64_t to,
               const std::vector<bool>& kept) const;

  // Chunks.
  struct Choice {
    BlockId page = kNullBlockId;
    int chunk = -1;  // to be lent before; the page is its first
  };
  std::vector<BlockId> PagesOf(int chunk) const;
  bool IsInUse(int chunk) const;
  int64_t IdleSince(int chunk) const;
  int64_t PagesPerChunk(int page_class) const;
  int ChunkOf(BlockId id) const;
  bool FitsAfter(const std::vector<int64_t>& needed, int64_t kept, const std::vector<BlockId>& used,
                 int lent_chunk, int lent_class) const;
  Choice ChooseFreely(int page_class) const;
  BlockId TakePage(int page_class);
  void Lend(int chunk, int page_class);

  const bool enable_caching_;
  const bool enable_events_;
  const bool unhashed_first_;
  const bool one_event_per_registration_;
  std::vector<Block> blocks_;
  std::vector<std::vector<BlockId>> queues_;  // front first; per page class
  const std::optional<NativeLayout> native_;
  std::vector<int> class_of_chunk_;  // -1: unassigned
  std::vector<int64_t> promised_;    // per class, what the running call may still take
  int64_t kept_ = 0;
  int64_t clock_ = 0;
  int64_t num_steals_ = 0;
  int64_t num_packed_ = 0;
  int64_t num_evictions_ = 0;
  std::map<Key, std::vector<BlockId>> table_;
  std::vector<Event> events_;
};

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_POOL_H_
