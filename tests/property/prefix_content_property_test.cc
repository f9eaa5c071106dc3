// INV-29: the hashes of a content do not depend on how it grew, and tell different contents apart
// from the difference on.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "kvblocks/block_pool/prefix_content.h"
#include "kvblocks/tests/oracle/content.h"
#include "kvblocks/tests/property/check_property.h"
#include "kvblocks/tests/property/operation.h"

namespace kvblocks::property {
namespace {

std::shared_ptr<const PrefixHashing> AnyHashing() {
  const auto algorithm =
      *rc::gen::element(HashAlgorithm::kSha256, HashAlgorithm::kXxh3_128,
                        HashAlgorithm::kSha256Cbor, HashAlgorithm::kXxh3_128Cbor);
  return std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(algorithm, "content"),
                    .hash_block_size = *rc::gen::inRange<int64_t>(1, 9),
                    .num_lookahead_tokens = *rc::gen::inRange<int64_t>(0, 4)});
}

int64_t NumHashes(const PrefixHashing& hashing, int64_t num_tokens) {
  return num_tokens < hashing.num_lookahead_tokens
             ? 0
             : (num_tokens - hashing.num_lookahead_tokens) / hashing.hash_block_size;
}

oracle::Content AnyContent() {
  oracle::Content content;
  Numbers numbers(*rc::gen::inRange<uint64_t>(0, uint64_t{1} << 62));
  const int64_t length = numbers.Below(50);
  for (int64_t i = 0; i < length; ++i) {
    content.tokens.push_back(static_cast<TokenId>(numbers.Below(3)));
  }
  if (numbers.OneIn(3)) content.lora_name = "lora";
  if (!content.lora_name.empty() && numbers.OneIn(2)) content.lora_path = "/lora";
  if (numbers.OneIn(3)) content.cache_salt = "salt";
  int64_t offset = numbers.Below(6);
  const int64_t features = numbers.Below(4);
  for (int64_t i = 0; i < features; ++i) {
    const int64_t size = 1 + numbers.Below(8);
    content.features.push_back({"image" + std::to_string(numbers.Below(2)), offset, size});
    offset += size + numbers.Below(4);
  }
  return content;
}

absl::StatusOr<PrefixContent> Make(const oracle::Content& content, int64_t num_tokens,
                                   std::shared_ptr<const PrefixHashing> hashing) {
  return PrefixContent::FromTokens(
      {.token_ids = {content.tokens.begin(), content.tokens.begin() + num_tokens},
       .lora_name = content.lora_name,
       .lora_path = content.lora_path,
       .cache_salt = content.cache_salt,
       .features = content.features},
      std::move(hashing));
}

TEST(PrefixContentPropertyTest, GrowthDoesNotMatter) {
  CheckProperty(3000, [] {
    const oracle::Content content = AnyContent();
    const auto hashing = AnyHashing();
    const int64_t hash_block_size = hashing->hash_block_size;
    const auto fresh = Make(content, content.num_tokens(), hashing);
    RC_ASSERT(fresh.ok());
    int64_t length = *rc::gen::inRange<int64_t>(0, content.num_tokens() + 1);
    auto grown = Make(content, length, hashing);
    RC_ASSERT(grown.ok());
    while (length < content.num_tokens()) {
      RC_ASSERT(static_cast<int64_t>(grown->hashes().size()) == NumHashes(*hashing, length));
      const int64_t step = *rc::gen::inRange<int64_t>(1, content.num_tokens() - length + 1);
      const std::vector<TokenId> tokens(content.tokens.begin() + length,
                                        content.tokens.begin() + length + step);
      RC_ASSERT(grown->AppendTokens(tokens).ok());
      length += step;
    }
    RC_ASSERT(grown->hashes() == fresh->hashes());
    RC_ASSERT(grown->token_ids() == fresh->token_ids());
    const auto names = oracle::PrefixNames(content, hash_block_size, hashing->num_lookahead_tokens);
    RC_ASSERT(fresh->hashes().size() == names.size());
    for (int64_t begin = 0; begin < content.num_tokens(); begin += hash_block_size) {
      RC_ASSERT(fresh->ExtraKeysOf(begin, begin + hash_block_size) ==
                oracle::ExtraKeysOf(content, begin, begin + hash_block_size));
    }
    // BM-27: a coarser block is named by the last fine hash inside it.
    for (int64_t multiple = 1; multiple <= 4; ++multiple) {
      const int64_t blocks = static_cast<int64_t>(names.size()) / multiple;
      for (int64_t i = -1; i <= blocks; ++i) {
        const auto hash = fresh->HashOfBlockAt(i, multiple * hash_block_size);
        RC_ASSERT(hash.ok() == (i >= 0 && i < blocks));
        if (hash.ok()) {
          RC_ASSERT(*hash == fresh->hashes()[static_cast<size_t>((i + 1) * multiple - 1)]);
        }
      }
    }
  });
}

