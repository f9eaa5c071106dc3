// Pool: the block pool written down as its rules say (BM-10 to BM-53), with containers anyone can
// read.
//
// A list for the queue, a map for the prefix table, a vector for the blocks. Slow and obvious:
// every operation may walk everything. Reference for tests; shares no code with the library.

#ifndef KVBLOCKS_TESTS_ORACLE_POOL_H_
#define KVBLOCKS_TESTS_ORACLE_POOL_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "block_pool/kv_cache_block.h"
#include "tests/oracle/content.h"

namespace kvblocks::oracle {

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
  std::string spec_kind = {};
  std::optional<int64_t> sliding_window = std::nullopt;

  friend bool operator==(const Event&, const Event&) = default;
};

struct Block {
  int ref_count = 0;
  bool is_permanent = false;
  std::optional<Key> key;
};

// One request's blocks of one group, to be registered.
struct Registration {
  const Content* content = nullptr;
  const std::vector<std::string>* prefix_names = nullptr;  // per hash block
  int64_t hash_block_size = 0;
  int64_t block_size = 0;
  GroupId group = 0;
};

class Pool {
 public:
  Pool(int64_t num_blocks, bool enable_caching, bool enable_events, bool unhashed_first);

  int64_t num_free() const { return static_cast<int64_t>(queue_.size()); }
  int64_t num_permanent() const;
  double usage() const;
  const std::vector<BlockId>& queue() const { return queue_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::map<Key, std::vector<BlockId>>& table() const { return table_; }

  // The earliest registered block, or the null block.
  BlockId Find(const Key& key) const;
  bool HasKey(BlockId id, const Key& key) const;

  // Empty: too few are free, and nothing changed.
  std::optional<std::vector<BlockId>> Take(int64_t k);
  std::vector<BlockId> TakePermanent(int64_t k);
  void Touch(const std::vector<BlockId>& ids);
  // False, and nothing changed, for what may not be freed.
  bool Free(const std::vector<BlockId>& ids);
  // Registers positions [from, to) of a table, except nulls and those with a false mask entry.
  void Register(const Registration& what, const std::vector<BlockId>& table, int64_t from,
                int64_t to, const std::vector<bool>& mask);
  bool Evict(const std::vector<BlockId>& ids);
  bool Reset();

  // Returns and clears.
  std::vector<Event> TakeEvents();

 private:
  bool IsValid(BlockId id) const { return id >= 0 && id < static_cast<BlockId>(blocks_.size()); }
  void DropKey(BlockId id, Event::Kind reason);
  void Emit(Event event);

  const bool enable_caching_;
  const bool enable_events_;
  const bool unhashed_first_;
  std::vector<Block> blocks_;
  std::vector<BlockId> queue_;  // front first
  std::map<Key, std::vector<BlockId>> table_;
  std::vector<Event> events_;
};

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_POOL_H_
