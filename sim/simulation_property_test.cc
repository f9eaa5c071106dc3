// Random workloads on random configurations: the invariants after every step, every request's end,
// determinism, and that leaving out useless questions to the manager changes nothing.

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "managers/kv_cache_manager_setup.h"
#include "rapidcheck/gtest.h"
#include "sim/testing/draw.h"
#include "sim/testing/replay.h"
#include "tests/group_specs.h"

namespace kvblocks::sim {
namespace {

// Cases per property and seed of RapidCheck.
constexpr uint64_t kCasesPerSeed = 10;

struct Case {
  bool with_aborts = false;
  bool with_dependencies = false;
  bool too_big = false;
};

// One to six groups of all kinds that a scheduler meets, in any order, with blocks of one size or
// several. The pool is small for them.
void DrawGroups(Draw& draw, KvCacheConfig& kv_cache) {
  const int64_t unit = draw(1, 4);
  const bool is_uneven = draw.OneIn(3);
  const int64_t states = unit * (is_uneven ? draw(1, 3) : 1);  // every group of states has the same
  const int64_t num_groups = draw.OneIn(2) ? draw(1, 2) : draw(1, 6);
  kv_cache.groups.clear();
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t block_size = unit * (is_uneven && draw.OneIn(2) ? draw(1, 2) : 1);
    const int64_t kind = draw(0, 8);
    const KvCacheSpec spec = kind == 0   ? kvblocks::testing::Mla(block_size)
                             : kind <= 2 ? kvblocks::testing::Window(block_size, draw(1, 9))
                             : kind == 3 ? kvblocks::testing::WindowMla(block_size, draw(1, 9))
                             : kind == 4
                                 ? kvblocks::testing::Chunked(block_size, block_size * draw(1, 3))
                             : kind <= 6 ? kvblocks::testing::Mamba(states, MambaCacheMode::kAlign)
                                         : kvblocks::testing::Full(block_size);
    kv_cache.groups.push_back({.spec = spec, .is_draft = draw.OneIn(8)});
    kv_cache.groups.back().layer_names = {"layer." + std::to_string(g)};
  }
  kv_cache.num_blocks = draw(4, 20 + 20 * num_groups);
}

// What the block manager registers, and how.
void DrawSemantics(Draw& draw, SimulationConfig& config) {
  Semantics& semantics = config.manager.semantics;
  if (draw.OneIn(2)) semantics = Semantics::Vllm033Exactly();
  if (draw.OneIn(2)) return;
  semantics.retention_interval = std::nullopt;
  const auto sizes = ResolveBlockSizes(config.kv_cache, config.manager);
  const bool is_sparse =
      std::any_of(config.kv_cache.groups.begin(), config.kv_cache.groups.end(), [](const auto& g) {
        return g.spec.sliding_window() || g.spec.kind() == KvCacheSpecKind::kMamba;
      });
  if (sizes.ok() && is_sparse && draw.OneIn(2)) {
    semantics.retention_interval = sizes->scheduler_block_size * draw(1, 3);
  }
}

// A part of a prompt gives tokens up for a drafter of several modules (V-80). Something must be
// left, and where there are states it must reach the next one, or the prompt is never computed.
void LeaveRoomForModules(SimulationConfig& config) {
  if (config.manager.prefill_lookahead_tokens <= 1) return;
  SchedulerOptions& scheduler = config.scheduler;
  int64_t& threshold = scheduler.long_prefill_token_threshold;
  if (threshold > 0) threshold = std::max<int64_t>(threshold, 4);
  if (std::any_of(config.kv_cache.groups.begin(), config.kv_cache.groups.end(), [](const auto& g) {
        return g.spec.kind() == KvCacheSpecKind::kMamba;
      })) {
    threshold = scheduler.max_num_scheduled_tokens = 0;
    scheduler.max_num_batched_tokens = std::max<int64_t>(scheduler.max_num_batched_tokens, 64);
  }
}

bool IsRefused(const SimulationConfig& config) {
  return !Validate(config).ok() || !KvCacheManager::Create(config.kv_cache, config.manager).ok();
}

void FillOnce(Replay& replay, uint64_t seed, const Case& which) {
  Draw draw(seed);
  SimulationConfig& config = replay.config;
  DrawGroups(draw, config.kv_cache);
  config.manager.max_model_len = draw(8, 60);
  config.manager.enable_caching = !draw.OneIn(5);
  const bool has_encoder = draw.OneIn(6);
  if (has_encoder) {
    config.kv_cache.groups.push_back(CrossGroup(draw(1, 4)));
    config.manager.enable_caching = false;
    config.manager.max_encoder_tokens = draw(1, 20);
    config.scheduler.num_encoder_tokens = draw(0, *config.manager.max_encoder_tokens);
  }
  config.manager.free_order = draw.OneIn(3) ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  if (draw.OneIn(3)) config.manager.watermark = 0.1;
  SchedulerOptions& scheduler = config.scheduler;
  scheduler.async = draw.OneIn(2);
  scheduler.max_num_batched_tokens = draw(5, 40);
  scheduler.max_num_seqs = draw(1, 6);
  if (draw.OneIn(3)) scheduler.long_prefill_token_threshold = draw(2, 8);
  if (draw.OneIn(4)) {
    scheduler.enable_chunked_prefill = false;
    scheduler.max_num_batched_tokens = config.manager.max_model_len;
  }
  if (draw.OneIn(2)) scheduler.policy = SchedulingPolicy::kPriority;
  DrawRules(draw, scheduler);
  DrawSemantics(draw, config);
  if (draw.OneIn(2)) {
    // Lookahead hashes, drops, draft slots and prefill lookahead come with the drafter. Modules
    // must be drawn without lookahead hashes, too, and semantics as the engine's: otherwise
    // nothing that outputs settle may be computed again, and a quick path that forgets it goes
    // unseen (V-110).
    RC_ASSERT(ApplyDrafts({.drafter = static_cast<Drafter>(
                               draw(0, static_cast<int64_t>(Drafter::kDSpark))),
                           .num_draft_tokens = draw(1, 3),
                           .lookahead_hashes = draw.OneIn(2)},
                          &config)
                  .ok());
    // Else the longest prompt never fits a step.
    if (!scheduler.enable_chunked_prefill)
      scheduler.max_num_batched_tokens += scheduler.num_draft_slots;
    scheduler.acceptance = {
        .kind = AcceptanceModel::Kind::kIid, .probabilities = {0.6}, .seed = seed};
    LeaveRoomForModules(config);
  }
  config.manager.partial_hits =
      SupportsPartialHits(config.kv_cache, config.manager) && !draw.OneIn(3);
  if (which.too_big) scheduler.too_big = TooBigRequest::kRun;
  config.zero_output = static_cast<ZeroOutput>(draw(0, 2));
  if (which.with_aborts && draw.OneIn(2)) config.max_queue_time = draw(1, 20) * kSecond;
  if (which.with_dependencies && draw.OneIn(2)) config.concurrency = draw(1, 3);

  const int64_t count = draw(1, 14);
  for (int64_t i = 0; i < count; ++i) {
    ReplayRequest request;
    request.id = std::to_string(i);
    request.prompt = draw(draw.OneIn(10) ? 0 : 1, 30);
    request.output = draw(0, 12);
    request.at = static_cast<double>(draw(0, 40)) / 4.0;
    if (which.with_dependencies) request.at = static_cast<double>(i);  // rows in arrival order
    request.priority = static_cast<int32_t>(draw(0, 2));
    if (has_encoder && draw.OneIn(2)) request.encoder = draw(0, 22);
    if (!draw.OneIn(3)) {
      // One of three documents, which begin alike.
      const int64_t document = draw(0, 2);
      for (int64_t t = 0; t < request.prompt; ++t) {
        request.content.push_back(t < 5 ? t : 1000 * document + t);
      }
    }
    if (which.with_aborts && draw.OneIn(3)) {
      request.abort_after = static_cast<double>(draw(1, 60)) / 4.0;
    }
    if (which.with_dependencies && i > 0 && draw.OneIn(2)) {
      request.waits_for = {draw(0, i - 1)};
      request.think = static_cast<double>(draw(0, 8)) / 4.0;
      request.has_arrival = draw.OneIn(2);
    }
    if (which.with_dependencies && draw.OneIn(2)) {
      request.session = static_cast<uint64_t>(draw(1, 3));
    }
    replay.Add(request);
  }
}

// Settings that are refused are passed over.
void Fill(Replay& replay, uint64_t seed, const Case& which) {
  constexpr uint64_t kOther = 1000003;
  for (int i = 0; i < 100; ++i) {
    Replay drawn;
    FillOnce(drawn, seed + static_cast<uint64_t>(i) * kOther, which);
    if (!IsRefused(drawn.config))
      return FillOnce(replay, seed + static_cast<uint64_t>(i) * kOther, which);
  }
  RC_FAIL("every draw is refused");
}

// Runs with the invariants checked after every step.
absl::Status RunCase(Replay& replay, uint64_t seed, const Case& which, bool exact_steps) {
  Fill(replay, seed, which);
  replay.config.scheduler.exact_steps = exact_steps;
  return replay.Run();
}

void CheckEndOfAll(const Replay& replay, size_t num_requests) {
  RC_ASSERT(replay.ends.size() + replay.rejections.size() +
                static_cast<size_t>(replay.result.num_skipped) ==
            num_requests);
  const SchedulerTotals& totals = replay.result.scheduler;
  RC_ASSERT(totals.num_computed == totals.num_first_time + totals.num_recomputed +
                                       totals.num_wasted + totals.num_rejected_drafts);
  // Everything was given back.
  RC_ASSERT(static_cast<int64_t>(replay.free_queue.size()) ==
            replay.config.kv_cache.num_blocks - 1);
}

RC_GTEST_PROP(SimulationProperty, EveryAcceptedRequestFinishes, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
    Replay replay;
    const absl::Status status = RunCase(replay, seed, {}, false);
    if (!status.ok()) RC_LOG() << status.ToString() << "\n";
    RC_ASSERT(status.ok());
    CheckEndOfAll(replay,
                  static_cast<size_t>(replay.result.num_arrived + replay.result.num_skipped));
    for (const auto& [id, reason] : replay.ends) RC_ASSERT(reason == "length");
    RC_ASSERT(replay.result.num_finished == static_cast<int64_t>(replay.ends.size()));
  }
}