TEST(PrefixContentPropertyTest, EqualHashesMeanEqualPrefixes) {
  CheckProperty(3000, [] {
    const auto hashing = AnyHashing();
    const int64_t hash_block_size = hashing->hash_block_size;
    const oracle::Content a = AnyContent();
    oracle::Content b = a;
    // One change; where two contents differ, every later hash differs, and no earlier one.
    const int64_t change = *rc::gen::inRange<int64_t>(0, 6);
    if (change == 0 && !b.tokens.empty()) {
      ++b.tokens[static_cast<size_t>(*rc::gen::inRange<int64_t>(0, b.num_tokens()))];
    } else if (change == 1) {
      b.lora_name += "2";
    } else if (change == 2) {
      b.cache_salt += "2";
    } else if (change == 3 && !b.features.empty()) {
      b.features[static_cast<size_t>(
                     *rc::gen::inRange<int64_t>(0, static_cast<int64_t>(b.features.size())))]
          .identifier += "2";
    } else if (change == 4 && !b.features.empty()) {
      b.features.pop_back();
    } else if (change == 5 && !b.lora_name.empty()) {
      b.lora_path += "2";
    }
    const int64_t num_lookahead = hashing->num_lookahead_tokens;
    const auto names_a = oracle::PrefixNames(a, hash_block_size, num_lookahead);
    const auto names_b = oracle::PrefixNames(b, hash_block_size, num_lookahead);
    const auto real_a = Make(a, a.num_tokens(), hashing);
    const auto real_b = Make(b, b.num_tokens(), hashing);
    RC_ASSERT(real_a.ok());
    RC_ASSERT(real_b.ok());
    bool differ = false;
    for (size_t i = 0; i < names_a.size(); ++i) {
      RC_ASSERT((real_a->hashes()[i] == real_b->hashes()[i]) == (names_a[i] == names_b[i]));
      RC_ASSERT(!differ || names_a[i] != names_b[i]);
      differ = names_a[i] != names_b[i];
    }
  });
}

TEST(PrefixContentPropertyTest, HandedOverHashesServeAsWell) {
  CheckProperty(1000, [] {
    const auto hashing = AnyHashing();
    const oracle::Content content = AnyContent();
    const auto full = Make(content, content.num_tokens(), hashing);
    RC_ASSERT(full.ok());
    const int64_t length = *rc::gen::inRange<int64_t>(0, content.num_tokens() + 1);
    const auto split = full->hashes().begin() + NumHashes(*hashing, length);
    auto grown = PrefixContent::FromHashes(length, {full->hashes().begin(), split}, hashing);
    RC_ASSERT(grown.ok());
    const std::vector<BlockHash> rest(split, full->hashes().end());
    const int64_t more = content.num_tokens() - length;
    std::vector<BlockHash> too_many = rest;
    too_many.emplace_back();
    RC_ASSERT(absl::IsInvalidArgument(grown->AppendHashedTokens(more, too_many)));
    RC_ASSERT(absl::IsInvalidArgument(grown->AppendHashedTokens(-1, {})));
    RC_ASSERT(absl::IsInvalidArgument(grown->AppendTokens({1})));
    RC_ASSERT(grown->num_tokens() == length);
    RC_ASSERT(grown->AppendHashedTokens(more, rest).ok());
    RC_ASSERT(grown->hashes() == full->hashes());
    RC_ASSERT(grown->num_tokens() == content.num_tokens());
  });
}

}  // namespace
}  // namespace kvblocks::property
