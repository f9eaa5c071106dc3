// BlockHash and BlockHasher: names for the content of a block and of everything before it.
//
//   hash_k = H(hash_{k-1}, tokens of block k, extra keys of block k),   hash_{-1} = root
//
// so equal hashes mean equal whole prefixes. H hashes an injective encoding; absent extra keys
// differ from empty ones. Where hashes look ahead, the tokens right after the block are hashed with
// the extra keys. SHA-256 (default) resists collisions made on purpose. XXH3-128 is about ten times
// faster; use it only where whoever sends prompts may not profit from a collision, because a
// collision serves one request the KV of another.
//
// There are two encodings. Our own is the parent, the counts, the tokens, the look-ahead tokens,
// then the extra keys; it is the faster one, and XXH3-128 is keyed with a secret. The other is that
// of vLLM's sha256_cbor and xxhash_cbor, byte by byte, for whoever exchanges hashes with it: the
// canonical CBOR of [parent, [tokens], extra], where extra is null or the array of extra keys, and
// with look-ahead tokens the array of that and of them.
//
// The root comes from the seed, so that processes with equal seeds agree on every hash. Without a
// seed it is random, drawn once per process; only kSha256Cbor has a default seed, vLLM's.

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
#include "absl/status/statusor.h"
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

enum class HashAlgorithm { kSha256, kXxh3_128, kSha256Cbor, kXxh3_128Cbor };

// "sha256", "xxh3_128", and as vLLM names them "sha256_cbor", "xxhash_cbor".
std::string_view HashAlgorithmName(HashAlgorithm algorithm);
// InvalidArgument that names the field hash_algorithm, and the four.
absl::StatusOr<HashAlgorithm> ParseHashAlgorithm(std::string_view name);

class BlockHasher {
 public:
  explicit BlockHasher(HashAlgorithm algorithm = HashAlgorithm::kSha256,
                       std::optional<std::string_view> seed = std::nullopt);

  const BlockHash& root() const { return root_; }

  // Whether extra keys are encoded with EncodeExtraKeysAsCbor(), else with EncodeExtraKeys().
  bool uses_cbor() const {
    return algorithm_ == HashAlgorithm::kSha256Cbor || algorithm_ == HashAlgorithm::kXxh3_128Cbor;
  }
  // Bytes of a BlockHash that carry information: 32 or 16.
  size_t digest_size() const { return is_sha256() ? 32 : 16; }

  // `encoded_extra_keys`: nullopt where there are none. `lookahead`: the tokens right after the
  // block, if hashes look ahead. REQUIRES: with look-ahead tokens, at most kMaxLookaheadTokens of
  // them and at most kMaxLookaheadBlockSize tokens.
  // Cost: two SHA-256 compressions for 16 tokens without extra keys; no allocation for up to 380
  // tokens without extra keys.
  BlockHash Hash(const BlockHash& parent, absl::Span<const TokenId> tokens,
                 std::optional<std::string_view> encoded_extra_keys,
                 absl::Span<const TokenId> lookahead = {}) const;

  // The hashes of out.size() blocks in a row without extra keys, each the parent of the next.
  // `tokens`: theirs, then `num_lookahead` more. REQUIRES: tokens.size() - num_lookahead is a
  // multiple of out.size(). The same as as many calls of Hash, and faster.
  void HashChain(const BlockHash& parent, absl::Span<const TokenId> tokens,
                 absl::Span<BlockHash> out, size_t num_lookahead = 0) const;

  static constexpr int64_t kMaxLookaheadTokens = 255;
  static constexpr int64_t kMaxLookaheadBlockSize = (int64_t{1} << 24) - 1;

  // The forms that events carry: the digest's bytes, or the last 8 of them read big-endian.
  std::string ToBytes(const BlockHash& hash) const;
  uint64_t ToUint64(const BlockHash& hash) const;

 private:
  static constexpr size_t kSecretBytes = 192;

  bool is_sha256() const {
    return algorithm_ == HashAlgorithm::kSha256 || algorithm_ == HashAlgorithm::kSha256Cbor;
  }

  HashAlgorithm algorithm_;
  BlockHash root_;
  std::array<uint8_t, kSecretBytes> secret_{};  // kXxh3_128 only
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_BLOCK_HASH_H_
