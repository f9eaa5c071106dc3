#include "attention/metadata/split_rules.h"

#include "checks/ceil_div.h"

namespace kvblocks::attention {

DecodeVersion SelectDecodeVersion(int64_t max_seq_len, int64_t num_reqs, int64_t num_heads) {
  const int64_t partitions = CeilDiv(max_seq_len, kDecodePartitionTokens);
  const bool enough_work = num_reqs * num_heads > 512;
  return max_seq_len <= kMaxSinglePassTokens && (partitions <= 1 || enough_work)
             ? DecodeVersion::kV1
             : DecodeVersion::kV2;
}

namespace {

constexpr int64_t kRowsPerTile = 128, kKeysPerTile = 128;

}  // namespace

CascadeCost ModelCascade(const CascadeShape& choice) {
  const int64_t key_tiles = CeilDiv(choice.common_prefix_len, kKeysPerTile);
  const int64_t group = choice.num_heads / choice.num_kv_heads;
  CascadeCost cost;
  cost.cascade = CeilDiv(choice.num_heads * CeilDiv(choice.num_reqs, kRowsPerTile),
                         choice.num_multiprocessors) *
                 key_tiles;
  cost.per_request =
      CeilDiv(choice.num_reqs * choice.num_kv_heads * CeilDiv(group, kRowsPerTile) * key_tiles,
              choice.num_multiprocessors);
  return cost;
}

bool UseCascade(const CascadeShape& choice) {
  if (choice.common_prefix_len < 256 || choice.num_reqs < 8) return false;
  if (choice.has_alibi || choice.has_window || choice.has_chunk) return false;
  if (choice.max_query_len > 1 || choice.num_heads == choice.num_kv_heads) return true;
  const CascadeCost cost = ModelCascade(choice);
  return cost.cascade < cost.per_request;
}

}  // namespace kvblocks::attention
