#include "sim/simulation_config.h"

#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/eviction.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

SimulationConfig Good() { return Replay().config; }

TEST(SimulationConfigTest, GoodConfigIsAccepted) { EXPECT_TRUE(Validate(Good()).ok()); }

struct BadField {
  const char* name;
  std::function<void(SimulationConfig&)> spoil;
  std::vector<std::string> message;  // what it must name
};

void PrintTo(const BadField& field, std::ostream* out) { *out << field.name; }

class BadConfig : public ::testing::TestWithParam<BadField> {};

TEST_P(BadConfig, IsRefusedWithFieldValueAndLimit) {
  SimulationConfig config = Good();
  GetParam().spoil(config);
  const absl::Status status = Validate(config);
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
  // A simulation refuses it as well, in the same words.
  VectorTraceReader reader(TraceInfo(), {});
  const auto step_time = MakeFixedStepTime(kSecond);
  const auto simulation = Simulation::Create(config, &reader, step_time->get(), {});
  EXPECT_EQ(simulation.status(), status);
}

using C = SimulationConfig;
using Kind = AcceptanceModel::Kind;

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfig,
    ::testing::Values(
        BadField{"NoBlocks", [](C& c) { c.kv_cache.num_blocks = 0; }, {"num_blocks", "0"}},
        BadField{"NegativeBlocks", [](C& c) { c.kv_cache.num_blocks = -5; }, {"num_blocks", "-5"}},
        BadField{"OnlyTheNullBlock",
                 [](C& c) { c.kv_cache.num_blocks = 1; },
                 {"kv_cache.num_blocks is 1", "expected 2 to"}},
        BadField{"HugePool",
                 [](C& c) { c.kv_cache.num_blocks = kHuge; },
                 {"num_blocks", "9223372036854775807", "2147483646"}},
        BadField{"NoGroups", [](C& c) { c.kv_cache.groups.clear(); }, {"kv_cache.groups is empty"}},
        BadField{"NoModelLength",
                 [](C& c) { c.manager.max_model_len = 0; },
                 {"manager.max_model_len is 0", "expected 2 to"}},
        BadField{"HugeModelLength",
                 [](C& c) { c.manager.max_model_len = kHuge; },
                 {"max_model_len is 9223372036854775807"}},
        BadField{"WatermarkAboveOne",
                 [](C& c) { c.manager.watermark = 1.5; },
                 {"manager.watermark is 1.5", "0 to 1"}},
        BadField{"WatermarkNotANumber",
                 [](C& c) { c.manager.watermark = std::numeric_limits<double>::quiet_NaN(); },
                 {"manager.watermark is nan"}},
        BadField{"NothingMayBeRetained",
                 [](C& c) {
                   c.kv_cache.num_blocks = 11;
                   c.manager.eviction_policy = *ParseEvictionPolicy("lru");
                   c.manager.max_retained_share = 0.09;
                   c.scheduler.retention = {{}};
                 },
                 {"manager.max_retained_share is 0.09, expected at least 0.1",
                  "one block of 10"}},
        BadField{"NoBudget",
                 [](C& c) { c.scheduler.max_num_batched_tokens = 0; },
                 {"scheduler.max_num_batched_tokens is 0", "expected 1 to"}},
        BadField{"NegativeBudget",
                 [](C& c) { c.scheduler.max_num_batched_tokens = -1; },
                 {"scheduler.max_num_batched_tokens is -1"}},
        BadField{"HugeBudget",
                 [](C& c) { c.scheduler.max_num_batched_tokens = kHuge; },
                 {"scheduler.max_num_batched_tokens is 9223372036854775807"}},
        BadField{"NoSequences",
                 [](C& c) { c.scheduler.max_num_seqs = 0; },
                 {"scheduler.max_num_seqs is 0", "expected 1 to"}},
        BadField{"HugeSequences",
                 [](C& c) { c.scheduler.max_num_seqs = kHuge; },
                 {"scheduler.max_num_seqs is 9223372036854775807"}},
        BadField{"NegativeThreshold",
                 [](C& c) { c.scheduler.long_prefill_token_threshold = -1; },
                 {"scheduler.long_prefill_token_threshold is -1", "expected 0 to"}},
        BadField{"NegativeDrafts",
                 [](C& c) { c.scheduler.num_draft_tokens = -1; },
                 {"scheduler.num_draft_tokens is -1"}},
        BadField{"DraftsBeyondTheBudget",
                 [](C& c) {
                   c.scheduler.max_num_batched_tokens = 4;
                   c.scheduler.num_draft_tokens = 4;
                 },
                 {"scheduler.num_draft_tokens is 4", "less than max_num_batched_tokens"}},
        BadField{"HugeLookahead",
                 [](C& c) { c.scheduler.num_lookahead_tokens = kHuge; },
                 {"scheduler.num_lookahead_tokens is 9223372036854775807"}},
        BadField{"AcceptsMoreThanDrafted",
                 [](C& c) { c.scheduler.acceptance.fixed = 3; },
                 {"scheduler.acceptance.fixed is 3", "0 to 0"}},
        BadField{"IidWithoutProbability",
                 [](C& c) { c.scheduler.acceptance.kind = Kind::kIid; },
                 {"scheduler.acceptance.probabilities has 0 entries", "expected 1"}},
        BadField{"ProbabilityAboveOne",
                 [](C& c) {
                   c.scheduler.num_draft_tokens = 1;
                   c.scheduler.acceptance = {.kind = Kind::kIid, .probabilities = {1.01}};
                 },
                 {"scheduler.acceptance.probabilities[0] is 1.01", "0 to 1"}},
        BadField{"TableOfAnotherLength",
                 [](C& c) {
                   c.scheduler.num_draft_tokens = 3;
                   c.scheduler.acceptance = {.kind = Kind::kTable, .probabilities = {0.5}};
                 },
                 {"probabilities has 1 entries", "expected 3"}},
        BadField{"NegativeConcurrency",
                 [](C& c) { c.concurrency = -1; },
                 {"concurrency is -1", "expected 0 to"}},
        BadField{"HugeConcurrency",
                 [](C& c) { c.concurrency = kHuge; },
                 {"concurrency is 9223372036854775807"}},
        BadField{"NegativeStartJitter",
                 [](C& c) { c.start_jitter = -kSecond; },
                 {"start_jitter is -1s", "expected 0s to"}},
        BadField{"NegativeStartDelay",
                 [](C& c) { c.start_delay = -kSecond; },
                 {"start_delay is -1s", "expected 0s to"}},
        BadField{"NegativeQueueTime",
                 [](C& c) { c.max_queue_time = -kSecond; },
                 {"max_queue_time is -1s", "expected 0s to"}},
        BadField{"HugeEmptyStep",
                 [](C& c) { c.empty_step_time = kHuge; },
                 {"empty_step_time is 9223372.036854775807s"}},
        BadField{"NegativeHostTime",
                 [](C& c) { c.host_time_per_step = -1; },
                 {"host_time_per_step is -1ps"}},
        BadField{"HugeHostTime",
                 [](C& c) { c.host_time_per_request = kHuge; },
                 {"host_time_per_request"}},
        BadField{"NoProgressInterval",
                 [](C& c) { c.progress_interval = 0; },
                 {"progress_interval is 0", "expected 1 to"}}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(SimulationConfigTest, ManagerReportsWhatItChecksItself) {
  SimulationConfig config = Good();
  config.kv_cache.groups = {FullGroup(16)};
  config.kv_cache.hash_block_size = 3;
  VectorTraceReader reader(TraceInfo(), {});
  const auto step_time = MakeFixedStepTime(kSecond);
  const auto simulation = Simulation::Create(config, &reader, step_time->get(), {});
  EXPECT_EQ(simulation.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(simulation.status().message(), HasSubstr("hash_block_size"));
}

TEST(SimulationConfigTest, UnknownVersionsAreRefused) {
  SimulationConfig config = Good();
  const absl::Status status = ApplyEnginePreset("vllm-9", &config);
  EXPECT_THAT(status.message(), HasSubstr("\"vllm-9\""));
  EXPECT_THAT(status.message(), HasSubstr("vllm-main"));
}

TEST(SimulationConfigTest, PresetsTakeTheRulesOfTheirVersion) {
  SimulationConfig config = Good();
  for (const EngineVersion version : kEngineVersions) {
    const std::string name(EngineVersionName(version));
    EXPECT_EQ(ParseEngineVersion(name), version);
    ASSERT_TRUE(ApplyEnginePreset(name, &config).ok());
    EXPECT_EQ(config.engine, version);
    EXPECT_EQ(config.scheduler.rules, SchedulerRules::Of(version));
    EXPECT_EQ(config.manager.semantics.retention_interval.has_value(),
              version == EngineVersion::kVllm033);
  }
  EXPECT_EQ(ParseEngineVersion("vllm-main"), EngineVersion::kVllm033);
  EXPECT_EQ(ParseEngineVersion("vllm-0.34"), std::nullopt);
  EXPECT_NE(SchedulerRules::Of(EngineVersion::kVllm025), SchedulerRules());
  EXPECT_EQ(SchedulerRules::Of(EngineVersion::kVllm033), SchedulerRules());
}

TEST(SimulationConfigTest, FixedStepTimeMustBePositive) {
  EXPECT_THAT(MakeFixedStepTime(0).status().message(), HasSubstr("step_time is 0"));
  EXPECT_FALSE(MakeFixedStepTime(-kSecond).ok());
}

}  // namespace
}  // namespace kvblocks::sim
