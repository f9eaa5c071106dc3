// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random
// numbers by place instead of by order.
//
// Draws hands out the numbers of one entity (a session, a request, a group) of one stream (what
// they are for). They depend on the seed, the stream's name, the entity and how many were taken
// before, and on nothing else: no entity changes because others were drawn or not. About 10 ns
// each.

#ifndef KVBLOCKS_SIM_GEN_PHILOX_H_
#define KVBLOCKS_SIM_GEN_PHILOX_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace kvblocks::sim {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key);

// Of a stream: the seed and its name, mixed.
PhiloxKey StreamKey(uint64_t seed, std::string_view stream);

// A fixed permutation of 64-bit numbers that leaves nothing of their order.
uint64_t MixBits(uint64_t value);

class Draws {
 public:
  Draws(PhiloxKey key, uint64_t entity) : key_(key), entity_(entity) {}
  Draws(uint64_t seed, std::string_view stream, uint64_t entity)
      : Draws(StreamKey(seed, stream), entity) {}

  uint64_t Bits();
  // In (0, 1): (k + 1/2) / 2^53.
  double Uniform();
  // In [0, size), each alike to 2^-64. REQUIRES: size >= 1.
  int64_t Below(int64_t size);
  bool Chance(double probability) { return Uniform() < probability; }

 private:
  PhiloxKey key_;
  uint64_t entity_;
  uint64_t next_ = 0;  // draw
};

// Where place `i` of [0, size) goes when they are shuffled. REQUIRES: 0 <= i < size.
int64_t Shuffled(int64_t i, int64_t size, PhiloxKey key);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_PHILOX_H_
