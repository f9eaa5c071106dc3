// Events of the block pool: stored, removed, cleared.

#ifndef KVBLOCKS_KV_EVENT_H_
#define KVBLOCKS_KV_EVENT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvblocks/block.h"
#include "kvblocks/prefix_content.h"

// KV events: what happened to the prefix-hash table, for routers and other caches that mirror it.
//
// Appended in the order of the state changes and taken in batches. A consumer that counts, per
// (hash, group), +1 for each stored hash and -1 for each removed one, and clears on
// AllBlocksCleared, knows how many blocks hold each key; several blocks may hold the same one. The
// field set is that of vLLM's KV events, plus the reason of a removal.

namespace kvblocks {

inline constexpr std::string_view kGpuMedium = "GPU";

// A run of consecutive block positions of one request entered the table.
// Always: extra_keys.size() == block_hashes.size(); token_ids.size() == block_size *
// block_hashes.size(), or 0 for a request that has no token ids.
struct BlockStored {
  std::vector<BlockHash> block_hashes = {};
  // Of the content before the run; none at token 0.
  std::optional<BlockHash> parent_block_hash = std::nullopt;
  std::vector<TokenId> token_ids = {};
  int64_t block_size = 0;
  std::optional<int64_t> lora_id = std::nullopt;
  std::string lora_name = {};
  std::string_view medium = kGpuMedium;
  std::vector<std::optional<ExtraKeys>> extra_keys = {};
  GroupId group_idx = 0;
  std::string_view kv_cache_spec_kind = {};  // filled in by KvCacheManager
  std::optional<int64_t> kv_cache_spec_sliding_window = std::nullopt;
  // Of secondary tiers: whether the publisher holds the blocks itself, and which tier does.
  std::optional<std::string> locality = std::nullopt;
  std::optional<std::string> ownership = std::nullopt;
  // Of the request that caused the event; others may share its blocks.
  std::optional<std::string> session_id = std::nullopt;
  // One list of L tokens per hash with lookahead hashes; none for a request without token ids.
  std::optional<std::vector<std::vector<TokenId>>> lookahead_token_ids = std::nullopt;

  friend bool operator==(const BlockStored&, const BlockStored&) = default;
};

enum class RemovalReason {
  kReused,    // the block was handed out again
  kEvicted,   // EvictBlocks named it
  kReplaced,  // the block holds more of its content now (see BlockPool::RegisterPartialBlock)
};

constexpr std::string_view RemovalReasonName(RemovalReason reason) {
  constexpr std::string_view kNames[] = {"reused", "evicted", "replaced", "unknown"};
  return kNames[std::min<size_t>(static_cast<size_t>(reason), 3)];
}

// One block lost one key.
struct BlockRemoved {
  BlockHash block_hash = {};
  std::string_view medium = kGpuMedium;
  GroupId group_idx = 0;
  RemovalReason reason = RemovalReason::kReused;
  std::optional<std::string> locality = std::nullopt;
  std::optional<std::string> ownership = std::nullopt;

  friend bool operator==(const BlockRemoved&, const BlockRemoved&) = default;
};

// ResetPrefixCache emptied the table.
struct AllBlocksCleared {
  friend bool operator==(const AllBlocksCleared&, const AllBlocksCleared&) = default;
};

using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

}  // namespace kvblocks

#endif  // KVBLOCKS_KV_EVENT_H_
