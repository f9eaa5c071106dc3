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

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_SPLIT_RULES_H_
