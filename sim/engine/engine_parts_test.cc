// The small parts of the engine: acceptance of drafts, skipped decodes, the waiting queue, rules of
// --retain.

#include <deque>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/engine/acceptance.h"
#include "sim/engine/retention_rules.h"
#include "sim/engine/skipped_decodes.h"
#include "sim/engine/waiting_queue.h"

namespace kvblocks::sim {
namespace {

using Kind = AcceptanceModel::Kind;

SimRequest RequestOfRow(int64_t row) {
  SimRequest request;
  request.spec.row = row;
  return request;
}

TEST(AcceptanceTest, TraceListComesFirstAndIsClamped) {
  const AcceptanceSampler sampler({.kind = Kind::kFixed, .fixed = 1}, 3);
  SimRequest request = RequestOfRow(0);
  request.spec.accepted_drafts = {2, 0, 4000000000u};
  EXPECT_EQ(sampler.NumAccepted(request, 3), 2);
  EXPECT_EQ(sampler.NumAccepted(request, 1), 1);
  request.num_verifications = 1;
  EXPECT_EQ(sampler.NumAccepted(request, 3), 0);
  request.num_verifications = 2;
  EXPECT_EQ(sampler.NumAccepted(request, 3), 3);
  request.num_verifications = 3;  // beyond the list: the model
  EXPECT_EQ(sampler.NumAccepted(request, 3), 1);
}

TEST(AcceptanceTest, CertaintiesAreCertain) {
  const AcceptanceSampler never({.kind = Kind::kIid, .probabilities = {0.0}}, 4);
  const AcceptanceSampler always({.kind = Kind::kIid, .probabilities = {1.0}}, 4);
  const AcceptanceSampler table({.kind = Kind::kTable, .probabilities = {1.0, 1.0, 0.0, 1.0}}, 4);
  SimRequest request = RequestOfRow(3);
  for (request.num_verifications = 0; request.num_verifications < 1000;
       ++request.num_verifications) {
    EXPECT_EQ(never.NumAccepted(request, 4), 0);
    EXPECT_EQ(always.NumAccepted(request, 4), 4);
    EXPECT_EQ(table.NumAccepted(request, 4), 2);
  }
}

TEST(AcceptanceTest, IidMeanIsThatOfTheFormula) {
  const double p = 0.7;
  const AcceptanceSampler sampler({.kind = Kind::kIid, .probabilities = {p}, .seed = 5}, 4);
  int64_t sum = 0;
  const int64_t rows = 200, steps = 500;
  for (int64_t row = 0; row < rows; ++row) {
    SimRequest request = RequestOfRow(row);
    for (; request.num_verifications < steps; ++request.num_verifications) {
      sum += sampler.NumAccepted(request, 4) + 1;
    }
  }
  const double expected = (1 - p * p * p * p * p) / (1 - p);
  EXPECT_NEAR(static_cast<double>(sum) / static_cast<double>(rows * steps), expected, 0.02);
}

TEST(AcceptanceTest, OrderOfRequestsPlaysNoPart) {
  const AcceptanceSampler sampler({.kind = Kind::kIid, .probabilities = {0.5}, .seed = 1}, 8);
  int64_t differ_by_id = 0;
  for (int64_t i = 0; i < 100; ++i) {
    for (const std::string& name : {std::to_string(i), "chat-" + std::to_string(i)}) {
      SimRequest request = RequestOfRow(i);
      request.spec.id = name;
      SimRequest moved = RequestOfRow(1000 - i);
      moved.spec.id = name;
      EXPECT_EQ(sampler.NumAccepted(request, 8), sampler.NumAccepted(moved, 8));
      moved.spec.id = name + "0";
      differ_by_id += sampler.NumAccepted(request, 8) != sampler.NumAccepted(moved, 8);
    }
  }
  EXPECT_GT(differ_by_id, 60);
}

TEST(AcceptanceTest, DrawsDependOnSeedRequestAndVerificationOnly) {
  const AcceptanceModel model{.kind = Kind::kIid, .probabilities = {0.5}, .seed = 1};
  AcceptanceModel other_seed = model;
  other_seed.seed = 2;
  const AcceptanceSampler a(model, 8), again(model, 8), other(other_seed, 8);
  int64_t differ_by_seed = 0, differ_by_row = 0, differ_by_step = 0;
  for (int64_t row = 0; row < 100; ++row) {
    SimRequest request = RequestOfRow(row);
    const int64_t accepted = a.NumAccepted(request, 8);
    EXPECT_EQ(accepted, again.NumAccepted(request, 8));
    // Fewer drafts see the same luck.
    EXPECT_EQ(std::min<int64_t>(accepted, 2), a.NumAccepted(request, 2));
    differ_by_seed += accepted != other.NumAccepted(request, 8);
    differ_by_row += accepted != a.NumAccepted(RequestOfRow(row + 1), 8);
    request.num_verifications = 1;
    differ_by_step += accepted != a.NumAccepted(request, 8);
  }
  EXPECT_GT(differ_by_seed, 30);
  EXPECT_GT(differ_by_row, 30);
  EXPECT_GT(differ_by_step, 30);
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

SimRequest With(int64_t admission, int64_t num_computed) {
  SimRequest request;
  request.admission = admission;
  request.num_computed = num_computed;
  return request;
}

class SkippedDecodesTest : public ::testing::Test {
 protected:
  // Steps are scheduled one after the other.
  void Step() {
    skipped_.Advance();
    ++next_;
  }
  std::vector<SimRequest*> Due() {
    std::vector<SimRequest*> due;
    skipped_.TakeDue(next_, &due);
    return due;
  }
  SkippedDecodes skipped_;
  int64_t next_ = 11;  // step 10 was the last one
};

TEST_F(SkippedDecodesTest, MembersComeBackWhenTheyAreDue) {
  SimRequest a = With(1, 100), b = With(2, 200), c = With(3, 300);
  skipped_.Add(a, 10, 13);
  skipped_.Add(b, 10, 12);
  skipped_.Add(c, 10, 13);
  EXPECT_EQ(skipped_.latest_admission(), 3);
  EXPECT_EQ(skipped_.sum_computed(), 600);
  EXPECT_THAT(Due(), IsEmpty());
  Step();
  EXPECT_EQ(skipped_.sum_computed(), 603);
  EXPECT_THAT(Due(), ElementsAre(&b));
  EXPECT_EQ(skipped_.sum_computed(), 402);
  Step();
  EXPECT_EQ(SkippedDecodes::NumComputed(a, next_), 102);
  EXPECT_THAT(Due(), UnorderedElementsAre(&a, &c));
  EXPECT_EQ(skipped_.size(), 0);
  EXPECT_EQ(skipped_.sum_computed(), 0);
  EXPECT_EQ(skipped_.latest_admission(), -1);
}

TEST_F(SkippedDecodesTest, RemovedMemberDoesNotComeBack) {
  SimRequest a = With(1, 100), b = With(2, 200);
  skipped_.Add(a, 10, 12);
  skipped_.Add(b, 10, 12);
  skipped_.Remove(a, next_);
  EXPECT_EQ(skipped_.sum_computed(), 200);
  Step();
  EXPECT_THAT(Due(), ElementsAre(&b));
}

TEST_F(SkippedDecodesTest, AllCanBeTakenAtOnce) {
  SimRequest a = With(1, 100), b = With(2, 200);
  skipped_.Add(a, 10, 10 + SkippedDecodes::kHorizon);
  Step();
  skipped_.Add(b, 11, 13);
  std::vector<SimRequest*> all;
  skipped_.TakeAll(next_, &all);
  EXPECT_THAT(all, UnorderedElementsAre(&a, &b));
  EXPECT_EQ(skipped_.size(), 0);
  EXPECT_EQ(skipped_.sum_computed(), 0);
  skipped_.ForEach([](const SimRequest&) { FAIL(); });
}

TEST_F(SkippedDecodesTest, WE30_SumsOfARunAreThoseOfTheClosedForm) {
  // 16 ms per step and 40 ns per context token, the new one included; 4 requests with 4,000 tokens
  // in all, 10 steps.
  SimRequest requests[] = {With(1, 500), With(2, 1500), With(3, 700), With(4, 1300)};
  for (SimRequest& request : requests) skipped_.Add(request, 10, 30);
  int64_t time = 0;
  for (int i = 0; i < 10; ++i) {
    time += 16'000'000'000 + 40'000 * (skipped_.sum_computed() + skipped_.size());
    Step();
  }
  EXPECT_EQ(time, 161'608'800'000);
}

class WaitingQueueTest : public ::testing::Test {
 protected:
  SimRequest* Make(const std::string& id, int32_t priority, SimTime arrival) {
    SimRequest& request = requests_.emplace_back();
    request.spec.id = id;
    request.spec.row = static_cast<int64_t>(requests_.size()) - 1;
    request.spec.priority = priority;
    request.arrival = arrival;
    return &request;
  }
  static std::string Drain(WaitingQueue& queue) {
    std::string ids;
    while (!queue.empty()) {
      ids += queue.front()->spec.id;
      queue.PopFront();
    }
    return ids;
  }
  std::deque<SimRequest> requests_;
};

TEST_F(WaitingQueueTest, FcfsPutsPreemptedRequestsInFront) {
  WaitingQueue queue(SchedulingPolicy::kFcfs);
  queue.AddArrived(Make("a", 9, 1));
  queue.AddArrived(Make("b", 0, 2));
  queue.AddPreempted(Make("c", 5, 0));
  queue.AddPreempted(Make("d", 5, 0));
  EXPECT_EQ(queue.size(), 4);
  EXPECT_EQ(Drain(queue), "dcab");
}

TEST_F(WaitingQueueTest, PriorityOrdersByPriorityThenArrivalThenSubmission) {
  WaitingQueue queue(SchedulingPolicy::kPriority);
  queue.AddArrived(Make("a", 1, 5));
  queue.AddArrived(Make("b", 0, 7));
  queue.AddPreempted(Make("c", 1, 3));
  SimRequest* e = Make("e", 0, 7);
  queue.AddArrived(Make("d", 0, 7));
  queue.AddArrived(e);
  EXPECT_EQ(Drain(queue), "bedca");
}

TEST_F(WaitingQueueTest, RemovesFromTheMiddle) {
  for (SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    WaitingQueue queue(policy);
    queue.AddArrived(Make("a", 0, 1));
    SimRequest* b = Make("b", 0, 2);
    queue.AddArrived(b);
    queue.AddArrived(Make("c", 0, 3));
    queue.Remove(b);
    EXPECT_EQ(queue.size(), 2);
    EXPECT_EQ(Drain(queue), "ac");
  }
}

TEST(RetentionRulesTest, RulesAreReadInTheirOrder) {
  const auto rules = ParseRetentionRules(
      "first:tokens=1024:priority=80,shared:uses=3,session:ttl=5min,all:ttl=1s:priority=1");
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->size(), 4u);
  EXPECT_EQ((*rules)[0],
            (RetentionRule{.kind = RetentionRule::Kind::kFirst, .tokens = 1024, .priority = 80}));
  EXPECT_EQ((*rules)[1], (RetentionRule{.kind = RetentionRule::Kind::kShared, .uses = 3}));
  EXPECT_EQ((*rules)[2],
            (RetentionRule{.kind = RetentionRule::Kind::kSession, .ttl = 300 * kSecond}));
  EXPECT_EQ((*rules)[3],
            (RetentionRule{.kind = RetentionRule::Kind::kAll, .priority = 1, .ttl = kSecond}));
  EXPECT_TRUE(ParseRetentionRules("")->empty());
}

TEST(RetentionRulesTest, WhatIsNoRuleIsRefusedWithWhatIsExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"last", "expected first:tokens=N, shared:uses=N, session or all"},
      {"first", "got \"first\", expected tokens=N in it"},
      {"shared:ttl=1s", "expected uses=N in it"},
      {"first:tokens=0", "expected tokens=1 to 2147483647"},
      {"shared:uses=x", "expected uses=1 to"},
      {"all:uses=3", "expected priority=P or ttl=TIME instead of \"uses=3\""},
      {"all:priority=101", "expected priority=1 to 100"},
      {"session:ttl=5", "expected ttl=TIME above zero"},
      {"session:ttl=0s", "expected ttl=TIME above zero"},
      {"all,", "got \"\""}};
  for (const auto& [text, message] : cases) {
    const auto rules = ParseRetentionRules(text);
    ASSERT_FALSE(rules.ok()) << text;
    EXPECT_NE(rules.status().message().find(message), std::string::npos)
        << text << ": " << rules.status();
  }
}

}  // namespace

}  // namespace kvblocks::sim
