#include "sim/report/timeline.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/output_readers.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr int64_t kSecondNs = 1'000'000'000;

struct Outcome {
  std::string text;
  std::string left_out;
  TraceEvents events;
  pb::Report report;
};

Outcome Trace(Replay& replay, int64_t max_bytes = TimelineFile::kDefaultMaxBytes) {
  Outcome out;
  TimelineFile file(ByteSinkToString(&out.text), max_bytes);
  Timeline timeline(&file);
  ReplayMetrics metrics({});
  replay.is_watching = false;
  replay.further_observers = {&metrics, &timeline};
  EXPECT_TRUE(replay.Run().ok());
  EXPECT_TRUE(file.Close().ok());
  out.left_out = file.DescribeLeftOut();
  metrics.Fill(replay.result, &out.report);
  out.events = ParseTraceEvents(out.text);
  EXPECT_EQ(out.events.error, "") << out.text;
  EXPECT_EQ(out.events.Overlap(), "");
  return out;
}

// "prefill 0-1 s" and so on, of one request, in the order of the file.
std::vector<std::string> LifeOf(const TraceEvents& events, const std::string& request) {
  std::vector<std::string> life;
  for (const TraceSlice& slice : events.slices) {
    if (slice.request != request) continue;
    life.push_back(
        absl::StrCat(slice.name, " ", slice.from_ns / kSecondNs, "-", slice.to_ns / kSecondNs));
  }
  return life;
}

int64_t Total(const std::vector<TraceSlice>& slices) {
  int64_t sum = 0;
  for (const TraceSlice& slice : slices) sum += slice.to_ns - slice.from_ns;
  return sum;
}

// Events of the first process, one a line.
std::vector<std::string> FirstProcess(const std::string& text) {
  std::vector<std::string> events;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (std::string line : lines) {
    if (!absl::StrContains(line, "\"pid\":1,")) continue;
    if (line.back() == ',') line.pop_back();
    events.push_back(line);
  }
  return events;
}

TEST(TimelineTest, EachReplicaIsAProcess) {
  std::string one, text;
  TimelineFile file_of_one(ByteSinkToString(&one)), file(ByteSinkToString(&text));
  Timeline alone(&file_of_one), first(&file), second(&file, 1, "decode 0");
  Replay replay;
  replay.is_watching = false;
  replay.further_observers = {&alone, &first, &second};
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  EXPECT_TRUE(replay.Run().ok());
  EXPECT_TRUE(file_of_one.Close().ok());
  EXPECT_TRUE(file.Close().ok());
  EXPECT_THAT(FirstProcess(one), SizeIs(testing::Gt(5)));
  EXPECT_EQ(FirstProcess(text), FirstProcess(one));
  EXPECT_THAT(text, HasSubstr("\"pid\":2,\"tid\":1,\"name\":\"process_name\",\"args\":"
                              "{\"name\":\"decode 0\"}"));
  EXPECT_THAT(text, HasSubstr("\"pid\":2,\"tid\":2,\"ts\":"));
}

TEST(TimelineTest, ARequestWaitsPrefillsAndDecodesInItsLane) {
  Replay replay;
  replay.config.scheduler.max_num_seqs = 1;
  replay.config.scheduler.max_num_batched_tokens = 5;
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  replay.Add({.id = "B", .prompt = 4, .output = 2});
  const Outcome out = Trace(replay);
  EXPECT_THAT(LifeOf(out.events, "A"),
              ElementsAre("queued 0-0", "prefill 0-1", "prefill 1-2", "decode 2-4"));
  EXPECT_THAT(LifeOf(out.events, "B"), ElementsAre("queued 0-4", "prefill 4-5", "decode 5-6"));
  std::set<int64_t> lanes;
  for (const TraceSlice& slice : out.events.slices) lanes.insert(slice.lane);
  EXPECT_THAT(lanes, ElementsAre(1, 2, 3));
  EXPECT_EQ(out.events.lanes.at(1), "device");
  EXPECT_EQ(out.events.lanes.at(3), "slot 1");
  const TraceSlice chunk = out.events.Named("prefill")[1];
  EXPECT_THAT(chunk.numbers, Contains(Pair("tokens", 2)));
  EXPECT_THAT(chunk.numbers, Contains(Pair("context", 5)));
  EXPECT_TRUE(out.events.is_complete);
  EXPECT_EQ(out.left_out, "");
}

