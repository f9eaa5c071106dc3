#include "kvblocks/specs/catalogue/layer_pattern.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

TEST(LayerPatternTest, RepetitionsAreWrittenOut) {
  EXPECT_EQ(*ExpandLayerPattern("FSF"), "FSF");
  EXPECT_EQ(*ExpandLayerPattern("F*3"), "FFF");
  EXPECT_EQ(*ExpandLayerPattern("(SSF)*2 S"), "SSFSSFS");
  EXPECT_EQ(*ExpandLayerPattern("WW4 (H4)*2"), "WW4H4H4");
  EXPECT_EQ(*ExpandLayerPattern("(4H)*2 4"), "4H4H4");
  EXPECT_EQ(*ExpandLayerPattern("(FS) L"), "FSL");
  EXPECT_EQ(*ExpandLayerPattern(""), "");
  EXPECT_EQ(ExpandLayerPattern("F*10000")->size(), 10000);
}

TEST(LayerPatternTest, BadPatternsAreRefusedWithThePlace) {
  const std::pair<const char*, const char*> bad[] = {
      {"FX", "'X' at character 2"},
      {"F*", "the end at character 3"},
      {"F*0", "a number above 0"},
      {"(F", "the end at character 3"},
      {"()*2", "')' at character 2"},
      {"(F(S))*2", "'(' at character 3"},
      {"F*10001", "at most 10000"},
      {"F*9999 SS", "at most 10000"},
      {"(FS)*99999999999999999999", "at most 10000"},
      {"*3", "'*' at character 1"},
      {"f", "FSCMNW4H21RIL"},
  };
  for (const auto& [text, message] : bad) {
    const auto pattern = ExpandLayerPattern(text);
    ASSERT_EQ(pattern.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(pattern.status().message(), HasSubstr("layer_pattern: got "));
    EXPECT_THAT(pattern.status().message(), HasSubstr(message)) << text;
  }
}

TEST(LayerPatternTest, LettersAreCounted) {
  EXPECT_EQ(CountLetters("WW4H4", "4H"), 3);
  EXPECT_EQ(CountLetters("WW4H4", "F"), 0);
}

}  // namespace
}  // namespace kvblocks
