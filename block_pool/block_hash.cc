// The low-level SHA-256 calls are deprecated in OpenSSL 3 in favour of EVP, whose fetch and context
// cost more than hashing one block of tokens.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "kvblocks/block.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <memory>

// Inlined, so that the usual input's fixed length selects its path when this is compiled.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/escaping.h"
#include "block_pool/cbor.h"
#include "checks/field_error.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as stored");

// The text that vLLM derives its root from without a seed.
constexpr std::string_view kVllmSeed = "vllm-none-hash";

struct Preamble {
  BlockHash parent;
  uint32_t counts;                // of tokens; in the highest byte, of lookahead tokens
  uint32_t extra_bytes_plus_one;  // 0: no extra keys
};
static_assert(sizeof(Preamble) == 40);

uint32_t Counts(size_t num_tokens, size_t num_lookahead) {
  return static_cast<uint32_t>(num_tokens) | static_cast<uint32_t>(num_lookahead) << 24;
}

BlockHash Sha256(absl::Span<const std::string_view> parts) {
  SHA256_CTX context;
  SHA256_Init(&context);
  for (std::string_view part : parts) SHA256_Update(&context, part.data(), part.size());
  BlockHash hash;
  SHA256_Final(reinterpret_cast<unsigned char*>(hash.words.data()), &context);
  return hash;
}

// SHA-256 pads its input to whole chunks of 64 bytes. With the padding in place they are compressed
// where they stand, which saves half of the call's own cost.
constexpr size_t kMostPadding = 72;

// Pads an input of `size` bytes in place; returns the padded size.
size_t Pad(char* input, size_t size) {
  std::memset(input + size, 0, kMostPadding);
  input[size] = '\x80';
  const size_t padded = (size + sizeof(uint64_t) + 64) / 64 * 64;
  const uint64_t num_bits = __builtin_bswap64(8 * size);
  std::memcpy(input + padded - sizeof(num_bits), &num_bits, sizeof(num_bits));
  return padded;
}

BlockHash Sha256OfPadded(const char* input, size_t padded) {
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, input, padded);
  BlockHash hash;
  for (size_t i = 0; i < hash.words.size(); ++i) {
    hash.words[i] = __builtin_bswap32(context.h[2 * i]) |
                    uint64_t{__builtin_bswap32(context.h[2 * i + 1])} << 32;
  }
  return hash;
}

// What nearly every hash is made of: a preamble, 16 tokens, a few lookahead tokens or none, and no
// extra keys.
constexpr size_t kUsualTokens = 16;
constexpr size_t kMostUsualLookahead = 3;  // what two compressions have room for

template <size_t kLookahead>
struct UsualInput {
  Preamble preamble;
  std::array<TokenId, kUsualTokens + kLookahead> tokens;
  std::array<char, kMostPadding> padding;

  static constexpr size_t kBytes = sizeof(Preamble) + sizeof(tokens);
};

size_t DigestSize(bool is_sha256) { return is_sha256 ? 32 : 16; }

BlockHash FromXxh3(const XXH128_hash_t& digest) { return {{digest.low64, digest.high64, 0, 0}}; }

// The digest's bytes in the order that xxHash calls canonical.
BlockHash FromXxh3Canonical(const XXH128_hash_t& digest) {
  return {{__builtin_bswap64(digest.high64), __builtin_bswap64(digest.low64), 0, 0}};
}

const BlockHash& ProcessRandomRoot() {
  static const BlockHash root = [] {
    BlockHash hash;
    const int ok = RAND_bytes(reinterpret_cast<unsigned char*>(hash.words.data()), sizeof(hash));
    KVBLOCKS_CHECK(ok == 1, "the system gives no random bytes for the root hash");
    return hash;
  }();
  return root;
}

template <typename T>
std::string_view Bytes(const T* data, size_t count) {
  return {reinterpret_cast<const char*>(data), count * sizeof(T)};
}

// The hashes of usual blocks, whose tokens and lookahead tokens follow each other.
template <size_t kLookahead>
void HashUsualChain(bool is_sha256, absl::Span<const uint8_t> secret, const BlockHash& parent,
                    const TokenId* tokens, absl::Span<BlockHash> out) {
  using Input = UsualInput<kLookahead>;
  // Two alternating inputs: the next block's tokens do not wait for the hash of this one, and are
  // in memory when they are read back, in other pieces than they were written in.
  std::array<Input, 2> inputs = {};
  size_t padded = 0;
  for (Input& input : inputs) {
    input.preamble.counts = Counts(kUsualTokens, kLookahead);
    padded = Pad(reinterpret_cast<char*>(&input), Input::kBytes);
  }
  const auto copy_tokens = [&](size_t block) {
    std::memcpy(inputs[block % 2].tokens.data(), tokens + block * kUsualTokens,
                sizeof(Input::tokens));
  };
  copy_tokens(0);
  BlockHash hash = parent;  // goes to the next block in registers
  for (size_t i = 0; i < out.size(); ++i) {
    Input& input = inputs[i % 2];
    input.preamble.parent = hash;
    if (i + 1 < out.size()) copy_tokens(i + 1);
    const auto* const bytes = reinterpret_cast<const char*>(&input);
    hash =
        is_sha256
            ? Sha256OfPadded(bytes, padded)
            : FromXxh3(XXH3_128bits_withSecret(bytes, Input::kBytes, secret.data(), secret.size()));
    out[i] = hash;
  }
}

