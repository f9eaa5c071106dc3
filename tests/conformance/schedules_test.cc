// Recorded schedules: the shipped ones agree, what is changed in one is found, and bad files are
// refused.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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
                      number_after("queue "), R"(,"keyed_blocks":)", number_after("blocks "), "}");
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
    // A longer checksum is out of range.
    const auto result = Replayed(changed);
    if (!result.ok()) {
      EXPECT_NE(std::string(change.what).find("crc"), std::string::npos) << result.status();
      continue;
    }
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

// --- Bad files ---

std::string With(const std::string& what, const std::string& instead) {
  std::string head = kHead;
  head.replace(head.find(what), what.size(), instead);
  return head;
}

TEST(SchedulesTest, BadFilesAreReportedWithTheirLine) {
  const auto expect_error = [](const std::vector<std::string>& lines, const std::string& part) {
    const auto result = Replayed(lines);
    ASSERT_FALSE(result.ok()) << part;
    EXPECT_NE(std::string(result.status().message()).find(part), std::string::npos)
        << result.status();
  };
  expect_error({}, "t: no schedule");
  expect_error({kHead}, "t: no schedule");
  expect_error({"{", kFirst}, "t:1: not a JSON object");
  expect_error({With("kvsched 1", "kvsched 2"), kFirst}, "t:1: field \"format\"");
  expect_error({With(R"("mode":"sync")", R"("mode":"both")"), kFirst}, "t:1: field \"mode\"");
  expect_error({With(R"("num_blocks":10)", R"("num_blocks":1)"), kFirst}, "field \"num_blocks\"");
  expect_error({With(R"("num_blocks":10)", R"("num_blocks":99999999999)"), kFirst},
               "field \"num_blocks\"");
  expect_error({With(R"("step_ms":10)", R"("step_ms":0)"), kFirst}, "field \"step_ms\"");
  expect_error({With("[[1,0,5]]", "[[1,0]]"), kFirst}, "field \"p\"");
  expect_error({With("[[1,0,5]]", "[[1,0,99999999]]"), kFirst}, "field \"p\"");
  expect_error({With(R"("out":3)", R"("out":99999999999)"), kFirst}, "field \"out\"");
  expect_error({With(R"("t":5)", R"("t":-5)"), kFirst}, "field \"t\"");
  expect_error({With(R"({"t":0,"p")", R"({"t":7,"p")"), kFirst}, "requests in order of arrival");
  expect_error({With(R"("groups":null)", R"("groups":[7])"), kFirst}, "field \"groups\"");
  expect_error({With(R"("groups":null)", R"("groups":[{"kind":"odd","block_size":4}])"), kFirst},
               "group of kind \"odd\" is unknown or lacks its window");
  expect_error({With(R"("groups":null)", R"("groups":[{"kind":"sliding_window","block_size":4}])"),
                kFirst},
               "group of kind \"sliding_window\" is unknown or lacks its window");
  expect_error({With(R"("groups":null)", R"("groups":[{"kind":"mamba","block_size":8}])"), kFirst},
               "field \"block_size\" is 4");
  expect_error({With("ngram", "oracle"), kFirst}, "unknown method \"oracle\"");
  // Values that the engine derived, and values that are unknown here.
  expect_error({With(R"("lookahead_slots":0)", R"("lookahead_slots":1)"), kFirst},
               "lookahead_slots is 1, but the simulator derives 0");
  for (const char* name : {"prefill_lookahead_tokens", "watermark_blocks", "scheduler_block_size",
                           "hash_block_size"}) {
    expect_error({With(R"("steps_in_flight":1)",
                       absl::StrCat(R"("steps_in_flight":1,")", name, R"(":77)")),
                  kFirst},
                 absl::StrCat(name, " is 77"));
  }
  expect_error({With(R"("steps_in_flight":1)", R"("steps_in_flight":1,"odd":1)"), kFirst},
               "t:1: field \"odd\" is unknown");
  expect_error({With(R"("step_ms":10)", R"("step_ms":10,"odd":1)"), kFirst},
               "t:1: field \"odd\" is unknown");
  expect_error({With(R"("out":3)", R"("out":3,"odd":1)"), kFirst}, "field \"odd\" is unknown");
  expect_error({kHead, R"({"t":0,"free":1,"odd":1})"}, "t:2: field \"odd\" is unknown");
  expect_error({kHead, "7"}, "t:2: not a JSON object");
  expect_error({kHead, R"({"t":0})"}, "t:2: field \"free\"");
  expect_error({kHead, R"({"t":0,"free":1,"i":0,"sched":[[0,1]],"out":[1]})"},
               "t:2: field \"sched\"");
  expect_error({kHead, R"({"t":0,"free":1,"i":0,"sched":[[2,1,0,[[]],0]],"out":[1]})"},
               "t:2: field \"sched\"");
  expect_error({kHead, R"({"t":0,"free":1,"i":0,"sched":[],"out":[1]})"}, "t:2: field \"out\"");
  expect_error({kHead, R"({"abort":[2],"t":0,"at":"loop"})"}, "t:2: field \"abort\"");
  expect_error({kHead, R"({"abort":[1],"t":0,"at":"noon"})"}, "t:2: field \"at\"");
}

TEST(SchedulesTest, MissingAndDamagedFilesAreReported) {
  EXPECT_EQ(ReplayScheduleFile("no/such/file.gz", {}).status().code(),
            absl::StatusCode::kNotFound);
  const auto files = CompressedFilesIn(kFolder);
  ASSERT_FALSE(files.empty());
  std::ifstream in(files[0], std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string cut = ::testing::TempDir() + "/cut_schedule.jsonl.gz";
  std::ofstream(cut, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  EXPECT_EQ(ReplayScheduleFile(cut, {}).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvblocks::conformance
