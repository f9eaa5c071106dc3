// Plans, drafters and groups of replays.

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "checks/field_error.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "kvblocks/model_facts.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_setup.h"
#include "sim/config.pb.h"
#include "sim/report/human_table.h"
#include "specs/config/kv_cache_config_proto.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::report::v1::PlanReport;
using ::testing::HasSubstr;

ReplayConfig Config(const std::string& model, const std::string& device, int64_t ranks) {
  ReplayConfig config = *EffectiveConfig({}, {});
  config.set_model(model);
  config.set_device(device);
  config.set_tensor_parallel(ranks);
  config.set_max_model_len(0);
  return config;
}

TEST(PlanReportTest, EveryModelOfTheCatalogueIsPlanned) {
  for (const auto& [name, facts] : Catalogue::BuiltIn().models()) {
    SCOPED_TRACE(name);
    ReplayConfig config = Config(name, "h200", 16);
    config.set_max_model_len(32768);
    const auto report = MakePlanReport(config, {});
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->plans_size(), 2);
    for (const auto& plan : report->plans()) {
      EXPECT_EQ(plan.problems_size(), 0) << plan.problems(0).message();
      int64_t layers = 0;
      for (const auto& group : plan.groups()) layers += group.layers();
      int64_t caches = 0;
      for (const auto& kind : report->layer_kinds()) caches += kind.layers();
      EXPECT_EQ(layers, caches);
    }
    // The exact plan never holds less.
    const auto& upstream = report->plans(0);
    const auto& exact = report->plans(1);
    ASSERT_EQ(upstream.lengths_size(), exact.lengths_size());
    for (int i = 0; i < exact.lengths_size(); ++i) {
      EXPECT_GE(exact.lengths(i).concurrency() + 1, upstream.lengths(i).concurrency());
    }
  }
}

