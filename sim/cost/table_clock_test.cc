// SM-58, SM-62: the clock of measured kernels.

#include "sim/cost/table_clock.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/model_facts.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

const KernelTables& TablesOf(const std::string& device) {
  static auto* const all = new std::map<std::string, KernelTables>;
  auto it = all->find(device);
  if (it == all->end()) {
    auto tables = LoadKernelTables(FindKernelTablesFile(), device);
    EXPECT_TRUE(tables.ok()) << tables.status();
    it = all->emplace(device, *std::move(tables)).first;
  }
  return it->second;
}

TableClockOptions OptionsOf(const std::string& model, const std::string& device,
                            int64_t ranks = 1) {
  TableClockOptions options;
  options.layers.roofline.model = *Catalogue::BuiltIn().FindModel(model);
  options.layers.roofline.device = *Catalogue::BuiltIn().FindDevice(device);
  options.layers.roofline.tensor_parallel = ranks;
  options.max_num_tokens = 4096;
  options.max_num_seqs = 256;
  options.max_sequence_len = 32768;
  return options;
}

std::unique_ptr<StepTimeModel> ClockOf(const TableClockOptions& options) {
  auto clock = MakeTableClock(TablesOf(options.layers.roofline.device.name), options);
  EXPECT_TRUE(clock.ok()) << clock.status();
  return *std::move(clock);
}

SequenceWork OneDecode(int64_t context) {
  return {.num_context = context, .num_new = 1, .num_sampled = 1};
}

void ExpectWithin(SimTime got, SimTime expected, double share) {
  EXPECT_NEAR(static_cast<double>(got) / static_cast<double>(expected), 1.0, share)
      << FormatDuration(got) << " for " << FormatDuration(expected);
}

// The sum written out from the tables, at counts that are grid points.
TEST(TableClockTest, SM62ADecodeStepIsTheSumOfItsKernels) {
  const TableClockOptions options = OptionsOf("llama-3.1-8b", "h100-sxm");
  const KernelTables& tables = TablesOf("h100-sxm");
  const KernelGrid& gemm = *tables.Find("gemm", "bfloat16");
  const KernelGrid& attention = *tables.Find("attention_decode", "128|bfloat16|0|32|8");
  const int64_t n = 16;
  const int64_t layer = gemm.At({6144, 4096, n}) + gemm.At({4096, 4096, n}) +
                        gemm.At({28672, 4096, n}) + gemm.At({4096, 14336, n}) +
                        attention.At({n, 1024});
  const SimTime expected =
      32 * (layer + 11 * kMicrosecond) + gemm.At({128256, 4096, n}) + n * 9 * kMicrosecond;
  const std::vector<SequenceWork> work(n, OneDecode(1023));
  EXPECT_EQ(*ClockOf(options)->StepTime(work), expected);
}

TEST(TableClockTest, PromptsAddTheirFactorAndTheStepsConstant) {
  TableClockOptions options = OptionsOf("llama-3.1-8b", "h100-sxm");
  const KernelTables& tables = TablesOf("h100-sxm");
  const KernelGrid& gemm = *tables.Find("gemm", "bfloat16");
  const KernelGrid& attention = *tables.Find("attention_context", "128|bfloat16|0|32|8");
  const auto linear = [&](int64_t n) {
    return 32 * (gemm.At({6144, 4096, n}) + gemm.At({4096, 4096, n}) + gemm.At({28672, 4096, n}) +
                 gemm.At({4096, 14336, n}));
  };
  const SequenceWork chunk{.num_context = 1024, .num_new = 1024};
  const int64_t prompt = linear(1024) + 32 * (attention.At({2048}) - attention.At({1024}));
  const SimTime constants = 32 * 111 * kMicrosecond + 9 * kMicrosecond;
  EXPECT_EQ(*ClockOf(options)->StepTime({chunk}), prompt * 115 / 100 + constants);
  options.prefill_factor = 2;
  EXPECT_EQ(*ClockOf(options)->StepTime({chunk}), prompt * 2 + constants);
}

