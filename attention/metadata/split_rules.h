// Published rules by which engines choose between one pass and several, for comparison with plans
// of SplitPlanner. All are O(log n) or better in their largest argument per request.

#ifndef KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_
#define KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_

#include <cstdint>

#include "absl/types/span.h"

namespace kvblocks::attention {

inline constexpr int64_t kDecodePartitionTokens = 512;
// Scores of a single pass take 4 bytes of shared memory per key.
inline constexpr int64_t kMaxSinglePassTokens = 8192;

enum class DecodeVersion : uint8_t { kV1, kV2 };  // single pass; partitions and a reduction

// vLLM's: one pass iff keys fit its score buffer and there is one partition or enough parallel
// work.
DecodeVersion SelectDecodeVersion(int64_t max_seq_len, int64_t num_reqs, int64_t num_heads);

struct PagesPerChunk {
  int64_t pages = 0;       // per chunk
  int64_t num_chunks = 0;  // of all requests
};
// FlashInfer's: the fewest pages per chunk, but at least `min_pages`, with which chunks times KV
// heads fit a grid of `max_grid`. REQUIRES: num_kv_heads, min_pages >= 1.
PagesPerChunk FindPagesPerChunk(absl::Span<const int32_t> num_pages, int64_t max_grid,
                                int64_t num_kv_heads, int64_t min_pages);

// FlashAttention 3's: the fewest splits whose last wave is at least 85 % as full as the best; one
// if tiles already cover 80 % of the multiprocessors or there are fewer than 5 key tiles.
int64_t SplitsByWaveEfficiency(int64_t num_tiles, int64_t num_multiprocessors,
                               int64_t num_key_tiles, int64_t max_splits = 128);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_