// SM-28: the stage with the least room sets the number of blocks.
TEST(PlanReportTest, ThePoolOfAPipelineIsItsSmallestStages) {
  ReplayConfig config = Config("llama-3.1-8b", "h100", 1);
  config.set_max_model_len(32768);
  config.set_pipeline_parallel(3);
  const auto report = MakePlanReport(config, {});
  ASSERT_TRUE(report.ok()) << report.status();
  // Eleven layers and the table of embeddings against ten and the head.
  EXPECT_THAT(report->available_source(), HasSubstr("stage 0 of 3: h100-sxm"));
  const auto& upstream = report->plans(0);
  EXPECT_EQ(upstream.block_bytes(), 11 * 65536);
  EXPECT_EQ(upstream.num_blocks(), report->available_bytes() / upstream.block_bytes());
  // What other ranks of a pipeline take beside model and cache counts, too.
  const auto alone = MakePlanReport(Config("llama-3.1-8b", "h100", 1), {});
  EXPECT_LT(report->available_bytes() - alone->available_bytes(), 11'000'000'000);
  EXPECT_GT(report->available_bytes() - alone->available_bytes(), 7'000'000'000);
}

TEST(PlanReportTest, WhatDoesNotFitComesWithWhatWould) {
  ReplayConfig config = Config("llama-3.1-70b", "h100", 4);
  config.set_memory_utilization(0.57);
  const auto report = MakePlanReport(config, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(Fits(*report, "upstream"));
  ASSERT_GT(report->plans(0).problems_size(), 0);
  EXPECT_EQ(report->plans(0).problems(0).code(), "E-11");
  // What it would hold at the longest length that fits.
  const int64_t longest = report->plans(0).problems(0).longest_length();
  EXPECT_GT(longest, 0);
  EXPECT_EQ(report->plans(0).max_model_len(), longest);
  EXPECT_GE(report->plans(0).longest_context(), longest);
  ASSERT_GT(report->suggestions_size(), 0);
  EXPECT_THAT(report->suggestions(report->suggestions_size() - 1),
              HasSubstr("--tensor-parallel=8"));
}

TEST(PlanReportTest, LengthsBeyondTheLimitAreLeftOut) {
  ReplayConfig config = Config("llama-3.1-8b", "h200", 1);
  config.set_max_model_len(10000);
  const auto report = MakePlanReport(config, {.lengths = {20000, 5000, 5000, 10000}});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->plans(0).lengths_size(), 2);
  EXPECT_EQ(report->plans(0).lengths(0).length(), 5000);
  EXPECT_EQ(report->plans(0).lengths(1).length(), 10000);
  for (const auto& plan : report->plans()) EXPECT_EQ(plan.longest_context(), 10000);
}

TEST(PlanReportTest, SaysWhetherRequestsFit) {
  const ReplayConfig config = Config("gemma-3-27b", "h100", 2);
  auto report = MakePlanReport(config, {.lengths = {32768}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->has_asked_requests());
  EXPECT_TRUE(Fits(*report, "upstream"));
  const double most = report->plans(0).lengths(0).concurrency();
  ASSERT_GE(most, 1.0);
  const auto whole = static_cast<int64_t>(most);
  report = MakePlanReport(config, {.requests = whole, .length = 32768});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->plans(0).asked_concurrency(), most);
  EXPECT_TRUE(Fits(*report, "upstream"));
  EXPECT_EQ(report->suggestions_size(), 0);
  report = MakePlanReport(config, {.requests = whole + 1, .length = 32768});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(Fits(*report, "upstream"));
  // The hybrid model has windows, so the plan without waste and smaller steps hold more.
  ASSERT_GE(report->suggestions_size(), 2);
  EXPECT_EQ(report->suggestions(0), "the exact plan");
  EXPECT_EQ(report->suggestions(1), "--max-num-batched-tokens=2048");
  const auto too_long = MakePlanReport(config, {.requests = 1, .length = 1 << 30});
  EXPECT_THAT(std::string(too_long.status().message()), HasSubstr("--len: got 1073741824"));
}

// Eight H200s hold 42.16 requests of 128k, by what the driver reports of their memory.
TEST(PlanReportTest, SaysHowManyReplicasHoldTheRequests) {
  ReplayConfig config = Config("llama-3.1-70b", "H200", 8);
  config.set_kv_cache_dtype("fp8");
  auto report = MakePlanReport(config, {.requests = 40, .length = 131072});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(Fits(*report, "upstream"));
  EXPECT_NEAR(report->plans(0).asked_concurrency(), 42.16, 0.01);
  EXPECT_EQ(report->plans(0).asked_replicas(), 1);
  EXPECT_THAT(report->available_source(), HasSubstr("150.1 GB x 0.9"));
  report = MakePlanReport(config, {.requests = 100, .length = 131072});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(Fits(*report, "upstream"));
  EXPECT_EQ(report->plans(0).asked_replicas(), 3);
  EXPECT_THAT(FormatPlan(*report, false),
              HasSubstr("them (24 devices), 4 with one to spare"));
  report = MakePlanReport(config, {.requests = 44, .length = 131072});
  ASSERT_TRUE(report.ok() && report->suggestions_size() > 0);
  EXPECT_EQ(report->suggestions(0), "--weight-dtype=fp8") << "8.8 GB of each device";
  const auto nominal = MakePlanReport(Config("llama-3.1-8b", "b300", 1), {});
  EXPECT_THAT(nominal->available_source(), HasSubstr("288 GB (nominal) x 0.9"));
}

// A shorter limit is no answer to a question about longer requests, and there are no windows.
TEST(PlanReportTest, AdviceIsAboutWhatWasAsked) {
  const auto report =
      MakePlanReport(Config("llama-3.1-8b", "rtx-4090", 1), {.requests = 4, .length = 131072});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_GT(report->plans(1).problems_size(), 0);
  EXPECT_GT(report->plans(0).asked_concurrency(), 0.1) << "a share of one request";
  EXPECT_EQ(report->plans(0).asked_replicas(), 0);
  for (const std::string& what : report->suggestions()) {
    EXPECT_THAT(what, testing::Not(HasSubstr("--max-model-len"))) << what;
  }
  EXPECT_EQ(report->notes_size(), 0);
}

TEST(PlanReportTest, RanksBeyondANodeAreSaid) {
  const auto one = MakePlanReport(Config("llama-3.1-405b", "h200", 8), {});
  EXPECT_EQ(one->notes_size(), 0);
  const auto two = MakePlanReport(Config("llama-3.1-405b", "h200", 16), {});
  ASSERT_EQ(two->notes_size(), 1);
  EXPECT_THAT(two->notes(0),
              HasSubstr("16 devices exchange data in every layer and span 2 nodes of 8"));
  ReplayConfig config = Config("llama-3.1-405b", "h200", 16);
  config.set_devices_per_node(16);
  EXPECT_EQ(MakePlanReport(config, {})->notes_size(), 0);
}

TEST(PlanReportTest, WeightsMayBeStoredInLess) {
  ReplayConfig config = Config("llama-3.1-70b", "h100", 4);
  const auto published = MakePlanReport(config, {});
  config.set_weight_dtype("fp8");
  const auto less = MakePlanReport(config, {});
  ASSERT_TRUE(published.ok() && less.ok());
  EXPECT_NEAR(static_cast<double>(less->available_bytes() - published->available_bytes()),
              70.55e9 / 4, 2);
  // Of a model that is published in FP8 nothing changes.
  ReplayConfig deepseek = Config("deepseek-v3", "h200", 8);
  const int64_t before = MakePlanReport(deepseek, {})->available_bytes();
  deepseek.set_weight_dtype("fp8");
  EXPECT_EQ(MakePlanReport(deepseek, {})->available_bytes(), before);
}

TEST(PlanReportTest, RoomForTokensInFlightIsShownAndSmallerStepsAreSuggested) {
  ReplayConfig config = Config("gemma-3-27b", "h100", 2);
  const auto report = MakePlanReport(config, {.lengths = {32768}});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps_in_flight(), 2);
  EXPECT_GT(report->plans(0).in_flight_bytes(), 0);
  EXPECT_TRUE(report->plans(0).in_flight_per_request());
  EXPECT_GT(report->plans(1).in_flight_bytes(), 0);
  EXPECT_FALSE(report->plans(1).in_flight_per_request());
  config.set_max_num_batched_tokens(2048);
  config.set_max_num_seqs(256);
  const auto small = MakePlanReport(config, {.lengths = {32768}});
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->notes_size(), 0);
  EXPECT_LT(small->plans(0).in_flight_bytes(), report->plans(0).in_flight_bytes());
  ASSERT_EQ(report->notes_size(), 1);
  EXPECT_THAT(report->notes(0),
              HasSubstr(absl::StrFormat("holds %.2f instead of %.2f requests of 32,768 tokens",
                                        small->plans(0).lengths(0).concurrency(),
                                        report->plans(0).lengths(0).concurrency())));
  // Without windows nothing is kept.
  const auto full = MakePlanReport(Config("llama-3.1-8b", "h100", 1));
  EXPECT_EQ(full->plans(0).in_flight_bytes(), 0);
  EXPECT_EQ(full->notes_size(), 0);
}

