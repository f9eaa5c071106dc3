#include "sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

constexpr int kRounds = 10;

}  // namespace

PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint64_t MixBits(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

PhiloxKey StreamKey(uint64_t seed, std::string_view stream) {
  uint64_t key = MixBits(seed);
  for (const char c : stream) key = MixBits(key ^ static_cast<unsigned char>(c));
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

uint64_t Draws::Bits() {
  const PhiloxCounter out =
      Philox4x32({static_cast<uint32_t>(entity_), static_cast<uint32_t>(entity_ >> 32),
                  static_cast<uint32_t>(next_), static_cast<uint32_t>(next_ >> 32)},
                 key_);
  ++next_;
  return uint64_t{out[1]} << 32 | out[0];
}

double Draws::Uniform() {
  return (static_cast<double>(Bits() >> 11) + 0.5) * 0x1p-53;
}

int64_t Draws::Below(int64_t size) {
  using Wide = unsigned __int128;
  return static_cast<int64_t>(Wide{Bits()} * static_cast<uint64_t>(size) >> 64);
}

int64_t Shuffled(int64_t i, int64_t size, PhiloxKey key) {
  // A Feistel network permutes the numbers of an even number of bits; what falls outside goes
  // through it again until it does not.
  int half = 1;
  while (half < 31 && (int64_t{1} << (2 * half)) < size) ++half;
  const uint32_t mask = (uint32_t{1} << half) - 1;
  uint64_t value = static_cast<uint64_t>(i);
  do {
    uint32_t left = static_cast<uint32_t>(value >> half);
    uint32_t right = static_cast<uint32_t>(value) & mask;
    for (uint32_t round = 0; round < 4; ++round) {
      const uint32_t mixed = Philox4x32({right, round, 0, 0}, key)[0] & mask;
      const uint32_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = uint64_t{left} << half | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

}  // namespace kvblocks::sim
