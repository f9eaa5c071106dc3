#include "sim/cost/roofline.h"

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/cost/attention_cost.h"
#include "sim/cost/nodes.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;

RooflineOptions Llama8bOnH100() {
  RooflineOptions options;
  options.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  options.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  return options;
}

SimTime Time(const RooflineOptions& options, std::vector<SequenceWork> work) {
  const auto model = MakeRoofline(options);
  EXPECT_TRUE(model.ok()) << model.status();
  const auto time = (*model)->StepTime(work);
  EXPECT_TRUE(time.ok()) << time.status();
  return *time;
}

double Seconds(SimTime time) { return static_cast<double>(time) / 1e12; }

TEST(RooflineTest, OneDecodeReadsTheWeights) {
  // 16.06 GB of weights and 1,001 rows of 131,072 bytes at 85 % of 3,350 GB/s, and 1 ms.
  const double expected = (16.06e9 + 1001 * 131072.0) / (3350e9 * 0.85) + 1e-3;
  EXPECT_NEAR(Seconds(Time(Llama8bOnH100(), {{1000, 1, 1}})), expected, 1e-7);
}

TEST(RooflineTest, LongPrefillIsBoundByArithmetic) {
  const double tokens = 8192;
  const double flops = 2 * (8.03e9 - 2 * 4096.0 * 128256) * tokens + 2 * 4096.0 * 128256 +
                       4.0 * 32 * 128 * 32 * tokens * (tokens + 1) / 2;
  const double expected = flops / (989e12 * 0.6) + 1e-3;
  EXPECT_NEAR(Seconds(Time(Llama8bOnH100(), {{0, 8192, 1}})), expected, expected * 1e-3);
}

TEST(RooflineTest, DecodeTimeGrowsByAConstantPerContextToken) {
  // So that a run of decode steps has a closed form: k a + b (k S + R k (k - 1) / 2).
  const RooflineOptions options = Llama8bOnH100();
  const SimTime first = Time(options, {{1000, 1, 1}, {2000, 1, 1}});
  const SimTime per_token = Time(options, {{1001, 1, 1}, {2000, 1, 1}}) - first;
  SimTime sum = 0;
  const int64_t k = 10;
  for (int64_t i = 0; i < k; ++i) sum += Time(options, {{1000 + i, 1, 1}, {2000 + i, 1, 1}});
  EXPECT_EQ(sum, k * first + per_token * 2 * k * (k - 1) / 2);
}

RC_GTEST_PROP(RooflineTest, DecodesMayBeGivenAsASum, ()) {
  RooflineOptions options = Llama8bOnH100();
  options.model = *Catalogue::BuiltIn().FindModel(*rc::gen::element<std::string>(
      "llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b-v0.1", "deepseek-v3", "qwen3.5-35b-a3b"));
  options.tensor_parallel = *rc::gen::element<int64_t>(1, 4);
  options.time_per_sequence = *rc::gen::inRange<SimTime>(0, kMicrosecond);
  const auto model = MakeRoofline(options);
  RC_ASSERT(model.ok());
  RC_ASSERT((*model)->adds_up_decodes());
  std::vector<SequenceWork> work, all;
  if (*rc::gen::arbitrary<bool>()) {
    work.push_back({*rc::gen::inRange<int64_t>(0, 9000), *rc::gen::inRange<int64_t>(1, 9000), 1});
  }
  all = work;
  Decodes decodes;
  for (int64_t context : *rc::gen::nonEmpty(
           rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, 200000)))) {
    all.push_back({context, 1, 1});
    ++decodes.num_sequences;
    decodes.sum_context += context;
  }
  RC_ASSERT(*(*model)->StepTime(work, decodes) == *(*model)->StepTime(all));
}

TEST(RooflineTest, ModelsWithWindowsOrSelectedRowsMustSeeEachContext) {
  RooflineOptions options = Llama8bOnH100();
  for (const char* name : {"gemma-3-27b", "deepseek-v3.2", "deepseek-v4-flash", "llama-4-scout"}) {
    options.model = *Catalogue::BuiltIn().FindModel(name);
    EXPECT_FALSE((*MakeRoofline(options))->adds_up_decodes()) << name;
  }
}

