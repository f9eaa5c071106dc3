// Block hashes against encodings written straight from the rules, byte by byte: BM-22 for our own
// framing, V-51 and V-52 for vLLM's, V-10 for lookahead tokens in both.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <rapidcheck.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kvblocks/prefix_content.h"
#include "tests/property/check_property.h"

namespace kvblocks::property {
namespace {

using ByteString = std::vector<uint8_t>;

void Add(ByteString& out, const ByteString& more) {
  out.insert(out.end(), more.begin(), more.end());
}
ByteString BytesOf(const std::string& text) { return {text.begin(), text.end()}; }

// --- CBOR, item by item ---

ByteString Head(int major, uint64_t value) {
  ByteString out;
  int width = 0;
  int info = static_cast<int>(value);
  if (value > 0xffffffff) {
    width = 8;
    info = 27;
  } else if (value > 0xffff) {
    width = 4;
    info = 26;
  } else if (value > 0xff) {
    width = 2;
    info = 25;
  } else if (value > 23) {
    width = 1;
    info = 24;
  }
  out.push_back(static_cast<uint8_t>(major * 32 + info));
  while (width-- > 0) out.push_back(static_cast<uint8_t>(value >> (8 * width)));
  return out;
}
ByteString Int(int64_t value) {
  return value < 0 ? Head(1, static_cast<uint64_t>(-(value + 1)))
                   : Head(0, static_cast<uint64_t>(value));
}
ByteString String(int major, const ByteString& bytes) {
  ByteString out = Head(major, bytes.size());
  Add(out, bytes);
  return out;
}
ByteString Text(const std::string& text) { return String(3, BytesOf(text)); }
ByteString Array(const std::vector<ByteString>& items) {
  ByteString out = Head(4, items.size());
  for (const ByteString& item : items) Add(out, item);
  return out;
}
ByteString Null() { return {0xf6}; }

// --- Our own framing ---

ByteString Little(uint64_t value, int width) {
  ByteString out;
  for (int i = 0; i < width; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
  return out;
}

// --- A content, and its hashes from first principles ---

struct Model {
  PrefixContent::Options content;
  HashAlgorithm algorithm = HashAlgorithm::kSha256;
  std::string seed;
  size_t block_size = 1;
  size_t num_lookahead = 0;

  bool is_cbor() const {
    return algorithm == HashAlgorithm::kSha256Cbor || algorithm == HashAlgorithm::kXxh3_128Cbor;
  }

  ByteString Sha256(const ByteString& input) const {
    ByteString digest(32);
    EVP_Digest(input.data(), input.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
    return digest;
  }
  ByteString Xxh3(const ByteString& input) const {
    ByteString digest(16);
    const XXH128_hash_t hash = XXH3_128bits(input.data(), input.size());
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    std::memcpy(digest.data(), canonical.digest, digest.size());
    return digest;
  }
  ByteString SeedMaterial() const {
    ByteString input = BytesOf("kvblocks root");
    input.push_back(0);
    Add(input, BytesOf(seed));
    return Sha256(input);
  }
  ByteString KeyedXxh3(const ByteString& input) const {
    const ByteString material = SeedMaterial();
    std::array<uint8_t, 192> secret;
    XXH3_generateSecret(secret.data(), secret.size(), material.data(), material.size());
    const XXH128_hash_t hash =
        XXH3_128bits_withSecret(input.data(), input.size(), secret.data(), secret.size());
    ByteString digest = Little(hash.low64, 8);
    Add(digest, Little(hash.high64, 8));
    return digest;
  }
  ByteString Digest(const ByteString& input) const {
    switch (algorithm) {
      case HashAlgorithm::kXxh3_128:
        return KeyedXxh3(input);
      case HashAlgorithm::kXxh3_128Cbor:
        return Xxh3(input);
      default:
        return Sha256(input);
    }
  }
  ByteString Root() const {
    if (is_cbor()) return Digest(Text(seed));
    ByteString root = SeedMaterial();
    if (algorithm == HashAlgorithm::kXxh3_128) root.resize(16);
    return root;
  }

  struct Key {
    int kind;
    std::string value;
    int64_t offset;
  };
  std::vector<Key> KeysOf(size_t begin, size_t end) const {
    std::vector<Key> keys;
    if (!content.lora_name.empty()) keys.push_back({1, content.lora_name, 0});
    for (const MultimodalFeature& feature : content.features) {
      for (int64_t token = feature.offset; token < feature.offset + feature.length; ++token) {
        if (token < static_cast<int64_t>(begin) || token >= static_cast<int64_t>(end)) continue;
        keys.push_back({2, feature.identifier, feature.offset - static_cast<int64_t>(begin)});
        break;
      }
    }
    if (begin == 0 && !content.cache_salt.empty()) keys.push_back({3, content.cache_salt, 0});
    if (content.embedding_digest) {
      const std::string digest =
          content.embedding_digest(static_cast<int64_t>(begin), static_cast<int64_t>(end));
      if (!digest.empty()) keys.push_back({4, digest, 0});
    }
    return keys;
  }

  ByteString CborKeys(const std::vector<Key>& keys) const {
    if (keys.empty()) return Null();
    std::vector<ByteString> items;
    for (const Key& key : keys) {
      if (key.kind == 1) {
        items.push_back(Array({Text("lora"), Text(key.value), Text(content.lora_path)}));
      } else if (key.kind == 2) {
        items.push_back(Array({Text("mm"), Text(key.value), Int(key.offset)}));
      } else if (key.kind == 3) {
        items.push_back(Array({Text("cache_salt"), Text(key.value)}));
      } else {
        items.push_back(Array({Text("prompt_embeds"), String(2, BytesOf(key.value))}));
      }
    }
    return Array(items);
  }
  ByteString OwnKeys(const std::vector<Key>& keys) const {
    ByteString out = Little(keys.size(), 4);
    for (const Key& key : keys) {
      const bool has_path = key.kind == 1 && !content.lora_path.empty();
      Add(out, Little(static_cast<uint64_t>(key.kind) + (has_path ? 128 : 0), 1));
      Add(out, Little(static_cast<uint64_t>(key.offset), 8));
      Add(out, Little(key.value.size(), 8));
      Add(out, BytesOf(key.value));
      if (!has_path) continue;
      Add(out, Little(content.lora_path.size(), 8));
      Add(out, BytesOf(content.lora_path));
    }
    return out;
  }

  ByteString Input(const ByteString& parent, size_t begin) const {
    const size_t end = begin + block_size;
    const std::vector<TokenId>& tokens = content.token_ids;
    const std::vector<Key> keys = KeysOf(begin, end + num_lookahead);
    if (is_cbor()) {
      std::vector<ByteString> block;
      for (size_t i = begin; i < end; ++i) block.push_back(Int(tokens[i]));
      ByteString extra = CborKeys(keys);
      if (num_lookahead > 0) {
        std::vector<ByteString> list = {extra};
        for (size_t i = end; i < end + num_lookahead; ++i) list.push_back(Int(tokens[i]));
        extra = Array(list);
      }
      return Array({String(2, parent), Array(block), extra});
    }
    ByteString input = parent;
    input.resize(32);
    const ByteString encoded = keys.empty() ? ByteString() : OwnKeys(keys);
    Add(input, Little(block_size, 3));
    Add(input, Little(num_lookahead, 1));
    Add(input, Little(keys.empty() ? 0 : encoded.size() + 1, 4));
    for (size_t i = begin; i < end + num_lookahead; ++i) {
      Add(input, Little(static_cast<uint32_t>(tokens[i]), 4));
    }
    Add(input, encoded);
    return input;
  }

  std::vector<std::string> Hashes() const {
    std::vector<std::string> hashes;
    ByteString parent = Root();
    for (size_t end = block_size; end + num_lookahead <= content.token_ids.size();
         end += block_size) {
      parent = Digest(Input(parent, end - block_size));
      hashes.emplace_back(parent.begin(), parent.end());
    }
    return hashes;
  }
};

std::string AnyText() {
  const auto size = *rc::gen::element<size_t>(1, 1, 3, 23, 24, 300);
  return std::string(size, *rc::gen::inRange('a', 'c'));
}

Model AnyModel() {
  Model model;
  model.algorithm = *rc::gen::element(HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128,
                                      HashAlgorithm::kSha256Cbor, HashAlgorithm::kXxh3_128Cbor);
  model.seed = *rc::gen::element<std::string>("", "seed", "a seed of more than 23 bytes");
  // Half of them of the size that has a path of its own, and some around the size of the buffer on
  // the stack: 2,048 bytes, which are 502 tokens with what surrounds them, in CBOR at least 382.
  model.block_size = *rc::gen::weightedOneOf<size_t>(
      {{20, rc::gen::just<size_t>(16)},
       {20, rc::gen::inRange<size_t>(1, 41)},
       {1, rc::gen::element<size_t>(381, 382, 383, 501, 502, 503)}});
  model.num_lookahead = *rc::gen::inRange<size_t>(0, 5);
  const size_t num_tokens = *rc::gen::inRange<size_t>(0, 6 * model.block_size + 1);
  // Of every magnitude and sign.
  std::mt19937 random(*rc::gen::inRange<uint32_t>(0, 1000));
  for (size_t i = 0; i < num_tokens; ++i) {
    const auto token = static_cast<TokenId>(random());
    model.content.token_ids.push_back(token >> (random() % 32));
  }
  if (*rc::gen::inRange(0, 3) == 0) {
    model.content.lora_name = AnyText();
    if (*rc::gen::arbitrary<bool>()) model.content.lora_path = AnyText();
  }
  if (*rc::gen::inRange(0, 3) == 0) model.content.cache_salt = AnyText();
  const auto block_size = static_cast<int64_t>(model.block_size);
  int64_t at = *rc::gen::inRange<int64_t>(0, 3 * block_size);
  for (int i = *rc::gen::inRange(-2, 3); i > 0; --i) {
    const int64_t length = *rc::gen::inRange<int64_t>(1, 2 * block_size + 2);
    model.content.features.push_back({AnyText(), at, length});
    at += length + *rc::gen::inRange<int64_t>(0, block_size);
  }
  if (*rc::gen::inRange(0, 4) == 0) {
    const int64_t rows = *rc::gen::inRange<int64_t>(0, 4 * block_size);
    model.content.embedding_digest = [rows](int64_t begin, int64_t end) {
      return begin < rows ? std::to_string(begin) + "-" + std::to_string(end) : std::string();
    };
  }
  return model;
}

TEST(BlockHashPropertyTest, HashesAreThoseOfTheEncodingsWrittenOut) {
  CheckProperty(2000, [] {
    const Model model = AnyModel();
    const auto hashing = std::make_shared<const PrefixHashing>(
        PrefixHashing{.hasher = BlockHasher(model.algorithm, model.seed),
                      .hash_block_size = static_cast<int64_t>(model.block_size),
                      .num_lookahead_tokens = static_cast<int64_t>(model.num_lookahead),
                      .keep_plain_hashes = *rc::gen::arbitrary<bool>()});
    const BlockHasher& hasher = hashing->hasher;
    const std::vector<TokenId>& tokens = model.content.token_ids;
    PrefixContent::Options start = model.content;
    start.token_ids.resize(*rc::gen::inRange<size_t>(0, tokens.size() + 1));
    auto grown = PrefixContent::FromTokens(start, hashing);
    RC_ASSERT(grown.ok());
    while (static_cast<size_t>(grown->num_tokens()) < tokens.size()) {
      const auto known = static_cast<size_t>(grown->num_tokens());
      const size_t step =
          *rc::gen::inRange<size_t>(1, std::min(3 * model.block_size, tokens.size() - known) + 1);
      RC_ASSERT(grown->AppendTokens(absl::MakeConstSpan(tokens).subspan(known, step)).ok());
    }
    const auto bytes_of = [&](const BlockHash& hash) { return hasher.ToBytes(hash); };
    const std::vector<std::string> expected = model.Hashes();
    RC_ASSERT(grown->hashes().size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      RC_ASSERT(bytes_of(grown->hashes()[i]) == expected[i]);
    }

    Model plain = model;
    plain.content.lora_name = plain.content.lora_path = plain.content.cache_salt = "";
    plain.content.features.clear();
    plain.content.embedding_digest = nullptr;
    const std::vector<std::string> expected_plain = plain.Hashes();
    std::vector<BlockHash> chain(expected_plain.size());
    hasher.HashChain(
        hasher.root(),
        absl::MakeConstSpan(tokens).subspan(
            0, chain.empty() ? 0 : chain.size() * model.block_size + model.num_lookahead),
        absl::MakeSpan(chain), chain.empty() ? 0 : model.num_lookahead);
    for (size_t i = 0; i < chain.size(); ++i) {
      RC_ASSERT(bytes_of(chain[i]) == expected_plain[i]);
      if (!grown->knows_plain_hashes()) continue;
      RC_ASSERT(grown->PlainHashOfBlock(static_cast<int64_t>(i), 1) == chain[i]);
    }
  });
}

}  // namespace
}  // namespace kvblocks::property