RC_GTEST_PROP(SimulationProperty, AbortsAndDependenciesLeaveNothingBehind, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
    Replay replay;
    const absl::Status status =
        RunCase(replay, seed, {.with_aborts = true, .with_dependencies = true}, false);
    if (!status.ok()) RC_LOG() << status.ToString() << "\n";
    RC_ASSERT(status.ok());
    size_t ended = replay.ends.size() + replay.rejections.size();
    RC_ASSERT(static_cast<int64_t>(ended) ==
              replay.result.num_finished + replay.result.num_rejected +
                  replay.result.num_aborted_time + replay.result.num_aborted_queue +
                  replay.result.num_aborted_session);
    CheckEndOfAll(replay, ended + static_cast<size_t>(replay.result.num_skipped));
  }
}

RC_GTEST_PROP(SimulationProperty, TooBigRequestsEndTheRunWithoutLooping, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
    Replay replay;
    const absl::Status status = RunCase(replay, seed, {.too_big = true}, false);
    if (!status.ok() && !IsNoProgress(status)) RC_LOG() << status.ToString() << "\n";
    RC_ASSERT(status.ok() || IsNoProgress(status));
  }
}

RC_GTEST_PROP(SimulationProperty, SkippingUselessQuestionsChangesNothing, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
    const Case which{.with_aborts = seed % 2 == 0, .with_dependencies = seed % 3 == 0};
    Replay fast, exact;
    const absl::Status fast_status = RunCase(fast, seed, which, false);
    const absl::Status exact_status = RunCase(exact, seed, which, true);
    RC_ASSERT(fast_status == exact_status);
    RC_ASSERT(fast.lines == exact.lines);
    RC_ASSERT(fast.token_times == exact.token_times);
    RC_ASSERT(fast.free_queue == exact.free_queue);
    RC_ASSERT(fast.result == exact.result);
    RC_ASSERT(fast.admission_attempts <= exact.admission_attempts);
  }
}

