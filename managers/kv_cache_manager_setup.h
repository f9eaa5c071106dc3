// ResolveBlockSizes and ValidateSetup: what KvCacheManager::Create, which stands beside them,
// checks and derives before it builds anything.

#ifndef KVBLOCKS_MANAGERS_KV_CACHE_MANAGER_SETUP_H_
#define KVBLOCKS_MANAGERS_KV_CACHE_MANAGER_SETUP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_manager.h"

namespace kvblocks {

struct BlockSizes {
  int64_t scheduler_block_size = 1;  // hit lengths of hybrid models are multiples of it
  int64_t hash_block_size = 1;
};

// Ranks over which the tokens of a group's blocks are spread (BM-113).
int64_t NumRanksPerBlock(const KvCacheSpec& spec, const KvCacheManagerOptions& options);

// Least common multiple and greatest common divisor of the tokens that the groups' blocks cover,
// unless the config says otherwise. InvalidArgument if they do not fit together.
absl::StatusOr<BlockSizes> ResolveBlockSizes(const KvCacheConfig& config,
                                             const KvCacheManagerOptions& options);

// Which groups drop the block behind a hit: the flagged ones; all, if none is flagged but use_eagle
// is set; and siblings with the spec of one, since they are looked up together. None with
// lookahead hashes, nor, as the semantics say, without use_eagle.
std::vector<bool> EffectiveDraftFlags(const KvCacheConfig& config,
                                      const KvCacheManagerOptions& options);

// Computed tokens at the end of what a request has that may be computed again (V-14).
int64_t NumReplayedTokens(const KvCacheManagerOptions& options);

// InvalidArgument names the field, its value and what is allowed.
absl::Status ValidateSetup(const KvCacheConfig& config, const KvCacheManagerOptions& options,
                           const BlockSizes& sizes);

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_KV_CACHE_MANAGER_SETUP_H_
