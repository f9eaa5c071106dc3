#include "sim/cost/sim_time.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/cost/link.h"
#include "sim/cost/pipeline.h"
#include "sim/cost/recorded_steps.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

TEST(SimTimeTest, DurationsParseExactly) {
  EXPECT_EQ(*ParseDuration("1s"), kSecond);
  EXPECT_EQ(*ParseDuration("20ms"), 20 * kMillisecond);
  EXPECT_EQ(*ParseDuration("1.5us"), 1500 * kNanosecond);
  EXPECT_EQ(*ParseDuration("250ns"), 250 * kNanosecond);
  EXPECT_EQ(*ParseDuration("3ps"), 3);
  EXPECT_EQ(*ParseDuration("2min"), 120 * kSecond);
  EXPECT_EQ(*ParseDuration("1.5h"), 5400 * kSecond);
  EXPECT_EQ(*ParseDuration("0s"), 0);
  EXPECT_EQ(*ParseDuration("0.000000000001s"), 1);
  EXPECT_EQ(*ParseDuration("1.0000ns"), 1000);
  EXPECT_EQ(*ParseDuration("9223372036854775807ps"), kMaxSimTime);
}

TEST(SimTimeTest, BadDurationsAreRefusedWithTheReason) {
  const std::pair<const char*, const char*> bad[] = {{"", "no number"},
                                                     {"s", "no number"},
                                                     {"-1s", "no number"},
                                                     {"1", "no unit"},
                                                     {"1 s", "unknown unit"},
                                                     {"1weeks", "unknown unit"},
                                                     {"1.s", "no digit"},
                                                     {"1.2.3s", "two points"},
                                                     {".5s", "no number"},
                                                     {"0.5ps", "whole number"},
                                                     {"1.0001ns", "whole number"},
                                                     {"nan", "no number"},
                                                     {"9223372037s", "106 days"},
                                                     {"99999999999999999999ps", "106 days"},
                                                     {"9223372036854775.808ms", "106 days"}};
  for (const auto& [text, reason] : bad) {
    const auto parsed = ParseDuration(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), HasSubstr(reason)) << text;
  }
}

TEST(SimTimeTest, FormattingIsExactAndParsesBack) {
  EXPECT_EQ(FormatDuration(0), "0s");
  EXPECT_EQ(FormatDuration(kSecond), "1s");
  EXPECT_EQ(FormatDuration(1500 * kMicrosecond), "1.5ms");
  EXPECT_EQ(FormatDuration(-kSecond), "-1s");
  EXPECT_EQ(FormatDuration(90 * kSecond), "90s");
  EXPECT_EQ(FormatDuration(std::numeric_limits<int64_t>::min()), "-9223372.036854775808s");
  for (SimTime time : {SimTime{1}, SimTime{999}, SimTime{1001}, 123'456'789'012'345, kMaxSimTime}) {
    EXPECT_EQ(*ParseDuration(FormatDuration(time)), time);
  }
}

TEST(SimTimeTest, OverflowIsAnEmptyAnswer) {
  EXPECT_EQ(CheckedAdd(kMaxSimTime, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMaxSimTime - 1, 1), kMaxSimTime);
  EXPECT_EQ(CheckedMultiply(kMaxSimTime / 2 + 1, 2), std::nullopt);
  EXPECT_EQ(FromNanoseconds(9223372036854775807), std::nullopt);
  EXPECT_EQ(FromNanoseconds(5), 5000);
}

// Links: transfers worked out by hand (SM-104, WE-33), and random ones against a model that moves
// bytes picosecond by picosecond.

Link Make(const LinkOptions& options) {
  auto link = Link::Create(options);
  EXPECT_TRUE(link.ok()) << link.status();
  return *std::move(link);
}

std::vector<Link::Ended> RunAll(Link& link) {
  std::vector<Link::Ended> ended;
  while (const auto next = link.NextEnd()) link.Advance(*next, &ended);
  return ended;
}