// Memory decides: what a decode step reads more with context `b` than with `a`, in bytes.
double BytesBetween(RooflineOptions options, int64_t a, int64_t b) {
  options.device.bf16_tflops = 1e9;
  const double seconds = Seconds(Time(options, {{b, 1, 1}})) - Seconds(Time(options, {{a, 1, 1}}));
  return seconds * options.device.memory_gb_per_s * 1e9 * options.memory_efficiency;
}

RooflineOptions ModelOnH100(const std::string& model) {
  RooflineOptions options = Llama8bOnH100();
  options.model = *Catalogue::BuiltIn().FindModel(model);
  return options;
}

// Coefficients are whole picoseconds: under three bytes of an H100's memory each.
void ExpectBytes(double bytes, double expected) { EXPECT_NEAR(bytes, expected, 0.005 * expected); }

TEST(RooflineTest, EachKindOfLayerReadsItsRows) {
  const struct {
    const char* model;
    int64_t ranks, context_ranks;
    const char* dtype;
    int64_t from, to;  // contexts
    double bytes;
  } cases[] = {
      // Latent rows, once on every rank.
      {"deepseek-v3", 1, 1, "", 1000, 101000, 1e5 * 61 * 1152},
      {"deepseek-v3", 8, 1, "", 1000, 101000, 1e5 * 61 * 1152},
      {"deepseek-v3", 8, 1, "fp8_ds_mla", 1000, 101000, 1e5 * 61 * 656},
      // BM-113: each of the ranks that share the tokens reads its part of the rows.
      {"deepseek-v3", 8, 4, "", 1000, 101000, 1e5 * 61 * 1152 / 4},
      // Ranks beyond the heads read copies.
      {"llama-3.1-8b", 8, 1, "", 1000, 101000, 1e5 * 131072 / 8},
      {"llama-3.1-8b", 32, 1, "", 1000, 101000, 1e5 * 131072 / 8},
      // The scales of quantised rows are read, too.
      {"llama-3.1-8b", 1, 1, "int8_per_token_head", 1000, 101000, 1e5 * 32 * 8 * (2 * 128 + 8)},
      // Sparse layers: all rows of the indexer, and the selected rows.
      {"deepseek-v3.2", 1, 1, "", 0, 2048, 2048.0 * 61 * (132 + 1152)},
      {"deepseek-v3.2", 1, 1, "", 2048, 102048, 1e5 * 61 * 132},
      // Compressed layers: one row per many tokens.
      {"deepseek-v4-flash", 1, 1, "", 128'000, 256'000, 32e3 * 21 * 132 + 1e3 * 20 * 1024},
      {"deepseek-v4-flash", 1, 1, "fp8", 128'000, 256'000, 32e3 * 21 * 132 + 1e3 * 20 * 584},
      // Chunks end.
      {"llama-4-scout", 1, 1, "", 0, 8000, 8000.0 * 48 * 4096},
      {"llama-4-scout", 1, 1, "", 0, 81920, 81920.0 * 12 * 4096},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.model) + " " + c.dtype);
    RooflineOptions options = ModelOnH100(c.model);
    options.tensor_parallel = c.ranks;
    options.decode_context_parallel = c.context_ranks;
    options.kv_cache_dtype = c.dtype;
    ExpectBytes(BytesBetween(options, c.from, c.to), c.bytes);
  }
}

TEST(RooflineTest, StatesOfLinearLayersAreMovedWhateverTheContext) {
  RooflineOptions options = ModelOnH100("qwen3.5-35b-a3b");
  ExpectBytes(BytesBetween(options, 1000, 101000), 1e5 * 20480);
  options.model.experts.reset();  // whose weights would follow the number of tokens
  options.device.bf16_tflops = 1e9;
  const double sequence =
      Seconds(Time(options, {{0, 1, 1}, {0, 1, 1}}) - Time(options, {{0, 1, 1}}));
  ExpectBytes(sequence * 3350e9 * 0.85, 2.0 * 30 * 2146304 + 20480);
}

