// Worked examples: prompts that end inside a block, hits there, and the copies they need.

#include <gtest/gtest.h>

#include "kvblocks/lookup_explanation.h"
#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Full;
using testing::Mamba;
using testing::Window;

constexpr auto kAlign = MambaCacheMode::kAlign;

KvCacheManagerOptions PartialHits() {
  KvCacheManagerOptions options = Model::Options();
  options.partial_hits = true;
  options.enable_events = true;
  return options;
}

std::vector<BlockCopy> Copies(const std::string& groups, const std::string& sources,
                              const std::string& targets) {
  const Ids group = Blocks(groups), source = Blocks(sources), target = Blocks(targets);
  std::vector<BlockCopy> copies;
  for (size_t i = 0; i < group.size(); ++i) copies.push_back({group[i], source[i], target[i]});
  return copies;
}

TEST(BlockManagerExamples, WE46_PartialTailAndCopy) {
  Model m = Model::WithHashBlocks(20, {Full(4), Mamba(4, kAlign)}, 2, PartialHits());
  Request& a = m.New({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(m.Alloc(a, 4), Groups("1|2"));
  m.manager->NewStepStarts();
  EXPECT_EQ(m.Alloc(a, 2), Groups("3|4"));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{0, 1}));
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 1, 1, 0), 1);
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 1, 1, 1), 2);
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 2, 1, 0), 3);
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 2, 1, 1), 4);
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("5..19,3,1,4,2"));

  m.manager->NewStepStarts();
  Request& b = m.New({0, 0, 1, 1, 2, 2, 3, 3});
  EXPECT_EQ(m.HitTokens(b), 6);
  EXPECT_EQ(m.Hits(b), Groups("1,3|0,4"));
  const int64_t free = m.manager->num_free_blocks();
  EXPECT_EQ(m.Alloc(b, 2, {.reserved_blocks = free - 4}), std::nullopt);
  EXPECT_EQ(m.Alloc(b, 2, {.reserved_blocks = free - 5}), Groups("5|6"));
  EXPECT_EQ(m.manager->num_free_blocks(), free - 5);
  EXPECT_EQ(m.Tables(b), Groups("1,5|0,6"));
  EXPECT_EQ((Ids{m.Ref(3), m.Ref(5), m.Ref(4), m.Ref(6)}), Blocks("1,2,1,2"));
  const std::vector<BlockCopy> copies = m.manager->TakeBlockCopies();
  EXPECT_EQ(copies, Copies("0,1", "3,4", "5,6"));
  EXPECT_TRUE(m.manager->TakeBlockCopies().empty());
  EXPECT_TRUE(m.manager->CheckInvariants().ok()) << m.manager->CheckInvariants();
  ASSERT_TRUE(m.manager->ReleaseBlockCopies(copies).ok());
  EXPECT_EQ((Ids{m.Ref(3), m.Ref(5), m.Ref(4), m.Ref(6)}), Blocks("0,1,0,1"));
  EXPECT_EQ(m.Queue(), Blocks("7..19,2,3,4"));
  EXPECT_TRUE(absl::IsInvalidArgument(m.manager->ReleaseBlockCopies(copies)));
  EXPECT_EQ(m.Ref(5), 1);
}

absl::Status CreateWith(const std::vector<KvCacheSpec>& specs, int64_t hash_block_size,
                        KvCacheManagerOptions options) {
  KvCacheConfig config{.num_blocks = 20, .hash_block_size = hash_block_size};
  for (const KvCacheSpec& spec : specs) config.groups.push_back({.spec = spec});
  return KvCacheManager::Create(config, options).status();
}