TEST(PlanReportTest, MemoryOfTheCacheMayBeGiven) {
  ReplayConfig config = Config("llama-3.1-8b", "h100", 1);
  config.set_kv_memory(20.5);
  const auto report = MakePlanReport(config);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->available_bytes(), 20'500'000'000);
  EXPECT_EQ(report->available_source(), "given");
  config.set_num_blocks(100);
  EXPECT_THAT(std::string(MakePlanReport(config).status().message()), HasSubstr("--kv-memory"));
}

// BM-113, in the plan and in the replay that runs on it.
TEST(PlanReportTest, RanksThatShareTokensMakeBlocksLonger) {
  ReplayConfig config = Config("deepseek-v3", "h200", 8);
  config.set_decode_context_parallel(4);
  const auto report = MakePlanReport(config, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->plans(0).scheduler_block_tokens(), 256);
  config.set_max_model_len(100000);
  auto setup = MakeReplaySetup(config);
  ASSERT_TRUE(setup.ok()) << setup.status();
  const auto manager =
      KvCacheManager::Create(setup->simulation.kv_cache, setup->simulation.manager);
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_EQ((*manager)->group(0).block_size(), 256);
  EXPECT_EQ(setup->simulation.ranks_per_block, 4);
  config.set_decode_context_parallel(3);
  EXPECT_THAT(std::string(MakePlanReport(config, {}).status().message()),
              HasSubstr("expected a divisor of --tensor-parallel, which is 8"));
}

