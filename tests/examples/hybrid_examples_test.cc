// Worked examples of several groups: WE-22 to WE-29, WE-37, WE-40, and those of choices D-22 to
// D-24.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Full;
using testing::Mla;
using testing::Window;
using testing::WindowMla;

KvCacheManagerOptions Eagle() {
  KvCacheManagerOptions options = Model::Options();
  options.use_eagle = true;
  return options;
}

Model FullAndTwoWindows(int64_t num_blocks) {
  return Model(num_blocks, {Full(16), Window(16, 32), Window(16, 32)});
}

TEST(BlockManagerExamples, WE22_HybridEqualSizes) {
  const Tokens common = Range(0, 47);
  {
    Model m = FullAndTwoWindows(21);
    Request& a = m.New(Join(common, Fresh(7)));
    EXPECT_EQ(m.Alloc(a, 55), Groups("1..4|5..8|9..12"));
    EXPECT_EQ(m.NumKeys(), 9);
    EXPECT_EQ(m.manager->num_free_blocks(), 8);
    Request& b = m.New(Join(common, Fresh(5)));
    EXPECT_EQ(m.HitTokens(b), 48);
    EXPECT_EQ(m.Hits(b), Groups("1..3|0,6,7|0,10,11"));
    EXPECT_EQ(m.Alloc(b, 5), Groups("13|14|15"));
    m.Free(a);
    m.Free(b);
    EXPECT_EQ(m.Queue(), Blocks("15,14,13,12,8,4,16..20,5,9,3,2,1,7,6,11,10"));
  }
  {
    Model m = FullAndTwoWindows(21);
    Request& a = m.New(Join(common, Fresh(7)));
    ASSERT_TRUE(m.Alloc(a, 55));
    m.Free(a);
    EXPECT_EQ(m.Queue(), Blocks("12,8,4,13..20,3,2,1,7,6,5,11,10,9"));
  }
  {
    Model m = FullAndTwoWindows(21);
    Request& a = m.New(Join(common, Fresh(7)));
    ASSERT_TRUE(m.Alloc(a, 55));
    Ids popped = m.manager->PopBlocksForFree(a).value();
    EXPECT_EQ(popped, Blocks("1..12"));
    std::reverse(popped.begin(), popped.end());
    ASSERT_TRUE(m.manager->FreeBlocks(popped).ok());
    EXPECT_EQ(m.Queue(), Blocks("12,8,4,13..20,11,10,9,7,6,5,3,2,1"));
  }
  const auto hit_after_evicting = [&](const char* evicted) {
    Model m = FullAndTwoWindows(21);
    Request& a = m.New(Join(common, Fresh(7)));
    EXPECT_TRUE(m.Alloc(a, 55));
    m.Free(a);
    m.Evict(Blocks(evicted));
    Request& b = m.New(Join(common, Fresh(5)));
    return std::pair(m.HitTokens(b), m.Hits(b));
  };
  EXPECT_EQ(hit_after_evicting("5,9").first, 48);
  EXPECT_EQ(hit_after_evicting("1").first, 0);
  for (const char* position_two : {"3,7,11", "3", "7", "11"}) {
    const auto [tokens, lists] = hit_after_evicting(position_two);
    EXPECT_EQ(tokens, 32) << position_two;
    EXPECT_EQ(lists, Groups("1,2|5,6|9,10")) << position_two;
  }
  EXPECT_EQ(hit_after_evicting("3,5,9").first, 0);
}

TEST(BlockManagerExamples, WE23_HybridDifferentSizes) {
  Model m(100, {Full(32), Window(16, 32)});
  EXPECT_EQ(m.manager->hash_block_size(), 16);
  EXPECT_EQ(m.manager->scheduler_block_size(), 32);
  Request& a = m.New(Range(0, 159));
  EXPECT_EQ(m.Alloc(a, 112), Groups("1..4|5..11"));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  Request& b = m.New(Range(0, 112));
  EXPECT_EQ(m.HitTokens(b), 96);
  EXPECT_EQ(m.Hits(b), Groups("1..3|0x4,9,10"));
  m.Evict({10});
  EXPECT_EQ(m.HitTokens(b), 64);
  EXPECT_EQ(m.Hits(b), Groups("1,2|0,0,7,8"));
}

