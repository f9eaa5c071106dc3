// Hits by tenant, class, turn and prefix.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/sim/testing/measured_replay.h"

namespace kvblocks::sim {
namespace {

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

}  // namespace
}  // namespace kvblocks::sim