TEST(TableClockTest, ExpertsHaveTheirOwnFactor) {
  TableClockOptions options = OptionsOf("gpt-oss-120b", "h200-sxm");
  options.prefill_factor = options.expert_prefill_factor = 1;
  const SequenceWork chunk{.num_context = 0, .num_new = 2048};
  const SimTime plain = *ClockOf(options)->StepTime({chunk});
  const LayerTimes times(TablesOf("h200-sxm"), options.layers);
  options.expert_prefill_factor = 2;
  EXPECT_EQ(*ClockOf(options)->StepTime({chunk}) - plain, times.Experts(2048));
}

// D-6
TEST(TableClockTest, DataParallelRanksShareTheExperts) {
  TableClockOptions options = OptionsOf("deepseek-v3", "h200-sxm");
  options.layers.roofline.data_parallel = options.layers.expert_parallel = 8;
  options.layers.expert_tensor_parallel = 1;
  const auto clock = ClockOf(options);
  const LayerTimes times(TablesOf("h200-sxm"), options.layers);
  const auto among = [&](const std::vector<SequenceWork>& work, const StepPeers& peers) {
    return *clock->StepTimeAmong(work, Decodes(), peers);
  };
  const std::vector<SequenceWork> one = {OneDecode(1023)}, many(64, OneDecode(1023));
  // What nobody says is that all have as much to do.
  EXPECT_EQ(among(many, {.num_tokens = 512, .num_decode_tokens = 512}), *clock->StepTime(many));
  // A rank with one token computes as many of the experts as the others bring, and travels with
  // them.
  const SimTime alone = among(one, {.num_tokens = 8, .num_decode_tokens = 8});
  EXPECT_EQ(among(one, {.num_tokens = 512, .num_decode_tokens = 512}) - alone,
            times.Shared(64) - times.Shared(1));
  EXPECT_GT(times.Shared(64), times.Experts(64));
  // Padding takes what products take.
  EXPECT_EQ(among(one, {.num_tokens = 8, .num_decode_tokens = 8, .padded_tokens = 64}) - alone,
            times.Linear(64) - times.Shared(64) - (times.Linear(1) - times.Shared(1)));
  // A prompt of another rank has the factors of prompts.
  options.expert_prefill_factor = 2 * options.expert_prefill_factor;
  const StepPeers with_prompt = {.num_tokens = 8 + 4096, .num_decode_tokens = 8};
  const SimTime longer = *ClockOf(options)->StepTimeAmong(one, Decodes(), with_prompt);
  ExpectWithin(longer - among(one, with_prompt), (times.Experts(513) - times.Experts(1)) * 3 / 2,
               0.01);
}

// As measured in captured graphs: nothing is taken off where no launch is in it.
TEST(TableClockTest, BlocksOfCapturedGraphsCountWhole) {
  for (const std::string device : {"h100-sxm", "h200-sxm", "b200", "b300"}) {
    const LayerTimes times(TablesOf(device), OptionsOf("kimi-k2", device, 8).layers);
    const KernelGrid& decode = *TablesOf(device).Find("mla_decode", "bfloat16|fp8_block|8");
    EXPECT_EQ(times.Decode(16, 2048), 61 * decode.At({16, 2048})) << device;
    // Launches alone took 80 us a block.
    EXPECT_LT(decode.At({1, 128}), 70 * kMicrosecond) << device;
  }
}

// Published FP8 models with experts have scaled blocks of weights; dense ones one scale a tensor.
TEST(TableClockTest, ExpertsModelsInFp8TakeTheProductsOfScaledBlocks) {
  const auto source_of = [](const std::string& model, const std::string& part) {
    TableClockOptions options = OptionsOf(model, "b200");
    options.layers.roofline.model.bytes_per_param = 1;
    for (const TimePart& p : ClockOf(options)->parts()) {
      if (p.part == part) return p.source;
    }
    return std::string("no part ") + part;
  };
  EXPECT_EQ(source_of("qwen3-235b-a22b", "projections of attention"),
            "measured kernels, fp8_block");
  EXPECT_EQ(source_of("llama-3.1-70b", "gate and up"), "measured kernels, fp8");
}

