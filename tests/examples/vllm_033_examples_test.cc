// The worked examples VE-n of what vLLM 0.33 does differently, computed by running it.

#include <gtest/gtest.h>

#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Full;
using testing::Mamba;
using testing::Window;

using BlockList = std::vector<int>;

KvCacheManagerOptions With(std::optional<int64_t> retention_interval) {
  KvCacheManagerOptions options = Model::Options033();
  options.semantics.retention_interval = retention_interval;
  return options;
}

KvCacheManagerOptions Lookahead(int64_t num_tokens) {
  KvCacheManagerOptions options = Model::Options033();
  options.num_hash_lookahead_tokens = num_tokens;
  options.prefill_lookahead_tokens = num_tokens;
  return options;
}

KvCacheManagerOptions EagleOptions(KvCacheManagerOptions options = Model::Options033()) {
  options.use_eagle = true;
  return options;
}

std::vector<KvCacheGroup> AllDrafts(const std::vector<KvCacheSpec>& specs) {
  std::vector<KvCacheGroup> groups;
  for (const KvCacheSpec& spec : specs) groups.push_back(DraftGroup(spec));
  return groups;
}

// Computes a prompt of tokens 0.. in steps of so many tokens.
Request& Compute(Model& m, int64_t length, int64_t step) {
  Request& request = m.New(Range(0, static_cast<TokenId>(length - 1)));
  for (int64_t done = 0; done < length; done += step) {
    m.manager->NewStepStarts();
    EXPECT_TRUE(m.Alloc(request, std::min(step, length - done)));
  }
  return request;
}

int64_t HitsOfFirst(Model& m, int64_t length) {
  return m.HitTokens(m.New(Range(0, static_cast<TokenId>(length - 1))));
}

// The first `shared` tokens, then others.
Request& Sharing(Model& m, int64_t shared, int64_t others) {
  return m.New(Join(Range(0, static_cast<TokenId>(shared - 1)), Fresh(others)));
}

TEST(Vllm033Examples, VE1_RetentionOfAWindow) {
  BlockList all;
  for (int i = 0; i < 16; ++i) all.push_back(i);
  const struct {
    std::optional<int64_t> interval;
    BlockList registered;
    int64_t same, longer, shared;
  } cases[] = {{std::nullopt, all, 240, 256, 192},
               {0, {14}, 240, 240, 0},
               {64, {3, 7, 11, 14, 15}, 240, 256, 192},
               {128, {7, 14, 15}, 240, 256, 128}};
  for (const auto& [interval, registered, same, longer, shared] : cases) {
    Model m(100, {Window(16, 16)}, With(interval));
    Request& a = Compute(m, 256, 256);
    EXPECT_EQ(m.Registered(a, 0), registered);
    EXPECT_EQ(HitsOfFirst(m, 256), same);
    EXPECT_EQ(HitsOfFirst(m, 257), longer);
    EXPECT_EQ(m.HitTokens(Sharing(m, 200, 50)), shared);
  }
}

TEST(Vllm033Examples, VE2_RetentionBesideAFullGroup) {
  const std::pair<std::optional<int64_t>, BlockList> cases[] = {{std::nullopt, {3, 7, 11, 15}},
                                                           {0, {11}},
                                                           {32, {3, 7, 11, 15}},
                                                           {64, {7, 11, 15}}};
  for (const auto& [interval, registered] : cases) {
    Model m(100, {Full(32), Window(8, 8)}, With(interval));
    EXPECT_EQ(m.Registered(Compute(m, 128, 128), 1), registered);
    EXPECT_EQ(HitsOfFirst(m, 128), 96);
  }
}

TEST(Vllm033Examples, VE3_StepsDoNotMatterToRetention) {
  for (const int64_t step : {200, 16, 48}) {
    Model m(100, {Window(16, 40)}, With(0));
    Request& a = Compute(m, 200, step);
    BlockList registered = m.Registered(a, 0);
    EXPECT_EQ(HitsOfFirst(m, 200), 192) << step;
    EXPECT_EQ(HitsOfFirst(m, 201), 192) << step;
    EXPECT_EQ(registered, (BlockList{9, 10, 11})) << step;
  }
}

