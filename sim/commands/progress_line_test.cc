#include "kvblocks/sim/commands/progress_line.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

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
