#include "kvblocks/block_pool/kv_event.h"

#include "gtest/gtest.h"

namespace kvblocks {
namespace {

TEST(KvEventTest, ReasonsHaveNames) {
  EXPECT_EQ(RemovalReasonName(RemovalReason::kReused), "reused");
  EXPECT_EQ(RemovalReasonName(RemovalReason::kEvicted), "evicted");
  EXPECT_EQ(RemovalReasonName(RemovalReason::kReplaced), "replaced");
  EXPECT_EQ(RemovalReasonName(static_cast<RemovalReason>(99)), "unknown");
}

TEST(KvEventTest, EventsCompareByEveryField) {
  BlockStored stored{.block_hashes = {BlockHash{{1, 2, 3, 4}}}, .token_ids = {1}, .block_size = 1};
  BlockStored other = stored;
  EXPECT_EQ(KvEvent(stored), KvEvent(other));
  other.parent_block_hash = BlockHash{};
  EXPECT_FALSE(stored == other);
  other = stored;
  other.kv_cache_spec_sliding_window = 4;
  EXPECT_FALSE(stored == other);
  other = stored;
  other.lookahead_token_ids.emplace();  // V-60: none is not an empty list
  EXPECT_FALSE(stored == other);
  other = stored;
  other.session_id = "";
  EXPECT_FALSE(stored == other);
  other = stored;
  other.locality = "LOCAL";
  EXPECT_FALSE(stored == other);
  other = stored;
  other.ownership = "disk";
  EXPECT_FALSE(stored == other);

  BlockRemoved removed{.block_hash = BlockHash{{1, 2, 3, 4}}, .group_idx = 2};
  BlockRemoved evicted = removed;
  evicted.reason = RemovalReason::kEvicted;
  EXPECT_FALSE(removed == evicted);
  EXPECT_FALSE(BlockRemoved{.locality = "LOCAL"} == BlockRemoved{});
  EXPECT_FALSE(BlockRemoved{.ownership = "disk"} == BlockRemoved{});
  EXPECT_FALSE(KvEvent(removed) == KvEvent(AllBlocksCleared{}));
}

TEST(KvEventTest, MediumIsTheGpuUnlessSaidOtherwise) {
  EXPECT_EQ(BlockStored().medium, "GPU");
  EXPECT_EQ(BlockRemoved().medium, "GPU");
}

}  // namespace
}  // namespace kvblocks
