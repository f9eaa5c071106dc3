// Where hits are found, and what groups hold over time.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/testing/measured_replay.h"

namespace kvblocks::sim {
namespace {

TEST(HitReuseTest, SaysPlaceAndDistanceOfFreeBlocks) {
  // Seven usable blocks; each request takes three, of which the last has no key and is free first.
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 15});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 20, .content = content});
  Measured m;
  Measure(replay, &m);
  // As many blocks as the pool has were handed out before A2. The queue is then: C's last block, A's
  // second and first, two of B, two of C.
  const pb::HitReuse& reuse = m.report.hit_reuse();
  EXPECT_EQ(reuse.admissions(), 1);
  EXPECT_EQ(reuse.hit_blocks(), 2);
  EXPECT_EQ(reuse.in_use_blocks(), 0);
  ASSERT_EQ(reuse.blocks_by_place_size(), 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(reuse.blocks_by_place(i), i == 1 * 20 / 7 || i == 2 * 20 / 7 ? 1 : 0) << i;
  }
  // B and C took three blocks each.
  ASSERT_EQ(reuse.distance_quantiles_blocks_size(), 101);
  EXPECT_EQ(reuse.distance_quantiles_blocks(0), 6);
  EXPECT_EQ(reuse.distance_quantiles_blocks(100), 6);
}

TEST(HitReuseTest, BlocksInUseHaveNoPlace) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "A2", .prompt = 9, .output = 3, .at = 10, .content = content});
  replay.Add({.id = "A3", .prompt = 9, .output = 1, .at = 11, .content = content});
  Measured m;
  Measure(replay, &m);
  const pb::HitReuse& reuse = m.report.hit_reuse();
  EXPECT_EQ(reuse.admissions(), 1);
  EXPECT_EQ(reuse.hit_blocks(), 2);
  EXPECT_EQ(reuse.in_use_blocks(), 2);
  for (const int64_t count : reuse.blocks_by_place()) EXPECT_EQ(count, 0);
  EXPECT_EQ(reuse.distance_quantiles_blocks_size(), 0);
}

TEST(HitReuseTest, GroupsAreCountedOverTime) {
  Replay replay;
  replay.config.kv_cache.groups.push_back(WindowGroup(4, 8));
  replay.config.kv_cache.num_blocks = 40;
  for (int i = 0; i < 3000; ++i) {
    replay.Add({.id = absl::StrCat(i), .prompt = 14 + i % 7, .output = 2, .at = 2.0 * i});
  }
  Measured m;
  Measure(replay, &m);
  const auto& samples = m.report.group_occupancy();
  ASSERT_EQ(m.report.groups_size(), 2);
  // 3,000 requests of some 9 blocks and a count per 10 of them: too many to be kept.
  EXPECT_GE(samples.size(), 200);
  EXPECT_LE(samples.size(), 400);
  EXPECT_GT(samples[samples.size() - 1].time_s(), 5000);
  EXPECT_EQ(samples[0].time_s(), 0);
  for (int i = 0; i < samples.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(samples[i].time_s(), samples[i - 1].time_s());
    }
    ASSERT_EQ(samples[i].live_blocks_size(), 2);
    ASSERT_EQ(samples[i].cached_blocks_size(), 2);
    int64_t all = 0;
    for (int g = 0; g < 2; ++g) {
      EXPECT_LE(samples[i].live_blocks(g), m.report.groups(g).live_blocks().peak());
      EXPECT_LE(samples[i].cached_blocks(g), m.report.groups(g).cached_blocks().peak());
      all += samples[i].live_blocks(g) + samples[i].cached_blocks(g);
    }
    EXPECT_LE(all, 39);
    EXPECT_GT(all, 0);
  }
}

}  // namespace
}  // namespace kvblocks::sim
