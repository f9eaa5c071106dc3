// What --retain accepts, and which requests a rule is about.

#include "kvblocks/sim/engine/retention_rules.h"

#include <string>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using Kind = RetentionRule::Kind;

TEST(RetentionRulesTest, RulesAreReadInTheirOrder) {
  const auto rules = ParseRetentionRules(
      "first:tokens=1024:priority=80,shared:uses=3,session:ttl=5min,all:ttl=1s:priority=1");
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->size(), 4u);
  EXPECT_EQ((*rules)[0],
            (RetentionRule{.kind = Kind::kFirst, .tokens = 1024, .priority = 80}));
  EXPECT_EQ((*rules)[1], (RetentionRule{.kind = Kind::kShared, .uses = 3}));
  EXPECT_EQ((*rules)[2], (RetentionRule{.kind = Kind::kSession, .ttl = 300 * kSecond}));
  EXPECT_EQ((*rules)[3], (RetentionRule{.kind = Kind::kAll, .priority = 1, .ttl = kSecond}));
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
