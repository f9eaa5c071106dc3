#include "kvblocks/kv_cache_config.h"

#include <limits>
#include <string>

#include "checks/field_error.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

KvCacheSpec Full(int64_t block, DataType dtype = DataType::kBFloat16) {
  return *FullAttentionSpec::Create(
      {.block_size = block, .num_kv_heads = 8, .head_size = 128, .dtype = dtype});
}

KvCacheConfig TwoGroups() {
  return {.num_blocks = 100, .groups = {{Full(16), {"a", "b"}}, {Full(32), {"c"}}}};
}

TEST(KvCacheConfigTest, AcceptsGroupsAndNoGroupsAtAll) {
  EXPECT_TRUE(Validate(TwoGroups()).ok());
  EXPECT_TRUE(Validate({.num_blocks = 1}).ok());  // KS-54: a model without attention
  EXPECT_TRUE(Validate({.num_blocks = kMaxNumBlocks}).ok());
}

TEST(KvCacheConfigTest, NumBlocksFitsABlockId) {
  for (const int64_t bad :
       {int64_t{0}, int64_t{-1}, kMaxNumBlocks + 1, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(
        Validate({.num_blocks = bad}).message(),
        "num_blocks: got " + std::to_string(bad) + ", expected a number from 1 to 2147483646");
  }
}

// E-16
TEST(KvCacheConfigTest, LayerCacheIsInOneGroupOnce) {
  KvCacheConfig config = TwoGroups();
  config.groups[1].layer_names = {"c", "a"};
  const absl::Status status = Validate(config);
  EXPECT_EQ(status.message(),
            "groups[1].layer_names[1]: got \"a\", expected every layer cache in exactly one group "
            "(also at groups[0].layer_names[0])");
  EXPECT_EQ(FieldOfError(status), "groups[1].layer_names[1]");
  config.groups[1].layer_names = {"c", "c"};
  EXPECT_FALSE(Validate(config).ok());
}

TEST(KvCacheConfigTest, LayerNamesArePrintable) {
  KvCacheConfig config = TwoGroups();
  for (const char* bad : {"", "a\nb", "\x7f", "\xff"}) {
    config.groups[1].layer_names = {bad};
    EXPECT_FALSE(Validate(config).ok());
  }
  EXPECT_EQ(Validate(config).message(),
            "groups[1].layer_names[0]: got \"\\xff\", expected printable ASCII");
}

TEST(KvCacheConfigTest, SchedulerBlockIsAMultipleOfEveryOther) {
  KvCacheConfig config = TwoGroups();
  config.scheduler_block_size = 32;
  config.hash_block_size = 16;
  EXPECT_TRUE(Validate(config).ok());
  config.scheduler_block_size = 16;
  EXPECT_EQ(Validate(config).message(),
            "scheduler_block_size: got 16, expected a multiple of every group's block size "
            "(groups[1] has block size 32)");
  config.scheduler_block_size = 32;
  config.hash_block_size = 5;
  EXPECT_EQ(Validate(config).message(),
            "scheduler_block_size: got 32, expected a multiple of hash_block_size 5");
  for (const int64_t bad : {0, -16}) {
    config.hash_block_size = bad;
    EXPECT_EQ(Validate(config).message(),
              "hash_block_size: got " + std::to_string(bad) + ", expected at least 1");
  }
  config.hash_block_size = std::nullopt;
  config.scheduler_block_size = 0;
  EXPECT_EQ(Validate(config).message(), "scheduler_block_size: got 0, expected at least 1");
}

// KS-20
TEST(KvCacheConfigTest, MixedPrecisionIsAboutTypeAndMode) {
  KvCacheConfig config = TwoGroups();
  EXPECT_FALSE(IsMixedPrecision(config));
  EXPECT_FALSE(IsMixedPrecision({.num_blocks = 1}));
  config.groups[1].spec = Full(32, DataType::kFloat16);
  EXPECT_TRUE(IsMixedPrecision(config));
  const auto quantised = FullAttentionSpec::Create({.block_size = 32,
                                                    .num_kv_heads = 8,
                                                    .head_size = 128,
                                                    .dtype = DataType::kUint8,
                                                    .quant_mode = QuantMode::kNvfp4});
  ASSERT_TRUE(quantised.ok());
  config.groups[0].spec = Full(16, DataType::kUint8);
  config.groups[1].spec = *quantised;
  EXPECT_TRUE(IsMixedPrecision(config));
}

TEST(KvCacheConfigTest, StatesNeedZeroedBlocksEvenWithoutMixedPrecision) {
  KvCacheConfig config = TwoGroups();
  EXPECT_FALSE(NeedsZeroedBlocks(config));
  config.groups[1].spec = *MambaSpec::Create({.block_size = 16, .states = {{{8}}}});
  EXPECT_FALSE(IsMixedPrecision(config));
  EXPECT_TRUE(NeedsZeroedBlocks(config));
  config.groups[1].spec = Full(32, DataType::kFloat16);
  EXPECT_TRUE(NeedsZeroedBlocks(config));
}

// BM-2
TEST(KvCacheConfigTest, EncoderOnlyAttentionIsNeverAGroup) {
  KvCacheConfig config = TwoGroups();
  config.groups[1].spec =
      *EncoderOnlyAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  EXPECT_EQ(Validate(config).message(),
            "groups[1].spec: got encoder_only_attention, expected a kind that stores something "
            "between steps (leave such layers out of the groups)");
}

}  // namespace
}  // namespace kvblocks
