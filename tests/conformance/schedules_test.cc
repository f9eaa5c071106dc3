// Recorded schedules: the shipped ones agree, and what is changed in one is found.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/schedule_replayer.h"

namespace kvblocks::conformance {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "tests/conformance/testdata/schedules";

int64_t DifferingLine(const std::string& file, const ScheduleReplayOptions& options) {
  const auto result = ReplayScheduleFile(file, options);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return -1;
  EXPECT_GT(result->num_steps, 0) << file;
  return result->differing_line;
}

TEST(SchedulesTest, ShippedSchedulesAgree) {
  const auto files = CompressedFilesIn(kFolder);
  ASSERT_EQ(files.size(), 47u);
  for (const std::string& file : files) {
    for (const bool exact_steps : {false, true}) {
      SCOPED_TRACE(absl::StrCat(file, exact_steps ? ", exact steps" : ""));
      EXPECT_EQ(DifferingLine(file, {.exact_steps = exact_steps}), 0);
    }
  }
}

TEST(SchedulesTest, AllSchedulesAgree) {
  const char* folder = std::getenv("KVBLOCKS_SHARED");
  if (folder == nullptr) {
    GTEST_SKIP() << "set KVBLOCKS_SHARED to a folder with schedules/ to replay them all";
  }
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  GTEST_SKIP() << "the optimised run replays them all";
#endif
  for (const char* part : {"schedules", "schedules/random"}) {
    const fs::path path = fs::path(folder) / part;
    if (!fs::is_directory(path) && std::string(part) != "schedules") continue;
    const auto files = CompressedFilesIn(path);
    ASSERT_FALSE(files.empty()) << path;
    for (const std::string& file : files) {
      for (const bool exact_steps : {false, true}) {
        EXPECT_EQ(DifferingLine(file, {.exact_steps = exact_steps}), 0) << file;
      }
    }
  }
}

// --- Changes are found ---

// Two requests; the second shares four tokens, is not preempted, and is aborted in its last step.
const char kHead[] =
    R"({"format":"kvsched 1","name":"t","config":{"mode":"sync","num_blocks":10,"block_size":4,)"
    R"("groups":null,"max_num_seqs":8,"max_num_batched_tokens":64,"max_model_len":100,)"
    R"("policy":"priority","chunked_prefill":true,"long_prefill_threshold":0,"watermark":0.0,)"
    R"("reserve_full_isl":true,"drafts":1,"method":"ngram","lookahead_hashes":true,"retention":0,)"
    R"("prefix_caching":true,"step_ms":10},"derived":{"lookahead_slots":0,)"
    R"("hash_lookahead_tokens":0,"drop_last_hit_block":false,"draft_slots":0,)"
    R"("max_in_flight_tokens":64,"steps_in_flight":1},"requests":[{"t":0,"p":[[1,0,5]],"out":3,)"
    R"("acc":[1]},{"t":5,"p":[[1,0,4],[2,0,3]],"out":9,"abort":20}]})";
const char kFirst[] =
    R"({"t":0,"run":1,"wait":0,"free":7,"i":0,"sched":[[0,5,0,[[1,2]],0]],"start":0,"out":[1]})";
const char kSecond[] =
    R"({"t":10,"run":2,"wait":0,"free":6,"i":1,"sched":[[0,2,null,[[]],1],[1,3,4,[[3]],0]],)"
    R"("start":10,"out":[2,1],"fin":[0]})";
const char kThird[] =
    R"({"t":20,"run":1,"wait":0,"free":6,"i":2,"sched":[[1,2,null,[[2]],1]],"start":20,"out":[0]})";
const char kAbort[] = R"({"abort":[1],"t":30,"at":"outputs"})";

absl::StatusOr<ScheduleReplayResult> Replayed(const std::vector<std::string>& lines) {
  return ReplayScheduleLines("t", lines, {});
}

std::string EndLine() {
  // What the first run says; that it is right is what the shipped files show.
  const auto result = Replayed({kHead, kFirst, kSecond, kThird, kAbort, R"({"end":true,"t":0,)"
                                R"("steps":0,"free":0,"queue_crc32":0,"keyed_blocks":0})"});
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->differing_line, 6) << result->difference;
  const std::string& text = result->difference;
  const auto number_after = [&](const std::string& word) {
    const size_t at = text.rfind(word) + word.size();
    return text.substr(at, text.find_first_not_of("0123456789", at) - at);
  };
  return absl::StrCat(R"({"end":true,"t":30,"steps":3,"free":9,"queue_crc32":)",
                      number_after("queue_crc32 "), R"(,"keyed_blocks":)",
                      number_after("keyed_blocks "), "}");
}