TEST(PartialHitsTest, RefusedWhereTheyCannotWork) {
  const auto refused = [](const absl::Status& status) {
    return absl::IsInvalidArgument(status) &&
           status.message().find("partial_hits") != absl::string_view::npos;
  };
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, PartialHits()).ok());
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign), Window(2, 6)}, 2, PartialHits()).ok());
  EXPECT_TRUE(refused(CreateWith({Full(4), Mamba(4, kAlign)}, 4, PartialHits())));
  EXPECT_TRUE(refused(CreateWith({Full(4), Window(4, 6)}, 2, PartialHits())));
  EXPECT_TRUE(refused(CreateWith({Mamba(4, kAlign), Window(4, 6)}, 2, PartialHits())));
  EXPECT_TRUE(refused(CreateWith({Full(4), Mamba(4, MambaCacheMode::kAll)}, 2, PartialHits())));
  KvCacheManagerOptions options = PartialHits();
  options.compare_tokens_on_hit = true;
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, options).ok());
  options = PartialHits();
  options.semantics.retention_interval = 8;
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, options).ok());
  options = PartialHits();
  options.lookup_history_blocks = 8;
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, options).ok());
  options = PartialHits();
  options.enable_caching = false;
  EXPECT_TRUE(CreateWith({Full(4), Window(4, 6)}, 2, options).ok());
}

// "last token 4+2, partial block 6+1".
std::string Missed(Model& m, const std::vector<TokenId>& tokens) {
  const LookupExplanation why = ExplainLookup(*m.manager, m.New(tokens)).value();
  std::string text = absl::StrCat("hit ", why.num_hit_tokens);
  for (const MissedRun& run : why.missed) {
    absl::StrAppend(&text, ", ", std::string(MissReasonName(run.reason)), " ", run.first_token, "+",
                    run.num_tokens);
    if (run.reason == MissReason::kGroupVeto) {
      absl::StrAppend(&text, " (", Describe(*run.absence), ")");
    }
  }
  return text;
}

TEST(PartialHitsTest, LookUpsAreExplainedByHashBlocks) {
  KvCacheManagerOptions options = PartialHits();
  options.lookup_history_blocks = 100;
  Model m = Model::WithHashBlocks(20, {Full(4), Mamba(4, kAlign)}, 2, options);
  Request& a = m.New({0, 0, 1, 1, 2, 2, 7});
  for (const int64_t count : {4, 2, 1}) {
    ASSERT_TRUE(m.Alloc(a, count));
    ASSERT_TRUE(m.manager->ReleaseBlockCopies(m.manager->TakeBlockCopies()).ok());
    m.manager->NewStepStarts();
  }
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}), "hit 6, first use 6+2");
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 7}), "hit 6, partial block 6+1");
  // The end of A's prompt is cached under six tokens, of which the last must be computed.
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2}), "hit 4, last token 4+2");
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 3, 3, 3}), "hit 4, first use 4+2, partial block 6+1");
  EXPECT_EQ(Missed(m, {5}), "hit 0, shorter than a block 0+1");
  // Without the state behind six tokens there is the one behind four, and without any nothing.
  const Request& b = m.New({0, 0, 1, 1, 2, 2, 3, 3});
  ASSERT_TRUE(m.manager->EvictBlocks({m.manager->pool().FindCached(b.content(), 2, 1, 1)}).ok());
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}),
            "hit 4, group veto 4+2 (removed 0 blocks ago), first use 6+2");
  ASSERT_TRUE(m.manager->EvictBlocks({m.manager->pool().FindCached(b.content(), 1, 1, 1)}).ok());
  EXPECT_EQ(
      Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}),
      "hit 0, group veto 0+2 (not kept), group veto 2+4 (removed 0 blocks ago), first use 6+2");
  // The block of rows that has tokens 4 and 5.
  ASSERT_TRUE(m.manager->EvictBlocks({m.manager->pool().FindCached(b.content(), 2, 1, 0)}).ok());
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}),
            "hit 0, group veto 0+2 (not kept), group veto 2+2 (removed 0 blocks ago), "
            "removed 4+2, first use 6+2");
}

}  // namespace
}  // namespace kvblocks::examples
