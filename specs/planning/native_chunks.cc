#include "kvblocks/specs/planning/native_chunks.h"

#include <algorithm>

namespace kvblocks {
namespace {

constexpr int64_t kMostMultiples = 4096;

ChunkSize CutInto(std::span<const int64_t> page_bytes, int64_t bytes) {
  ChunkSize chunk = {.bytes = bytes};
  int64_t most_left = 0;
  for (const int64_t page : page_bytes) {
    chunk.pages.push_back(bytes / page);
    most_left = std::max(most_left, bytes % page);
  }
  chunk.largest_remainder = static_cast<double>(most_left) / static_cast<double>(bytes);
  return chunk;
}

}  // namespace

// The best chunk of n pages of some class or other ends where a page of some class ends: shorter by
// the smallest remainder it would hold the same pages.
std::vector<ChunkSize> ChunkSizes(std::span<const int64_t> page_bytes, int64_t max_bytes) {
  const int64_t largest_page = std::ranges::max(page_bytes);
  const int64_t limit = std::max(max_bytes, largest_page);
  std::vector<int64_t> distinct(page_bytes.begin(), page_bytes.end());
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<int64_t> sizes = {largest_page};
  for (const int64_t page : distinct) {
    const int64_t most = limit / page;
    for (int64_t n = std::max(most - kMostMultiples, int64_t{0}) + 1; n <= most; ++n) {
      if (n * page > largest_page) sizes.push_back(n * page);
    }
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<ChunkSize> chunks;
  for (const int64_t bytes : sizes) {
    int64_t most_left = 0;
    for (const int64_t page : distinct) most_left = std::max(most_left, bytes % page);
    const double remainder = static_cast<double>(most_left) / static_cast<double>(bytes);
    if (chunks.empty() || remainder < chunks.back().largest_remainder) {
      chunks.push_back(CutInto(page_bytes, bytes));
    }
  }
  return chunks;
}

}  // namespace kvblocks
