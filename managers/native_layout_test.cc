// The native layout through KvCacheManager: groups whose pages differ in bytes share chunks.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

// A full group with two pages per chunk and a window group with three.
KvCacheConfig FullAndWindow(int64_t num_chunks) {
  KvCacheConfig config = Config(1 + 3 * num_chunks, {Full(4), Window(4, 8)});
  config.native =
      NativeLayout{.num_chunks = num_chunks, .pages_per_chunk = {2, 3}, .class_of_group = {0, 1}};
  return config;
}

bool Admit(KvCacheManager& manager, Request& request, const AllocateSlotsParams& params) {
  const auto slots = manager.AllocateSlots(request, params);
  EXPECT_TRUE(slots.ok()) << slots.status();
  EXPECT_TRUE(manager.CheckInvariants().ok()) << manager.CheckInvariants();
  return slots->has_value();
}

TEST(NativeLayoutTest, EachGroupGetsPagesOfItsClass) {
  const auto manager = Manager(FullAndWindow(4));
  const auto request = NewRequest(*manager, Tokens(9));
  ASSERT_TRUE(Admit(*manager, *request, {.num_new_tokens = 9}));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 4));
  EXPECT_THAT(manager->GetBlocks(*request, 1), ElementsAre(7, 8, 9));
  EXPECT_DOUBLE_EQ(manager->usage(), (1.5 + 1) / 4);
}

TEST(NativeLayoutTest, NothingChangesWhenOneClassDoesNotFit) {
  const auto manager = Manager(FullAndWindow(3));
  const auto request = NewRequest(*manager, Tokens(20));
  EXPECT_FALSE(Admit(*manager, *request, {.num_new_tokens = 13}));  // 2 and 2 chunks
  EXPECT_EQ(manager->pool().chunks()->num_unassigned(), 3);
  EXPECT_TRUE(Admit(*manager, *request, {.num_new_tokens = 12}));
}

TEST(NativeLayoutTest, WatermarkIsAShareOfTheChunks) {
  const auto manager = Manager(FullAndWindow(4), {.watermark = 0.5});
  const auto a = NewRequest(*manager, Tokens(8));
  const auto b = NewRequest(*manager, Tokens(4, 100));
  ASSERT_TRUE(Admit(*manager, *a, {.num_new_tokens = 4, .has_scheduled_requests = true}));
  EXPECT_TRUE(Admit(*manager, *b, {.num_new_tokens = 4, .has_scheduled_requests = true}));
  const auto c = NewRequest(*manager, Tokens(4, 200));
  EXPECT_FALSE(Admit(*manager, *c, {.num_new_tokens = 4, .has_scheduled_requests = true}));
  EXPECT_TRUE(Admit(*manager, *c, {.num_new_tokens = 4}));
}

TEST(NativeLayoutTest, ReservedBlocksAreThereInEveryClass) {
  const auto manager = Manager(FullAndWindow(3));
  const auto request = NewRequest(*manager, Tokens(8));
  EXPECT_FALSE(Admit(*manager, *request, {.num_new_tokens = 4, .reserved_blocks = 4}));
  EXPECT_TRUE(Admit(*manager, *request, {.num_new_tokens = 4, .reserved_blocks = 2}));
}

}  // namespace
}  // namespace kvblocks