TEST(RooflineTest, LongPrefillsExpandLatentRowsAndDecodesDoNot) {
  RooflineOptions options = ModelOnH100("deepseek-v3");
  options.device.memory_gb_per_s = 1e9;
  options.fixed_time = 0;
  const double pairs = 8192.0 * 8193 / 2;
  const double head = 2 * 7168.0 * 129280;
  const double linear = 2e9 * (options.model.active_params_b - options.model.embedding_params_b());
  const double flops = 989e12 * 0.6;
  const double prefill = linear * 8192 + head + 61 * 128 * 2.0 * (192 + 128) * pairs;
  EXPECT_NEAR(Seconds(Time(options, {{0, 8192, 1}})), prefill / flops, 1e-3 * prefill / flops);
  const double decode = linear + head + 61 * 128 * 2.0 * (576 + 512) * 100001;
  EXPECT_NEAR(Seconds(Time(options, {{100000, 1, 1}})), decode / flops, 1e-3 * decode / flops);
}

TEST(RooflineTest, MoreTokensReadMoreExpertsUpToAll) {
  RooflineOptions options = ModelOnH100("mixtral-8x7b-v0.1");
  options.fixed_time = 0;
  const double bytes_per_s = 3350e9 * 0.85;
  const double routed = options.model.routed_params_b() * 2e9;
  const double shared = options.model.weight_bytes() - routed;
  const auto weights = [&](int64_t tokens) {
    // Attention of one token without context costs next to nothing.
    std::vector<SequenceWork> work(static_cast<size_t>(tokens), SequenceWork{0, 1, 0});
    return Seconds(Time(options, work));
  };
  EXPECT_NEAR(weights(1), (shared + routed * 0.25) / bytes_per_s, 1e-6);
  EXPECT_NEAR(weights(4), (shared + routed * (1 - std::pow(0.75, 4))) / bytes_per_s, 1e-6);
  EXPECT_NEAR(weights(100), (shared + routed) / bytes_per_s, 1e-5);
}

TEST(RooflineTest, RanksShareTheWorkAndPayForCommunication) {
  RooflineOptions options = Llama8bOnH100();
  options.fixed_time = 0;
  const double alone = Seconds(Time(options, {{1000, 1, 1}}));
  options.tensor_parallel = 4;
  const double messages = 2 * 32 * (5e-6 + 2 * 0.75 * 4096 * 2 / 450e9);
  EXPECT_NEAR(Seconds(Time(options, {{1000, 1, 1}})), alone / 4 + messages, 1e-8);
}

// Sixteen ranks on two nodes: within each 7/8 of a message there and back, and between them its
// eighth, all of it at half the size of two nodes; a latency for each kind of link.
TEST(RooflineTest, RanksOnTwoNodesExchangeOverBothLinks) {
  RooflineOptions options;
  options.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  options.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  options.tensor_parallel = 16;
  const auto time = [&] { return Seconds(Time(options, {{1000, 1, 1}})); };
  const double two_nodes = time();
  options.device.devices_per_node = 16;
  const double message = 4096 * 2;
  EXPECT_NEAR(time() - two_nodes,
              2 * 32 * (2 * 15.0 / 16 * message / 450e9 -
                        (2 * 7.0 / 8 * message / 450e9 + 5e-6 + 2 * 0.5 * message / 8 / 50e9)),
              1e-9);
  // Ranks of experts that have a node each use no link within it.
  options = {};
  options.device = *Catalogue::BuiltIn().FindDevice("h200-sxm");
  options.model = *Catalogue::BuiltIn().FindModel("deepseek-v3");
  options.tensor_parallel = 8;
  options.data_parallel = 2;
  const double between = time();
  options.device.devices_per_node = 16;
  EXPECT_NEAR(between - time(), 58 * (7168 * 2 * 2 / 50e9 - 7168 * 2 * 2 / 450e9), 1e-9);
}