TEST(BlockManagerExamples, WE24_Masks) {
  const auto expect = [](int64_t window, bool draft, const std::vector<int>& registered) {
    Model m(100, {{.spec = Full(32)}, {.spec = Window(8, window), .is_draft = draft}});
    Request& a = m.New(Range(0, 127));
    ASSERT_TRUE(m.Alloc(a, 128));
    EXPECT_EQ(m.Registered(a, 1), registered) << window;
    EXPECT_EQ(m.HitTokens(m.New(Range(0, 127))), 96) << window;
    EXPECT_EQ(m.HitTokens(m.New(Range(0, 128))), draft ? 96 : 128) << window;
  };
  expect(8, false, {3, 7, 11, 15});
  expect(8, true, {3, 4, 7, 8, 11, 12, 15});
  expect(17, false, {2, 3, 6, 7, 10, 11, 14, 15});
  expect(25, false, {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15});
  expect(26, false, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
}

TEST(BlockManagerExamples, WE25_DropOneGroup) {
  const auto same_prompt = [](Model& m, TokenId length) -> Request& {
    EXPECT_TRUE(m.Alloc(m.New(Range(0, length - 1)), length));
    return m.New(Range(0, length - 1));
  };
  Model full37(20, {Full(16)}, Eagle());
  Request& a = same_prompt(full37, 37);
  EXPECT_EQ(full37.HitTokens(a), 16);
  EXPECT_EQ(full37.Hits(a), Groups("1"));
  Model full48(20, {Full(16)}, Eagle());
  EXPECT_EQ(full48.HitTokens(same_prompt(full48, 48)), 16);
  Model window(20, {Window(16, 16)}, Eagle());
  Request& b = same_prompt(window, 37);
  EXPECT_EQ(window.HitTokens(b), 16);
  EXPECT_EQ(window.Hits(b), Groups("1"));
  window.Evict({1});
  EXPECT_EQ(window.HitTokens(b), 0);
}

TEST(BlockManagerExamples, WE26_DropHybrid) {
  Model m(31, {Full(16), Window(16, 48), Window(16, 48)}, Eagle());
  EXPECT_EQ(m.Alloc(m.New(Join(Range(0, 95), Fresh(7))), 103), Groups("1..7|8..14|15..21"));
  Request& b = m.New(Join(Range(0, 95), Fresh(5)));
  EXPECT_EQ(m.HitTokens(b), 80);
  EXPECT_EQ(m.Hits(b), Groups("1..5|0,0,10..12|0,0,17..19"));
  EXPECT_EQ(m.Alloc(b, 21), Groups("22,23|24,25|26,27"));
}

TEST(BlockManagerExamples, WE27_D3_DropFirstThenAlign) {
  Model m(100, {{.spec = Full(8)}, DraftGroup(Window(4, 25))});
  Request& a = m.New(Range(0, 12));
  EXPECT_EQ(m.Alloc(a, 13), Groups("1,2|3..6"));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0}));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{0, 1, 2}));
  Request& b = m.New(Range(0, 12));
  EXPECT_EQ(m.HitTokens(b), 8);
  EXPECT_EQ(m.Hits(b), Groups("1|3,4"));
}

TEST(BlockManagerExamples, WE28_FixedPoint) {
  Model m(60, {Full(4), Window(4, 5), Window(4, 13)});
  Request& a = m.New(Range(0, 32));
  EXPECT_EQ(m.Alloc(a, 33), Groups("1..9|10..18|19..27"));
  m.Free(a);
  Request& b = m.New(Range(0, 32));
  EXPECT_EQ(m.HitTokens(b), 32);
  EXPECT_EQ(m.LookUp(b).shared_prefix_boundary(), 0);
  m.Evict({17});
  EXPECT_EQ(m.HitTokens(b), 28);
  m.Evict({23});
  EXPECT_EQ(m.HitTokens(b), 16);
  EXPECT_EQ(m.Hits(b), Groups("1..4|0,0,0,13|0,20..22"));
  EXPECT_EQ(m.LookUp(b).shared_prefix_boundary(), 32);
  m.Evict({13});
  EXPECT_EQ(m.HitTokens(b), 12);
  EXPECT_EQ(m.Hits(b), Groups("1..3|0,0,12|19..21"));
  EXPECT_EQ(m.LookUp(b).shared_prefix_boundary(), 32);
}

