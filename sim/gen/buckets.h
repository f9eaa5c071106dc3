// Buckets of whole numbers from 0 on: the first 16 alone, then eight to an octave.
//
// Bucket k holds [BucketLow(k), BucketLow(k + 1)). A value is known to within an eighth; integer
// arithmetic only.

#ifndef KVBLOCKS_SIM_GEN_BUCKETS_H_
#define KVBLOCKS_SIM_GEN_BUCKETS_H_

#include <bit>
#include <cstdint>

namespace kvblocks::sim {

inline constexpr int32_t kMostBucket = 16 + 8 * 57;  // from 2^61 on

// REQUIRES: 0 <= value < 2^62.
constexpr int32_t BucketOf(int64_t value) {
  if (value < 16) return static_cast<int32_t>(value);
  const int octave = static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - 1;
  return 16 + (octave - 4) * 8 + static_cast<int32_t>((value >> (octave - 3)) & 7);
}

constexpr int64_t BucketLow(int32_t bucket) {
  if (bucket < 16) return bucket;
  const int octave = 4 + (bucket - 16) / 8;
  return static_cast<int64_t>(8 + (bucket - 16) % 8) << (octave - 3);
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_BUCKETS_H_
