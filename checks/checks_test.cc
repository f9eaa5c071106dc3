#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "checks/checked_int64.h"
#include "checks/json_text.h"
#include "checks/json_writer.h"
#include "checks/memory_limit.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A folder that looks like the root of a machine.
class MemoryLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/memory_limit_test";
    std::filesystem::remove_all(root_);
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t Limit() const { return ControlGroupMemoryLimit(root_); }

  std::string root_;
};

TEST_F(MemoryLimitTest, NothingKnownIsNoLimit) {
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(Limit(), kUnlimited);
}

TEST_F(MemoryLimitTest, Version2TakesTheLeastOfTheGroupAndThoseAroundIt) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/sys/fs/cgroup/pod/container/memory.max", "2147483648\n");
  EXPECT_EQ(Limit(), int64_t{2} << 30);
  Write("/sys/fs/cgroup/pod/memory.max", "1073741824\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
  Write("/sys/fs/cgroup/other/memory.max", "4096\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
}

TEST_F(MemoryLimitTest, Version2InAContainerOfItsOwnNameSpace) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(Limit(), 536'870'912);
}

TEST_F(MemoryLimitTest, Version1TakesTheMemoryController) {
  Write("/proc/self/cgroup",
        "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/x\n");
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_GE(Limit(), int64_t{1} << 62);
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
}

// The path is the host's, the mount shows the container's group only.
TEST_F(MemoryLimitTest, Version1InAContainerWithoutANameSpace) {
  Write("/proc/self/cgroup", "4:hugetlb,memory:/docker/abc\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
}

TEST_F(MemoryLimitTest, OddFilesAreNoLimit) {
  Write("/proc/self/cgroup", "\n:\n::\n0::\n0::x\n7:memory\n4:memory:relative\n0::/a//b/\n");
  Write("/sys/fs/cgroup/memory.max", "many\n");
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/sys/fs/cgroup/memory.max", "0\n");
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/sys/fs/cgroup/memory.max", "99999999999999999999\n");
  EXPECT_EQ(Limit(), kUnlimited);
}

TEST_F(MemoryLimitTest, ThisProcessHasMemory) {
  EXPECT_GT(MemoryLimit(), int64_t{1} << 20);
  EXPECT_LE(MemoryLimit(), ControlGroupMemoryLimit(""));
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(CheckedInt64Test, ResultThatFitsHasAValue) {
  EXPECT_EQ((CheckedInt64(3) * 4 + 5).value(), 17);
  EXPECT_EQ((CheckedInt64(kHuge - 1) + 1).value(), kHuge);
  EXPECT_EQ((CheckedInt64(kHuge) * 1).value(), kHuge);
}

TEST(CheckedInt64Test, OverflowStaysThroughLaterOperations) {
  EXPECT_EQ((CheckedInt64(kHuge) + 1).value(), std::nullopt);
  EXPECT_EQ((CheckedInt64(kHuge) * 2 * 0).value(), std::nullopt);
  EXPECT_EQ((CheckedInt64(1) + CheckedInt64(kHuge) * 2).value(), std::nullopt);
  EXPECT_EQ(RoundUp(CheckedInt64(kHuge) + 1, 4).value(), std::nullopt);
}

TEST(CheckedInt64Test, CeilDivAndRoundUpReachTheLimit) {
  EXPECT_EQ(CeilDiv(-8, 7), 0);
  EXPECT_EQ(CeilDiv(std::numeric_limits<int64_t>::min(), 7), 0);
  EXPECT_EQ(CeilDiv(0, 7), 0);
  EXPECT_EQ(CeilDiv(7, 7), 1);
  EXPECT_EQ(CeilDiv(8, 7), 2);
  EXPECT_EQ(CeilDiv(kHuge, kHuge), 1);
  EXPECT_EQ(CeilDiv(kHuge, 1), kHuge);
  EXPECT_EQ(RoundUp(CheckedInt64(37'376), 576).value(), 37'440);
  EXPECT_EQ(RoundUp(CheckedInt64(kHuge), 2).value(), std::nullopt);
}

TEST(CheckedInt64Test, AddUpToStopsAtTheLimit) {
  EXPECT_EQ(AddUpTo(2, 3, 10), 5);
  EXPECT_EQ(AddUpTo(2, 8, 10), 10);
  EXPECT_EQ(AddUpTo(2, 9, 10), 10);
  EXPECT_EQ(AddUpTo(11, 0, 10), 10);
  EXPECT_EQ(AddUpTo(kHuge, kHuge, kHuge), kHuge);
}

std::string Json(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(JsonTextTest, PlainTextStandsInQuotes) { EXPECT_EQ(Json("request 7"), "\"request 7\""); }

TEST(JsonTextTest, NothingEndsTheScriptThatItStandsIn) {
  EXPECT_EQ(Json("</script>"), "\"\\u003c/script>\"");
}

TEST(JsonWriterTest, CommasStandBetweenValuesAndNowhereElse) {
  JsonWriter json;
  json.BeginObject().Key("a").BeginArray().EndArray().Key("b").Value(true);
  json.Key("c")
      .BeginArray()
      .Value(int64_t{-7})
      .Null()
      .BeginObject()
      .EndObject()
      .Value("x")
      .EndArray();
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