RC_GTEST_PROP(SimulationProperty, AsynchronousSchedulingChangesNoRequestsTokens,
              (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
    Replay sync, async;
    Fill(sync, seed, {});
    Fill(async, seed, {});
    sync.config.scheduler.async = false;
    async.config.scheduler.async = true;
    RC_ASSERT(sync.Run().ok());
    const absl::Status status = async.Run();
    if (!status.ok()) RC_LOG() << status.ToString() << "\n";
    RC_ASSERT(status.ok());
    // Drafts of two steps reach further: more requests are too long for the pool.
    if (sync.rejections != async.rejections) continue;
    RC_ASSERT(sync.ends == async.ends);
    RC_ASSERT(sync.result.scheduler.num_output_tokens == async.result.scheduler.num_output_tokens);
    for (const auto& [id, times] : sync.token_times) {
      RC_ASSERT(times.size() == async.token_times[id].size());
    }
    if (sync.config.scheduler.num_draft_tokens > 0) continue;
    // Every length is known, so nothing is scheduled in vain.
    RC_ASSERT(async.result.scheduler.num_wasted == 0);
  }
}

RC_GTEST_PROP(SimulationProperty, SameInputGivesTheSameRun, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
    const Case which{.with_aborts = true, .with_dependencies = true};
    Replay a, b;
    RC_ASSERT(RunCase(a, seed, which, false) == RunCase(b, seed, which, false));
    RC_ASSERT(a.lines == b.lines);
    RC_ASSERT(a.result == b.result);
  }
}

}  // namespace
}  // namespace kvblocks::sim
