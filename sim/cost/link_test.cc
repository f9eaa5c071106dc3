// Links: transfers worked out by hand (SM-104, WE-33), and random ones against a model that moves
// bytes picosecond by picosecond.

#include "sim/cost/link.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::sim {
namespace {

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

TEST(LinkTest, FifoServesOneAfterTheOther) {
  Link link = Make({.bytes_per_second = 1'000'000'000'000, .sharing = LinkSharing::kFifo});
  link.Start(0, 4);
  link.Start(2, 5);
  link.Start(2, 1);
  EXPECT_EQ(RunAll(link), (std::vector<Link::Ended>{{0, 4, 0}, {1, 9, 2}, {2, 10, 7}}));
}

// Latency is a transfer's own: B's passes while A moves.
TEST(LinkTest, LatencyTakesNoBandwidth) {
  Link link = Make({.bytes_per_second = 1'000'000'000'000, .latency = 10});
  link.Start(0, 6);
  link.Start(6, 2);
  EXPECT_EQ(link.NextEnd(), 16);
  EXPECT_EQ(RunAll(link), (std::vector<Link::Ended>{{0, 16, 0}, {1, 18, 0}}));
  EXPECT_EQ(link.totals().busy_time, 8);
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
      // Being advanced at other times, too, changes nothing, and ends come when they were announced.
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

}  // namespace
}  // namespace kvblocks::sim
