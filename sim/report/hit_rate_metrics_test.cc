#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

// --- Hit groups ---

// Hits by tenant, class, turn and prefix.
void ExpectGroup(const pb::HitGroup& group, const std::string& name, int64_t requests, int64_t hit,
                 int64_t queried) {
  EXPECT_EQ(group.name(), name);
  EXPECT_EQ(group.requests(), requests) << name;
  EXPECT_EQ(group.token_hit_rate().numerator(), hit) << name;
  EXPECT_EQ(group.token_hit_rate().denominator(), queried) << name;
}

TEST(HitGroupsTest, TenantsClassesTurnsAndPrefixes) {
  TraceInfo info;
  info.block_tokens = 1;
  TraceRequest first;  // of a session of tenant t
  first.input_length = 9;
  first.content_ids = Content(9, 0, 9);
  first.tenant = "t";
  first.slo_class = "chat";
  first.session = 1;
  TraceRequest second = first;  // hits two blocks
  second.input_length = 13;
  second.content_ids = Content(13, 0, 13);
  second.turn = 1;
  TraceRequest late = second;  // hits three blocks less the last token's: 12 tokens
  late.turn = 40;
  TraceRequest other;  // nobody's
  other.input_length = 5;
  other.content_ids = Content(0, 500, 5);
  TraceRequest again = other;  // hits one block
  TraceRequest tiny;
  tiny.input_length = 3;
  tiny.content_ids = Content(3, 0, 3);
  const pb::Report report = MeasureRequests({first, second, late, other, again, tiny}, info);
  ExpectCausesAddUp(report);
  const pb::HitGroups& groups = report.hit_groups();
  ASSERT_EQ(groups.tenants_size(), 2);
  ExpectGroup(groups.tenants(0), "t", 3, 8 + 12, 9 + 13 + 13);
  ExpectGroup(groups.tenants(1), "", 3, 4, 5 + 5 + 3);
  ASSERT_EQ(groups.classes_size(), 2);
  ExpectGroup(groups.classes(0), "chat", 3, 20, 35);
  ASSERT_EQ(groups.turns_size(), 3);
  ExpectGroup(groups.turns(0), "0", 4, 4, 9 + 5 + 5 + 3);
  ExpectGroup(groups.turns(1), "1", 1, 8, 13);
  ExpectGroup(groups.turns(2), ">= 16", 1, 12, 13);
  // The prompt of three tokens fills no block.
  EXPECT_EQ(groups.distinct_prefixes(), 2);
  ASSERT_EQ(groups.top_prefixes_size(), 2);
  ExpectGroup(groups.top_prefixes(0).hits(), groups.top_prefixes(0).hits().name(), 3, 20, 35);
  EXPECT_EQ(groups.top_prefixes(0).hits().name().size(), 16u);
  EXPECT_EQ(groups.top_prefixes(0).first_row(), 0);
  ExpectGroup(groups.top_prefixes(1).hits(), groups.top_prefixes(1).hits().name(), 2, 4, 10);
  EXPECT_EQ(groups.top_prefixes(1).first_row(), 3);
}

TEST(HitGroupsTest, ListsHaveAnEndAndStillAddUp) {
  TraceInfo info;
  info.block_tokens = 1;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 120; ++i) {
    TraceRequest request;
    request.input_length = 5;
    request.content_ids = Content(0, 1000 * (i / 2), 5);
    request.tenant = "tenant " + std::to_string(i);
    requests.push_back(request);
  }
  const pb::Report report = MeasureRequests(requests, info);
  ExpectCausesAddUp(report);
  const pb::HitGroups& groups = report.hit_groups();
  ASSERT_EQ(groups.tenants_size(), 100);
  ExpectGroup(groups.tenants(99), "(21 others)", 21,
              groups.tenants(99).token_hit_rate().numerator(), 21 * 5);
  EXPECT_EQ(groups.distinct_prefixes(), 60);
  // All have four hit tokens: the first ones are listed.
  ASSERT_EQ(groups.top_prefixes_size(), 10);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(groups.top_prefixes(i).first_row(), 2 * i);
}

// --- Hit reuse ---

// Where hits are found, and what groups hold over time.
TEST(HitReuseTest, SaysPlaceAndDistanceOfFreeBlocks) {
  // Seven usable blocks; each request takes three, of which the last has no key and is free first.
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  const auto content = Content(9, 0, 9);
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = content});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 10});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 15});
  replay.Add({.id = "A2", .prompt = 9, .output = 1, .at = 20, .content = content});
  const pb::Report report = ReportOf(replay);
  // As many blocks as the pool has were handed out before A2. The queue is then: C's last block, A's
  // second and first, two of B, two of C.
  const pb::HitReuse& reuse = report.hit_reuse();
  EXPECT_FIELDS(reuse, "admissions 1, hit_blocks 2, in_use_blocks 0");
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
  const pb::Report report = ReportOf(replay);
  const pb::HitReuse& reuse = report.hit_reuse();
  EXPECT_FIELDS(reuse, "admissions 1, hit_blocks 2, in_use_blocks 2");
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
  const pb::Report report = ReportOf(replay);
  const auto& samples = report.group_occupancy();
  ASSERT_EQ(report.groups_size(), 2);
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
      EXPECT_LE(samples[i].live_blocks(g), report.groups(g).live_blocks().peak());
      EXPECT_LE(samples[i].cached_blocks(g), report.groups(g).cached_blocks().peak());
      all += samples[i].live_blocks(g) + samples[i].cached_blocks(g);
    }
    EXPECT_LE(all, 39);
    EXPECT_GT(all, 0);
  }
}

}  // namespace
}  // namespace kvblocks::sim