TEST(SchedulesTest, EveryChangedValueIsFound) {
  const std::string end = EndLine();
  const std::vector<std::string> lines = {kHead, kFirst, kSecond, kThird, kAbort, end};
  const auto same = Replayed(lines);
  ASSERT_TRUE(same.ok()) << same.status();
  ASSERT_EQ(same->differing_line, 0) << same->difference;
  const struct {
    size_t line;  // from 0
    const char* what;
    const char* instead;
  } changes[] = {
      {1, R"("t":0)", R"("t":1)"},
      {1, R"("run":1)", R"("run":2)"},
      {1, R"("wait":0)", R"("wait":1)"},
      {1, R"("free":7)", R"("free":8)"},
      {1, R"("i":0)", R"("i":1)"},
      {1, "[0,5,0", "[1,5,0"},
      {1, "[0,5,0", "[0,4,0"},
      {1, "[0,5,0", "[0,5,null"},
      {1, "[[1,2]]", "[[2,1]]"},
      {1, "[[1,2]]", "[[1,2],[]]"},
      {1, R"("start":0)", R"("start":1)"},
      {1, R"("out":[1])", R"("out":[2])"},
      {1, R"("out":[1])", R"("out":[1],"pre":[1])"},
      {2, "[1,3,4,", "[1,3,0,"},
      {2, "[[]],1]", "[[]],0]"},
      {2, "[[0,2,null,[[]],1],[1,3,4,[[3]],0]]", "[[1,3,4,[[3]],0],[0,2,null,[[]],1]]"},
      {2, R"("fin":[0])", R"("fin":[1])"},
      {2, R"("fin":[0])", R"("fin":[])"},
      {4, "[1]", "[0]"},
      {4, R"("t":30)", R"("t":20)"},
      {4, "outputs", "loop"},
      {5, R"("t":30)", R"("t":31)"},
      {5, R"("steps":3)", R"("steps":4)"},
      {5, R"("free":9)", R"("free":8)"},
      {5, R"("queue_crc32":)", R"("queue_crc32":1)"},
      {5, R"("keyed_blocks":)", R"("keyed_blocks":1)"},
  };
  for (const auto& change : changes) {
    std::vector<std::string> changed = lines;
    const size_t at = changed[change.line].find(change.what);
    ASSERT_NE(at, std::string::npos) << change.what;
    changed[change.line].replace(at, std::string(change.what).size(), change.instead);
    const auto result = Replayed(changed);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->differing_line, static_cast<int64_t>(change.line) + 1) << change.instead;
    EXPECT_NE(result->difference.find("recorded: "), std::string::npos);
    EXPECT_NE(result->difference.find("replayed: "), std::string::npos);
  }
}

TEST(SchedulesTest, MissingAndFurtherLinesAreFound) {
  const auto missing = Replayed({kHead, kFirst, kThird});
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(missing->differing_line, 3);
  const auto cut = Replayed({kHead, kFirst, kSecond});
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->differing_line, 4);
  EXPECT_NE(cut->difference.find("recorded: no more lines"), std::string::npos);
  const auto further = Replayed({kHead, kFirst, kSecond, kThird, kAbort, EndLine(), kFirst});
  ASSERT_TRUE(further.ok()) << further.status();
  EXPECT_EQ(further->differing_line, 7);
  EXPECT_NE(further->difference.find("replayed: the run ended"), std::string::npos);
}

}  // namespace
}  // namespace kvblocks::conformance
