#include "kvblocks/attention/metadata/split_rules.h"

#include <algorithm>

namespace kvblocks::attention {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

DecodeVersion SelectDecodeVersion(int64_t max_seq_len, int64_t num_reqs, int64_t num_heads) {
  const int64_t partitions = CeilDiv(max_seq_len, kDecodePartitionTokens);
  const bool enough_work = num_reqs * num_heads > 512;
  return max_seq_len <= kMaxSinglePassTokens && (partitions <= 1 || enough_work)
             ? DecodeVersion::kV1
             : DecodeVersion::kV2;
}

PagesPerChunk FindPagesPerChunk(absl::Span<const int32_t> num_pages, int64_t max_grid,
                                int64_t num_kv_heads, int64_t min_pages) {
  const auto chunks_of = [&](int64_t pages) {
    int64_t chunks = 0;
    for (const int32_t n : num_pages) chunks += CeilDiv(n, pages);
    return chunks;
  };
  int64_t low = min_pages, high = min_pages;
  for (const int32_t n : num_pages) high = std::max<int64_t>(high, n);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (chunks_of(middle) * num_kv_heads > max_grid) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return {low, chunks_of(low)};
}

int64_t SplitsByWaveEfficiency(int64_t num_tiles, int64_t num_multiprocessors,
                               int64_t num_key_tiles, int64_t max_splits) {
  // Cross-multiplied where exactness is cheap: 80 % is 4 of 5.
  if (5 * num_tiles >= 4 * num_multiprocessors || num_key_tiles < 5) return 1;
  const int64_t limit = std::min({max_splits, num_multiprocessors, num_key_tiles});
  const auto efficiency = [&](int64_t splits) {
    const int64_t work = num_tiles * splits;
    const int64_t waves = CeilDiv(work, num_multiprocessors);
    return static_cast<double>(work) / static_cast<double>(waves * num_multiprocessors);
  };
  double best = 0;
  for (int64_t splits = 1; splits <= limit; ++splits) best = std::max(best, efficiency(splits));
  for (int64_t splits = 1; splits <= limit; ++splits) {
    if (efficiency(splits) >= 0.85 * best) return splits;
  }
  return 1;
}

}  // namespace kvblocks::attention
