#include "kvblocks/sim/trace/trace_problem.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

TEST(TraceProblemTest, KindsHaveNamesOfTheirOwnAndMeanings) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumProblemKinds; ++i) {
    const ProblemKind kind = static_cast<ProblemKind>(i);
    EXPECT_TRUE(names.insert(ProblemKindName(kind)).second) << i;
    EXPECT_EQ(ProblemKindName(kind).find_first_not_of("abcdefghijklmnopqrstuvwxyz-"),
              std::string_view::npos);
    EXPECT_FALSE(ProblemKindMeaning(kind).empty()) << i;
  }
}

TEST(TraceProblemTest, MessagesReadBack) {
  TraceProblem problem;
  problem.line = 17;
  problem.column = 3;
  problem.text = "JSON: got x, expected y (z)";
  EXPECT_EQ(ProblemMessage("a/b:c.jsonl", problem),
            "a/b:c.jsonl:17:3: error: JSON: got x, expected y (z)");
  TraceProblem parsed;
  ASSERT_TRUE(ParseProblem("a/b:c.jsonl",
                           absl::DataLossError(ProblemMessage("a/b:c.jsonl", problem)), &parsed));
  EXPECT_EQ(parsed.line, 17);
  EXPECT_EQ(parsed.column, 3);
  EXPECT_EQ(parsed.text, problem.text);
  EXPECT_EQ(parsed.kind, ProblemKind::kStream);
  problem.column = 0;
  ASSERT_TRUE(ParseProblem("f", absl::UnimplementedError(ProblemMessage("f", problem)), &parsed));
  EXPECT_EQ(parsed.column, 0);
  EXPECT_EQ(parsed.kind, ProblemKind::kFormat);
}

TEST(TraceProblemTest, OtherStatusesAreNotAboutTheContent) {
  TraceProblem parsed;
  for (const char* message :
       {"f: error: cannot open: No such file or directory", "--speedup: got 0", "", "f:", "f:x",
        "f:1", "f:99999999999999999999: error: x", "g:1: error: x", "f::1: error: x"}) {
    EXPECT_FALSE(ParseProblem("f", absl::InvalidArgumentError(message), &parsed)) << message;
  }
}

TEST(TraceProblemTest, TextsSplitIntoTheirParts) {
  const auto split = [](std::string_view text) {
    const ProblemParts parts = SplitProblem(text);
    return parts.what + "|" + parts.got + "|" + parts.expected + "|" + parts.hint;
  };
  EXPECT_EQ(split("number of block ids: got 1, expected 3 or 2 for 1300 tokens (--x)"),
            "number of block ids|1|3 or 2 for 1300 tokens|--x");
  EXPECT_EQ(split("input_length: got -8, expected 0"), "input_length|-8|0|");
  EXPECT_EQ(split("wait_for: got \"a\", the request itself, expected no cycle"),
            "wait_for|\"a\", the request itself|no cycle|");
  // Values may hold what stands around them.
  EXPECT_EQ(split("id: got \"x: got y, expected z (w)\", expected a number (at (1))"),
            "id|\"x: got y, expected z (w)\"|a number|at (1)");
  EXPECT_EQ(split("truncated record length"), "truncated record length|||");
  EXPECT_EQ(split(", expected x: got y"), ", expected x: got y|||");
  EXPECT_EQ(split("a: got , expected (x)"), "a||(x)|");
  EXPECT_EQ(split("a: got b, expected c )"), "a|b|c )|");
  EXPECT_EQ(split(""), "|||");
}

}  // namespace
}  // namespace kvblocks::sim