TEST(PlanReportTest, PartialHitsNeedAModelWithStates) {
  ReplayConfig config = Config("qwen3.5-35b-a3b", "h200", 2);
  config.set_max_model_len(100000);
  config.set_partial_hits(true);
  const auto setup = MakeReplaySetup(config);
  ASSERT_TRUE(setup.ok()) << setup.status();
  EXPECT_TRUE(setup->simulation.manager.partial_hits);
  EXPECT_EQ(setup->simulation.kv_cache.hash_block_size, 16);
  config.set_match_unit(48);
  EXPECT_EQ(MakeReplaySetup(config)->simulation.kv_cache.hash_block_size, 48);
  const auto refusal = [](ReplayConfig bad) {
    return std::string(MakeReplaySetup(bad).status().message());
  };
  ReplayConfig bad = config;
  bad.set_partial_hits(false);
  EXPECT_THAT(std::string(CheckOptionUses(bad, {}).message()),
              HasSubstr("--match-unit needs --partial-hits"));
  bad = config;
  bad.set_prefix_caching(false);
  EXPECT_THAT(refusal(bad), HasSubstr("--partial-hits: got \"true\", expected prefix caching"));
  bad = config;
  bad.set_model("llama-3.1-8b");
  EXPECT_THAT(refusal(bad), HasSubstr("expected a model with states"));
}

TEST(PlanReportTest, UnknownNamesAreRefused) {
  const auto model = MakePlanReport(Config("llama-9", "h100", 1), {});
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("--model"));
  const auto device = MakePlanReport(Config("llama-3.1-8b", "abacus", 1), {});
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("--device"));
  const auto file = MakePlanReport(Config("nowhere/config.json", "h100", 1), {});
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("nowhere/config.json"));
}

TEST(PlanReportTest, NoRoomForAnyCacheIsAnError) {
  const auto report = MakePlanReport(Config("llama-3.1-405b", "h100", 1), {});
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("no room for the KV cache"));
}

// SM-66: what drafters cost.