// Experts that an engine takes by an option: 8-bit activations for 4-bit weights.
TEST(TableClockTest, GptOssHasExpertsWithEightBitActivations) {
  TableClockOptions options = OptionsOf("gpt-oss-120b", "b200");
  const LayerTimes half(TablesOf("b200"), options.layers);
  options.layers.expert_dtype = "w4a8_mxfp4_mxfp8";
  const LayerTimes eight(TablesOf("b200"), options.layers);
  EXPECT_LT(eight.Experts(8192) * 2, half.Experts(8192));
  EXPECT_LT(eight.Experts(32), half.Experts(32));
}

// MiniMax-M2's norms of queries and keys span the heads of all ranks: one small exchange a layer.
TEST(TableClockTest, NormsOverAllRanksAreAnExchangeMore) {
  TableClockOptions options = OptionsOf("qwen3-235b-a22b", "b200", 4);
  const LayerTimes without(TablesOf("b200"), options.layers);
  options.layers.roofline.model.family = "minimax_m2";
  const LayerTimes with(TablesOf("b200"), options.layers);
  EXPECT_EQ(with.Linear(64) - without.Linear(64),
            94 * TablesOf("b200").Find("allreduce", "4")->At({64 * 8}));
  options = OptionsOf("qwen3-235b-a22b", "b200");
  const LayerTimes alone(TablesOf("b200"), options.layers);
  options.layers.roofline.model.family = "minimax_m2";
  EXPECT_EQ(LayerTimes(TablesOf("b200"), options.layers).Linear(64), alone.Linear(64));
}

// An engine fuses an all-reduce with the norm after it up to a size, and where that is faster.
TEST(TableClockTest, AllReducesAreFusedWithNormsUpToASize) {
  TableClockOptions options = OptionsOf("llama-3.1-70b", "b200", 8);
  const auto saved = [&](int64_t num_tokens) {
    options.layers.fuses_allreduce = false;
    const int64_t without = LayerTimes(TablesOf("b200"), options.layers).Linear(num_tokens);
    options.layers.fuses_allreduce = true;
    return without - LayerTimes(TablesOf("b200"), options.layers).Linear(num_tokens);
  };
  const KernelGrid& plain = *TablesOf("b200").Find("allreduce", "8");
  const KernelGrid& fused = *TablesOf("b200").Find("allreduce_fused", "8");
  const int64_t token_bytes = 8192 * 2;
  // Of 256 KiB, which takes the plain one 26 us.
  const int64_t each = plain.At({16 * token_bytes}) - fused.At({16 * token_bytes});
  EXPECT_EQ(saved(16), 2 * 80 * (each - 2 * kMicrosecond));
  EXPECT_GT(saved(16), 2 * 80 * 10 * kMicrosecond);
  // 1 MiB is the most for eight ranks, and there the plain one is faster.
  EXPECT_GT(fused.At({64 * token_bytes}), plain.At({64 * token_bytes}));
  EXPECT_EQ(saved(64), 0);
  EXPECT_EQ(saved(128), 0);
  // No engine does so for three ranks, or on older devices.
  EXPECT_EQ(TablesOf("b200").Find("allreduce_fused", "3"), nullptr);
  EXPECT_TRUE(TablesOf("a100-sxm-80gb").GridsOf("allreduce_fused").empty());
}

// Of two nodes each exchanges as measured, and the roofline has what goes between them.
TEST(TableClockTest, RanksOnTwoNodesExchangeAsMeasuredInsideAndByTheRooflineBetween) {
  TableClockOptions options = OptionsOf("llama-3.1-70b", "h200-sxm", 16);
  const LayerTimes two(TablesOf("h200-sxm"), options.layers);
  options.layers.roofline.device.devices_per_node = 16;
  const LayerTimes one(TablesOf("h200-sxm"), options.layers);
  const int64_t bytes = 64 * 8192 * 2;
  const int64_t inside = TablesOf("h200-sxm").Find("allreduce", "8")->At({bytes});
  const auto seconds = [&](double s) { return std::llround(s * 1e12); };
  const int64_t between = 5 * kMicrosecond + seconds(bytes / 8 / 50e9);
  const int64_t as_one = 5 * kMicrosecond + seconds(2 * 15.0 / 16 * bytes / 450e9);
  EXPECT_EQ(two.Linear(64) - one.Linear(64), 160 * (inside + between - as_one));
  EXPECT_EQ(two.Linear(64, LayerTimes::Which::kEstimated), 160 * between);
  const auto of = [](const LayerTimes& times, const std::string& part) {
    for (const TimePart& known : times.parts()) {
      if (known.part == part) return known.source;
    }
    return std::string("none");
  };
  EXPECT_EQ(of(two, "collectives"), "measured kernels, 8 ranks in captured graphs");
  EXPECT_EQ(of(two, "collectives between 2 nodes of 50 GB/s a device"), "roofline");
  EXPECT_EQ(of(one, "collectives"), "roofline");
}

