#include "kvblocks/checks/json_text.h"

#include <string>

#include "gtest/gtest.h"
#include "kvblocks/checks/json_writer.h"

namespace kvblocks {
namespace {

std::string Json(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(JsonTextTest, PlainTextStandsInQuotes) { EXPECT_EQ(Json("request 7"), "\"request 7\""); }

TEST(JsonTextTest, QuotesBackslashesAndControlsAreEscaped) {
  EXPECT_EQ(Json("a\"b\\c\n\x7f"), "\"a\\\"b\\\\c\\u000a\\u007f\"");
}

TEST(JsonTextTest, NothingEndsTheScriptThatItStandsIn) {
  EXPECT_EQ(Json("</script>"), "\"\\u003c/script>\"");
}

TEST(JsonWriterTest, CommasStandBetweenValuesAndNowhereElse) {
  JsonWriter json;
  json.BeginObject().Key("a").BeginArray().EndArray().Key("b").Value(true);
  json.Key("c").BeginArray().Value(int64_t{-7}).Null().BeginObject().EndObject().Value("x").EndArray();
  json.Key("d").BeginObject().Key("e").Raw("[1]").EndObject().EndObject();
  EXPECT_EQ(json.text(), R"({"a":[],"b":true,"c":[-7,null,{},"x"],"d":{"e":[1]}})");
}

TEST(JsonWriterTest, NumbersReadBackAsTheyWereAndTextIsEscaped) {
  JsonWriter json;
  json.BeginArray().Value(0.1).Value(1.0 / 3).Value(1e300 * 1e300).Value("a\"").EndArray();
  EXPECT_EQ(json.text(), R"([0.1,0.33333333333333331,null,"a\""])");
}

TEST(JsonTextTest, Utf8IsKeptAndEverythingElseReplaced) {
  EXPECT_EQ(Json("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"),
            "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
  EXPECT_EQ(Json("a\xFFz"), "\"a\\ufffdz\"");
  EXPECT_EQ(Json("\xC3"), "\"\\ufffd\"") << "cut short";
  EXPECT_EQ(Json("\xC0\xAF"), "\"\\ufffd\\ufffd\"") << "overlong";
  EXPECT_EQ(Json("\xED\xA0\x80"), "\"\\ufffd\\ufffd\\ufffd\"") << "a surrogate";
}

}  // namespace
}  // namespace kvblocks
