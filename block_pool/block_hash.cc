// The low-level SHA-256 calls are deprecated in OpenSSL 3 in favour of EVP, whose fetch and context
// cost more than hashing one block of tokens.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "kvblocks/block_pool/block_hash.h"

#include <openssl/rand.h>
#include <openssl/sha.h>
// Inlined, so that the usual input's fixed length selects its path when this is compiled.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/escaping.h"
#include "kvblocks/block_pool/check.h"

namespace kvblocks {
namespace {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as stored");

struct Preamble {
  BlockHash parent;
  uint32_t num_tokens;
  uint32_t extra_bytes_plus_one;  // 0: no extra keys
};
static_assert(sizeof(Preamble) == 40);

BlockHash Sha256(absl::Span<const std::string_view> parts) {
  SHA256_CTX context;
  SHA256_Init(&context);
  for (std::string_view part : parts) SHA256_Update(&context, part.data(), part.size());
  BlockHash hash;
  SHA256_Final(reinterpret_cast<unsigned char*>(hash.words.data()), &context);
  return hash;
}

// What nearly every hash is made of: a preamble, 16 tokens and no extra keys.
struct UsualInput {
  static constexpr size_t kTokens = 16;
  Preamble preamble;
  std::array<TokenId, kTokens> tokens;
};
static_assert(sizeof(UsualInput) == 104);

// SHA-256 pads its input to blocks of 64 bytes. With padding and length in place the input is two
// whole blocks, which are compressed where they stand.
BlockHash Sha256(const UsualInput& input) {
  struct Padded {
    UsualInput input;
    uint64_t end_mark;
    uint64_t zero;
    uint64_t num_bits;
  };
  static_assert(sizeof(Padded) == 128);
  const Padded padded = {input, 0x80, 0, __builtin_bswap64(8 * sizeof(UsualInput))};
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, &padded, sizeof(padded));
  BlockHash hash;
  for (size_t i = 0; i < hash.words.size(); ++i) {
    hash.words[i] = __builtin_bswap32(context.h[2 * i]) |
                    uint64_t{__builtin_bswap32(context.h[2 * i + 1])} << 32;
  }
  return hash;
}

BlockHash FromXxh3(const XXH128_hash_t& digest) { return {{digest.low64, digest.high64, 0, 0}}; }

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

}  // namespace

std::string BlockHash::ToHex() const {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(words.data()), sizeof(words)));
}

BlockHasher::BlockHasher(HashAlgorithm algorithm, std::optional<std::string_view> seed)
    : algorithm_(algorithm) {
  const BlockHash material =
      seed ? Sha256({std::string_view("kvblocks root\0", 14), *seed}) : ProcessRandomRoot();
  root_ = material;
  if (algorithm_ == HashAlgorithm::kXxh3_128) {
    XXH3_generateSecret(secret_.data(), secret_.size(), material.words.data(), sizeof(material));
    root_.words[2] = root_.words[3] = 0;
  }
}

BlockHash BlockHasher::Hash(const BlockHash& parent, absl::Span<const TokenId> tokens,
                            std::optional<std::string_view> encoded_extra_keys) const {
  const Preamble preamble{
      parent, static_cast<uint32_t>(tokens.size()),
      encoded_extra_keys ? static_cast<uint32_t>(encoded_extra_keys->size()) + 1 : 0};
  const std::string_view extra = encoded_extra_keys.value_or(std::string_view());
  const std::string_view head = Bytes(&preamble, 1);
  const std::string_view body = Bytes(tokens.data(), tokens.size());
  if (algorithm_ == HashAlgorithm::kSha256) return Sha256({head, body, extra});

  // One contiguous input: XXH3 is fastest without its streaming state.
  const size_t size = head.size() + body.size() + extra.size();
  std::array<char, 1024> small;
  std::string large;
  char* input = small.data();
  if (size > small.size()) {
    large.resize(size);
    input = large.data();
  }
  std::memcpy(input, head.data(), head.size());
  if (!body.empty()) std::memcpy(input + head.size(), body.data(), body.size());
  if (!extra.empty()) std::memcpy(input + head.size() + body.size(), extra.data(), extra.size());
  return FromXxh3(XXH3_128bits_withSecret(input, size, secret_.data(), kSecretBytes));
}

void BlockHasher::HashChain(const BlockHash& parent, absl::Span<const TokenId> tokens,
                            absl::Span<BlockHash> out) const {
  if (out.empty()) return;
  const size_t block_size = tokens.size() / out.size();
  if (block_size != UsualInput::kTokens) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = Hash(i == 0 ? parent : out[i - 1], tokens.subspan(i * block_size, block_size),
                    std::nullopt);
    }
    return;
  }
  // From here on a hash goes to the next block in registers.
  UsualInput input = {{parent, UsualInput::kTokens, 0}, {}};
  BlockHash& hash = input.preamble.parent;
  for (size_t i = 0; i < out.size(); ++i) {
    std::memcpy(input.tokens.data(), &tokens[i * UsualInput::kTokens], sizeof(input.tokens));
    hash = algorithm_ == HashAlgorithm::kSha256
               ? Sha256(input)
               : FromXxh3(
                     XXH3_128bits_withSecret(&input, sizeof(input), secret_.data(), kSecretBytes));
    out[i] = hash;
  }
}

std::string BlockHasher::ToBytes(const BlockHash& hash) const {
  return std::string(reinterpret_cast<const char*>(hash.words.data()), digest_size());
}

uint64_t BlockHasher::ToUint64(const BlockHash& hash) const {
  return __builtin_bswap64(hash.words[digest_size() / 8 - 1]);
}

}  // namespace kvblocks
