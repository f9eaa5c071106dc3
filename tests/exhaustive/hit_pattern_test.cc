// Look-ups over every pattern of cached and evicted blocks: a prompt is cached in all groups, every
// subset of its blocks is evicted, and the look-up must find what the oracle finds.
//
// Random calls seldom evict just the blocks that make several groups, some of them draft groups,
// shorten a hit in turns.

#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/kv_cache_manager.h"
#include "tests/group_specs.h"
#include "tests/oracle/manager.h"

namespace kvblocks::exhaustive {
namespace {

using testing::Full;
using testing::Window;

struct Pattern {
  std::string name;
  std::vector<KvCacheGroup> groups;
  bool use_eagle = false;
  int64_t num_tokens = 13;
  int64_t num_lookahead = 0;  // V-10

  friend std::ostream& operator<<(std::ostream& out, const Pattern& pattern) {
    return out << pattern.name;
  }
};

KvCacheGroup Group(KvCacheSpec spec) { return {.spec = std::move(spec)}; }
KvCacheGroup Draft(KvCacheSpec spec) { return {.spec = std::move(spec), .is_draft = true}; }

std::vector<Pattern> Patterns() {
  return {
      {"Full", {Group(Full(2))}, false, 17},
      {"FullEagle", {Group(Full(2))}, true, 17},
      {"Window", {Group(Window(2, 6))}, false, 25},
      {"WindowEagle", {Group(Window(2, 6))}, true, 25},
      {"FullWindow", {Group(Full(2)), Group(Window(2, 4))}},
      {"TwoWindows", {Group(Window(2, 4)), Group(Window(2, 6))}},
      {"CoarseFullWindow", {Group(Full(4)), Group(Window(2, 6))}, false, 17},
      {"FullDraftWindow", {Group(Full(2)), Draft(Window(2, 4))}},
      {"DraftFullWindow", {Draft(Full(2)), Group(Window(4, 5))}, false, 17},
      {"DraftWindowFirst", {Draft(Window(2, 3)), Group(Window(2, 5))}},
      {"DraftWindowLast", {Group(Window(2, 5)), Draft(Window(2, 3))}},
      {"TwoDraftWindows", {Draft(Window(2, 3)), Draft(Window(2, 5))}},
      {"TwoWindowsEagle", {Group(Window(2, 5)), Group(Window(4, 5))}, true, 17},
      // V-12: the last full block is the one to drop.
      {"FullWindowWholeBlocksEagle", {Group(Full(2)), Group(Window(2, 4))}, true, 12},
      {"CoarseDraftWindowWholeBlocks", {Group(Full(4)), Draft(Window(2, 7))}, true, 16},
      {"DraftWindowAlignedTwice", {Group(Full(4)), Draft(Window(2, 11))}, true, 17},
      {"FullWindowLookahead", {Group(Full(2)), Group(Window(2, 4))}, false, 14, 1},
      {"WindowLookahead", {Group(Window(2, 6))}, false, 24, 3},
      {"FullTwoWindowsEagle", {Group(Full(4)), Group(Window(4, 5)), Group(Window(4, 9))}, true, 17},
  };
}

class HitPatternTest : public ::testing::TestWithParam<Pattern> {};

TEST_P(HitPatternTest, EveryPatternOfCachedBlocksIsServedAsTheOracleDoes) {
  const KvCacheConfig config = {.num_blocks = 32, .groups = GetParam().groups};
  Semantics semantics;
  semantics.retention_interval = std::nullopt;  // everything that some pattern can use
  bool use_eagle = GetParam().use_eagle;
  for (const KvCacheGroup& group : config.groups) use_eagle = use_eagle || group.is_draft;
  const KvCacheManagerOptions options = {.max_model_len = 64,
                                         .semantics = semantics,
                                         .use_eagle = use_eagle,
                                         .num_hash_lookahead_tokens = GetParam().num_lookahead,
                                         .hash_algorithm = HashAlgorithm::kXxh3_128,
                                         .hash_seed = "pattern"};
  oracle::Content content;
  content.tokens.resize(static_cast<size_t>(GetParam().num_tokens));
  std::iota(content.tokens.begin(), content.tokens.end(), 0);

  std::set<int64_t> lengths;
  size_t num_cached = 1;
  for (uint32_t evicted = 0; evicted < (uint32_t{1} << num_cached); ++evicted) {
    const auto manager = KvCacheManager::Create(config, options).value();
    oracle::Manager model(config, options);
    const auto request =
        manager->NewRequest({.id = "A", .content = {.token_ids = content.tokens}}).value();
    oracle::Request model_request = model.NewRequest(content, /*skip_reading=*/false);
    const int64_t n = GetParam().num_tokens;
    ASSERT_TRUE(manager->AllocateSlots(*request, {.num_new_tokens = n}).value().has_value());
    oracle::AllocateParams params;
    params.num_new = n;
    std::vector<std::vector<BlockId>> blocks;
    ASSERT_EQ(model.Allocate(model_request, params, &blocks), oracle::Outcome::kOk);

    std::vector<BlockId> cached;
    for (BlockId id = 1; id < manager->pool().num_blocks(); ++id) {
      if (manager->pool().block(id).has_key()) cached.push_back(id);
    }
    num_cached = cached.size();
    ASSERT_LE(num_cached, 14u);
    std::vector<BlockId> ids;
    for (size_t i = 0; i < num_cached; ++i) {
      if ((evicted >> i & 1) != 0) ids.push_back(cached[i]);
    }
    ASSERT_TRUE(manager->EvictBlocks(ids).ok() && model.Evict(ids));

    const ComputedBlocks hits = manager->GetComputedBlocks(*request).value();
    const oracle::Hits expected = model.GetComputedBlocks(model_request).value();
    ASSERT_EQ(hits.num_tokens(), expected.tokens) << "evicted: pattern " << evicted;
    ASSERT_EQ(hits.shared_prefix_boundary(), expected.boundary) << "evicted: pattern " << evicted;
    for (size_t g = 0; g < expected.lists.size(); ++g) {
      const auto list = hits.blocks(static_cast<GroupId>(g));
      ASSERT_EQ(std::vector<BlockId>(list.begin(), list.end()), expected.lists[g])
          << "group " << g << ", evicted: pattern " << evicted;
    }
    lengths.insert(hits.num_tokens());
  }
  EXPECT_GT(lengths.size(), 2u) << "the patterns make no difference";
}

INSTANTIATE_TEST_SUITE_P(Groups, HitPatternTest, ::testing::ValuesIn(Patterns()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvblocks::exhaustive
