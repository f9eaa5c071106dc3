// SM-29: who is admitted first, one small workload per policy.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// One request at a time, blocks of 4, steps of 1 s.
class SchedulerPoliciesTest : public ::testing::Test {
 protected:
  SchedulerPoliciesTest() {
    replay_.config.kv_cache.num_blocks = 1000;
    replay_.config.manager.max_model_len = 1000;
    replay_.config.scheduler.max_num_seqs = 1;
  }

  void Add(const std::string& id, double at, int64_t prompt, int64_t output = 1,
           int64_t document = 0) {
    ReplayRequest request = {.id = id, .prompt = prompt, .output = output, .at = at};
    for (int64_t t = 0; t < prompt && document > 0; ++t) {
      request.content.push_back(1000 * document + t);
    }
    replay_.Add(request);
    ids_.push_back(id);
  }
  void AddFive() {
    Add("A", 0, 4);
    Add("B", 0.5, 20, 3);
    Add("C", 0.5, 7, 2);
    Add("D", 0.5, 7, 5);
    Add("E", 2.5, 1);
  }
  // In the order in which they ran first.
  std::string Run(SchedulingPolicy policy, uint64_t seed = 0) {
    replay_.config.scheduler.policy = policy;
    replay_.config.scheduler.policy_seed = seed;
    const absl::Status status = replay_.Run();
    EXPECT_TRUE(status.ok()) << status;
    std::stable_sort(ids_.begin(), ids_.end(), [&](const std::string& a, const std::string& b) {
      return replay_.first_scheduled.at(a) < replay_.first_scheduled.at(b);
    });
    std::string order;
    for (const std::string& id : ids_) order += id;
    return order;
  }

  Replay replay_;
  std::vector<std::string> ids_;
};

TEST_F(SchedulerPoliciesTest, SM29_ShortestPrompt) {
  AddFive();
  EXPECT_EQ(Run(SchedulingPolicy::kShortestPrompt), "ACEDB");
}

TEST_F(SchedulerPoliciesTest, SM29_LongestOutput) {
  AddFive();
  EXPECT_EQ(Run(SchedulingPolicy::kLongestOutput), "ADBCE");
}

TEST_F(SchedulerPoliciesTest, SM29_RandomIsDrawnBySeed) {
  std::vector<std::string> orders;
  for (uint64_t seed : {1, 1, 2, 3}) {
    replay_ = Replay();
    replay_.config.scheduler.max_num_seqs = 1;
    ids_.clear();
    for (int i = 0; i < 10; ++i) Add(std::string(1, static_cast<char>('A' + i)), 0, 4);
    orders.push_back(Run(SchedulingPolicy::kRandom, seed));
    EXPECT_EQ(orders.back().size(), 10);
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  EXPECT_NE(orders[2], orders[3]);
  EXPECT_NE(orders[1], "ABCDEFGHIJ");
}

TEST_F(SchedulerPoliciesTest, SM29_TheLongestCachedPrefix) {
  Add("A", 0, 41, 1, /*document=*/1);
  Add("B", 0.5, 9);
  Add("C", 0.5, 21, 1, 1);
  Add("D", 0.5, 61, 1, 1);
  EXPECT_EQ(Run(SchedulingPolicy::kLongestPrefix), "ADCB");
}

TEST_F(SchedulerPoliciesTest, SM29_WhoBeginsAlikeWaitsForTheFirstOfThem) {
  replay_.config.scheduler.max_num_seqs = 2;
  Add("A", 0, 33, 2, 1);
  Add("B", 0, 40, 1, 1);
  Add("C", 0, 34, 2, 2);
  EXPECT_EQ(Run(SchedulingPolicy::kLongestPrefix), "ACB");
}

TEST_F(SchedulerPoliciesTest, SM29_AShorterCommonBeginningMakesNobodyWait) {
  replay_.config.scheduler.max_num_seqs = 2;
  Add("A", 0, 31, 2, 1);
  Add("B", 0, 31, 2, 1);
  Add("C", 0, 34, 2, 2);
  EXPECT_EQ(Run(SchedulingPolicy::kLongestPrefix), "ABC");
}

TEST_F(SchedulerPoliciesTest, SM29_WithMoreThan128WaitingByArrival) {
  Add("first", 0, 41, 1, 1);
  for (int i = 0; i < 129; ++i) Add(absl::StrCat("own", i), 0.5, 5);
  Add("hits", 0.5, 41, 1, 1);
  Run(SchedulingPolicy::kLongestPrefix);
  // 130 wait at 1 s, 129 at 2 s.
  EXPECT_EQ(replay_.first_scheduled.at("own0"), 1);
  EXPECT_EQ(replay_.first_scheduled.at("own1"), 2);
  EXPECT_EQ(replay_.first_scheduled.at("hits"), 3);
}

TEST_F(SchedulerPoliciesTest, SM29_TheHeavierSubtreeFirst) {
  Add("1", 0, 17, 1, 1);
  Add("2", 0, 17, 1, 2);
  Add("A", 1.5, 9);
  Add("B", 1.5, 21, 1, 1);
  Add("C", 1.5, 10, 1, 2);
  Add("D", 1.5, 21, 1, 2);
  Add("E", 1.5, 21, 1, 2);
  // C's node lies above that of D and E; when it is alone there, B came before.
  EXPECT_EQ(Run(SchedulingPolicy::kPrefixTree), "12DEBCA");
}

TEST_F(SchedulerPoliciesTest, SM29_NobodyIsPreemptedWhoseBlocksAreReserved) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kNoEvict}) {
    replay_ = Replay();
    replay_.config.kv_cache.num_blocks = 7;
    ids_.clear();
    Add("A", 0, 8, 6);  // 4 of 6 blocks in the end
    Add("B", 0.5, 8, 6);
    EXPECT_EQ(Run(policy), "AB");
    const bool reserves = policy == SchedulingPolicy::kNoEvict;
    EXPECT_EQ(replay_.result.scheduler.num_preemptions > 0, !reserves);
    EXPECT_EQ(replay_.first_scheduled.at("B"), reserves ? 6 : 1);
  }
}

TEST_F(SchedulerPoliciesTest, SM29_PrefixesNeedCaching) {
  Add("A", 0, 8, 6);
  replay_.config.manager.enable_caching = false;
  for (const SchedulingPolicy policy :
       {SchedulingPolicy::kLongestPrefix, SchedulingPolicy::kPrefixTree}) {
    replay_.config.scheduler.policy = policy;
    EXPECT_THAT(replay_.Run().message(),
                AllOf(HasSubstr(SchedulingPolicyName(policy)), HasSubstr("caching is off")));
  }
}

TEST(SchedulingPolicyTest, NamesAreParsedBack) {
  for (int i = 0; i <= static_cast<int>(SchedulingPolicy::kNoEvict); ++i) {
    const auto policy = static_cast<SchedulingPolicy>(i);
    EXPECT_EQ(ParseSchedulingPolicy(SchedulingPolicyName(policy)), policy);
  }
  EXPECT_EQ(ParseSchedulingPolicy("FCFS"), std::nullopt);
}

}  // namespace
}  // namespace kvblocks::sim
