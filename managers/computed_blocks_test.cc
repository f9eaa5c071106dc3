#include "kvblocks/managers/computed_blocks.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

TEST(ComputedBlocksTest, DefaultIsNoHit) {
  const ComputedBlocks none;
  EXPECT_EQ(none.num_tokens(), 0);
  EXPECT_EQ(none.num_groups(), 0u);
  EXPECT_EQ(none.shared_prefix_boundary(), 0);
  EXPECT_TRUE(none.empty());
}

TEST(ComputedBlocksTest, ListsOfNullsAreNotEmpty) {
  EXPECT_TRUE(ComputedBlocks({{}, {}}, 0).empty());
  EXPECT_FALSE(ComputedBlocks({{}, {kNullBlockId}}, 4).empty());
}

TEST(ComputedBlocksTest, GivesBackItsLists) {
  const ComputedBlocks computed({{1, 2}, {0, 3}}, 8);
  EXPECT_EQ(computed.num_tokens(), 8);
  EXPECT_EQ(computed.num_groups(), 2u);
  EXPECT_THAT(computed.blocks(0), ElementsAre(1, 2));
  EXPECT_THAT(computed.blocks(1), ElementsAre(0, 3));
}

}  // namespace
}  // namespace kvblocks
