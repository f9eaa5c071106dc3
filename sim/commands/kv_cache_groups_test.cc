#include "kvblocks/sim/commands/model_plan.h"

#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "kvblocks/checks/field_error.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/specs/config/kv_cache_config_text.h"

namespace kvblocks::sim {
namespace {

constexpr char kGroups[] =
    "groups { num_layers: 2 spec { full_attention {"
    "  block_size: 16 num_kv_heads: 1 head_size: 8 dtype: \"bf16\" } } }"
    "groups { num_layers: 5 spec { mla_attention {"
    "  block_size: 16 head_size: 8 dtype: \"bf16\" } } }";

// One binary with the replay's messages and the loader of the library: both are the same message.
TEST(KvCacheGroupsTest, ReplayAndLibraryReadTheSameMessage) {
  ::kvblocks::config::v1::ReplayConfig replay;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "kv_cache_config { num_blocks: 9 " + std::string(kGroups) + " }", &replay));
  const auto groups = MakeKvCacheGroups(replay.kv_cache_config(), 0);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->config,
            *KvCacheConfigFromText("num_blocks: 9 " + std::string(kGroups), "groups"));
}

TEST(KvCacheGroupsTest, OptionWinsOverTheFileAndNeitherIsNeeded) {
  ::kvblocks::config::v1::KvCacheConfig message;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kGroups, &message));
  auto groups = MakeKvCacheGroups(message, 0);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_FALSE(groups->sized);
  EXPECT_EQ(groups->block_bytes, 5 * 16 * 8 * 2);
  groups = MakeKvCacheGroups(message, 12);
  EXPECT_TRUE(groups->sized);
  EXPECT_EQ(groups->config.num_blocks, 12);
  message.set_num_blocks(20);
  EXPECT_EQ(MakeKvCacheGroups(message, 0)->config.num_blocks, 20);
  EXPECT_EQ(MakeKvCacheGroups(message, 12)->config.num_blocks, 12);
}

TEST(KvCacheGroupsTest, NativeLayoutStatesItsOwnSize) {
  ::kvblocks::config::v1::KvCacheConfig message;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      std::string(kGroups) +
          " num_blocks: 13 native { num_chunks: 3 pages_per_chunk: [4, 2] class_of_group: [0, 1] }",
      &message));
  const auto groups = MakeKvCacheGroups(message, 0);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->block_bytes, 0);
  EXPECT_EQ(groups->chunk_bytes, 4 * 2 * 2 * 16 * 8 * 2);
  EXPECT_EQ(FieldOfError(MakeKvCacheGroups(message, 14).status()), "num_blocks");
}

TEST(KvCacheGroupsTest, RefusesNoGroupsAndBytesBeyond63Bits) {
  ::kvblocks::config::v1::KvCacheConfig message;
  EXPECT_EQ(FieldOfError(MakeKvCacheGroups(message, 5).status()), "groups");
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kGroups, &message));
  message.mutable_groups(1)->set_num_layers(10'000);
  message.mutable_groups(1)->mutable_spec()->mutable_mla_attention()->set_head_size(int64_t{1}
                                                                                    << 54);
  EXPECT_EQ(FieldOfError(MakeKvCacheGroups(message, 5).status()), "groups[1]");
}

}  // namespace
}  // namespace kvblocks::sim