// SM-111: a decode counts the same whether it is a record or one of the sum.
TEST(TableClockTest, DecodesAddUpForEveryModelAndDevice) {
  const char* const devices[] = {"a100-sxm-80gb", "h100-sxm", "b300", "rtx-pro-6000"};
  size_t i = 0;
  for (const auto& [name, facts] : Catalogue::BuiltIn().models()) {
    const TableClockOptions options = OptionsOf(name, devices[i++ % std::size(devices)], 2);
    const auto clock = ClockOf(options);
    ASSERT_TRUE(clock->adds_up_decodes());
    std::vector<SequenceWork> work = {{.num_context = 100, .num_new = 300}, OneDecode(5000)};
    Decodes decodes;
    std::vector<SequenceWork> all = work;
    for (const int64_t context : {1, 17, 900, 901, 20000}) {
      all.push_back(OneDecode(context));
      ++decodes.num_sequences;
      decodes.sum_context += context;
    }
    EXPECT_EQ(*clock->StepTime(all), *clock->StepTime(work, decodes)) << name;
    EXPECT_GT(*clock->StepTime(all), 0) << name;
    EXPECT_FALSE(clock->parts().empty()) << name;
  }
}

// Several drafts are verified in one pass over weights and cache: no prompt, and far from four
// steps.
TEST(TableClockTest, VerifyingDraftsTakesAboutAsLongAsOneToken) {
  const auto clock = ClockOf(OptionsOf("llama-3.1-8b", "h100-sxm"));
  const SequenceWork verified{.num_context = 2000, .num_new = 4, .num_sampled = 4};
  const SimTime one = *clock->StepTime({OneDecode(2000)});
  const SimTime four = *clock->StepTime({verified});
  ExpectWithin(four, one, 0.1);
}

