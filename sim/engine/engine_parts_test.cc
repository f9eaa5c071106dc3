// The small parts of the engine: acceptance of drafts, rules of --retain.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/engine/acceptance.h"
#include "sim/engine/retention_rules.h"

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
