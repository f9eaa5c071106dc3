// ChunkedLocalAttentionManager: groups where query i sees its own chunk of C tokens up to itself;
// chunks are disjoint.
//
// Nothing before the chunk of the first uncomputed token influences what comes, so a hit counts
// those positions as computed without a look-up and searches the last chunk only. A model of
// nothing but such layers reports hits on an empty cache.

#ifndef KVBLOCKS_MANAGERS_CHUNKED_LOCAL_ATTENTION_MANAGER_H_
#define KVBLOCKS_MANAGERS_CHUNKED_LOCAL_ATTENTION_MANAGER_H_

#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class ChunkedLocalAttentionManager : public SingleTypeManager {
 public:
  ChunkedLocalAttentionManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : SingleTypeManager(spec, options, pool, {}), chunk_(spec.attention_chunk_size().value()) {}

  // O(positions inside the last chunk) probes. REQUIRES: alignment == block_size(), no drop.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override;

 protected:
  int64_t NumSkippedTokensImpl(int64_t n) const override { return chunk_.RoundDown(n); }

 private:
  const BlockSize chunk_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_CHUNKED_LOCAL_ATTENTION_MANAGER_H_