TEST(TimelineTest, TheLowestLaneThatIsFreeIsTakenAgain) {
  Replay replay;
  for (int i = 0; i < 4; ++i) {
    replay.Add({.id = absl::StrCat(i), .prompt = 4, .output = 2, .at = 10.0 * i});
  }
  const Outcome out = Trace(replay);
  for (const TraceSlice& slice : out.events.slices) EXPECT_LE(slice.lane, 2);
}

TEST(TimelineTest, ConsecutiveDecodesAreOneSliceHoweverTheyAreStepped) {
  std::string texts[2];
  for (const bool exact_steps : {false, true}) {
    Replay replay;
    replay.config.kv_cache.groups = {FullGroup(64)};
    replay.config.scheduler.exact_steps = exact_steps;
    replay.Add({.id = "A", .prompt = 60, .output = 500});
    replay.Add({.id = "B", .prompt = 9, .output = 300, .at = 20});
    const Outcome out = Trace(replay);
    EXPECT_THAT(out.events.Named("decode"), SizeIs(2));
    EXPECT_EQ(out.events.Sum("output_tokens"), 800);
    texts[exact_steps] = out.text;
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(TimelineTest, HitTokensStandAtTheFirstChunk) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 9, .output = 1, .content = Content(9, 0, 9)});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 5, .content = Content(9, 0, 9)});
  const Outcome out = Trace(replay);
  const auto prefills = out.events.Named("prefill");
  ASSERT_THAT(prefills, SizeIs(2));
  EXPECT_EQ(prefills[0].numbers.at("hit_tokens"), 0);
  EXPECT_EQ(prefills[1].numbers.at("hit_tokens"), 8);
  EXPECT_EQ(prefills[1].numbers.at("tokens"), 1);
}

TEST(TimelineTest, SumsAreThoseOfTheReportUnderPreemption) {
  for (const bool async : {false, true}) {
    Replay replay;
    replay.config.scheduler.async = async;
    replay.config.kv_cache.num_blocks = 14;
    replay.config.scheduler.reserve_full_isl = false;
    for (int i = 0; i < 9; ++i) {
      replay.Add({.id = absl::StrCat(i), .prompt = 5 + i, .output = 20, .at = 1.0 * i});
    }
    const Outcome out = Trace(replay);
    ASSERT_GT(out.report.preemption().preemptions(), 2);
    EXPECT_EQ(out.events.Named("preempted").size(), out.report.preemption().preemptions());
    EXPECT_NEAR(static_cast<double>(Total(out.events.Named("preempted"))) / 1e9,
                out.report.preemption().time_lost_s(), 1e-6);
    const auto& queueing = out.report.latency().queueing();
    EXPECT_EQ(out.events.Named("queued").size(), queueing.count());
    EXPECT_NEAR(static_cast<double>(Total(out.events.Named("queued"))) / 1e6,
                queueing.mean_ms() * static_cast<double>(queueing.count()), 1e-3);
    EXPECT_EQ(out.events.Sum("output_tokens"), out.report.totals().output_tokens());
    int64_t busy_ns = 0, steps = 0, tokens = 0;
    for (const TraceSlice& slice : out.events.slices) {
      if (slice.lane != 1) continue;
      busy_ns += slice.numbers.at("busy_ns");
      steps += slice.numbers.at("steps");
      tokens += slice.numbers.at("prefill_tokens") + slice.numbers.at("decode_tokens");
    }
    EXPECT_EQ(steps, out.report.totals().steps());
    EXPECT_EQ(tokens, out.report.totals().computed_tokens());
    EXPECT_NEAR(static_cast<double>(busy_ns) / 1e9,
                out.report.throughput().busy_share() * out.report.throughput().duration_s(), 1e-6);
  }
}