TEST(BlockManagerExamples, WE29_ExternalTwoPhases) {
  Model m(14, {Full(4), Window(4, 8)});
  Request& a = m.New(Range(0, 8));
  EXPECT_EQ(m.Alloc(a, 9), Groups("1..3|4..6"));
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("6,3,7..13,2,1,5,4"));
  const Tokens prompt = Join(Range(0, 7), Fresh(8));
  Request& b = m.New(prompt);
  EXPECT_EQ(m.HitTokens(b), 8);
  EXPECT_EQ(m.Hits(b), Groups("1,2|4,5"));
  const int64_t free_before = m.manager->num_free_blocks();
  EXPECT_EQ(m.Alloc(b, 2, {.num_external_computed_tokens = 6}), Groups("|"));
  EXPECT_EQ(free_before - m.manager->num_free_blocks(), 7);
  EXPECT_EQ(m.Tables(b), Groups("1,2,6,3|0,5,7,8"));
  EXPECT_EQ(m.Queue(), Blocks("9..13,4"));
  EXPECT_EQ(m.Registered(b, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(m.Registered(b, 1), (std::vector<int>{1, 2, 3}));
  // Position 0 of the window is still served by block 4.
  EXPECT_EQ(m.Hits(m.New(Join(Range(0, 3), Fresh(3)))), Groups("1|4"));
}

TEST(BlockManagerExamples, WE37_CommonPrefix) {
  using Counts = std::vector<int64_t>;
  Model m(20, {Full(4), Window(4, 6)});
  const auto common = [&](const Request& r) { return m.manager->GetNumCommonPrefixBlocks(r); };
  Request& a = m.New(Range(0, 12));
  ASSERT_TRUE(m.Alloc(a, 13));
  EXPECT_EQ(common(a), (Counts{4, 0}));
  Request& b = m.New(Join(Range(0, 7), Fresh(5)));
  ASSERT_TRUE(m.Alloc(b, 5));
  EXPECT_EQ(common(a), (Counts{2, 0}));
  EXPECT_EQ(common(b), (Counts{2, 0}));
  Request& c = m.New(Fresh(4));
  ASSERT_TRUE(m.Alloc(c, 4));
  EXPECT_EQ(common(a), (Counts{0, 0}));
  EXPECT_EQ(common(c), (Counts{0, 0}));
  EXPECT_EQ(common(m.New(Fresh(4))), (Counts{0, 0}));
  m.Free(c);
  EXPECT_EQ(common(b), (Counts{2, 0}));

  Model one(20, {Full(4)});
  Request& holder = one.New(Range(0, 8));
  EXPECT_EQ(one.Alloc(holder, 9), Groups("1..3"));
  Request& popped = one.New(Range(0, 8));
  EXPECT_EQ(one.HitTokens(popped), 8);
  EXPECT_EQ(one.Alloc(popped, 1), Groups("4"));
  ASSERT_TRUE(one.manager->PopBlocksForFree(popped).ok());
  Request& foreign = one.New(Fresh(4));
  EXPECT_EQ(one.Alloc(foreign, 4), Groups("5"));
  EXPECT_EQ(one.Ref(1), 2);
  EXPECT_EQ(one.Ref(2), 2);
  EXPECT_EQ(one.manager->num_requests_holding_blocks(), 2);
  EXPECT_EQ(one.manager->GetNumCommonPrefixBlocks(holder), (Counts{0}));
  EXPECT_EQ(one.manager->GetNumCommonPrefixBlocks(foreign), (Counts{0}));
}

std::vector<int> Ints(int first, int last) {
  std::vector<int> values;
  for (int i = first; i <= last; ++i) values.push_back(i);
  return values;
}

Ids RealOnes(Ids list) {
  std::erase(list, kNullBlockId);
  return list;
}

TEST(BlockManagerExamples, WE40_FourGroups) {
  KvCacheManagerOptions options = Model::Options();
  options.max_model_len = 4096;
  options.max_in_flight_tokens = 1024;
  Model m(400, {Mla(256), WindowMla(64, 128), WindowMla(4, 8), WindowMla(8, 128)}, options);
  EXPECT_EQ(m.manager->hash_block_size(), 4);
  EXPECT_EQ(m.manager->scheduler_block_size(), 256);
  EXPECT_EQ(m.manager->group(0).admission_cap(), std::nullopt);
  EXPECT_EQ(m.manager->group(1).admission_cap(), 19);
  EXPECT_EQ(m.manager->group(2).admission_cap(), 259);
  EXPECT_EQ(m.manager->group(3).admission_cap(), 145);
  Request& a = m.New(Range(0, 599));
  EXPECT_EQ(m.Alloc(a, 600), Groups("1..3|4..13|14..163|164..238"));
  EXPECT_EQ(m.manager->num_free_blocks(), 161);
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(m.Registered(a, 2), (std::vector<int>{62, 63, 126, 127}));
  std::vector<int> state8 = Ints(16, 31);
  for (int i : Ints(48, 63)) state8.push_back(i);
  EXPECT_EQ(m.Registered(a, 3), state8);
  EXPECT_EQ(m.NumKeys(), 42);
  const Lists tables = m.Tables(a);
  const BlockPool& pool = m.manager->pool();
  const BlockHash& fine = a.content().hashes()[127];
  EXPECT_EQ(pool.hash(tables[0][1]), fine);
  EXPECT_EQ(pool.hash(tables[1][7]), fine);
  EXPECT_EQ(pool.hash(tables[2][127]), fine);
  EXPECT_EQ(pool.hash(tables[3][63]), fine);

  m.Free(a);
  Request& b = m.New(Range(0, 599));
  EXPECT_EQ(m.HitTokens(b), 512);
  const Lists hits = m.Hits(b);
  EXPECT_EQ(hits[0].size(), 2u);
  EXPECT_EQ(hits[1].size(), 8u);
  EXPECT_EQ(hits[2].size(), 128u);
  EXPECT_EQ(hits[3].size(), 64u);
  EXPECT_EQ(RealOnes(hits[0]), Blocks("1,2"));
  EXPECT_EQ(RealOnes(hits[1]), Blocks("10,11"));
  EXPECT_EQ(RealOnes(hits[2]), Blocks("140,141"));
  EXPECT_EQ(RealOnes(hits[3]), Blocks("212..227"));
  const int64_t needs[] = {3, 4, 24, 27};
  for (GroupId g = 0; g < 4; ++g) {
    EXPECT_EQ(
        m.manager->group(g).NumBlocksNeeded(nullptr, {600, 600}, hits[static_cast<size_t>(g)], 512,
                                            /*apply_cap=*/false),
        needs[g]);
  }
  const auto fresh = m.Alloc(b, 88);
  ASSERT_TRUE(fresh);
  EXPECT_EQ((*fresh)[0].size(), 1u);
  EXPECT_EQ((*fresh)[1].size(), 2u);
  EXPECT_EQ((*fresh)[2].size(), 22u);
  EXPECT_EQ((*fresh)[3].size(), 11u);
  EXPECT_EQ(m.manager->num_free_blocks(), 341);
}

TEST(BlockManagerExamples, D22_DraftGroupsHaveAMargin) {
  Model m(30, {DraftGroup(Full(4)), {.spec = Window(8, 9)}});
  Request& a = m.New(Range(0, 12));
  ASSERT_TRUE(m.Alloc(a, 13));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 12))), 8);
}

