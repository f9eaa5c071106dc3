// The scheduler and the block manager against a naive model of both, on random workloads and
// configurations: schedules must agree to the last block id, and so must the times of all tokens.

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/eviction.h"
#include "rapidcheck/gtest.h"
#include "sim/cost/pipeline.h"
#include "sim/testing/naive_engine.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

enum class Aborts { kNone, kSome };
enum class Loads { kNone, kSome };
enum class Stages { kOne, kSome };
enum class Encoder { kNone, kSome };

void CompareOne(uint64_t seed, bool async, Aborts aborts, Loads loads = Loads::kNone,
                Stages stages = Stages::kOne, Encoder encoder = Encoder::kNone) {
  std::mt19937_64 engine(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low + 1));
  };
  NaiveOptions o{};
  o.async = async;
  o.block_size = draw(1, 4);
  o.num_blocks = draw(5, 24);
  o.budget = draw(4, 30);
  o.max_seqs = draw(2, 6);
  o.max_len = draw(12, 50);
  o.threshold = draw(0, 2) == 0 ? draw(1, 8) : 0;
  o.drafts = draw(0, 1) * draw(1, 3);
  o.lookahead = draw(0, 1) * o.drafts;
  o.accepted = draw(0, o.drafts);
  o.chunked = draw(0, 3) != 0;
  if (!o.chunked) o.budget = o.max_len;
  o.policy = static_cast<SchedulingPolicy>(
      draw(0, 2) == 0 ? draw(2, static_cast<int64_t>(SchedulingPolicy::kNoEvict)) : draw(0, 1));
  o.policy_seed = seed;
  // Long enough to share what lpm takes for much.
  const bool is_long = OrdersByPrefix(o.policy) && draw(0, 1) == 0;
  if (is_long) {
    o.num_blocks = draw(30, 120);
    o.max_len = draw(40, 80);
    o.budget = o.chunked ? draw(8, 90) : o.max_len;
  }
  o.gate = draw(0, 1) == 0;
  o.append_all = draw(0, 2) == 0;
  o.watermark_blocks = draw(0, 1) * draw(0, 2);
  o.as_in_033 = draw(0, 2) != 0;
  o.adaptive = draw(0, 2) == 0;
  o.scheduled_budget = draw(0, 3) == 0 ? draw(std::min<int64_t>(o.budget, 4), o.budget) : 0;
  if (!o.chunked) o.scheduled_budget = 0;
  o.draft_slots = draw(0, 3) == 0 ? o.drafts : 0;
  o.budget += o.draft_slots;
  o.max_active = draw(0, 3) == 0 ? draw(1, o.max_seqs) : 0;
  o.interval = draw(0, 3) == 0 ? draw(2, 5) : 1;
  if (stages == Stages::kSome) {
    o.stages.clear();
    for (int64_t i = draw(2, 4); i > 0; --i) o.stages.push_back(draw(1, 3));
  }

  if (!o.append_all && draw(0, 1) == 0) {
    o.most_retained = draw(1, o.num_blocks - 1);
    for (int64_t i = draw(1, 2); i > 0; --i) {
      RetentionRule rule{.kind = static_cast<RetentionRule::Kind>(draw(0, 3)),
                         .priority = static_cast<int32_t>(draw(1, 3))};
      if (rule.kind == RetentionRule::Kind::kFirst) rule.tokens = draw(1, 20);
      if (rule.kind == RetentionRule::Kind::kShared) rule.uses = draw(1, 3);
      if (draw(0, 1) == 0) rule.ttl = draw(1, 12) * kSecond;
      o.retention.push_back(rule);
    }
  }

  if (encoder == Encoder::kSome) {
    o.caching = false;
    o.retention.clear();
    o.most_retained = 0;
    if (OrdersByPrefix(o.policy)) o.policy = SchedulingPolicy::kShortestPrompt;
    o.max_encoder = draw(1, 20);
    o.encoder_block_size = draw(1, 4);
  }

  Replay replay;
  replay.config.kv_cache.num_blocks = o.num_blocks;
  replay.config.kv_cache.groups = {FullGroup(o.block_size)};
  if (o.max_encoder > 0) {
    replay.config.kv_cache.groups.push_back(CrossGroup(o.encoder_block_size));
    replay.config.manager.max_encoder_tokens = o.max_encoder;
    replay.config.scheduler.num_encoder_tokens = draw(0, o.max_encoder);
  }
  replay.config.manager.enable_caching = o.caching;
  replay.config.manager.max_model_len = o.max_len;
  // So that rounding down gives the number of blocks.
  replay.config.manager.watermark = (static_cast<double>(o.watermark_blocks) + 0.5) /
                                    static_cast<double>(o.num_blocks) *
                                    (o.watermark_blocks > 0 ? 1.0 : 0.0);
  replay.config.manager.free_order =
      o.append_all ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  if (o.most_retained > 0) {
    replay.config.manager.eviction_policy = *ParseEvictionPolicy("lru");
    replay.config.manager.max_retained_share = std::min(
        1.0, (static_cast<double>(o.most_retained) + 0.25) / static_cast<double>(o.num_blocks - 1));
  }
  SchedulerOptions& s = replay.config.scheduler;
  s.rules = SchedulerRules::Of(o.as_in_033 ? EngineVersion::kVllm033 : EngineVersion::kVllm025);
  s.adaptive_prefill_threshold = o.adaptive;
  s.max_num_scheduled_tokens = o.scheduled_budget;
  s.num_draft_slots = o.draft_slots;
  s.max_num_active_seqs = o.max_active;
  s.prefill_schedule_interval = o.interval;
  s.async = o.async;
  s.retention = o.retention;
  s.max_num_batched_tokens = o.budget;
  s.max_num_seqs = o.max_seqs;
  s.long_prefill_token_threshold = o.threshold;
  s.enable_chunked_prefill = o.chunked;
  s.policy = o.policy;
  s.policy_seed = o.policy_seed;
  s.reserve_full_isl = o.gate;
  s.num_draft_tokens = o.drafts;
  s.num_lookahead_tokens = o.lookahead;
  s.acceptance.fixed = o.accepted;

  std::vector<NaiveRequest> naive;
  int64_t at = 0;
  const int64_t count = draw(2, 12);
  for (int64_t i = 0; i < count; ++i) {
    at += draw(0, 2) == 0 ? draw(1, 6) : 0;
    NaiveRequest r;
    r.id = std::to_string(i);
    r.row = i;
    r.prompt = is_long ? draw(25, 50) : draw(1, 24);
    r.output = draw(1, 10);
    r.arrival = at;
    r.priority = draw(0, 2);
    r.session = static_cast<uint64_t>(draw(0, 1) * (i + 1));
    if (aborts == Aborts::kSome && draw(0, 2) == 0) r.abort_at = at + draw(1, 15);
    std::optional<int64_t> input;
    if (encoder == Encoder::kSome) {
      // One too long now and then.
      if (draw(0, 2) > 0) input = draw(0, o.max_encoder + (draw(0, 4) == 0 ? 1 : 0));
      r.encoder = input.value_or(s.num_encoder_tokens);
    }
    r.TakeTokens(/*document=*/draw(0, 3));
    ReplayRequest request = r.ForReplay();
    request.encoder = input;
    replay.Add(request);
    naive.push_back(r);
  }
  for (int64_t i = 0; i < count && loads == Loads::kSome; ++i) {
    if (draw(0, 3) == 0) continue;
    ScriptedRequest& request = o.script[i];
    if (draw(0, 3) == 0) request.ready_at = draw(0, 12);
    if (draw(0, 3) == 0) request.hold = draw(1, 6);
    for (int64_t load = draw(0, 3); load > 0; --load) {
      request.loads.push_back(
          {.prefix = draw(1, 26),
           .mode = draw(0, 3) > 0 ? LoadMode::kAsync : static_cast<LoadMode>(draw(0, 1)),
           .seconds = draw(0, 9),
           .arrived = draw(0, 2) == 0 ? draw(0, 12) : -1});
    }
  }
  o.fails_lost = loads == Loads::kSome && draw(0, 2) == 0;
  if (o.fails_lost) s.load_failure_policy = LoadFailurePolicy::kFail;
  std::unique_ptr<StepTimeModel> pipeline;
  if (stages == Stages::kSome) {
    std::vector<std::unique_ptr<StepTimeModel>> clocks;
    for (const int64_t seconds : o.stages) {
      clocks.push_back(MakeFixedStepTime(seconds * kSecond).value());
    }
    s.pipeline_stages = static_cast<int64_t>(clocks.size());
    pipeline = MakePipeline(std::move(clocks), std::vector<SendTime>(o.stages.size() - 1)).value();
    replay.step_time = pipeline.get();
  }
  ScriptedConnector connector(o.script);
  if (loads == Loads::kSome) replay.connector = &connector;
  const absl::Status status = replay.Run();
  if (!status.ok()) RC_LOG() << status.ToString() << "\n";
  RC_ASSERT(status.ok());
  NaiveEngine engine_of_lists(o);
  engine_of_lists.Run(std::move(naive));
  RC_ASSERT(replay.lines == engine_of_lists.lines());
  RC_ASSERT(replay.token_times == engine_of_lists.token_times());
  RC_ASSERT(replay.free_queue == engine_of_lists.free_queue());
  RC_ASSERT(replay.result.scheduler.num_wasted == engine_of_lists.num_wasted());
  RC_ASSERT(replay.result.scheduler.num_rejected_drafts == engine_of_lists.num_rejected());
  RC_ASSERT(replay.retention.num_hits == engine_of_lists.num_retained_hits());
  RC_ASSERT(replay.retention.num_refused == engine_of_lists.num_retention_refused());
  RC_ASSERT(replay.result.scheduler.num_external == engine_of_lists.num_external());
  RC_ASSERT(replay.result.scheduler.num_lost == engine_of_lists.num_lost());
  RC_ASSERT(replay.result.scheduler.num_encoder_tokens == engine_of_lists.num_encoder());
}