// 131,072 bytes per token.
TEST(LinkTest, ATransferTakesItsBytesOverTheBandwidth) {
  const Link fast = Make({.bytes_per_second = 64'000'000'000});
  EXPECT_EQ(fast.TimeAlone(2048 * 131072), 4'194'304 * kNanosecond);
  // 42.949673 ms, rounded.
  const Link slow = Make({.bytes_per_second = 25'000'000'000, .latency = 5 * kMicrosecond});
  EXPECT_EQ(slow.TimeAlone(int64_t{8192} * 131072),
            42'949'672 * kNanosecond + 960 + 5 * kMicrosecond);
  EXPECT_EQ(slow.EndIfStarted(kSecond, int64_t{8192} * 131072),
            kSecond + 42'954'672 * kNanosecond + 960);
}

// A has the link alone for 2 ps (2 bytes), shares it for 4 ps (2 bytes of 4), then B has it alone.
TEST(LinkTest, TransfersShareInEqualParts) {
  Link link = Make({.bytes_per_second = 1'000'000'000'000});
  EXPECT_EQ(link.Start(0, 4), 0);
  EXPECT_EQ(link.NextEnd(), 4);
  EXPECT_EQ(link.EndIfStarted(2, 5), 9);
  EXPECT_EQ(link.Start(2, 5), 1);
  EXPECT_EQ(link.NextEnd(), 6);
  const std::vector<Link::Ended> ended = RunAll(link);
  EXPECT_EQ(ended, (std::vector<Link::Ended>{{0, 6, 2}, {1, 9, 2}}));
  EXPECT_EQ(link.totals(), (LinkTotals{.num_started = 2,
                                       .num_ended = 2,
                                       .peak_under_way = 2,
                                       .bytes = 9,
                                       .transfer_time = 13,
                                       .queue_time = 4,
                                       .busy_time = 9}));
}

TEST(LinkTest, BadOptionsAreRefused) {
  EXPECT_EQ(Link::Create({}).status().message(),
            "bytes_per_second: got 0, expected 1 to 1000000000000000");
  EXPECT_FALSE(Link::Create({.bytes_per_second = 1, .latency = -1}).ok());
}

// --- Against stepping ---

struct Job {
  SimTime start;
  int64_t bytes;
};

// When each job ends. A step is a picosecond; what it moves is split exactly.
std::vector<SimTime> StepByStep(const LinkOptions& o, const std::vector<Job>& jobs) {
  constexpr int64_t kSplit = 840;  // divisible by all numbers of jobs up to 8
  std::vector<__int128> left;
  for (const Job& job : jobs) left.push_back(static_cast<__int128>(job.bytes) * kSecond * kSplit);
  std::vector<SimTime> ends(jobs.size(), -1);
  for (SimTime t = 0; std::count(ends.begin(), ends.end(), -1) > 0; ++t) {
    std::vector<size_t> moving;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (ends[i] != -1 || t < jobs[i].start) continue;
      const bool has_joined = t >= jobs[i].start + o.latency;
      const bool is_behind = o.sharing == LinkSharing::kFifo && !moving.empty();
      if (has_joined && left[i] <= 0 && !is_behind) {
        ends[i] = t;
      } else if (has_joined) {
        moving.push_back(i);
      }
    }
    __int128 served = static_cast<__int128>(o.bytes_per_second) * kSplit;
    if (o.sharing == LinkSharing::kEqualParts) {
      for (size_t i : moving) left[i] -= served / static_cast<int64_t>(moving.size());
      continue;
    }
    for (size_t i : moving) {
      const __int128 taken = std::min(served, left[i]);
      left[i] -= taken;
      served -= taken;
    }
  }
  return ends;
}

RC_GTEST_PROP(LinkProperty, EndsAreThoseOfSteppingThroughTime, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 20; ++seed) {
    std::mt19937_64 engine(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low + 1));
    };
    const LinkOptions options{
        .bytes_per_second = draw(1, 40) * 100'000'000'000,
        .latency = draw(0, 1) * draw(0, 9),
        .sharing = draw(0, 1) == 0 ? LinkSharing::kFifo : LinkSharing::kEqualParts};
    std::vector<Job> jobs;
    SimTime start = 0;
    for (int64_t i = draw(1, 8); i > 0; --i) {
      start += draw(0, 1) * draw(0, 12);
      jobs.push_back({start, draw(0, 30)});
    }
    const std::vector<SimTime> expected = StepByStep(options, jobs);

    Link link = Make(options);
    std::vector<SimTime> ends(jobs.size(), -1);
    std::vector<Link::Ended> ended;
    size_t next_job = 0;
    SimTime projected = 0;  // of the last job, if it is alone at the end
    for (SimTime t = 0; t <= 2000; ++t) {
      for (; next_job < jobs.size() && jobs[next_job].start <= t; ++next_job) {
        projected = link.EndIfStarted(t, jobs[next_job].bytes);
        RC_ASSERT(link.Start(t, jobs[next_job].bytes) == static_cast<int64_t>(next_job));
      }
      // Being advanced at other times, too, changes nothing, and ends come when they were
      // announced.
      if (draw(0, 3) != 0) continue;
      const auto announced = link.NextEnd();
      const size_t before = ended.size();
      link.Advance(t, &ended);
      if (ended.size() > before) RC_ASSERT(ended[before].time == *announced);
    }
    link.Advance(2001, &ended);
    RC_ASSERT(link.num_under_way() == 0);
    for (size_t i = 0; i + 1 < ended.size(); ++i) RC_ASSERT(ended[i].time <= ended[i + 1].time);
    for (const Link::Ended& end : ended) ends[static_cast<size_t>(end.id)] = end.time;
    RC_ASSERT(ends == expected);
    RC_ASSERT(ends.back() == projected);
  }
}

// SM-58: recorded steps, pipelines, and steps with drafts (SM-66).

