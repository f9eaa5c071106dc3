#include "sim/simulation_config.h"

#include <cmath>
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

// What a simulation of it says.
absl::Status Created(const SimulationConfig& config) {
  VectorTraceReader reader(TraceInfo(), {});
  const auto step_time = MakeFixedStepTime(kSecond);
  return Simulation::Create(config, &reader, step_time->get(), {}).status();
}

TEST(SimulationConfigTest, GoodConfigIsAccepted) { EXPECT_TRUE(Validate(Good()).ok()); }

using C = SimulationConfig;
using Kind = AcceptanceModel::Kind;

// What is wrong, and the field, its value and the limit in the message.
const struct {
  std::function<void(C&)> spoil;
  const char* message;
} kBadFields[] = {
    {[](C& c) { c.kv_cache.num_blocks = 0; }, "num_blocks: got 0"},
    {[](C& c) { c.kv_cache.num_blocks = -5; }, "num_blocks: got -5"},
    {[](C& c) { c.kv_cache.num_blocks = 1; }, "kv_cache.num_blocks is 1, expected 2 to"},
    {[](C& c) { c.kv_cache.num_blocks = kHuge; }, "num_blocks: got 9223372036854775807"},
    {[](C& c) { c.kv_cache.groups.clear(); }, "kv_cache.groups is empty"},
    {[](C& c) { c.manager.max_model_len = 0; }, "manager.max_model_len is 0, expected 2 to"},
    {[](C& c) { c.manager.max_model_len = kHuge; }, "max_model_len is 9223372036854775807"},
    {[](C& c) { c.manager.watermark = 1.5; },
     "manager.watermark is 1.5, expected a share of the pool from 0 to 1"},
    {[](C& c) { c.manager.watermark = std::nan(""); }, "manager.watermark is nan"},
    {[](C& c) {
       c.kv_cache.num_blocks = 11;
       c.manager.eviction_policy = *ParseEvictionPolicy("lru");
       c.manager.max_retained_share = 0.09;
       c.scheduler.retention = {{}};
     },
     "manager.max_retained_share is 0.09, expected at least 0.1 with scheduler.retention: one "
     "block "
     "of 10"},
    {[](C& c) { c.scheduler.max_num_batched_tokens = 0; },
     "scheduler.max_num_batched_tokens is 0, expected 1 to"},
    {[](C& c) { c.scheduler.max_num_batched_tokens = kHuge; },
     "scheduler.max_num_batched_tokens is 9223372036854775807"},
    {[](C& c) { c.scheduler.max_num_seqs = 0; }, "scheduler.max_num_seqs is 0, expected 1 to"},
    {[](C& c) { c.scheduler.max_num_seqs = kHuge; },
     "scheduler.max_num_seqs is 9223372036854775807"},
    {[](C& c) { c.scheduler.long_prefill_token_threshold = -1; },
     "scheduler.long_prefill_token_threshold is -1, expected 0 to"},
    {[](C& c) { c.scheduler.num_draft_tokens = -1; }, "scheduler.num_draft_tokens is -1"},
    {[](C& c) { c.scheduler.num_draft_tokens = c.scheduler.max_num_batched_tokens = 4; },
     "scheduler.num_draft_tokens is 4, expected less than max_num_batched_tokens, which is 4"},
    {[](C& c) { c.scheduler.num_lookahead_tokens = kHuge; },
     "scheduler.num_lookahead_tokens is 9223372036854775807"},
    {[](C& c) { c.scheduler.acceptance.fixed = 3; },
     "scheduler.acceptance.fixed is 3, expected 0 to 0"},
    {[](C& c) { c.scheduler.acceptance.kind = Kind::kIid; },
     "scheduler.acceptance.probabilities has 0 entries, expected 1"},
    {[](C& c) {
       c.scheduler.num_draft_tokens = 1;
       c.scheduler.acceptance = {.kind = Kind::kIid, .probabilities = {1.01}};
     },
     "scheduler.acceptance.probabilities[0] is 1.01, expected 0 to 1"},
    {[](C& c) {
       c.scheduler.num_draft_tokens = 3;
       c.scheduler.acceptance = {.kind = Kind::kTable, .probabilities = {0.5}};
     },
     "probabilities has 1 entries, expected 3"},
    {[](C& c) { c.concurrency = -1; }, "concurrency is -1, expected 0 to"},
    {[](C& c) { c.concurrency = kHuge; }, "concurrency is 9223372036854775807"},
    {[](C& c) { c.start_jitter = -kSecond; }, "start_jitter is -1s, expected 0s to"},
    {[](C& c) { c.start_delay = -kSecond; }, "start_delay is -1s, expected 0s to"},
    {[](C& c) { c.max_queue_time = -kSecond; }, "max_queue_time is -1s, expected 0s to"},
    {[](C& c) { c.empty_step_time = kHuge; }, "empty_step_time is 9223372.036854775807s"},
    {[](C& c) { c.host_time_per_step = -1; }, "host_time_per_step is -1ps"},
    {[](C& c) { c.host_time_per_request = kHuge; }, "host_time_per_request is "},
    {[](C& c) { c.progress_interval = 0; }, "progress_interval is 0, expected 1 to"},
};

// A simulation refuses what Validate refuses, in the same words.
TEST(SimulationConfigTest, BadFieldsAreRefusedWithValueAndLimit) {
  for (const auto& [spoil, message] : kBadFields) {
    SimulationConfig config = Good();
    spoil(config);
    const absl::Status status = Validate(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_EQ(Created(config), status);
  }
}

TEST(SimulationConfigTest, ManagerReportsWhatItChecksItself) {
  SimulationConfig config = Good();
  config.kv_cache.groups = {FullGroup(16)};
  config.kv_cache.hash_block_size = 3;
  EXPECT_EQ(Created(config).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Created(config).message(), HasSubstr("hash_block_size"));
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