TEST(NodesTest, RanksLieOnAsFewNodesAsTheyFill) {
  DeviceFacts device;
  const auto place = [&](int64_t ranks, int64_t stride) {
    const RanksOnNodes placed = PlaceRanks(ranks, stride, device);
    return std::pair(placed.inside, placed.nodes);
  };
  EXPECT_EQ(place(8, 1), std::pair(int64_t{8}, int64_t{1}));
  EXPECT_EQ(place(16, 1), std::pair(int64_t{8}, int64_t{2}));
  EXPECT_EQ(place(12, 1), std::pair(int64_t{6}, int64_t{2}));
  EXPECT_EQ(place(4, 2), std::pair(int64_t{4}, int64_t{1}));
  EXPECT_EQ(place(8, 2), std::pair(int64_t{4}, int64_t{2}));
  EXPECT_EQ(place(3, 8), std::pair(int64_t{1}, int64_t{3}));
  // Stages of four devices, two on a node; stages of eight.
  EXPECT_FALSE(LeavesNode(0, 4, device));
  EXPECT_TRUE(LeavesNode(1, 4, device));
  EXPECT_TRUE(LeavesNode(0, 8, device));
  device.devices_per_node = 72;
  EXPECT_EQ(place(64, 1), std::pair(int64_t{64}, int64_t{1}));
  EXPECT_FALSE(LeavesNode(0, 16, device));
}

// D-6
TEST(RooflineTest, DataParallelRanksShareTheExpertsAndNothingElse) {
  RooflineOptions one;
  one.device = *Catalogue::BuiltIn().FindDevice("h200-sxm");
  one.model = *Catalogue::BuiltIn().FindModel("deepseek-v3");
  one.fixed_time = one.allreduce_latency = 0;
  RooflineOptions eight = one;
  eight.data_parallel = 8;
  const double bytes_per_s = 4800e9 * 0.85;
  const double routed = 58 * 256 * 3 * 7168.0 * 2048;  // one byte each
  const double others = 671.03e9 - routed;
  const double sent_per_token = 58 * 2 * 7.0 / 8 * 7168 * 2 / 450e9;
  // A hundred tokens read 95.8 % of the experts; eight hundred read all, an eighth on each device.
  const std::vector<SequenceWork> decodes(100, {100, 1, 1});
  const double read = routed * (1 - std::pow(1 - 8.0 / 256, 100));
  EXPECT_NEAR(Seconds(Time(one, decodes) - Time(eight, decodes)),
              (read - routed / 8) / bytes_per_s - 800 * sent_per_token, 1e-5);

  // Alone with one token, a rank still reads what the others' tokens need, and waits until they are
  // sent.
  const auto clock = MakeRoofline(eight);
  ASSERT_TRUE(clock.ok()) << clock.status();
  const auto among = [&](const std::vector<SequenceWork>& work, const StepPeers& peers) {
    return *(*clock)->StepTimeAmong(work, Decodes(), peers);
  };
  const std::vector<SequenceWork> decode = {{100, 1, 1}};
  EXPECT_NEAR(Seconds(among(decode, {.num_tokens = 1, .num_decode_tokens = 1})),
              (others + routed / 8 * 8 / 256) / bytes_per_s + sent_per_token, 1e-5);
  EXPECT_NEAR(Seconds(among(decode, {.num_tokens = 800, .num_decode_tokens = 800})),
              (others + routed / 8) / bytes_per_s + 800 * sent_per_token, 1e-5);
  // What nobody says is that all have as much to do.
  EXPECT_EQ(Time(eight, decodes), among(decodes, {.num_tokens = 800}));
  // Padding is computed like tokens: here, where arithmetic counts.
  const std::vector<SequenceWork> prompt = {{0, 4000, 1}};
  EXPECT_GT(among(prompt, {.num_tokens = 40000, .padded_tokens = 5000}),
            among(prompt, {.num_tokens = 40000}));
}

