#include "attention/verify/token_values.h"

#include <cstddef>
#include <cstdint>

namespace kvblocks::attention {
namespace {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15;

// A bijection whose every output bit depends on every input bit.
uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

}  // namespace

TokenValues::TokenValues(uint64_t seed) : seed_(Mix(seed + kStep)) {}

uint64_t TokenValues::EmptyPrefix(uint64_t salt) const { return Mix(seed_ ^ Mix(salt + kStep)); }

uint64_t TokenValues::Extend(uint64_t prefix, int64_t token) {
  return Mix(prefix * kStep + Mix(static_cast<uint64_t>(token) + kStep));
}

void TokenValues::Fill(uint64_t prefix, int64_t layer, TokenValueKind kind,
                       absl::Span<float> out) const {
  uint64_t state =
      Mix(prefix ^ (static_cast<uint64_t>(layer) * 8 + static_cast<uint64_t>(kind)) * kStep);
  uint64_t bytes = 0;
  for (size_t i = 0; i < out.size(); ++i, bytes >>= 8) {
    if (i % 8 == 0) bytes = Mix(state += kStep);
    out[i] = static_cast<float>(static_cast<int8_t>(bytes & 0xff)) * (1.0f / 64);
  }
}

}  // namespace kvblocks::attention
