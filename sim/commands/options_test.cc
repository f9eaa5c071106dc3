// Command lines, the options of replays, and the progress line.

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/option_table.h"
#include "sim/commands/progress_line.h"

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
    command->Add({.name = "--share"}, 0.25, 0.5, &share);
    command->AddSeconds({.name = "--for"}, 1, 60, &seconds);
    command->AddRepeated({.name = "--kind", .unit = "a|b"}, &kinds);
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
  double share = 0, seconds = 0;
  std::vector<std::string> kinds;
  bool quiet = false;
};

TEST(OptionParserTest, ValuesLandInTheVariables) {
  Program p;
  ASSERT_EQ(
      p.Parse({"run", "file", "--rows=3", "--color", "never", "--request=7", "--tolerance=a",
               "--tolerance=b", "--lengths", "5", "6", "--quiet", "--no-spread", "--even=xy",
               "--share=0.3", "--for=1500ms", "--kind=b"}),
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
  EXPECT_EQ(p.share, 0.3);
  EXPECT_EQ(p.seconds, 1.5);
  EXPECT_THAT(p.kinds, ElementsAre("b"));
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
      {{"run", "f", "--queries=ten"}, "--rows: got \"ten\", expected a whole number, like "
       "131072 or 128K\n"},
      {{"run", "f", "--lengths", "5", "101"}, "--lengths: got 101, expected 1 to 100\n"},
      {{"run", "f", "--color=x"}, "--color: got \"x\", expected one of auto, never\n"},
      {{"run", "f", "--kind=x"}, "--kind: got \"x\", expected one of a, b\n"},
      {{"run", "f", "--share=0.2"}, "--share: got \"0.2\", expected a number from 0.25 to 0.5\n"},
      {{"run", "f", "--share=nan"}, "--share: got \"nan\""},
      {{"run", "f", "--for=2min"}, "--for: got \"2min\", expected a time with a unit"},
      {{"run", "f", "--for=5"}, "--for: got \"5\""},
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

absl::Status UseOf(const ReplayConfig& given) {
  const auto config = EffectiveConfig({}, given);
  return config.ok() ? CheckOptionUses(*config, given) : config.status();
}

TEST(OptionTableTest, EverySettingIsWhole) {
  for (const ReplayOption& option : ReplayOptions()) {
    const bool is_flag =
        option.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL;
    EXPECT_FALSE(option.section.empty()) << option.name();
    EXPECT_FALSE(option.setting->help().empty()) << option.name();
    EXPECT_EQ(option.setting->unit().empty(), is_flag) << option.name();
    ReplayConfig config;
    EXPECT_TRUE(SetOption(option.name(), DefaultText(option), &config).ok()) << option.name();
    EXPECT_EQ(ValueText(config, option.field), DefaultText(option));
  }
}

TEST(OptionTableTest, RulesNameFields) {
  for (const ReplayOption& option : ReplayOptions()) {
    for (const std::string& rule : option.setting->needs()) {
      const std::vector<std::string> terms = absl::StrSplit(rule, " or ");
      for (std::string term : terms) {
        if (term[0] == '!') term.erase(0, 1);
        const std::string name = term.substr(0, term.find_first_of("=>~."));
        EXPECT_NE(ReplayConfig::descriptor()->FindFieldByName(name), nullptr) << rule;
      }
    }
  }
}

TEST(OptionTableTest, DefaultsNeedNothing) {
  EXPECT_TRUE(UseOf({}).ok());
  auto config = *DefaultConfig("vllm-main");
  const ReplayConfig before = config;
  DropUselessOptions(&config);
  EXPECT_EQ(config.SerializeAsString(), before.SerializeAsString());
}

TEST(OptionTableTest, RefusesWhatDoesNothingAndSaysWhatItNeeds) {
  struct {
    const char* name;
    const char* value;
    const char* expected;
  } const cases[] = {
      {"layout", "slab", "--layout needs --plan=exact (got upstream)"},
      {"load", "sync", "--load needs --tier (got none)"},
      {"match_unit", "8", "--match-unit needs --partial-hits (got false)"},
      {"fixed_time", "1ms", "--fixed-time needs --time=auto, table or roofline (got fixed)"},
      {"graph_gb", "3", "--graph-gb needs no --num-blocks (got 2000)"},
      {"lost_requests", "fail", "--lost-requests needs --scale with crash (got none)"},
      {"seed", "7", "--seed needs --num-draft-tokens, --load-failures or --policy=random"},
      {"router", "prefix",
       "--router needs --replicas above 1, --replica, --data-parallel above 1, "},
  };
  for (const auto& [name, value, expected] : cases) {
    ReplayConfig given;
    given.set_num_blocks(2000);
    given.set_time("fixed");
    ASSERT_TRUE(SetOption(name, value, &given).ok());
    EXPECT_THAT(std::string(UseOf(given).message()), HasSubstr(expected));
  }
}

TEST(OptionTableTest, TakesWhatHasItsNeed) {
  ReplayConfig given;
  given.set_replicas(2);
  given.set_router("prefix");
  given.set_hit_weight("2");
  given.set_policy("random");
  given.set_seed(7);
  EXPECT_TRUE(UseOf(given).ok()) << UseOf(given).message();
}

TEST(OptionTableTest, DropsWhatDoesNothing) {
  ReplayConfig given;
  given.set_router("prefix");
  given.set_hit_weight("2");
  given.set_layout("slab");
  auto config = *EffectiveConfig({}, given);
  DropUselessOptions(&config);
  EXPECT_EQ(config.router(), "");
  EXPECT_EQ(config.hit_weight(), "");
  EXPECT_EQ(config.layout(), "auto");
}

TEST(OptionTableTest, NamesTheOptionThatIsMeant) {
  ReplayConfig config;
  EXPECT_THAT(std::string(SetOption("num-block", "1", &config).message()),
              HasSubstr("did you mean --num-blocks?"));
  EXPECT_TRUE(SetOption("tp", "2", &config).ok());
  EXPECT_EQ(config.tensor_parallel(), 2);
}

using ::testing::MatchesRegex;

// What is written when a line is due.
template <typename Update>
std::string LineOf(Update update) {
  testing::internal::CaptureStderr();
  ProgressLine line(/*quiet=*/false);
  update(line);  // too early for a line
  std::this_thread::sleep_for(std::chrono::milliseconds(110));
  update(line);
  return testing::internal::GetCapturedStderr();
}

TEST(ProgressLineTest, SaysRateAndTimeLeft) {
  setenv("KVSIM_PROGRESS", "json", 1);
  EXPECT_THAT(LineOf([](ProgressLine& line) { line.UpdateCount(30, 40, "replays"); }),
              MatchesRegex("\\{\"progress\": \"30 of 40 replays, [0-9.]+/s, ETA 0 s\"\\}\n"));
  EXPECT_THAT(LineOf([](ProgressLine& line) { line.UpdateCount(30, 0, "batches"); }),
              MatchesRegex("\\{\"progress\": \"30 batches, [0-9.]+/s\"\\}\n"));
  EXPECT_THAT(LineOf([](ProgressLine& line) { line.UpdateReading({50, 200}, 7, 1); }),
              MatchesRegex("\\{\"progress\": \" 25 % read, 7 rows, [0-9]+/s, 1 errors, "
                           "ETA 0 s\"\\}\n"));
  unsetenv("KVSIM_PROGRESS");
}

TEST(ProgressLineTest, IsSilentWithoutATerminal) {
  EXPECT_EQ(LineOf([](ProgressLine& line) { line.UpdateCount(30, 40, "replays"); }), "");
}

}  // namespace
}  // namespace kvblocks::sim
