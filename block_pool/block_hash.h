// BlockHash and BlockHasher: names for the content of a block and of everything before it.
//
//   hash_k = H(hash_{k-1}, tokens of block k, extra keys of block k),   hash_{-1} = root
//
// so equal hashes mean equal whole prefixes. H hashes an injective encoding: the parent, the
// counts, the tokens, then the extra keys; absent extra keys differ from empty ones. SHA-256
// (default) resists collisions made on purpose. XXH3-128 is about ten times faster and keyed with a
// secret; use it only where whoever sends prompts may not profit from a collision, because a
// collision serves one request the KV of another.
//
// The root comes from the seed, so that processes with equal seeds agree on every hash; without a
// seed it is 32 random bytes, drawn once per process.

#ifndef KVBLOCKS_BLOCK_POOL_BLOCK_HASH_H_
#define KVBLOCKS_BLOCK_POOL_BLOCK_HASH_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

namespace kvblocks {

using TokenId = int32_t;

// 32 bytes; a shorter digest fills the front and leaves the rest zero.
struct BlockHash {
  std::array<uint64_t, 4> words{};

  static BlockHash FromUint128(absl::uint128 value) {
    return {{absl::Uint128Low64(value), absl::Uint128High64(value), 0, 0}};
  }
  std::string ToHex() const;

  friend bool operator==(const BlockHash& a, const BlockHash& b) {
    return ((a.words[0] ^ b.words[0]) | (a.words[1] ^ b.words[1]) | (a.words[2] ^ b.words[2]) |
            (a.words[3] ^ b.words[3])) == 0;
  }
  template <typename H>
  friend H AbslHashValue(H state, const BlockHash& hash) {
    return H::combine(std::move(state), hash.words[0], hash.words[1]);
  }
};

enum class HashAlgorithm { kSha256, kXxh3_128 };

class BlockHasher {
 public:
  explicit BlockHasher(HashAlgorithm algorithm = HashAlgorithm::kSha256,
                       std::optional<std::string_view> seed = std::nullopt);

  const BlockHash& root() const { return root_; }

  // Bytes of a BlockHash that carry information: 32 or 16.
  size_t digest_size() const { return algorithm_ == HashAlgorithm::kSha256 ? 32 : 16; }

  // `encoded_extra_keys`: see EncodeExtraKeys(); nullopt where the block has none.
  // Cost: two SHA-256 compressions for 16 tokens without extra keys; no allocation.
  BlockHash Hash(const BlockHash& parent, absl::Span<const TokenId> tokens,
                 std::optional<std::string_view> encoded_extra_keys) const;

  // The hashes of out.size() blocks in a row without extra keys, each the parent of the next.
  // REQUIRES: tokens.size() is a multiple of out.size(). The same as as many calls of Hash, and
  // faster.
  void HashChain(const BlockHash& parent, absl::Span<const TokenId> tokens,
                 absl::Span<BlockHash> out) const;

  // The forms that events carry: the digest's bytes, or the last 8 of them read big-endian.
  std::string ToBytes(const BlockHash& hash) const;
  uint64_t ToUint64(const BlockHash& hash) const;

 private:
  static constexpr size_t kSecretBytes = 192;

  HashAlgorithm algorithm_;
  BlockHash root_;
  std::array<uint8_t, kSecretBytes> secret_{};  // XXH3 only
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_BLOCK_HASH_H_