// V-5: the next turn of a conversation hits what the previous prompt left.
TEST(Vllm033Examples, VE4_OutputsAreNotKept) {
  for (const std::optional<int64_t> interval :
       {std::optional<int64_t>(0), std::optional<int64_t>()}) {
    Model m(100, {Full(16), Window(16, 16)}, With(interval));
    Request& a = Compute(m, 40, 40);
    const Tokens outputs = Fresh(80);
    for (const TokenId token : outputs) {
      m.Append(a, {token});
      ASSERT_TRUE(m.Alloc(a, 1));
    }
    EXPECT_EQ(m.Registered(a, 0), (BlockList{0, 1, 2, 3, 4, 5, 6}));
    m.Free(a);
    const ComputedBlocks hit = m.LookUp(m.New(Join(Join(Range(0, 39), outputs), Fresh(3))));
    EXPECT_EQ(hit.num_tokens(), interval ? 32 : 112);
    EXPECT_EQ(hit.shared_prefix_boundary(), interval ? 112 : 0);
  }
}

TEST(Vllm033Examples, VE5_RetentionWithDraftDrop) {
  const struct {
    std::optional<int64_t> interval;
    int64_t length;
    BlockList registered;
  } cases[] = {{0, 128, {5, 6, 7}},        {0, 129, {6, 7}},          {0, 135, {6, 7}},
               {64, 128, {3, 4, 5, 6, 7}}, {64, 129, {3, 4, 6, 7}},   {64, 135, {3, 4, 6, 7}}};
  for (const auto& [interval, length, registered] : cases) {
    Model m(100, AllDrafts({Full(16), Window(16, 16)}), EagleOptions(With(interval)));
    EXPECT_EQ(m.Registered(Compute(m, length, length), 1), registered) << length;
    EXPECT_EQ(HitsOfFirst(m, length), 112) << length;
    EXPECT_EQ(HitsOfFirst(m, length + 9), 112) << length;
  }
}

TEST(Vllm033Examples, VE6_RetentionOfStates) {
  const struct {
    bool eagle;
    std::optional<int64_t> interval;
    BlockList registered;
    int64_t same, shared, boundary;
  } cases[] = {{false, std::nullopt, {0, 1, 2, 3, 4, 5}, 96, 48, 0},
               {false, 0, {5}, 96, 0, 48},
               {false, 32, {1, 3, 5}, 96, 32, 48},
               {true, std::nullopt, {0, 1, 2, 3, 4, 5}, 80, 32, 0},
               {true, 0, {4}, 80, 0, 32}};
  for (const auto& [eagle, interval, registered, same, shared, boundary] : cases) {
    KvCacheManagerOptions options = With(interval);
    options.use_eagle = eagle;
    options.enable_events = true;
    Model m(100, {Full(16), Mamba(16, MambaCacheMode::kAlign)}, options);
    Compute(m, 100, 16);
    // States of earlier positions are no longer in the table, so the events tell.
    BlockList stored;
    for (const KvEvent& event : m.manager->TakeEvents()) {
      const auto* run = std::get_if<BlockStored>(&event);
      if (run == nullptr || run->group_idx != 1) continue;
      const int first = run->token_ids.front() / 16;
      for (size_t i = 0; i < run->block_hashes.size(); ++i)
        stored.push_back(first + static_cast<int>(i));
    }
    EXPECT_EQ(stored, registered);
    m.manager->NewStepStarts();
    EXPECT_EQ(HitsOfFirst(m, 100), same);
    if (eagle) continue;
    const ComputedBlocks hit = m.LookUp(Sharing(m, 50, 30));
    EXPECT_EQ(hit.num_tokens(), shared);
    EXPECT_EQ(hit.shared_prefix_boundary(), boundary);
  }
}

TEST(Vllm033Examples, VE10_LookaheadOfOneAndThree) {
  const struct {
    int64_t lookahead, length;
    size_t hashes;
    BlockList registered;
    int64_t same;
  } cases[] = {{1, 16, 0, {}, 0},      {1, 17, 1, {0}, 16},       {1, 32, 1, {0}, 16},
               {1, 33, 2, {0, 1}, 32}, {1, 49, 3, {0, 1, 2}, 48}, {3, 17, 0, {}, 0},
               {3, 18, 0, {}, 0},      {3, 19, 1, {0}, 16},       {3, 20, 1, {0}, 16},
               {3, 35, 2, {0, 1}, 32}};
  for (const auto& [lookahead, length, hashes, registered, same] : cases) {
    Model m(30, {Full(16)}, Lookahead(lookahead));
    Request& a = Compute(m, length, length);
    EXPECT_EQ(a.content().hashes().size(), hashes) << length;
    EXPECT_EQ(m.Registered(a, 0), registered) << length;
    EXPECT_EQ(HitsOfFirst(m, length), same) << length;
  }
  Model m(30, {Full(16)}, Lookahead(1));
  Compute(m, 64, 64);
  EXPECT_EQ(m.HitTokens(Sharing(m, 32, 9)), 16);
  EXPECT_EQ(m.HitTokens(Sharing(m, 33, 9)), 32);
}

