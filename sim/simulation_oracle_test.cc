// The scheduler and the block manager against a naive model of both, on random workloads and
// configurations: schedules must agree to the last block id, and so must the times of all tokens.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/cost/pipeline.h"
#include "sim/testing/draw.h"
#include "sim/testing/naive_engine.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

enum class Aborts { kNone, kSome };
enum class Loads { kNone, kSome };
enum class Stages { kOne, kSome };
enum class Encoder { kNone, kSome };

void CompareOne(uint64_t seed, bool async, Aborts aborts, Loads loads, Stages stages,
                Encoder encoder) {
  Draw draw(seed);
  NaiveOptions o;
  o.async = async;
  o.block_size = draw(1, 4);
  o.num_blocks = draw(5, 24);
  o.max_num_batched_tokens = draw(4, 30);
  o.max_num_seqs = draw(2, 6);
  o.max_len = draw(12, 50);
  o.long_prefill_token_threshold = draw(0, 2) == 0 ? draw(1, 8) : 0;
  o.num_draft_tokens = draw(0, 1) * draw(1, 3);
  o.num_lookahead_tokens = draw(0, 1) * o.num_draft_tokens;
  o.acceptance.fixed = draw(0, o.num_draft_tokens);
  o.enable_chunked_prefill = draw(0, 3) != 0;
  if (!o.enable_chunked_prefill) o.max_num_batched_tokens = o.max_len;
  o.policy = static_cast<SchedulingPolicy>(
      draw(0, 2) == 0 ? draw(2, static_cast<int64_t>(SchedulingPolicy::kNoEvict)) : draw(0, 1));
  o.policy_seed = seed;
  // Long enough to share what lpm takes for much.
  const bool is_long = OrdersByPrefix(o.policy) && draw(0, 1) == 0;
  if (is_long) {
    o.num_blocks = draw(30, 120);
    o.max_len = draw(40, 80);
    o.max_num_batched_tokens = o.enable_chunked_prefill ? draw(8, 90) : o.max_len;
  }
  o.reserve_full_isl = draw(0, 1) == 0;
  o.append_all = draw(0, 2) == 0;
  o.watermark_blocks = draw(0, 1) * draw(0, 2);
  o.as_in_033 = draw(0, 2) != 0;
  o.adaptive_prefill_threshold = draw(0, 2) == 0;
  o.max_num_scheduled_tokens =
      draw(0, 3) == 0
          ? draw(std::min<int64_t>(o.max_num_batched_tokens, 4), o.max_num_batched_tokens)
          : 0;
  if (!o.enable_chunked_prefill) o.max_num_scheduled_tokens = 0;
  o.num_draft_slots = draw(0, 3) == 0 ? o.num_draft_tokens : 0;
  o.max_num_batched_tokens += o.num_draft_slots;
  o.max_num_active_seqs = draw(0, 3) == 0 ? draw(1, o.max_num_seqs) : 0;
  o.prefill_schedule_interval = draw(0, 3) == 0 ? draw(2, 5) : 1;
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
  if (o.max_encoder > 0) o.num_encoder_tokens = draw(0, o.max_encoder);
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
      r.encoder = input.value_or(o.num_encoder_tokens);
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
  if (loads == Loads::kSome && draw(0, 2) == 0) o.load_failure_policy = LoadFailurePolicy::kFail;
  std::unique_ptr<StepTimeModel> pipeline;
  if (stages == Stages::kSome) {
    std::vector<std::unique_ptr<StepTimeModel>> clocks;
    for (const int64_t seconds : o.stages) {
      clocks.push_back(MakeFixedStepTime(seconds * kSecond).value());
    }
    pipeline = MakePipeline(std::move(clocks), std::vector<SendTime>(o.stages.size() - 1)).value();
    replay.step_time = pipeline.get();
  }
  replay.config = o.ForReplay();
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

void CompareBoth(uint64_t seed, Aborts aborts, Loads loads = Loads::kNone,
                 Stages stages = Stages::kOne, Encoder encoder = Encoder::kNone) {
  for (const bool async : {false, true}) CompareOne(seed, async, aborts, loads, stages, encoder);
}

RC_GTEST_PROP(SimulationOracle, SchedulesAgreeToTheLastBlockId, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) CompareBoth(seed, Aborts::kNone);
}

RC_GTEST_PROP(SimulationOracle, SchedulesWithAbortsAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) CompareBoth(seed, Aborts::kSome);
}

// SM-4, SM-15, SM-17: with loads of all kinds, some of which fail, bring little or are late.
RC_GTEST_PROP(SimulationOracle, SchedulesWithLoadsAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 15; ++seed)
    CompareBoth(seed, Aborts::kSome, Loads::kSome);
}

// SM-28, V-75, V-78: with stages of unequal length.
RC_GTEST_PROP(SimulationOracle, SchedulesOfPipelinesAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    for (const Loads loads : {Loads::kNone, Loads::kSome}) {
      CompareBoth(seed, Aborts::kSome, loads, Stages::kSome);
    }
  }
}

// BM-112: with a group that attends to an encoder's rows.
RC_GTEST_PROP(SimulationOracle, SchedulesWithEncodersAgree, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    for (const Stages stages : {Stages::kOne, Stages::kSome}) {
      CompareBoth(seed, Aborts::kSome, Loads::kNone, stages, Encoder::kSome);
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