SequenceWork DecodeAt(int64_t context) {
  return {.num_context = context, .num_new = 1, .num_sampled = 1};
}

TEST(RecordedStepsTest, TakesOneEntryAfterTheOther) {
  const auto clock = ParseRecordedSteps("# measured\n12.5ms\n\n3us\n", "FILE");
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 12'500 * kMicrosecond);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 3 * kMicrosecond);
  const auto third = (*clock)->StepTime({DecodeAt(1)});
  EXPECT_EQ(third.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(third.status().message(), HasSubstr("FILE has 2 steps, and the replay needs more"));
}

TEST(RecordedStepsTest, ReadsTheRowsOfAReplay) {
  // The second step was scheduled while the first one ran.
  const auto clock =
      ParseRecordedSteps("step,start_ms,end_ms,tokens\n0,1,3.5,7\n1,1,4,1\n2,10,10.25,1\n", "FILE");
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 2500 * kMicrosecond);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 500 * kMicrosecond);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 250 * kMicrosecond);
}

TEST(RecordedStepsTest, BadLinesAreNamed) {
  struct {
    const char* text;
    const char* message;
  } const cases[] = {
      {"", "FILE: no steps"},
      {"1ms\nsoon\n", "FILE:2: got \"soon\", expected a duration like 12.5ms"},
      {"step,end_ms\n0,1\n", "FILE:1: got \"step,end_ms\", expected a column start_ms"},
      {"start_ms,end_ms\n1\n", "FILE:2: got \"1\", expected as many columns"},
      {"start_ms,end_ms\n1,x\n", "FILE:2: got \"1,x\", expected times in ms"},
      {"start_ms,end_ms\n1,5\n2,5\n", "FILE:3: got \"2,5\", expected an end after"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ParseRecordedSteps(c.text, "FILE").status().message(), HasSubstr(c.message));
  }
  EXPECT_THAT(LoadRecordedSteps("/nonexistent").status().message(),
              HasSubstr("--step-times: /nonexistent: cannot be opened"));
}

std::unique_ptr<StepTimeModel> Fixed(SimTime time) { return *MakeFixedStepTime(time); }

TEST(DraftedStepTimeTest, SM66FurtherPassesSeeTheSequencesThatDrewATokenOnly) {
  const auto clock = MakeDraftedStepTime(Fixed(100), Fixed(7), 3, "one layer");
  EXPECT_EQ(*clock->StepTime({DecodeAt(5)}), 100 + 3 * 7);
  EXPECT_EQ(*MakeDraftedStepTime(Fixed(100), Fixed(7), 2, "two")->StepTime({DecodeAt(5)}), 114);
  // Nobody draws a token in a chunk: the drafter fills its cache, and drafts nothing.
  EXPECT_EQ(*clock->StepTime({SequenceWork{.num_context = 0, .num_new = 64}}), 100 + 7);
  EXPECT_EQ(*clock->StepTime({}, {.num_sequences = 4, .sum_context = 9}), 100 + 3 * 7);
  EXPECT_EQ(clock->source(), "fixed");
  ASSERT_EQ(clock->parts().size(), 1);
  EXPECT_EQ(clock->parts()[0].source, "one layer, fixed, 3 passes per step");
}

TEST(PipelineTest, SM28WholeStepsAreDividedByLayers) {
  auto whole = MakeFixedStepTime(100);
  const auto clock = MakeDividedClock(*std::move(whole), {0, 11, 22, 32});
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ((*clock)->num_stages(), 3);
  std::vector<SimTime> stages(3), sends(2, 7);
  ASSERT_TRUE((*clock)
                  ->StageTimes({DecodeAt(1), DecodeAt(2)}, {}, absl::MakeSpan(stages),
                               absl::MakeSpan(sends))
                  .ok());
  EXPECT_EQ(stages, (std::vector<SimTime>{34, 34, 32}));  // of 34.375, 68.75 and 100
  EXPECT_EQ(sends, (std::vector<SimTime>{0, 0}));
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1), DecodeAt(2)}), 100);
}

TEST(PipelineTest, SM28StagesHaveClocksOfTheirOwn) {
  std::vector<std::unique_ptr<StepTimeModel>> clocks;
  clocks.push_back(MakeFixedStepTime(10).value());
  clocks.push_back(MakeFixedStepTime(30).value());
  // 4,096 values of two bytes, two tensors, over 4 ranks of 100 GB/s: 40.96 ns.
  const auto send = MakeSendTime(4096, 4, 100, 7);
  ASSERT_TRUE(send.ok());
  EXPECT_EQ(send->per_token, 40'960);
  const auto clock = MakePipeline(std::move(clocks), {*send});
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 40'960 + 7 + 40);
  EXPECT_FALSE(MakeSendTime(4096, 4, 0, 7).ok());
  EXPECT_FALSE(MakePipeline({}, {*send}).ok());
}

}  // namespace
}  // namespace kvblocks::sim