TEST(Vllm033Examples, VE11_LookaheadBesideAWindow) {
  for (const auto& [length, same] :
       {std::pair{16, 12}, {17, 12}, {18, 12}, {19, 16}, {20, 16}, {33, 28}}) {
    Model m(60, {Full(4), Window(4, 8)}, Lookahead(3));
    Compute(m, length, length);
    EXPECT_EQ(HitsOfFirst(m, length), same) << length;
    // Alone, where the engine raises an index error for some lengths (V-15): as far as hashes go.
    Model alone(60, {Window(4, 8)}, Lookahead(3));
    Compute(alone, length, length);
    EXPECT_EQ(HitsOfFirst(alone, length), (length - 3) / 4 * 4) << length;
  }
}

TEST(Vllm033Examples, VE12_TheLastFullBlockMayBeDropped) {
  const struct {
    int64_t length, hybrid, one_group;
  } cases[] = {{47, 16, 16}, {48, 32, 16}, {49, 32, 32}, {63, 32, 32}, {64, 48, 32}, {65, 48, 48}};
  for (const auto& [length, hybrid, one_group] : cases) {
    Model m(60, {Full(16), Window(16, 40)}, EagleOptions());
    Compute(m, length, length);
    EXPECT_EQ(HitsOfFirst(m, length), hybrid) << length;
    Model alone(60, {Full(16)}, EagleOptions());
    Compute(alone, length, length);
    EXPECT_EQ(HitsOfFirst(alone, length), one_group) << length;
  }
}

TEST(Vllm033Examples, VE13_AFlagAloneDropsNothing) {
  Model m(30, AllDrafts({Full(16)}), Model::Options033());
  Compute(m, 49, 49);
  EXPECT_EQ(HitsOfFirst(m, 49), 48);
}

TEST(Vllm033Examples, VE14_MultiModuleMtp) {
  KvCacheManagerOptions options = EagleOptions();
  options.prefill_lookahead_tokens = 3;
  const struct {
    int64_t length;
    BlockList registered;
    int64_t same;
  } one[] = {{32, {0}, 0},     {33, {0}, 0},     {34, {0, 1}, 16},
             {35, {0, 1}, 16}, {49, {0, 1}, 16}, {50, {0, 1, 2}, 32}};
  for (const auto& [length, registered, same] : one) {
    Model m(30, {Full(16)}, options);
    EXPECT_EQ(m.Registered(Compute(m, length, length), 0), registered) << length;
    EXPECT_EQ(HitsOfFirst(m, length), same) << length;
  }
  const struct {
    int64_t length;
    BlockList full, window;
    int64_t same;
  } two[] = {{32, {0}, {0, 1}, 0},
             {34, {0, 1}, {0, 1}, 16},
             {49, {0, 1}, {0, 1, 2}, 16},
             {50, {0, 1, 2}, {0, 1, 2}, 32}};
  for (const auto& [length, full, window, same] : two) {
    Model m(60, {DraftGroup(Full(16)), KvCacheGroup{.spec = Window(16, 32)}}, options);
    Request& a = Compute(m, length, length);
    EXPECT_EQ(m.Registered(a, 0), full) << length;
    EXPECT_EQ(m.Registered(a, 1), window) << length;
    EXPECT_EQ(HitsOfFirst(m, length), same) << length;
  }
}

