#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/replayer.h"

namespace kvblocks::conformance {
namespace {

namespace fs = std::filesystem;

void ExpectAgrees(const std::string& file, Recorder recorder, int64_t least_lines) {
  const auto result = ReplayFile(file, recorder);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->differing_line, 0)
      << file << ":" << result->differing_line << ": " << result->difference;
  EXPECT_GE(result->num_lines, least_lines) << file;
}

void ExpectAllAgree(const std::vector<std::string>& files, Recorder recorder, int64_t least_lines) {
  for (const std::string& file : files) ExpectAgrees(file, recorder, least_lines);
}

TEST(ConformanceTest, ShippedTranscriptsAgree) {
  const auto files = CompressedFilesIn("tests/conformance/testdata");
  ASSERT_EQ(files.size(), 4u);
  ExpectAllAgree(files, Recorder::kVllm025, 100);
  const auto newer = CompressedFilesIn("tests/conformance/testdata/vllm_033");
  ASSERT_GE(newer.size(), 35u);
  ExpectAllAgree(newer, Recorder::kVllm033, 4);
}

TEST(ConformanceTest, AllTranscriptsAgree) {
  const char* folder = std::getenv("KVBLOCKS_SHARED");
  if (folder == nullptr) {
    GTEST_SKIP() << "set KVBLOCKS_SHARED to a folder with transcripts/ to replay them all";
  }
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  GTEST_SKIP() << "the optimised run replays them all";
#endif
  const struct {
    const char* name;
    Recorder recorder;
    int64_t least_lines;
  } folders[] = {{"transcripts", Recorder::kVllm025, 100},
                 {"transcripts_033", Recorder::kVllm033, 100},
                 {"transcripts_033/mini", Recorder::kVllm033, 4},
                 {"transcripts_033/random", Recorder::kVllm033, 100},
                 {"transcripts_033/random/mini", Recorder::kVllm033, 4}};
  for (const auto& [name, recorder, least_lines] : folders) {
    const auto files = CompressedFilesIn(fs::path(folder) / name);
    ASSERT_FALSE(files.empty()) << folder << "/" << name;
    ExpectAllAgree(files, recorder, least_lines);
  }
}

// Which engine recorded a file need not be said: here the last block before the end is dropped and
// hit (0.33), or is not (0.25).
TEST(ConformanceTest, TheRecorderIsFound) {
  const auto newer = ReplayFile("tests/conformance/testdata/vllm_033/m1_eagle_margin.jsonl.gz");
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(newer->differing_line, 0);
  EXPECT_EQ(newer->recorder, Recorder::kVllm033);
  const auto as_older = ReplayFile("tests/conformance/testdata/vllm_033/m1_eagle_margin.jsonl.gz",
                                   Recorder::kVllm025);
  ASSERT_TRUE(as_older.ok()) << as_older.status();
  EXPECT_EQ(as_older->differing_line, 7);
  const auto older =
      ReplayFile("tests/conformance/testdata/f1_full16_swa8_w24.unhashed_first.jsonl.gz");
  ASSERT_TRUE(older.ok()) << older.status();
  EXPECT_EQ(older->differing_line, 0);
  EXPECT_EQ(older->recorder, Recorder::kVllm025);
}

// A transcript of given lines, as a plain file.
absl::StatusOr<ReplayResult> ReplayLines(const std::vector<std::string>& lines) {
  const std::string path = ::testing::TempDir() + "/transcript.jsonl";
  std::ofstream out(path);
  for (const std::string& line : lines) out << line << "\n";
  out.close();
  return ReplayFile(path);
}

const char kConfig[] =
    R"({"format":1,"family":"a","name":"t","num_blocks":8,"groups":[{"kind":"full_attention",)"
    R"("block_size":4,"sliding_window":null,"attention_chunk_size":null,"draft":false}],)"
    R"("hash_block_size":4,"scheduler_block_size":4,"enable_caching":true,"use_eagle":false,)"
    R"("max_model_len":64,"max_in_flight_tokens":64,"free_order":"fifo","watermark":0,)"
    R"("enable_events":true})";
const char kNew[] = R"({"op":"new","id":"r","p":[[0,0,6]]})";
const char kDigest[] =
    R"({"op":"digest","queue":[1,2,3,4,5,6,7],"cached":[[]],"keys":0,"usage":0.0})";

// Two groups with blocks of 4 tokens, hashed in units of 4, 2 and 1: the answers are the same.
TEST(ConformanceTest, HashBlocksMayBeFinerThanTheGroupsBlocks) {
  for (const char* unit : {"4", "2", "1"}) {
    const std::string config =
        absl::StrCat(R"({"format":1,"family":"f","name":"t","num_blocks":10,"groups":[)",
                     R"({"kind":"full_attention","block_size":4,"sliding_window":null,)",
                     R"("attention_chunk_size":null,"draft":false},)",
                     R"({"kind":"sliding_window","block_size":4,"sliding_window":5,)",
                     R"("attention_chunk_size":null,"draft":false}],"hash_block_size":)", unit,
                     R"(,"scheduler_block_size":4,"enable_caching":true,"use_eagle":false,)",
                     R"("max_model_len":64,"max_in_flight_tokens":64,"free_order":"fifo",)",
                     R"("watermark":0,"enable_events":true})");
    const std::vector<std::string> lines = {
        config, R"({"op":"new","id":"a","p":[[0,0,9]]})",
        R"({"op":"alloc","id":"a","new":9,"out":[[1,2,3],[4,5,6]],"f":3,"q":2711649247,"k":3095146404,)"
        R"("r":1166233863,"ev":[["S",0,0,2,[1,2]],["S",1,0,2,[4,5]]]})",
        R"({"op":"new","id":"b","p":[[0,0,9]]})",
        R"({"op":"get","id":"b","hits":[[1,2],[0,5]],"h":8})",
        // Half of a block's tokens are others.
        R"({"op":"new","id":"c","p":[[0,0,6],[1,6,3]]})",
        R"({"op":"get","id":"c","hits":[[1],[4]],"h":4})"};
    const auto result = ReplayLines(lines);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->differing_line, 0) << unit << ": " << result->difference;
  }
}

TEST(ConformanceTest, FirstDifferenceIsNamedWithBothAnswers) {
  const auto result = ReplayLines(
      {kConfig, kNew, kDigest, R"({"op":"get","id":"r","hits":[[5]],"h":4})", "not reached"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->differing_line, 4);
  EXPECT_EQ(result->difference, "get r: h: recorded 4, got 0");
}

TEST(ConformanceTest, EventsMustBeThoseRecorded) {
  const std::string alloc =
      R"({"op":"alloc","id":"r","new":6,"out":[[1,2]],"f":5,"q":3075923182,"k":3010630956,"r":14741459)";
  const auto agreed = ReplayLines({kConfig, kNew, alloc + R"(,"ev":[["S",0,0,1,[1]]]})"});
  ASSERT_TRUE(agreed.ok()) << agreed.status();
  EXPECT_EQ(agreed->differing_line, 0) << agreed->difference;
  const auto lost = ReplayLines({kConfig, kNew, alloc + "}"});
  ASSERT_TRUE(lost.ok()) << lost.status();
  EXPECT_EQ(lost->difference, "alloc r: ev: recorded 0 events, got 1, of which the first 0 agree");
  const auto moved = ReplayLines({kConfig, kNew, alloc + R"(,"ev":[["S",0,0,1,[2]]]})"});
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->difference, "alloc r: ev: block 2 was recorded at position 0 of group 0");
}

}  // namespace
}  // namespace kvblocks::conformance
