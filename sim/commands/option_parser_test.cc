#include "kvblocks/sim/commands/option_parser.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A program with a command that has one option of each kind.
struct Program {
  Program() {
    command->Add({.name = "IN", .is_required = true}, &in);
    command->Add({.name = "--rows,--queries", .unit = "N"}, 1, 10, &rows);
    command->Add({.name = "--color", .unit = "auto|never"}, &color);
    command->Add({.name = "--request"}, &request);
    command->AddRepeated({.name = "--tolerance"}, &tolerances);
    command->AddList({.name = "--lengths"}, 1, 100, &lengths);
    command->AddFlag({.name = "--quiet"}, &quiet);
    command->AddFlag({.name = "--spread"}, [this](bool value) { spread = value; });
    command->Add({.name = "--even"}, [this](const std::string& value) -> std::string {
      even = value;
      return value.size() % 2 == 0 ? "" : "got an odd text, expected an even one";
    });
    command->Add({.name = "--depth", .unit = "N", .is_common = false, .needs = "--rows,--even"}, 0,
                 9, &depth);
    other->AddLater([this] { other->Add({.name = "--late"}, &request); });
  }

  ParseOutcome Parse(std::vector<std::string> arguments) {
    std::vector<char*> argv = {name.data()};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    return program.Parse(static_cast<int>(argv.size()), argv.data(), &text);
  }

  std::string name = "program";
  OptionParser program{name, "does things"};
  OptionParser* command = program.AddCommand("run", "does one of them");
  OptionParser* other = program.AddCommand("walk", "does another");
  std::string text, in, color = "auto", even;
  std::optional<std::string> request;
  std::optional<bool> spread;
  std::vector<std::string> tolerances;
  std::vector<int64_t> lengths;
  int64_t rows = 7, depth = 0;
  bool quiet = false;
};

TEST(OptionParserTest, ValuesLandInTheVariables) {
  Program p;
  ASSERT_EQ(
      p.Parse({"run", "file", "--rows=3", "--color", "never", "--request=7", "--tolerance=a",
               "--tolerance=b", "--lengths", "5", "6", "--quiet", "--no-spread", "--even=xy"}),
      ParseOutcome::kParsed)
      << p.text;
  EXPECT_TRUE(p.command->is_chosen());
  EXPECT_FALSE(p.other->is_chosen());
  EXPECT_EQ(p.in, "file");
  EXPECT_EQ(p.rows, 3);
  EXPECT_EQ(p.color, "never");
  EXPECT_EQ(p.request, "7");
  EXPECT_THAT(p.tolerances, ElementsAre("a", "b"));
  EXPECT_THAT(p.lengths, ElementsAre(5, 6));
  EXPECT_TRUE(p.quiet);
  EXPECT_EQ(p.spread, false);
  EXPECT_EQ(p.even, "xy");
}

TEST(OptionParserTest, WhatIsNotGivenStays) {
  Program p;
  ASSERT_EQ(p.Parse({"run", "file", "--queries=4", "--no-spread", "--spread"}),
            ParseOutcome::kParsed);
  EXPECT_EQ(p.rows, 4);
  EXPECT_EQ(p.spread, true);
  EXPECT_EQ(p.color, "auto");
  EXPECT_EQ(p.request, std::nullopt);
  EXPECT_TRUE(p.tolerances.empty());
  EXPECT_FALSE(p.quiet);
}

TEST(OptionParserTest, MessagesNameOptionValueAndExpectation) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"run", "f", "--rows=0"}, "program run: --rows: got 0, expected 1 to 10\n"},
      {{"run", "f", "--queries=ten"}, "--rows: got \"ten\", expected a whole number\n"},
      {{"run", "f", "--lengths", "5", "101"}, "--lengths: got 101, expected 1 to 100\n"},
      {{"run", "f", "--color=x"}, "--color: got \"x\", expected one of auto, never\n"},
      {{"run", "f", "--even=x"}, "--even: got an odd text, expected an even one\n"},
      {{"run", "f", "--row=3"}, "unknown option --row; did you mean --rows?\n"},
      {{"run", "f", "--rows=1", "--rows=2"}, "--rows"},
      {{"run"}, "IN is required"},
      {{"run", "f", "--depth=1", "--rows=2"}, "program run: --depth needs --even\n"},
      {{"run", "f", "--depth=1"}, "program run: --depth needs --rows=N and --even\n"},
      {{"walk", "--quiet"}, "program walk: unknown option --quiet\n(program walk --help"},
      {{"fly"}, "program: "},
  };
  for (const auto& [arguments, expected] : cases) {
    Program p;
    EXPECT_EQ(p.Parse(arguments), ParseOutcome::kRefused) << expected;
    EXPECT_THAT(p.text, HasSubstr(expected));
  }
}

TEST(OptionParserTest, HelpIsThatOfTheCommand) {
  Program p;
  EXPECT_EQ(p.Parse({"run", "--help"}), ParseOutcome::kHelp);
  EXPECT_THAT(p.text, HasSubstr("Usage: program run"));
  EXPECT_THAT(p.text, HasSubstr("--[no-]spread"));
  EXPECT_THAT(Program().program.Help(), HasSubstr("walk"));
}

TEST(OptionParserTest, HelpListsCommonOptionsAndHelpAllListsAll) {
  Program p;
  EXPECT_EQ(p.Parse({"run", "--help"}), ParseOutcome::kHelp);
  EXPECT_THAT(p.text, Not(HasSubstr("--depth")));
  EXPECT_THAT(p.text, HasSubstr("and 1 more option (program run --help=all)"));
  EXPECT_EQ(p.Parse({"run", "--help=all"}), ParseOutcome::kHelp);
  EXPECT_THAT(p.text,
              AllOf(HasSubstr("--depth"), HasSubstr("--rows"), Not(HasSubstr("more option"))));
  p.command->ShowOnly({"--rows"});
  EXPECT_EQ(p.Parse({"run", "--help"}), ParseOutcome::kHelp);
  EXPECT_THAT(p.text, AllOf(HasSubstr("--rows"), Not(HasSubstr("--color"))));
}

TEST(OptionParserTest, OptionsAddedLaterAreThereForTheirCommand) {
  Program p;
  ASSERT_EQ(p.Parse({"walk", "--late=7"}), ParseOutcome::kParsed) << p.text;
  EXPECT_EQ(p.request, "7");
  EXPECT_EQ(Program().other->Declared().size(), 1);
}

TEST(OptionParserTest, SuggestsOnlyWhatIsClose) {
  EXPECT_EQ(SuggestName("--num-block", {"--block-size", "--num-blocks"}),
            "did you mean --num-blocks?");
  EXPECT_EQ(SuggestName("--frobnicate", {"--block-size", "--num-blocks"}), "");
}

}  // namespace
}  // namespace kvblocks::sim