TEST(Vllm033Examples, VE20_TailsThatNoLookUpCanUse) {
  KvCacheManagerOptions options = Model::Options033();
  options.semantics = Semantics::Vllm033Exactly();
  options.semantics.retention_interval = std::nullopt;
  Model m(60, {Full(16), Window(8, 24)}, options);
  Request& a = Compute(m, 44, 44);
  EXPECT_EQ(m.Registered(a, 0), (BlockList{0, 1}));
  EXPECT_EQ(m.Registered(a, 1), (BlockList{0, 1, 2, 3}));
  m.Append(a, Fresh(4));
  ASSERT_TRUE(m.Alloc(a, 4));
  EXPECT_EQ(m.NumKeys(), 10);

  Model drops(60, {Full(32), Window(8, 20)}, EagleOptions(options));
  Request& b = Compute(drops, 44, 44);
  EXPECT_EQ(drops.Registered(b, 0), (BlockList{0, 1}));
  EXPECT_EQ(drops.manager->pool().partial_tokens(2), 40);
  drops.Free(b);
  const Ids queue = drops.Queue();
  EXPECT_EQ(Ids(queue.end() - 7, queue.end()), Blocks("2,1,7,6,5,4,3"));
}

TEST(Vllm033Examples, VE21_TailsOfStates) {
  KvCacheManagerOptions options = Model::Options033();
  options.partial_hits = true;
  {
    Model m = Model::WithHashBlocks(20, {Full(4), Mamba(4, MambaCacheMode::kAlign)}, 2, options);
    m.manager->NewStepStarts();
    ASSERT_TRUE(m.Alloc(m.New({0, 0, 1, 1, 2, 2}), 4));
    m.manager->NewStepStarts();
    EXPECT_EQ(m.Hits(m.New({0, 0, 1, 1, 2, 2, 9, 9})), Groups("1|2"));
  }
  Model m = Model::WithHashBlocks(20, {Full(4), Mamba(4, MambaCacheMode::kAlign)}, 2, options);
  Request& a = m.New({0, 0, 1, 1, 2, 2, 7});
  EXPECT_EQ(*m.Alloc(a, 4), Groups("1|2"));
  m.manager->NewStepStarts();
  EXPECT_EQ(*m.Alloc(a, 2), Groups("3|4"));
  EXPECT_EQ(m.manager->pool().partial_tokens(3), 6);
  EXPECT_EQ(m.manager->pool().partial_tokens(4), 6);
  m.manager->NewStepStarts();
  ASSERT_TRUE(m.Alloc(a, 1));
  EXPECT_EQ(m.Tables(a), Groups("1,3|0,4"));
  EXPECT_EQ(m.manager->pool().partial_tokens(5), 6);
  const std::vector<BlockCopy> copies = m.manager->TakeBlockCopies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0], (BlockCopy{.group = 1, .source = 4, .target = 5}));
  ASSERT_TRUE(m.manager->ReleaseBlockCopies(copies).ok());
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("4,6..19,2,5,3,1"));

  m.manager->NewStepStarts();
  Request& b = m.New({0, 0, 1, 1, 2, 2, 3, 3});
  EXPECT_EQ(m.HitTokens(b), 6);
  EXPECT_EQ(m.Hits(b), Groups("1,3|0,5"));
  EXPECT_EQ(*m.Alloc(b, 2), Groups("4|6"));
  const std::vector<BlockCopy> more = m.manager->TakeBlockCopies();
  ASSERT_EQ(more.size(), 2u);
  EXPECT_EQ(more[0], (BlockCopy{.group = 0, .source = 3, .target = 4}));
  EXPECT_EQ(more[1], (BlockCopy{.group = 1, .source = 5, .target = 6}));
  EXPECT_EQ(m.Tables(b), Groups("1,4|0,6"));
  ASSERT_TRUE(m.manager->ReleaseBlockCopies(more).ok());
  EXPECT_EQ(m.Queue(), Blocks("7..19,2,3,5"));
}

TEST(Vllm033Examples, VE40_StatesBehindNulls) {
  Model m(20, {Full(16), Mamba(16, MambaCacheMode::kAlign)}, Model::Options033());
  Request& a = m.New(Range(0, 99));
  const std::pair<int, const char*> steps[] = {
      {16, "2"}, {32, "2,0,5"}, {16, "0,0,5,7"}, {16, "0,0,0,7,9"}, {16, "0,0,0,0,9,11"}};
  for (const auto& [num_tokens, table] : steps) {
    m.manager->NewStepStarts();
    ASSERT_TRUE(m.Alloc(a, num_tokens));
    EXPECT_EQ(m.Tables(a)[1], Blocks(table));
  }
  const Ids queue = m.Queue();
  EXPECT_EQ(Ids(queue.end() - 2, queue.end()), Blocks("5,7"));
}

}  // namespace
}  // namespace kvblocks::examples
