// Worked examples: Mamba states and cross attention.

#include <gtest/gtest.h>

#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Cross;
using testing::Full;
using testing::Mamba;

constexpr auto kNone = MambaCacheMode::kNone;
constexpr auto kAlign = MambaCacheMode::kAlign;
constexpr auto kAll = MambaCacheMode::kAll;

KvCacheManagerOptions CachingOff() {
  KvCacheManagerOptions options = Model::Options();
  options.enable_caching = false;
  return options;
}

TEST(BlockManagerExamples, WE42_MambaAlign) {
  Model m(30, {Full(16), Mamba(16, kAlign)});
  Request& a = m.New(Range(0, 54));
  EXPECT_EQ(m.Alloc(a, 48), Groups("1,2,3|0,0,4"));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{2}));
  m.manager->NewStepStarts();
  EXPECT_EQ(m.Alloc(a, 7), Groups("5|6"));
  EXPECT_EQ(m.Tables(a)[1], Blocks("0,0,4,6"));
  m.Append(a, {55});
  m.manager->NewStepStarts();
  EXPECT_EQ(m.Alloc(a, 1), Groups("|"));
  EXPECT_EQ(m.Tables(a)[1], Blocks("0,0,0,6"));
  EXPECT_EQ(m.Queue().back(), 4);
  Request& b = m.New(Join(Range(0, 47), Fresh(4)));
  EXPECT_EQ(m.HitTokens(b), 48);
  EXPECT_EQ(m.Hits(b), Groups("1,2,3|0,0,4"));
  EXPECT_EQ(m.Alloc(b, 4), Groups("7|8"));
  Request& c = m.New(Join(Range(0, 31), Fresh(20)));
  EXPECT_EQ(m.HitTokens(c), 0);
  EXPECT_EQ(m.LookUp(c).shared_prefix_boundary(), 32);
}

TEST(BlockManagerExamples, WE43_SameStep) {
  Model m(30, {Full(16), Mamba(16, kAlign)});
  Request& a = m.New(Range(0, 31));
  EXPECT_EQ(m.Alloc(a, 32), Groups("1,2|0,3"));
  Request& b = m.New(Range(0, 32));
  EXPECT_EQ(m.HitTokens(b), 32);
  const Ids queue = m.Queue();
  EXPECT_EQ(m.Alloc(b, 1), std::nullopt);
  EXPECT_EQ(m.Alloc(b, 1, {.full_sequence_must_fit = true}), std::nullopt);
  EXPECT_EQ(m.Queue(), queue);
  m.manager->NewStepStarts();
  const int64_t free = m.manager->num_free_blocks();
  EXPECT_EQ(m.Alloc(b, 1), Groups("4|5"));
  EXPECT_EQ(m.manager->num_free_blocks(), free - 2);
}

TEST(BlockManagerExamples, WE44_MambaScratchAndModes) {
  Model align(20, {Mamba(16, kAlign, 2)});
  Request& a = align.New(Range(0, 34));
  EXPECT_EQ(align.Alloc(a, 16), Groups("1,2,3"));
  EXPECT_EQ(align.Alloc(a, 4), Groups("4"));
  EXPECT_EQ(align.Tables(a), Groups("1,2,3,4"));
  EXPECT_EQ(align.Alloc(a, 15), Groups("5"));
  EXPECT_EQ(align.Tables(a), Groups("0,2,3,4,5"));

  Model none(20, {Mamba(64, kNone, 1)}, CachingOff());
  Request& n = none.New(Range(0, 59));
  EXPECT_EQ(none.Alloc(n, 20), Groups("1,2"));
  EXPECT_EQ(none.Alloc(n, 20), Groups(""));

  Model all(30, {Full(4), Mamba(4, kAll)});
  Request& r = all.New(Range(0, 12));
  EXPECT_EQ(all.Alloc(r, 13), Groups("1..4|5..8"));
  EXPECT_EQ(all.NumKeys(), 6);
  all.Append(r, {13});
  EXPECT_EQ(all.Alloc(r, 1), Groups("|"));
  EXPECT_EQ(all.Tables(r)[1], Blocks("0,0,0,8"));
  const Ids queue = all.Queue();
  EXPECT_EQ(Ids(queue.end() - 3, queue.end()), Blocks("7,6,5"));
  Request& shorter = all.New(Range(0, 9));
  EXPECT_EQ(all.HitTokens(shorter), 8);
  EXPECT_EQ(all.Hits(shorter), Groups("1,2|0,6"));
}

TEST(BlockManagerExamples, WE47_Cross) {
  Model m(20, {Full(4), Cross(4)}, CachingOff());
  Request& a = m.New(Range(0, 8));
  EXPECT_EQ(m.Alloc(a, 6, {.num_encoder_tokens = 10}), Groups("1,2|3,4,5"));
  EXPECT_EQ(m.Alloc(a, 3), Groups("6|"));
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("5,4,3,6,2,1,7..19"));
}

}  // namespace
}  // namespace kvblocks::examples
