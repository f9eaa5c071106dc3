// What EventMirror is there for, which the manager's fuzzer asks it: streams that no cache sends
// are refused.

#include "tests/events/event_mirror.h"

#include <optional>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::testing {
namespace {

KvEvent Stored(uint64_t hash, std::optional<uint64_t> parent, GroupId group = 0) {
  BlockStored stored;
  stored.block_hashes = {BlockHash{{hash}}};
  stored.extra_keys = {std::nullopt};
  if (parent) stored.parent_block_hash = BlockHash{{*parent}};
  stored.group_idx = group;
  return stored;
}

KvEvent Removed(uint64_t hash) {
  BlockRemoved removed;
  removed.block_hash = BlockHash{{hash}};
  return removed;
}

TEST(EventMirrorTest, RefusesARemovalOfWhatIsNotThere) {
  EventMirror mirror;
  EXPECT_TRUE(mirror.Apply(std::vector<KvEvent>{Stored(1, {}), Removed(1)}).ok());
  EXPECT_FALSE(mirror.Apply(std::vector<KvEvent>{Removed(1)}).ok());
}

TEST(EventMirrorTest, RefusesAChildBeforeItsParent) {
  EventMirror mirror;
  EXPECT_FALSE(mirror.Apply(std::vector<KvEvent>{Stored(2, 1), Stored(1, {})}).ok());
  EventMirror other;
  EXPECT_TRUE(other.Apply(std::vector<KvEvent>{Stored(1, {}), Stored(2, 1)}).ok());
  EXPECT_FALSE(other.Apply(std::vector<KvEvent>{Stored(3, 1, 1)}).ok()) << "of another group";
  EXPECT_FALSE(other.Apply(std::vector<KvEvent>{AllBlocksCleared(), Stored(2, 1)}).ok());
}

TEST(EventMirrorTest, RefusesTwoParents) {
  EventMirror mirror;
  const auto any = [](const BlockStored&) { return true; };
  EXPECT_FALSE(mirror.Apply(std::vector<KvEvent>{Stored(3, 1), Stored(3, 2)}, any).ok());
}

TEST(EventMirrorTest, ComparesBothWays) {
  const auto pool = BlockPool::Create({.num_blocks = 4});
  ASSERT_TRUE(pool.ok());
  EventMirror mirror;
  EXPECT_TRUE(mirror.CompareWith(**pool).ok());
  ASSERT_TRUE(mirror.Apply(std::vector<KvEvent>{Stored(1, {})}).ok());
  EXPECT_FALSE(mirror.CompareWith(**pool).ok()) << "a key that the pool does not hold";
}

}  // namespace
}  // namespace kvblocks::testing