ReplayConfig ConfigOf(const std::string& drafter, int64_t num_drafts,
                      const std::string& model = "llama-3.1-8b") {
  ReplayConfig given;
  given.set_model(model);
  given.set_drafter(drafter);
  given.set_num_draft_tokens(num_drafts);
  given.set_max_num_batched_tokens(2048);
  given.set_max_num_seqs(64);
  given.set_max_model_len(32768);
  auto config = EffectiveConfig({}, given);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

int64_t NumDraftLayers(const ReplayConfig& config) {
  const auto hardware = FindModelOnDevice(config);
  EXPECT_TRUE(hardware.ok()) << hardware.status();
  const auto layers = LayerCachesOf(config, hardware->model);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return std::ranges::count_if(*layers, [](const LayerCache& layer) { return layer.is_draft; });
}

TEST(DrafterModelTest, KindsHaveTheirPassesAndLayers) {
  struct {
    const char* drafter;
    int64_t num_passes, num_layers;
  } const cases[] = {{"ngram", 0, 0},      {"eagle", 3, 1},  {"parallel_eagle", 1, 1},
                     {"mtp", 3, 1},        {"dflash", 1, 0}, {"mtp_modules", 3, 3},
                     {"draft_model", 3, 0}};
  for (const auto& c : cases) {
    const ReplayConfig config = ConfigOf(c.drafter, 3);
    const auto drafter = DrafterOf(config, FindModelOnDevice(config)->model);
    ASSERT_TRUE(drafter.ok()) << drafter.status();
    EXPECT_EQ(drafter->num_passes, c.num_passes) << c.drafter;
    EXPECT_EQ(NumDraftLayers(config), c.num_layers) << c.drafter;
  }
  EXPECT_EQ(NumDraftLayers(ConfigOf("eagle", 0)), 0);
}

TEST(DrafterModelTest, ANamedModelBringsItsLayersAndWeights) {
  ReplayConfig config = ConfigOf("draft_model", 2, "llama-3.1-70b");
  config.set_draft_model("llama-3.1-8b");
  config.set_device("h200-sxm");
  EXPECT_EQ(NumDraftLayers(config), 32);
  const auto hardware = FindModelOnDevice(config);
  EXPECT_NEAR(MemoryOf(config, *hardware).draft_weights_gb, 16.06, 0.01);
  config.set_draft_model("no-such-model");
  EXPECT_THAT(DrafterOf(config, hardware->model).status().message(), HasSubstr("--draft-model: "));
}

TEST(DrafterModelTest, EveryModelOfTheCatalogueCanBeDrafted) {
  for (const auto& [name, model] : Catalogue::BuiltIn().models()) {
    for (const char* kind : {"eagle", "mtp"}) {
      const auto drafter = DrafterOf(ConfigOf(kind, 2, name), model);
      ASSERT_TRUE(drafter.ok()) << name << ": " << drafter.status();
      if (!drafter->model) continue;
      EXPECT_TRUE(Validate(*drafter->model).ok()) << name;
      EXPECT_EQ(drafter->model->num_layers(), 1) << name;
      EXPECT_GT(drafter->weight_bytes, 0) << name;
      EXPECT_LT(drafter->weight_bytes, model.weight_bytes() / 4) << name;
    }
  }
}

TEST(DrafterModelTest, SM66DraftsLengthenAStep) {
  const auto time = [](const ReplayConfig& config) {
    const auto hardware = FindModelOnDevice(config);
    const auto setup = MakeStepTime(config, *hardware);
    EXPECT_TRUE(setup.ok()) << setup.status();
    return *setup->model->StepTime(
        {SequenceWork{.num_context = 1000, .num_new = 4, .num_sampled = 4}});
  };
  const SimTime none = time(ConfigOf("ngram", 3));
  const SimTime eagle = time(ConfigOf("eagle", 3));
  EXPECT_GT(eagle, none);
  EXPECT_LT(eagle, 2 * none);
  EXPECT_GT(eagle, time(ConfigOf("parallel_eagle", 3)));
  ReplayConfig given = ConfigOf("eagle", 3);
  given.set_draft_time("1ms");
  EXPECT_EQ(time(given), none + 3 * kMillisecond);
  given.set_draft_time("0s");
  EXPECT_EQ(time(given), none);
}

TEST(DrafterModelTest, WhatIsNotKnownIsSaid) {
  const ReplayConfig config = ConfigOf("dspark", 3);
  const auto setup = MakeStepTime(config, *FindModelOnDevice(config));
  ASSERT_TRUE(setup.ok()) << setup.status();
  EXPECT_THAT(setup->note, HasSubstr("the drafter's time and memory are not counted: dspark"));
}

TEST(StepTimeTest, AFactorOfExpertsThatAreNotThereIsSaid) {
  const auto note = [](const char* model, double factor, double prefill_factor) {
    ReplayConfig config = ConfigOf("ngram", 0, model);
    config.set_expert_prefill_factor(factor);
    config.set_prefill_factor(prefill_factor);
    const auto setup = MakeStepTime(config, *FindModelOnDevice(config));
    EXPECT_TRUE(setup.ok()) << setup.status();
    return setup->note;
  };
  EXPECT_THAT(note("llama-3.1-8b", 2, 1.15),
              HasSubstr("--expert-prefill-factor changes nothing: llama-3.1-8b has no experts"));
  const auto is_silent = Not(HasSubstr("--expert-prefill-factor"));
  EXPECT_THAT(note("llama-3.1-8b", 1.5, 1.15), is_silent);
  EXPECT_THAT(note("llama-3.1-8b", 2, 2), is_silent) << "as constants of dense models may have it";
  EXPECT_THAT(note("gpt-oss-120b", 2, 1.15), is_silent);
}

constexpr char kGroups[] =
    "groups { num_layers: 2 spec { full_attention {"
    "  block_size: 16 num_kv_heads: 1 head_size: 8 dtype: \"bf16\" } } }"
    "groups { num_layers: 5 spec { mla_attention {"
    "  block_size: 16 head_size: 8 dtype: \"bf16\" } } }";

// One binary with the replay's messages and the loader of the library: both are the same message.
TEST(KvCacheGroupsTest, ReplayAndLibraryReadTheSameMessage) {
  ReplayConfig replay;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "kv_cache_config { num_blocks: 9 " + std::string(kGroups) + " }", &replay));
  const auto groups = MakeKvCacheGroups(replay.kv_cache_config(), 0);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->config,
            *KvCacheConfigFromText("num_blocks: 9 " + std::string(kGroups), "groups"));
}