RC_GTEST_PROP(SimulationOracle, SchedulesAgreeToTheLastBlockId, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    CompareOne(seed, /*async=*/false, Aborts::kNone);
    CompareOne(seed, /*async=*/true, Aborts::kNone);
  }
}

RC_GTEST_PROP(SimulationOracle, SchedulesWithAbortsAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    CompareOne(seed, /*async=*/false, Aborts::kSome);
    CompareOne(seed, /*async=*/true, Aborts::kSome);
  }
}

// SM-4, SM-15, SM-17: with loads of all kinds, some of which fail, bring little or are late.
RC_GTEST_PROP(SimulationOracle, SchedulesWithLoadsAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 15; ++seed) {
    CompareOne(seed, /*async=*/false, Aborts::kSome, Loads::kSome);
    CompareOne(seed, /*async=*/true, Aborts::kSome, Loads::kSome);
  }
}

// SM-28, V-75, V-78: with stages of unequal length.
RC_GTEST_PROP(SimulationOracle, SchedulesOfPipelinesAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    for (const Loads loads : {Loads::kNone, Loads::kSome}) {
      CompareOne(seed, /*async=*/false, Aborts::kSome, loads, Stages::kSome);
      CompareOne(seed, /*async=*/true, Aborts::kSome, loads, Stages::kSome);
    }
  }
}

// BM-112: with a group that attends to an encoder's rows.
RC_GTEST_PROP(SimulationOracle, SchedulesWithEncodersAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    for (const Stages stages : {Stages::kOne, Stages::kSome}) {
      CompareOne(seed, /*async=*/false, Aborts::kSome, Loads::kNone, stages, Encoder::kSome);
      CompareOne(seed, /*async=*/true, Aborts::kSome, Loads::kNone, stages, Encoder::kSome);
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
