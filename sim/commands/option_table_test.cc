#include "kvblocks/sim/commands/option_table.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace kvblocks::sim