// What needs no allocation.
constexpr size_t kSmallInput = 2048;

// Room for inputs: on the stack where they are small.
template <size_t kSmall>
class InputBuffer {
 public:
  explicit InputBuffer(size_t size)
      : large_(size > kSmall ? std::make_unique_for_overwrite<char[]>(size) : nullptr) {}

  char* data() { return large_ ? large_.get() : small_.data(); }

 private:
  std::array<char, kSmall> small_;
  std::unique_ptr<char[]> large_;
};

// --- The canonical CBOR of [parent, [tokens], extra] ---

// All but the parent's bytes, which end where this returns.
char* WriteCborHead(size_t digest_size, char* out) {
  out = cbor::WriteHead(cbor::Major::kArray, 3, out);
  return cbor::WriteHead(cbor::Major::kBytes, digest_size, out) + digest_size;
}

char* WriteCborTokens(absl::Span<const TokenId> tokens, char* out) {
  for (TokenId token : tokens) out = cbor::WriteInt32(token, out);
  return out;
}

// What comes after the parent.
char* WriteCborTail(absl::Span<const TokenId> tokens, absl::Span<const TokenId> lookahead,
                    std::optional<std::string_view> encoded_extra_keys, char* out) {
  out = cbor::WriteHead(cbor::Major::kArray, tokens.size(), out);
  out = WriteCborTokens(tokens, out);
  if (!lookahead.empty()) {
    out = cbor::WriteHead(cbor::Major::kArray, 1 + lookahead.size(), out);
  }
  if (encoded_extra_keys) {
    out = std::copy(encoded_extra_keys->begin(), encoded_extra_keys->end(), out);
  } else {
    *out++ = cbor::kNull;
  }
  return WriteCborTokens(lookahead, out);
}

// Enough for all of it, for what is overwritten behind it, and for padding.
size_t CborRoom(size_t num_tokens, size_t num_lookahead, size_t extra_bytes) {
  return 3 + sizeof(BlockHash) + 2 * cbor::kMaxHeadBytes + 1 + extra_bytes +
         (num_tokens + num_lookahead) * cbor::kMaxInt32Bytes + sizeof(uint64_t) + kMostPadding;
}

BlockHash CborDigest(bool is_sha256, char* begin, const char* end) {
  const auto size = static_cast<size_t>(end - begin);
  if (is_sha256) return Sha256OfPadded(begin, Pad(begin, size));
  return FromXxh3Canonical(XXH3_128bits(begin, size));
}

BlockHash HashAsCbor(bool is_sha256, const BlockHash& parent, absl::Span<const TokenId> tokens,
                     std::optional<std::string_view> encoded_extra_keys,
                     absl::Span<const TokenId> lookahead) {
  InputBuffer<kSmallInput> input(CborRoom(tokens.size(), lookahead.size(),
                                          encoded_extra_keys ? encoded_extra_keys->size() : 0));
  char* const tail = WriteCborHead(DigestSize(is_sha256), input.data());
  std::memcpy(tail - DigestSize(is_sha256), parent.words.data(), DigestSize(is_sha256));
  const char* const end = WriteCborTail(tokens, lookahead, encoded_extra_keys, tail);
  return CborDigest(is_sha256, input.data(), end);
}

void HashChainAsCbor(bool is_sha256, const BlockHash& parent, absl::Span<const TokenId> tokens,
                     size_t block_size, size_t num_lookahead, absl::Span<BlockHash> out) {
  // Two alternating inputs: the next block's tokens need not wait for the hash of this one, and are
  // in memory long before they are read back in wider pieces.
  const size_t room = CborRoom(block_size, num_lookahead, 0);
  InputBuffer<2 * kSmallInput> buffer(2 * room);
  struct Input {
    char* begin;
    char* tail;
    char* end;
  };
  std::array<Input, 2> inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].begin = buffer.data() + i * room;
    inputs[i].tail = WriteCborHead(DigestSize(is_sha256), inputs[i].begin);
  }
  const auto write_tail = [&](size_t block) {
    Input& input = inputs[block % 2];
    input.end =
        WriteCborTail(tokens.subspan(block * block_size, block_size),
                      tokens.subspan((block + 1) * block_size, num_lookahead), {}, input.tail);
  };
  write_tail(0);
  BlockHash hash = parent;
  for (size_t i = 0; i < out.size(); ++i) {
    const Input& input = inputs[i % 2];
    std::memcpy(input.tail - DigestSize(is_sha256), hash.words.data(), DigestSize(is_sha256));
    if (i + 1 < out.size()) write_tail(i + 1);
    out[i] = hash = CborDigest(is_sha256, input.begin, input.end);
  }
}