TEST(KvCacheGroupsTest, OptionWinsOverTheFileAndNeitherIsNeeded) {
  ::kvblocks::config::v1::KvCacheConfig message;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kGroups, &message));
  auto groups = MakeKvCacheGroups(message, 0);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_FALSE(groups->sized);
  EXPECT_EQ(groups->block_bytes, 5 * 16 * 8 * 2);
  groups = MakeKvCacheGroups(message, 12);
  EXPECT_TRUE(groups->sized);
  EXPECT_EQ(groups->config.num_blocks, 12);
  message.set_num_blocks(20);
  EXPECT_EQ(MakeKvCacheGroups(message, 0)->config.num_blocks, 20);
  EXPECT_EQ(MakeKvCacheGroups(message, 12)->config.num_blocks, 12);
}

TEST(KvCacheGroupsTest, NativeLayoutStatesItsOwnSize) {
  ::kvblocks::config::v1::KvCacheConfig message;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      std::string(kGroups) +
          " num_blocks: 13 native { num_chunks: 3 pages_per_chunk: [4, 2] class_of_group: [0, 1] }",
      &message));
  const auto groups = MakeKvCacheGroups(message, 0);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->block_bytes, 0);
  EXPECT_EQ(groups->chunk_bytes, 4 * 2 * 2 * 16 * 8 * 2);
  EXPECT_EQ(FieldOfError(MakeKvCacheGroups(message, 14).status()), "num_blocks");
}

TEST(KvCacheGroupsTest, RefusesNoGroupsAndBytesBeyond63Bits) {
  ::kvblocks::config::v1::KvCacheConfig message;
  EXPECT_EQ(FieldOfError(MakeKvCacheGroups(message, 5).status()), "groups");
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(kGroups, &message));
  message.mutable_groups(1)->set_num_layers(10'000);
  message.mutable_groups(1)->mutable_spec()->mutable_mla_attention()->set_head_size(int64_t{1}
                                                                                    << 54);
  EXPECT_EQ(FieldOfError(MakeKvCacheGroups(message, 5).status()), "groups[1]");
}

}  // namespace
}  // namespace kvblocks::sim