TEST(BlockManagerExamples, D23_HitsAreAdoptedBeforeExternalBlocks) {
  Model m(7, {Full(4), Window(4, 16)});
  Request& a = m.New(Range(0, 3));
  ASSERT_TRUE(m.Alloc(a, 4));
  m.Free(a);
  Request& c = m.New(Fresh(8));
  ASSERT_TRUE(m.Alloc(c, 8));
  m.Free(c);
  EXPECT_EQ(m.Queue(), Blocks("1,2,4,3,6,5"));
  Request& b = m.New(Join(Range(0, 3), Fresh(9)));
  ASSERT_TRUE(m.Alloc(b, 1, {.num_external_computed_tokens = 7}));
  EXPECT_EQ(m.Tables(b), Groups("1,4,3|2,6,5"));
}

TEST(BlockManagerExamples, D24_AllFullListsAreCut) {
  Model m(20, {Full(4), Mla(4), Window(4, 5)});
  Request& a = m.New(Range(0, 12));
  ASSERT_EQ(m.Alloc(a, 13), Groups("1..4|5..8|9..12"));
  m.Evict({11});
  Request& b = m.New(Range(0, 12));
  EXPECT_EQ(m.HitTokens(b), 8);
  EXPECT_EQ(m.Hits(b), Groups("1,2|5,6|0,10"));
}

}  // namespace
}  // namespace kvblocks::examples
