#include "kvblocks/specs/uniform_type_specs.h"

#include <limits>
#include <string>

#include "absl/hash/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

KvCacheSpec Latent(int64_t block = 64) {
  return *MlaAttentionSpec::Create({.block_size = block,
                                    .head_size = 576,
                                    .dtype = DataType::kUint8,
                                    .quant_mode = QuantMode::kFp8DsMla});
}
KvCacheSpec Indexer(int64_t block = 64) {
  return *MlaAttentionSpec::Create(
      {.block_size = block, .head_size = 132, .dtype = DataType::kUint8});
}
KvCacheSpec WindowMla(int64_t width) {
  return *SlidingWindowMlaSpec::Create({.block_size = 4,
                                        .head_size = width,
                                        .sliding_window = 8,
                                        .dtype = DataType::kFloat32,
                                        .alignment = 576});
}

RequestLimits Limits(int64_t length) {
  return {.max_model_len = length, .max_in_flight_tokens = 8'192};
}

// KS-32, KS-43; the DeepSeek-V3.2 layout of KS-56 with two layers.
TEST(UniformTypeSpecsTest, PageIsTheSumOfTheMembersPages) {
  const auto specs = UniformTypeSpecs::Create({{"0.latent", Latent()},
                                               {"0.indexer", Indexer()},
                                               {"1.latent", Latent()},
                                               {"1.indexer", Indexer()}});
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_EQ(specs->page_bytes(), 2 * (41'984 + 8'448));
  EXPECT_EQ(specs->block_size(), 64);
  EXPECT_EQ(specs->kind(), KvCacheSpecKind::kMlaAttention);
  EXPECT_EQ(specs->members()[1].first, "0.indexer");
  EXPECT_EQ(specs->MaxBlocksPerRequest(Limits(163'840)).value(), 2'560);
  EXPECT_EQ(specs->MaxBytesPerRequest(Limits(163'840)).value(), 2'560 * specs->page_bytes());
}

TEST(UniformTypeSpecsTest, WindowedMembersNeedTheirCap) {
  const auto specs = UniformTypeSpecs::Create({{"a", WindowMla(2'048)}, {"b", WindowMla(512)}});
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_EQ(specs->page_bytes(), 32'832 + 8'640);
  EXPECT_EQ(specs->MaxBlocksPerRequest(Limits(1'048'576)).value(), 2'051);
  RequestLimits limits = Limits(100);
  limits.decode_context_parallel = 2;
  EXPECT_FALSE(specs->MaxBytesPerRequest(limits).ok());
}

// KS-14
TEST(UniformTypeSpecsTest, MembersOfTwoKindsHaveNoCommonKind) {
  const KvCacheSpec full =
      *FullAttentionSpec::Create({.block_size = 64, .num_kv_heads = 1, .head_size = 128});
  const auto specs = UniformTypeSpecs::Create({{"a", full}, {"b", Latent()}});
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_EQ(specs->kind(), std::nullopt);
  EXPECT_EQ(specs->representative(), full);
}

TEST(UniformTypeSpecsTest, RefusesNoneTwiceAndDifferentTypes) {
  EXPECT_FALSE(UniformTypeSpecs::Create({}).ok());
  EXPECT_EQ(UniformTypeSpecs::Create({{"a", Latent()}, {"a", Indexer()}}).status().message(),
            "members: got \"a\" twice, expected distinct names");
  const auto other_block = UniformTypeSpecs::Create({{"a", Latent()}, {"b", Latent(128)}});
  ASSERT_FALSE(other_block.ok());
  EXPECT_THAT(std::string(other_block.status().message()), HasSubstr("\"b\" with mla_attention("));
  EXPECT_FALSE(UniformTypeSpecs::Create({{"a", WindowMla(8)}, {"b", Latent(4)}}).ok());
}

TEST(UniformTypeSpecsTest, SumBeyond63BitsIsRefused) {
  KvCacheSpec large = *Latent().WithPageSizePadded(std::numeric_limits<int64_t>::max());
  const auto specs = UniformTypeSpecs::Create({{"a", large}, {"b", Latent()}});
  ASSERT_FALSE(specs.ok());
  EXPECT_THAT(std::string(specs.status().message()), HasSubstr("fits 63 bits"));
  const auto one = UniformTypeSpecs::Create({{"a", large}});
  ASSERT_TRUE(one.ok());
  EXPECT_FALSE(one->MaxBytesPerRequest(Limits(65)).ok());
}

TEST(UniformTypeSpecsTest, EqualityAndHashSeeNamesOrderAndSpecs) {
  const auto make = [](std::vector<UniformTypeSpecs::Member> members) {
    return *UniformTypeSpecs::Create(std::move(members));
  };
  const auto ab = make({{"a", Latent()}, {"b", Indexer()}});
  const auto hash = absl::Hash<UniformTypeSpecs>();
  EXPECT_EQ(ab, make({{"a", Latent()}, {"b", Indexer()}}));
  EXPECT_EQ(hash(ab), hash(make({{"a", Latent()}, {"b", Indexer()}})));
  for (const auto& other : {make({{"a", Latent()}, {"c", Indexer()}}),
                            make({{"b", Indexer()}, {"a", Latent()}}), make({{"a", Latent()}})}) {
    EXPECT_NE(ab, other);
    EXPECT_NE(hash(ab), hash(other));
  }
}

// E-6
TEST(SharedBlockTableWidthTest, SpecsOfOneTableAgree) {
  EXPECT_EQ(SharedBlockTableWidth({Latent(), Indexer()}, Limits(1'000)).value(), 16);
  const auto width = SharedBlockTableWidth({Latent(64), Indexer(128), Latent(64)}, Limits(1'000));
  ASSERT_FALSE(width.ok());
  EXPECT_THAT(std::string(width.status().message()), HasSubstr("block-table widths 16, 8, 16"));
  EXPECT_FALSE(SharedBlockTableWidth({}, Limits(1'000)).ok());
  EXPECT_FALSE(SharedBlockTableWidth({Latent()}, Limits(0)).ok());
}

}  // namespace
}  // namespace kvblocks