BlockHash CborRoot(bool is_sha256, std::string_view seed) {
  std::string text;
  cbor::AppendText(seed, text);
  return is_sha256 ? Sha256({text}) : FromXxh3Canonical(XXH3_128bits(text.data(), text.size()));
}

}  // namespace

std::string_view HashAlgorithmName(HashAlgorithm algorithm) {
  constexpr std::string_view kNames[] = {"sha256", "xxh3_128", "sha256_cbor", "xxhash_cbor"};
  return kNames[static_cast<size_t>(algorithm)];
}

absl::StatusOr<HashAlgorithm> ParseHashAlgorithm(std::string_view name) {
  for (HashAlgorithm algorithm : {HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128,
                                  HashAlgorithm::kSha256Cbor, HashAlgorithm::kXxh3_128Cbor}) {
    if (name == HashAlgorithmName(algorithm)) return algorithm;
  }
  return FieldError("hash_algorithm", '"' + std::string(name) + '"',
                    "sha256, xxh3_128, sha256_cbor or xxhash_cbor");
}

std::string BlockHash::ToHex() const {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(words.data()), sizeof(words)));
}

BlockHasher::BlockHasher(HashAlgorithm algorithm, std::optional<std::string_view> seed)
    : algorithm_(algorithm) {
  if (algorithm_ == HashAlgorithm::kSha256Cbor && !seed) seed = kVllmSeed;
  if (uses_cbor() && seed) {
    root_ = CborRoot(is_sha256(), *seed);
    return;
  }
  const BlockHash material =
      seed ? Sha256({std::string_view("kvblocks root\0", 14), *seed}) : ProcessRandomRoot();
  root_ = material;
  if (is_sha256()) return;
  XXH3_generateSecret(secret_.data(), secret_.size(), material.words.data(), sizeof(material));
  root_.words[2] = root_.words[3] = 0;
}

BlockHash BlockHasher::Hash(const BlockHash& parent, absl::Span<const TokenId> tokens,
                            std::optional<std::string_view> encoded_extra_keys,
                            absl::Span<const TokenId> lookahead) const {
  if (uses_cbor()) return HashAsCbor(is_sha256(), parent, tokens, encoded_extra_keys, lookahead);
  const Preamble preamble{
      parent, Counts(tokens.size(), lookahead.size()),
      encoded_extra_keys ? static_cast<uint32_t>(encoded_extra_keys->size()) + 1 : 0};
  const std::array<std::string_view, 4> parts = {
      Bytes(&preamble, 1), Bytes(tokens.data(), tokens.size()),
      Bytes(lookahead.data(), lookahead.size()), encoded_extra_keys.value_or(std::string_view())};
  if (is_sha256()) return Sha256(parts);

  // One contiguous input: XXH3 is fastest without its streaming state.
  size_t size = 0;
  for (std::string_view part : parts) size += part.size();
  InputBuffer<kSmallInput> input(size);
  char* end = input.data();
  for (std::string_view part : parts) {
    if (!part.empty()) std::memcpy(end, part.data(), part.size());
    end += part.size();
  }
  return FromXxh3(XXH3_128bits_withSecret(input.data(), size, secret_.data(), kSecretBytes));
}

void BlockHasher::HashChain(const BlockHash& parent, absl::Span<const TokenId> tokens,
                            absl::Span<BlockHash> out, size_t num_lookahead) const {
  if (out.empty()) return;
  const size_t block_size = (tokens.size() - num_lookahead) / out.size();
  if (uses_cbor())
    return HashChainAsCbor(is_sha256(), parent, tokens, block_size, num_lookahead, out);
  if (block_size == kUsualTokens && num_lookahead <= kMostUsualLookahead) {
    constexpr auto kOf = std::array{&HashUsualChain<0>, &HashUsualChain<1>, &HashUsualChain<2>,
                                    &HashUsualChain<kMostUsualLookahead>};
    return kOf[num_lookahead](is_sha256(), secret_, parent, tokens.data(), out);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = Hash(i == 0 ? parent : out[i - 1], tokens.subspan(i * block_size, block_size),
                  std::nullopt, tokens.subspan((i + 1) * block_size, num_lookahead));
  }
}

std::string BlockHasher::ToBytes(const BlockHash& hash) const {
  return std::string(reinterpret_cast<const char*>(hash.words.data()), digest_size());
}

uint64_t BlockHasher::ToUint64(const BlockHash& hash) const {
  return __builtin_bswap64(hash.words[digest_size() / 8 - 1]);
}

}  // namespace kvblocks
