// Chunk sizes for the native layout: bytes that hold pages of every class with little left over.
//
// A longer chunk fits several page sizes better, a shorter one leaves less in the one chunk per
// class that is partly used. ChunkSizes gives the sizes between which that is a real choice.

#ifndef KVBLOCKS_SPECS_PLANNING_NATIVE_CHUNKS_H_
#define KVBLOCKS_SPECS_PLANNING_NATIVE_CHUNKS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvblocks {

struct ChunkSize {
  int64_t bytes = 0;
  std::vector<int64_t> pages = {};  // that fit, per class; each at least 1
  double largest_remainder = 0;     // of the classes, as a share of the chunk

  friend bool operator==(const ChunkSize&, const ChunkSize&) = default;
};

// In ascending order, each with a smaller remainder than all before it; the first is the largest
// page, the last the best chunk of at most max(max_bytes, largest page) bytes. Of pages so small
// that a chunk holds more than 4,096 of them, only the multiples near the limit are considered.
// REQUIRES: page_bytes is not empty, each at least 1.
std::vector<ChunkSize> ChunkSizes(std::span<const int64_t> page_bytes, int64_t max_bytes);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_NATIVE_CHUNKS_H_