TEST(TableClockTest, SM62WhatLiesOutsideTheTablesIsCounted) {
  TableClockOptions options = OptionsOf("llama-3.1-8b", "h100-sxm");
  options.max_sequence_len = 1 << 20;
  const auto clock = ClockOf(options);
  StepTally tally;
  clock->Tally({OneDecode(1000)}, Decodes(), StepPeers(), &tally);
  EXPECT_EQ(tally.num_outside, 0);
  clock->Tally({OneDecode(500'000)}, Decodes(), StepPeers(), &tally);
  const SequenceWork chunk{.num_context = 100'000, .num_new = 1000};
  clock->Tally({chunk}, Decodes(), StepPeers(), &tally);
  EXPECT_EQ(tally.num_outside, 2);
}

// What a step takes, by source: nothing is counted twice or left out.
TEST(TableClockTest, TalliesSumToWhatStepsTake) {
  const auto tally_of = [](const TableClockOptions& options) {
    const auto clock = ClockOf(options);
    const std::vector<SequenceWork> work = {{.num_context = 100, .num_new = 300}, OneDecode(5000)};
    const Decodes decodes{.num_sequences = 3, .sum_context = 6000};
    StepTally tally;
    clock->Tally(work, decodes, StepPeers(), &tally);
    EXPECT_EQ(static_cast<SimTime>(tally.measured + tally.estimated + tally.constants),
              *clock->StepTime(work, decodes));
    const SimTime layers = options.layers.roofline.model.num_layers();
    if (options.layers.roofline.tensor_parallel == 1) {
      // 25 us of layers that the roofline says, 11 us of others, 100 us of all with prompts.
      const int64_t estimated =
          LayerTimes(TablesOf("h100-sxm"), options.layers).num_estimated_layers();
      EXPECT_EQ(static_cast<SimTime>(tally.constants),
                (layers * 111 + estimated * 14 + 5 * 9) * kMicrosecond);
    }
    return tally;
  };
  const StepTally llama = tally_of(OptionsOf("llama-3.1-8b", "h100-sxm"));
  EXPECT_EQ(static_cast<int64_t>(llama.estimated), 0);
  EXPECT_GT(llama.measured, 0);
  // Windows of 4,096 tokens are in no table.
  const StepTally gemma = tally_of(OptionsOf("gemma-2-27b", "h100-sxm"));
  EXPECT_GT(gemma.estimated, 0);
  EXPECT_GT(gemma.measured, gemma.estimated);
  // No table has collectives of three ranks.
  EXPECT_GT(tally_of(OptionsOf("llama-3.1-8b", "h100-sxm", 3)).estimated, 0);
}

// Alike but for what a sparse layer selects: both read all of a short context, and V3.2 has an
// indexer on top.
TEST(TableClockTest, SparseLayersAreFasterFromLongContextsOnOnly) {
  for (const std::string device : {"h100-sxm", "h200-sxm", "b200", "b300"}) {
    const auto dense = ClockOf(OptionsOf("deepseek-v3", device, 8));
    const auto sparse = ClockOf(OptionsOf("deepseek-v3.2", device, 8));
    const auto slower = [&](int64_t context) {
      const std::vector<SequenceWork> work(64, OneDecode(context));
      return static_cast<double>(*sparse->StepTime(work)) /
             static_cast<double>(*dense->StepTime(work));
    };
    EXPECT_GT(slower(1024), 1) << device;
    EXPECT_LT(slower(32000), 1) << device;
    StepTally tally;
    sparse->Tally({OneDecode(1024)}, Decodes(), StepPeers(), &tally);
    EXPECT_EQ(static_cast<int64_t>(tally.estimated), 0) << device;
  }
}

TEST(TableClockTest, SM67PartsNameTheirSources) {
  const auto sources = [](const StepTimeModel& clock) {
    std::string text;
    for (const TimePart& part : clock.parts())
      absl::StrAppend(&text, part.part, ": ", part.source, "\n");
    return text;
  };
  const std::string llama = sources(*ClockOf(OptionsOf("llama-3.1-8b", "h100-sxm", 2)));
  EXPECT_THAT(llama, HasSubstr("attention of 32 layers: measured kernels\n"));
  EXPECT_THAT(llama, HasSubstr("collectives: measured kernels, 2 ranks in captured graphs\n"
                               "collectives with norms: measured kernels, fused up to messages of "
                               "65536 KiB\n"));
  EXPECT_THAT(llama, HasSubstr("between kernels: 448us per step and 9us per sequence"));
  // How good such predictions were; not where a constant is the user's.
  EXPECT_THAT(llama, HasSubstr("error on measured servers: TPOT within 3 % on half of the runs and "
                               "8 % on nine of ten, mean TTFT 7 % and 25 % (dense models on "
                               "Hopper)\n"));
  EXPECT_THAT(sources(*ClockOf(OptionsOf("llama-3.1-8b", "l40s"))),
              HasSubstr("error on measured servers: not known: no dense models were measured on "
                        "l40s\n"));
  TableClockOptions own = OptionsOf("llama-3.1-8b", "h100-sxm");
  own.layer_overhead = 0;
  EXPECT_THAT(sources(*ClockOf(own)), ::testing::Not(HasSubstr("error on measured")));
  // No table has a window of 4,096 tokens, or three ranks.
  const std::string gemma = sources(*ClockOf(OptionsOf("gemma-2-27b", "h100-sxm")));
  EXPECT_THAT(gemma, HasSubstr("attention of 23 layers: roofline\n"));
  EXPECT_THAT(gemma, HasSubstr("attention of 23 layers: measured kernels"));
  EXPECT_THAT(sources(*ClockOf(OptionsOf("kimi-k2", "h200-sxm", 8))),
              HasSubstr("latent attention of 61 layers, projections included: measured kernels"));
  EXPECT_THAT(sources(*ClockOf(OptionsOf("gpt-oss-120b", "h200-sxm", 4))),
              HasSubstr("experts: measured kernels, w4a16_mxfp4, uneven load, divided 4 x 1\n"));
  EXPECT_EQ(ClockOf(OptionsOf("llama-3.1-8b", "h100-sxm"))->source(),
            "measured kernels, uncalibrated");
  TableClockOptions named = OptionsOf("llama-3.1-8b", "h100-sxm");
  named.calibration = "mine";
  EXPECT_EQ(ClockOf(named)->source(), "measured kernels, calibrated: mine");
}

// Head shapes between those of the tables take the nearest one's time by heads.
TEST(TableClockTest, OtherHeadCountsAreScaled) {
  TableClockOptions options = OptionsOf("llama-3.1-8b", "h100-sxm");
  options.layers.roofline.model.num_heads = 28;
  options.layers.roofline.model.num_kv_heads = 7;
  const LayerTimes times(TablesOf("h100-sxm"), options.layers);
  EXPECT_EQ(times.num_summed_layers(), 32);
  const LayerTimes table(TablesOf("h100-sxm"), OptionsOf("llama-3.1-8b", "h100-sxm").layers);
  ExpectWithin(times.Decode(64, 4096), table.Decode(64, 4096) * 28 / 32, 0.15);
}

TEST(TableClockTest, BadOptionsAreRefused) {
  const auto message = [](TableClockOptions options) {
    return std::string(MakeTableClock(TablesOf("h100-sxm"), options).status().message());
  };
  const TableClockOptions good = OptionsOf("llama-3.1-8b", "h100-sxm");
  TableClockOptions bad = good;
  bad.layer_overhead = -1;
  EXPECT_THAT(message(bad), HasSubstr("table_clock.layer_overhead is "));
  bad = good;
  bad.expert_prefill_factor = 0;
  EXPECT_THAT(message(bad),
              HasSubstr("table_clock.expert_prefill_factor is 0, expected 0.1 to 100"));
  bad = good;
  bad.max_num_seqs = 0;
  EXPECT_THAT(message(bad), HasSubstr("table_clock.max_num_seqs is 0, expected 1 to"));
  bad = good;
  bad.layers.roofline.tensor_parallel = 0;
  EXPECT_THAT(message(bad), HasSubstr("roofline.tensor_parallel is 0"));
}

TEST(CountGridTest, EveryPointIsItsOwnPlace) {
  for (const int bits : {1, 3, 5, 9}) {
    const CountGrid grid(bits, 100'000);
    for (size_t i = 0; i + 1 < grid.size(); ++i) {
      EXPECT_LT(grid.At(i), grid.At(i + 1));
      EXPECT_EQ(grid.Of(grid.At(i)).index, i);
      EXPECT_EQ(grid.Of(grid.At(i)).rest, 0);
    }
    EXPECT_GT(grid.At(grid.size() - 1), 100'000);
  }
}

TEST(CountGridTest, SmallCountsArePoints) {
  const CountGrid grid(4, 1000);
  for (int64_t i = 0; i <= 16; ++i) EXPECT_EQ(grid.At(static_cast<size_t>(i)), i);
  EXPECT_EQ(grid.At(17), 18);
}

TEST(CountGridTest, LinesAreExactAlsoBeyondTheLastPoint) {
  const Curve curve(CountGrid(4, 1000), [](int64_t n) { return 7 * n + 3; });
  for (const int64_t n : {0, 1, 15, 16, 17, 31, 100, 999, 1000, 5000, 123'456}) {
    EXPECT_EQ(curve.At(n), 7 * n + 3) << n;
  }
}

TEST(CountGridTest, SquaresAreCloseBetweenPoints) {
  const Curve curve(CountGrid(5, 1 << 20), [](int64_t n) { return n * n; });
  for (int64_t n = 1; n < (1 << 20); n += n / 5 + 1) {
    EXPECT_NEAR(static_cast<double>(curve.At(n)) / static_cast<double>(n * n), 1.0, 0.002) << n;
  }
}

TEST(CountGridTest, SurfacesAreLinearInBothDirections) {
  const Surface surface(CountGrid(3, 500), CountGrid(4, 5000),
                        [](int64_t x, int64_t y) { return 5 * x + 11 * y + 1; });
  for (const int64_t x : {0, 1, 7, 9, 77, 500, 900}) {
    for (const int64_t y : {0, 3, 17, 1023, 5000, 80'000}) {
      // Rounded down once per direction.
      EXPECT_NEAR(static_cast<double>(surface.At(x, y)), static_cast<double>(5 * x + 11 * y + 1),
                  1);
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
