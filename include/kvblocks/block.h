// Blocks of the KV cache: ids, hashes and what the pool knows of each block.

#ifndef KVBLOCKS_BLOCK_H_
#define KVBLOCKS_BLOCK_H_

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
#include "kvblocks/huge_page_allocator.h"

// BlockHash and BlockHasher: names for the content of a block and of everything before it.
//
//   hash_k = H(hash_{k-1}, tokens of block k, extra keys of block k),   hash_{-1} = root
//
// so equal hashes mean equal whole prefixes. H hashes an injective encoding; absent extra keys
// differ from empty ones. With lookahead hashes, the tokens right after the block are hashed with
// the extra keys. SHA-256 (default) resists collisions made on purpose. XXH3-128 is about ten times
// faster; use it only where senders of prompts cannot profit from a collision, because a
// collision serves one request the KV of another.
//
// There are two encodings. Our own is the parent, the counts, the tokens, the lookahead tokens,
// then the extra keys; it is the faster one, and XXH3-128 is keyed with a secret. The other is that
// of vLLM's sha256_cbor and xxhash_cbor, byte by byte, for exchanging hashes with it: the
// canonical CBOR of [parent, [tokens], extra], where extra is null or the array of extra keys, and
// with lookahead tokens the array of that and of them.
//
// The root comes from the seed, so that processes with equal seeds agree on every hash. Without a
// seed it is random, drawn once per process; only kSha256Cbor has a default seed, vLLM's.

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
  // block, with lookahead hashes. REQUIRES: with lookahead tokens, at most kMaxLookaheadTokens of
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

// KvCacheBlock: what the pool knows about one physical block, and BlockRecords, the arrays that
// hold all of them.
//
// The record is 16 bytes, so that four share a cache line on the paths that take, touch and free;
// the 32-byte hash of a cached block lies in an array of its own, which only look-ups, registration
// and eviction read.
//
// Always: a block is linked into a free queue iff ref_count == 0 and it is neither null nor
// permanent (nor, with chunks, an id without a page: see PageChunks); key_group >= 0 iff the block
// is in the prefix-hash table, and then hash(id) is its hash.

using BlockId = int32_t;  // 0 .. num_blocks-1
using GroupId = int32_t;  // index of a KV-cache group

// Stands for "no data needed here" in any number of block tables; never handed out, cached or
// freed.
inline constexpr BlockId kNullBlockId = 0;

// What a link holds while the block is in no queue.
inline constexpr BlockId kUnlinked = -1;

// Largest usable group index; the record keeps it in 16 bits.
inline constexpr GroupId kMaxGroupId = 32766;

struct KvCacheBlock {
  int32_t ref_count = 0;     // holders: block tables, popped lists, pins; always 1 if permanent
  BlockId prev = kUnlinked;  // free-queue links: both set or both kUnlinked
  BlockId next = kUnlinked;
  int16_t key_group = -1;  // group of the block's key, -1: no key
  bool is_null : 1 = false;
  bool is_permanent : 1 = false;
  bool has_duplicates : 1 = false;  // another block carries the same key (see PrefixHashTable)

  bool has_key() const { return key_group >= 0; }
  bool is_linked() const { return next != kUnlinked; }
};
static_assert(sizeof(KvCacheBlock) == 16);

// The records of all blocks, by id. Behind them stands one record per free queue, its sentinel.
class BlockRecords {
 public:
  explicit BlockRecords(int32_t num_blocks, int32_t num_queues = 1)
      : blocks_(static_cast<size_t>(num_blocks) + static_cast<size_t>(num_queues)),
        hashes_(static_cast<size_t>(num_blocks)) {}

  int32_t num_blocks() const { return static_cast<int32_t>(hashes_.size()); }
  KvCacheBlock& operator[](BlockId id) { return blocks_[static_cast<size_t>(id)]; }
  const KvCacheBlock& operator[](BlockId id) const { return blocks_[static_cast<size_t>(id)]; }

  // Start loading a block's record or hash.
  void Prefetch(BlockId id) const { __builtin_prefetch(&(*this)[id]); }
  void PrefetchHash(BlockId id) const { __builtin_prefetch(&hash(id)); }

  // Meaningful only while the block has a key.
  BlockHash& hash(BlockId id) { return hashes_[static_cast<size_t>(id)]; }
  const BlockHash& hash(BlockId id) const { return hashes_[static_cast<size_t>(id)]; }

 private:
  std::vector<KvCacheBlock, HugePageAllocator<KvCacheBlock>> blocks_;
  std::vector<BlockHash, HugePageAllocator<BlockHash>> hashes_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_H_