TEST(RooflineTest, TalliesTellConstantsFromTheRest) {
  RooflineOptions options = {.device = *Catalogue::BuiltIn().FindDevice("h100-sxm"),
                             .model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b"),
                             .time_per_layer = 78 * kMicrosecond,
                             .time_per_sequence = 5 * kMicrosecond};
  const auto clock = MakeRoofline(options);
  ASSERT_TRUE(clock.ok()) << clock.status();
  const std::vector<SequenceWork> work(2, {.num_context = 99, .num_new = 1, .num_sampled = 1});
  StepTally tally;
  for (int i = 0; i < 2; ++i) (*clock)->Tally(work, Decodes(), StepPeers(), &tally);
  EXPECT_EQ(static_cast<SimTime>(tally.constants), 2 * (1000 + 32 * 78 + 2 * 5) * kMicrosecond);
  EXPECT_EQ(static_cast<SimTime>(tally.constants + tally.estimated), 2 * *(*clock)->StepTime(work));
  EXPECT_EQ(static_cast<int64_t>(tally.measured), 0);
}

TEST(RooflineTest, StepBeyondTheClockIsAnError) {
  const auto model = MakeRoofline(Llama8bOnH100());
  const std::vector<SequenceWork> work = {{int64_t{1} << 32, int64_t{1} << 31, 1}};
  EXPECT_EQ((*model)->StepTime(work).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(RooflineTest, EveryBuiltInPairMakesAModel) {
  for (const auto& [device_name, device] : Catalogue::BuiltIn().devices()) {
    for (const auto& [model_name, model] : Catalogue::BuiltIn().models()) {
      RooflineOptions options;
      options.device = device;
      options.model = model;
      EXPECT_GT(Time(options, {{100, 1, 1}}), kMillisecond) << device_name << " " << model_name;
    }
  }
}

TEST(RooflineTest, BadOptionsAreRefusedWithFieldValueAndLimit) {
  struct {
    std::function<void(RooflineOptions&)> spoil;
    const char* message;
  } const bad[] = {
      {[](auto& o) { o.tensor_parallel = 0; }, "tensor_parallel is 0, expected 1 to 1024"},
      {[](auto& o) { o.tensor_parallel = -2; }, "tensor_parallel is -2"},
      {[](auto& o) { o.tensor_parallel = 1 << 20; }, "tensor_parallel is 1048576"},
      {[](auto& o) {
         o.tensor_parallel = 8;
         o.decode_context_parallel = 3;
       },
       "decode_context_parallel is 3, expected a divisor"},
      {[](auto& o) { o.compute_efficiency = 0; }, "compute_efficiency is 0, expected"},
      {[](auto& o) { o.memory_efficiency = 1.2; }, "memory_efficiency is 1.2"},
      {[](auto& o) { o.memory_efficiency = std::numeric_limits<double>::quiet_NaN(); },
       "memory_efficiency is nan"},
      {[](auto& o) { o.kv_bytes_per_element = 0; }, "kv_bytes_per_element is 0"},
      {[](auto& o) { o.fixed_time = -1; }, "fixed_time is -1ps"},
      {[](auto& o) { o.time_per_sequence = kMaxSimTime; }, "time_per_sequence is 9223372"},
      {[](auto& o) { o.device.bf16_tflops = 0; }, "bf16_tflops: got 0"},
      {[](auto& o) { o.model.num_heads = 0; }, "num_heads: got 0"},
      {[](auto& o) { o.kv_cache_dtype = "fp9"; }, "roofline.cache_dtype: got \"fp9\""},
      {[](auto& o) {
         o.tensor_parallel = 2;
         o.device.link_gb_per_s = 0;
       },
       "link_gb_per_s is 0"},
  };
  for (const auto& field : bad) {
    RooflineOptions options = Llama8bOnH100();
    field.spoil(options);
    const auto model = MakeRoofline(options);
    ASSERT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << field.message;
    EXPECT_THAT(model.status().message(), HasSubstr(field.message));
  }
}

RC_GTEST_PROP(RooflineProperty, WindowPairsAreThoseCountedOneByOne, ()) {
  RooflineOptions options = Llama8bOnH100();
  options.model.layer_pattern = std::string(32, 'S');
  options.model.window = *rc::gen::inRange<int64_t>(1, 50);
  options.fixed_time = 0;
  // So slow an arithmetic that it decides every step.
  options.device.bf16_tflops = 1e-3;
  const int64_t context = *rc::gen::inRange<int64_t>(0, 100);
  const int64_t count = *rc::gen::inRange<int64_t>(1, 100);
  SimTime one_by_one = 0;
  for (int64_t i = 0; i < count; ++i) one_by_one += Time(options, {{context + i, 1, 0}});
  RC_ASSERT(Time(options, {{context, count, 0}}) == one_by_one);
}

// The rows that query `token` (from 0) reads, the newest ones where there is a limit.
std::vector<int64_t> RowsOf(const AttentionReach& reach, int64_t token) {
  std::vector<int64_t> rows;
  for (int64_t row = (token + 1) / reach.ratio - 1; row >= 0; --row) {
    if (static_cast<int64_t>(rows.size()) == reach.limit) break;
    if (reach.chunk > 0 && row / reach.chunk != token / reach.chunk) break;
    rows.push_back(row);
  }
  return rows;
}

AttentionReach AnyReach() {
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      return {.limit = *rc::gen::inRange<int64_t>(1, 30), .is_window = true};
    case 1:
      return {.chunk = *rc::gen::inRange<int64_t>(1, 30)};
    case 2:
      return {.ratio = *rc::gen::inRange<int64_t>(1, 9),
              .limit = *rc::gen::inRange<int64_t>(1, 30)};
    default:
      return {.ratio = *rc::gen::inRange<int64_t>(1, 9)};
  }
}

RC_GTEST_PROP(AttentionCountsProperty, PairsAreThoseCountedOneByOne, ()) {
  const AttentionReach reach = AnyReach();
  const int64_t context = *rc::gen::inRange<int64_t>(0, 120);
  const int64_t count = *rc::gen::inRange<int64_t>(1, 120);
  size_t pairs = 0;
  for (int64_t i = 0; i < count; ++i) pairs += RowsOf(reach, context + i).size();
  RC_ASSERT(AttendedPairs(reach, context, count) == Wide{static_cast<int64_t>(pairs)});
}

RC_GTEST_PROP(AttentionCountsProperty, RowsOfOneTokenAreThoseItSeesAndWrites, ()) {
  const AttentionReach reach = AnyReach();
  const int64_t context = *rc::gen::inRange<int64_t>(0, 120);
  std::set<int64_t> rows;
  // What the token sees without itself, and its own row if it completes one.
  if (context > 0) {
    for (const int64_t row : RowsOf(reach, context - 1)) rows.insert(row);
  }
  if (reach.chunk > 0 && context % reach.chunk == 0) rows.clear();
  if ((context + 1) % reach.ratio == 0) rows.insert((context + 1) / reach.ratio - 1);
  RC_ASSERT(AttendedRows(reach, context, 1) == static_cast<int64_t>(rows.size()));
}

TEST(AttentionCountsTest, AWindowIsReadOnceByNeighboursAChoiceByEach) {
  EXPECT_EQ(AttendedRows({.limit = 100, .is_window = true}, 1000, 3), 103);
  EXPECT_EQ(AttendedRows({.limit = 100}, 1000, 3), 303);
  EXPECT_EQ(AttendedRows({.limit = 100}, 250, 3), 253);
}

TEST(AttentionCountsTest, CountsBeyond64BitsAreExact) {
  const int64_t large = int64_t{1} << 60;
  EXPECT_TRUE(AttendedPairs({}, large, large) ==
              Wide{large} * large + Wide{large} * (Wide{large} + 1) / 2);
}

}  // namespace
}  // namespace kvblocks::sim
