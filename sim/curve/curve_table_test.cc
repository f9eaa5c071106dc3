#include "sim/curve/curve_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sim/curve/order_curve.h"
#include "sim/curve/sampled_curve.h"
#include "sim/example/example_workload.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

pb::CurveReport MakeReport() {
  pb::CurveReport report;
  report.set_trace("t");
  report.set_mode("order");
  report.set_counted_blocks("engine");
  report.set_block_tokens(16);
  report.set_block_bytes(1 << 20);
  report.set_model("m");
  report.set_device("d");
  report.set_tensor_parallel(2);
  report.set_device_blocks(1'000);
  report.set_prompt_tokens(160'000);
  report.set_prompt_blocks(10'000);
  report.set_possible_hits(5'000);
  report.set_possible_hit_tokens(80'000);
  report.set_smallest_pool(100);
  report.set_full_pool(4'096);
  for (const auto& [share, num_blocks] : std::vector<std::pair<double, int64_t>>{
           {0.5, 100}, {0.9, 1'024}, {0.95, 2'048}, {0.99, 3'000}, {1.0, 4'096}}) {
    pb::CurveAnswer* answer = report.add_answers();
    answer->set_share_of_possible(share);
    answer->set_num_blocks(num_blocks);
    answer->set_tokens(16 * num_blocks);
    answer->set_gib(static_cast<double>(num_blocks) / 1024);
    answer->set_devices(static_cast<double>(num_blocks) / 1'000);
  }
  for (const int64_t num_blocks : {50, 1'000, 2'000}) {
    pb::CurvePoint* point = report.add_points();
    point->set_num_blocks(num_blocks);
    point->set_hits(2 * num_blocks);
    point->set_hit_rate(static_cast<double>(num_blocks) / 5'000);
    point->set_is_row(num_blocks != 2'000);
    point->set_too_small_for_some(num_blocks < 100);
    if (num_blocks == 1'000) point->set_label("<- device");
  }
  return report;
}

std::string Sentences(pb::CurveReport report) {
  AddSentences(&report);
  return absl::StrJoin(report.sentences(), "\n");
}

TEST(CurveTableTest, AnswersSayBlocksTokensBytesAndDevices) {
  const std::string text = Sentences(MakeReport());
  EXPECT_TRUE(absl::StrContains(text,
                                "90 % of the possible hits need 1,024 blocks = 16,384 tokens = "
                                "1 GiB for m on each device: 1.02 times what 2 x d leaves"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "50 % of the possible hits need no more than the smallest"))
      << text;
  EXPECT_TRUE(absl::StrContains(text,
                                "From 90 % to 95 % costs 1,024 blocks = 1 GiB more, which saves "
                                "4,000 prompt tokens per GiB"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "The cache of 2 x d (1,000 blocks) hits 20.00 %")) << text;
  EXPECT_TRUE(absl::StrContains(text, "Twice as much memory adds 20.00 points")) << text;
  EXPECT_TRUE(absl::StrContains(text, "at best 2 times less prefill work")) << text;
}

TEST(CurveTableTest, NothingToHitIsSaid) {
  pb::CurveReport report = MakeReport();
  report.set_possible_hits(0);
  EXPECT_EQ(Sentences(report), "No cache of any size could hit a block of this workload.");
}

TEST(CurveTableTest, APoolOffTheCurveHasNoSentence) {
  pb::CurveReport report = MakeReport();
  report.mutable_points(1)->set_too_small_for_some(true);
  EXPECT_FALSE(absl::StrContains(Sentences(report), "The cache of"));
}

TEST(CurveTableTest, TableHasTheRowsAlone) {
  const std::string table = FormatCurve(MakeReport(), false);
  EXPECT_TRUE(absl::StrContains(table, "            50 "));
  EXPECT_TRUE(absl::StrContains(table, " *\n"));
  EXPECT_TRUE(absl::StrContains(table, "<- device\n"));
  EXPECT_FALSE(absl::StrContains(table, "         2,000 "));
  EXPECT_FALSE(absl::StrContains(table, "Belady"));
  for (const absl::string_view line : absl::StrSplit(table, '\n')) EXPECT_LE(line.size(), 100u);
}

TEST(CurveTableTest, WhatEndedAReplayIsWrapped) {
  pb::CurveReport report = MakeReport();
  report.add_replays()->set_problem(
      "a long message about a pool that is far too small for a model with many groups and windows");
  const std::string table = FormatCurve(report, false);
  EXPECT_TRUE(absl::StrContains(table, "a long message"));
  for (const absl::string_view line : absl::StrSplit(table, '\n')) EXPECT_LE(line.size(), 100u);
}

TEST(CurveTableTest, CsvHasAllPoints) {
  pb::CurveReport report = MakeReport();
  report.mutable_points(0)->set_static_hits(7);
  const std::string csv = CurveCsv(report);
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n');
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[3], "2000,0,0,4000,0.4,0,0,0,0,0");
  EXPECT_EQ(lines[1], "50,0,0,100,0.01,0,0,0,7,1");
}

TEST(CurveTableTest, CsvOfReplaysHasThem) {
  pb::CurveReport report;
  report.set_mode("replays");
  pb::CurveReplay* replay = report.add_replays();
  replay->set_num_blocks(10);
  replay->set_hit_tokens(64);
  replay->set_prompt_tokens(128);
  replay->set_hit_rate(0.5);
  replay->set_requests(3);
  replay->set_rejected(1);
  EXPECT_EQ(CurveCsv(report),
            "num_blocks,gib,hit_tokens,prompt_tokens,hit_rate,preemptions,requests,rejected\n"
            "10,0,64,128,0.5,0,3,1\n");
}

// The curve of the workload that ships with kvsim, so that a change of it never goes unseen.

struct Row {
  int64_t num_blocks;
  int64_t hits;
  int64_t bound;
};

TEST(ExampleCurveTest, IsWhatItWas) {
  auto reader = OpenTraceString(MakeExampleWorkload(), "example", {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  OrderRunOptions options;
  options.with_bound = true;
  const auto run = RunOrder((*reader)->info(), FeedFrom(reader->get()), options);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->num_requests, 396);
  EXPECT_EQ(run->num_references, 42'139);
  EXPECT_EQ(run->num_distinct, 11'445);
  EXPECT_EQ(run->smallest_pool, 233);
  EXPECT_EQ(run->curve.max_hits(), 30'694);
  EXPECT_EQ(run->curve.SmallestPool(30'694), 5'637);
  for (const Row& row : {Row{233, 5'731, 8'624}, Row{241, 5'866, 9'082}, Row{257, 6'095, 9'904}}) {
    EXPECT_EQ(run->curve.Hits(row.num_blocks), row.hits);
    EXPECT_EQ(run->bound->Hits(row.num_blocks, Bypass::kNo), row.bound);
  }
}

TEST(ShuffledFeedTest, KeepsTheTurnsOfASessionInOrder) {
  std::vector<TraceRequest> requests;
  for (int64_t i = 0; i < 60; ++i) {
    TraceRequest& request = requests.emplace_back();
    request.row = i;
    request.session = static_cast<uint64_t>(i % 3);  // 0: none
  }
  auto shuffled = ReadAll(ShuffledFeedFrom(&requests, 1));
  ASSERT_TRUE(shuffled.ok());
  ASSERT_EQ(shuffled->size(), 60u);
  std::vector<int64_t> rows, last(3, -1);
  for (const TraceRequest& request : *shuffled) {
    rows.push_back(request.row);
    if (request.session == 0) continue;
    EXPECT_GT(request.row, last[request.session]);
    last[request.session] = request.row;
  }
  EXPECT_FALSE(std::is_sorted(rows.begin(), rows.end()));
  std::sort(rows.begin(), rows.end());
  for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(rows[static_cast<size_t>(i)], i);
}

TEST(LossByRoundingTest, CountsWhatWholeBlocksLeave) {
  TraceInfo info;
  info.block_tokens = 4;
  std::vector<TraceRequest> requests(3);
  requests[0].content_ids = {1, 2, 3};
  requests[0].input_length = 12;
  requests[1].content_ids = {1, 2, 9};  // shares 8 tokens: one block of 6
  requests[1].input_length = 12;
  requests[2].content_ids = {1, 7};  // shares 4: none
  requests[2].input_length = 8;
  for (TraceRequest& request : requests) request.output_length = 1;
  const RoundingLoss loss = LossByRounding(info, requests, 6);
  EXPECT_EQ(loss.shared_tokens, 12);
  EXPECT_EQ(loss.lost_tokens, 6);
  EXPECT_EQ(loss.short_tokens, 4);
  EXPECT_EQ(loss.short_requests, 1);
}

// The LRU curve and the bound of the published traces, exactly (section 13 of the specification).
// The traces are not part of the tree: KVBLOCKS_SHARED names the folder that has them.

constexpr int kNumSizes = 8;
constexpr int64_t kSizes[kNumSizes] = {1'000, 2'000, 4'000, 5'859, 10'000, 20'000, 50'000, 97'656};

struct PublishedCurve {
  const char* trace;
  int64_t ids[kNumSizes];     // hits where every content id is a block
  int64_t full[kNumSizes];    // where full blocks alone are
  int64_t belady[kNumSizes];  // the bound of the first
};

constexpr PublishedCurve kConversation = {
    "conversation",
    {12'847, 15'665, 24'964, 39'258, 61'046, 83'035, 102'290, 104'870},
    {12'990, 15'944, 26'005, 40'644, 62'005, 84'692, 102'724, 104'926},
    {51'705, 71'949, 92'472, 101'431, 105'710, 105'710, 105'710, 105'710}};
constexpr PublishedCurve kSynthetic = {"synthetic",
                                 {10'252, 17'839, 28'577, 37'703, 51'669, 69'686, 77'953, 77'953},
                                 {10'370, 18'256, 30'217, 38'368, 52'952, 70'849, 77'740, 77'740},
                                 {32'803, 45'608, 60'063, 66'978, 75'241, 77'953, 77'953, 77'953}};

class PublishedCurveTest : public testing::TestWithParam<PublishedCurve> {
 protected:
  // Null if the trace is not here.
  std::unique_ptr<TraceReader> Open() {
    const char* shared = std::getenv("KVBLOCKS_SHARED");
    if (shared == nullptr) return nullptr;
    auto reader = OpenTrace(
        std::string(shared) + "/traces/mooncake/" + GetParam().trace + "_trace.jsonl.gz", {});
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  OrderRun Run(TraceReader* reader, CountedBlocks counted) {
    OrderRunOptions options;
    options.blocks.block_tokens = 512;
    options.blocks.counted = counted;
    options.with_bound = true;
    auto run = RunOrder(reader->info(), FeedFrom(reader), options);
    EXPECT_TRUE(run.ok()) << run.status();
    return *std::move(run);
  }
};

TEST_P(PublishedCurveTest, ContentIdsAsBlocks) {
  const auto reader = Open();
  if (reader == nullptr) GTEST_SKIP() << "KVBLOCKS_SHARED is not set";
  const OrderRun run = Run(reader.get(), CountedBlocks::kIds);
  for (int i = 0; i < kNumSizes; ++i) {
    EXPECT_EQ(run.curve.Hits(kSizes[i]), GetParam().ids[i]) << kSizes[i];
    EXPECT_EQ(run.bound->Hits(kSizes[i], Bypass::kNo), GetParam().belady[i]) << kSizes[i];
    EXPECT_GE(run.bound->Hits(kSizes[i], Bypass::kYes), GetParam().belady[i]) << kSizes[i];
  }
}

TEST_P(PublishedCurveTest, FullBlocks) {
  const auto reader = Open();
  if (reader == nullptr) GTEST_SKIP() << "KVBLOCKS_SHARED is not set";
  const OrderRun run = Run(reader.get(), CountedBlocks::kPrompt);
  for (int i = 0; i < kNumSizes; ++i) {
    EXPECT_EQ(run.curve.Hits(kSizes[i]), GetParam().full[i]) << kSizes[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Mooncake, PublishedCurveTest, testing::Values(kConversation, kSynthetic),
                         [](const auto& instance) { return std::string(instance.param.trace); });

// Curves from samples against the exact one.

struct Workload {
  TraceInfo info;
  std::vector<TraceRequest> requests;
};

Workload ReadWorkload(absl::StatusOr<std::unique_ptr<TraceReader>> reader) {
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto requests = ReadAll(FeedFrom(reader->get()));
  EXPECT_TRUE(requests.ok()) << requests.status();
  return {(*reader)->info(), *std::move(requests)};
}

class Sampling {
 public:
  explicit Sampling(const Workload& workload) : workload_(workload) {
    OrderRunOptions options;
    options.blocks = BlocksOptions();
    auto run = RunOrder(workload.info, FeedFrom(&workload.requests), options);
    EXPECT_TRUE(run.ok()) << run.status();
    exact_ = *std::move(run);
  }

  // Mean absolute error in points of hit rate, over the sizes of the published table and 8 seeds.
  double Error(double rate, size_t num_hot) const {
    const auto hot = Hot(num_hot);
    double sum = 0;
    int64_t count = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const SampledCurve sampled = Sampled(rate, seed, &hot);
      for (const int64_t num_blocks :
           {1'000, 2'000, 4'000, 5'859, 10'000, 20'000, 50'000, 97'656}) {
        sum +=
            std::abs(sampled.Hits(num_blocks) - static_cast<double>(exact_.curve.Hits(num_blocks)));
        ++count;
      }
    }
    return 100 * sum / static_cast<double>(count) / static_cast<double>(exact_.num_prompt_blocks);
  }

  absl::flat_hash_set<uint64_t> Hot(size_t num_hot) const {
    HotPaths hot(num_hot);
    ForEach([&](const CurveRequest& request) {
      for (const uint64_t key : request.keys) hot.Add(key);
    });
    return hot.Take();
  }
  SampledCurve Sampled(double rate, uint64_t seed, const absl::flat_hash_set<uint64_t>* hot) const {
    SampledCurve curve(rate, seed, hot);
    ForEach([&](const CurveRequest& request) { curve.Add(request); });
    curve.Finish();
    return curve;
  }
  const OrderRun& exact() const { return exact_; }

 private:
  RequestBlocksOptions BlocksOptions() const {
    return {.block_tokens = workload_.info.block_tokens, .counted = CountedBlocks::kIds};
  }
  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    RequestBlocks blocks(workload_.info, BlocksOptions());
    CurveRequest request;
    for (TraceRequest row : workload_.requests) {
      if (blocks.Make(row, &request)) visit(request);
    }
  }

  const Workload& workload_;
  OrderRun exact_;
};

TEST(SampledCurveTest, AllOfThemAreTheCurve) {
  const Workload workload = ReadWorkload(OpenTraceString(MakeExampleWorkload(), "example", {}));
  const Sampling sampling(workload);
  for (const size_t num_hot : {0, 5}) {
    const auto hot = sampling.Hot(num_hot);
    const SampledCurve sampled = sampling.Sampled(1.0, 1, &hot);
    EXPECT_EQ(sampled.num_sampled(), sampling.exact().num_references);
    const HitCurve& exact = sampling.exact().curve;
    const int64_t largest = exact.SmallestPool(exact.max_hits());
    EXPECT_EQ(sampled.largest_size(), largest);
    for (int64_t size = 0; size <= largest; ++size) {
      EXPECT_EQ(sampled.Hits(size), static_cast<double>(exact.Hits(size)));
    }
  }
}

TEST(SampledCurveTest, SeedsDrawDifferentSamples) {
  const Workload workload = ReadWorkload(OpenTraceString(MakeExampleWorkload(), "example", {}));
  const Sampling sampling(workload);
  const auto hot = sampling.Hot(0);
  const SampledCurve a = sampling.Sampled(0.3, 1, &hot), b = sampling.Sampled(0.3, 2, &hot);
  EXPECT_NE(a.num_sampled(), b.num_sampled());
  const double share =
      static_cast<double>(a.num_sampled()) / static_cast<double>(sampling.exact().num_references);
  EXPECT_GT(share, 0.15);
  EXPECT_LT(share, 0.45);
}

TEST(HotPathsTest, KeepsWhatComesOften) {
  HotPaths hot(3);
  for (uint64_t i = 0; i < 100'000; ++i) {
    hot.Add(1000 + i);
    if (i % 20 == 0) hot.Add(1);
    if (i % 30 == 0) hot.Add(2);
    if (i % 40 == 0) hot.Add(3);
  }
  EXPECT_EQ(hot.Take(), (absl::flat_hash_set<uint64_t>{1, 2, 3}));
}

// Errors of the published traces. The specification states 3.2 points for the conversation trace
// without hot paths, and with them 0.19, 0.11 and 1.0 at rates of 0.1, 0.03 and 0.01; for the
// synthetic trace 0.47, 0.63 and 1.7. Those are of one seed; these are means of 8.
TEST(PublishedSamplesTest, HotPathsMakeThemClose) {
  const char* shared = std::getenv("KVBLOCKS_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "KVBLOCKS_SHARED is not set";
  struct Expected {
    const char* trace;
    double plain, tenth, thirtieth, hundredth;
  };
  for (const Expected& expected :
       {Expected{"conversation", 3.2, 0.4, 0.5, 1.0}, Expected{"synthetic", 0, 0.47, 0.8, 1.7}}) {
    const Workload workload = ReadWorkload(OpenTrace(
        std::string(shared) + "/traces/mooncake/" + expected.trace + "_trace.jsonl.gz", {}));
    const Sampling sampling(workload);
    const double plain = sampling.Error(0.1, 0), tenth = sampling.Error(0.1, 64),
                 thirtieth = sampling.Error(0.03, 64), hundredth = sampling.Error(0.01, 64);
    std::printf("%s: errors in points: %.2f plain; %.2f, %.2f, %.2f\n", expected.trace, plain,
                tenth, thirtieth, hundredth);
    EXPECT_GE(plain, expected.plain) << expected.trace;
    EXPECT_LE(tenth, expected.tenth) << expected.trace;
    EXPECT_LE(thirtieth, expected.thirtieth) << expected.trace;
    EXPECT_LE(hundredth, expected.hundredth) << expected.trace;
  }
}

}  // namespace
}  // namespace kvblocks::sim