TEST(TimelineTest, CountersFallToNothingWhenAllIsDone) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 11;
  replay.Add({.id = "A", .prompt = 7, .output = 3});
  replay.Add({.id = "B", .prompt = 4, .output = 3, .at = 50});
  const Outcome out = Trace(replay);
  std::vector<int64_t> used, running, total;
  for (const TraceCounter& counter : out.events.counters) {
    if (counter.name == "requests") {
      running.push_back(counter.values.at("running"));
      continue;
    }
    used.push_back(counter.values.at("used"));
    total.push_back(used.back() + counter.values.at("cached") + counter.values.at("free"));
  }
  EXPECT_THAT(used, ElementsAre(2, 3, 0, 1, 2, 0));
  EXPECT_THAT(running, ElementsAre(1, 1, 0, 1, 1, 0));
  EXPECT_THAT(total, testing::Each(10));
}

TEST(TimelineTest, RejectedAndAbortedRequestsAreMarked) {
  Replay replay;
  replay.config.scheduler.max_num_seqs = 1;
  replay.Add({.id = "big", .prompt = 100'001, .output = 1});
  replay.Add({.id = "A", .prompt = 4, .output = 50, .abort_after = 5});
  replay.Add({.id = "B", .prompt = 4, .output = 50, .abort_after = 3});
  const Outcome out = Trace(replay);
  EXPECT_THAT(out.events.instants.at("rejected"), ElementsAre("big"));
  EXPECT_THAT(out.events.instants.at("aborted"), ElementsAre("B", "A"));
  EXPECT_THAT(LifeOf(out.events, "B"), ElementsAre("queued 0-3"));
  EXPECT_THAT(LifeOf(out.events, "big"), IsEmpty());
}

TEST(TimelineTest, TheLimitHoldsAndSaysWhatItLeftOut) {
  const auto fill = [](Replay& replay) {
    for (int i = 0; i < 200; ++i) {
      replay.Add({.id = absl::StrCat("request ", i), .prompt = 9, .output = 4, .at = 1.0 * i});
    }
  };
  Replay all, cut;
  fill(all);
  fill(cut);
  const Outcome whole = Trace(all);
  const Outcome part = Trace(cut, 20'000);
  EXPECT_LE(part.text.size(), 20'000u);
  EXPECT_GE(part.text.size(), 17'000u);
  EXPECT_FALSE(part.events.is_complete);
  EXPECT_EQ(part.events.other.at("slices"), part.events.slices.size());
  EXPECT_EQ(part.events.slices.size() + part.events.other.at("slices_left_out"),
            whole.events.slices.size());
  EXPECT_EQ(
      part.events.other.at("counter_values") + part.events.other.at("counter_values_left_out"),
      whole.events.other.at("counter_values"));
  EXPECT_THAT(part.left_out, HasSubstr("the limit of 20,000 bytes was reached at "));
  EXPECT_THAT(part.text, HasSubstr(part.left_out));
  EXPECT_THAT(part.events.instants, Contains(Pair("end of this file, not of the run", SizeIs(1))));
  // All that ended before is there.
  const double end_s = part.events.other.at("end_s");
  int64_t ended = 0;
  for (const TraceSlice& slice : whole.events.slices) {
    ended += static_cast<double>(slice.to_ns) / 1e9 < end_s && !slice.request.empty();
  }
  int64_t kept = 0;
  for (const TraceSlice& slice : part.events.slices) kept += !slice.request.empty();
  EXPECT_GE(kept, ended);
}

TEST(TimelineTest, ValuesOfCountersGetRarer) {
  Replay replay;
  const auto step_time = MakeFixedStepTime(kMillisecond);
  replay.step_time = step_time->get();
  replay.config.check_invariants = false;
  replay.config.kv_cache.groups = {FullGroup(1)};  // so that every step takes a block
  replay.config.kv_cache.num_blocks = 60'000;
  replay.Add({.id = "A", .prompt = 1, .output = 50'000});
  const Outcome out = Trace(replay);
  // 8,192 steps at each, then 2 and 4 times as many: 8192 + 16384 + the rest of 25424 by 4.
  EXPECT_EQ(out.events.other.at("counter_values"), 8192 + 8192 + 25424 / 4 + 1);
}

TEST(TimelineTest, NamesOfRequestsAreQuoted) {
  Replay replay;
  replay.Add({.id = "a\"</script>\xFF", .prompt = 3, .output = 1});
  EXPECT_THAT(Trace(replay).events.Named("queued")[0].request, "a\"</script>\xEF\xBF\xBD");
}

}  // namespace
}  // namespace kvblocks::sim
