// The published rule by which vLLM chooses between one pass over the keys and several. O(1).

#ifndef KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_
#define KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_

#include <cstdint>

namespace kvblocks::attention {

inline constexpr int64_t kDecodePartitionTokens = 512;
// Scores of a single pass take 4 bytes of shared memory per key.
inline constexpr int64_t kMaxSinglePassTokens = 8192;

enum class DecodeVersion : uint8_t { kV1, kV2 };  // single pass; partitions and a reduction

// vLLM's: one pass iff keys fit its score buffer and there is one partition or enough parallel
// work.
DecodeVersion SelectDecodeVersion(int64_t max_seq_len, int64_t num_reqs, int64_t num_heads);

// --- UseCascade: whether a shared prefix is worth a pass of its own.
//
// Pays off for prefixes of 256 tokens or more and 8 requests or more. Where any request has several
// new tokens, or each KV head serves one query head, always then; for plain decode if the modelled
// time of the prefix pass, in waves of tiles, is below that of reading the prefix once per request.

struct CascadeShape {
  int64_t common_prefix_len = 0;
  int64_t num_reqs = 0;
  int64_t num_heads = 1, num_kv_heads = 1;
  int64_t max_query_len = 1;
  int32_t num_multiprocessors = 1;
  // With any of them the keys of the prefix are not the same for all queries.
  bool has_alibi = false, has_window = false, has_chunk = false;
};

// Tiles in sequence, times their number per prefix: what the heuristic compares.
struct CascadeCost {
  int64_t cascade = 0;
  int64_t per_request = 0;
};

// REQUIRES: positive heads and multiprocessors.
CascadeCost ModelCascade(const CascadeShape& choice);
bool UseCascade(const CascadeShape& choice);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_
