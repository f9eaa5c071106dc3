// The observer that runs a KvCacheVerifier along with a simulation.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "sim/testing/replay.h"
#include "sim/verify/verifying_observer.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

// Prompts of a few families that begin alike, in a pool that is too small; inputs of encoders, if
// there are any, of 0 to 19 tokens.
void AddWorkload(Replay* replay, bool with_encoders = false) {
  for (int64_t i = 0; i < 40; ++i) {
    ReplayRequest request{.id = "r" + std::to_string(i),
                          .prompt = 5 + i * 7 % 40,
                          .output = 1 + i * 5 % 23,
                          .at = static_cast<double>(i) * 1.3,
                          .priority = static_cast<int32_t>(i % 3)};
    for (int64_t t = 0; t < request.prompt; ++t) {
      request.content.push_back(t < 12 + i % 9 ? i % 4 * 100 + t : 1000 * i + t);
    }
    if (with_encoders) request.encoder = i * 11 % 20;
    replay->Add(request);
  }
}

// Steps of 16 tokens, and requests of up to 100 that are admitted before all of their prompt fits.
void UseSmallSteps(int64_t num_blocks, Replay* replay) {
  replay->is_watching = false;
  replay->config.kv_cache.num_blocks = num_blocks;
  replay->config.manager.max_model_len = 100;
  replay->config.scheduler.max_num_batched_tokens = 16;
  replay->config.scheduler.reserve_full_isl = false;
}

void UseDrafts(int64_t num_drafts, Replay* replay) {
  replay->config.scheduler.num_draft_tokens = num_drafts;
  if (num_drafts == 0) return;
  replay->config.scheduler.acceptance.kind = AcceptanceModel::Kind::kIid;
  replay->config.scheduler.acceptance.probabilities = {0.6};
}

// Two layers per group; slabs are asked for, and chunks follow from the configuration.
VerifyingObserver::Options InLayout(PoolLayout layout) {
  return {.ops = &attention::CpuReference(),
          .layers_per_group = 2,
          .layout = layout == PoolLayout::kSlab ? layout : PoolLayout::kUniform};
}

// Runs the workload, in which nothing must be wrong.
attention::VerifierStats StatsOf(VerifyingObserver& observer, Replay* replay,
                                 bool with_encoders = false) {
  replay->further_observers = {&observer};
  AddWorkload(replay, with_encoders);
  const absl::Status ran = replay->Run();
  EXPECT_TRUE(ran.ok()) << ran;
  EXPECT_TRUE(observer.status().ok()) << observer.status();
  return observer.verifier() == nullptr ? attention::VerifierStats() : observer.verifier()->stats();
}

constexpr PoolLayout kLayouts[] = {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative};

class PartsTakenBack final : public EngineObserver {
 public:
  void OnPreemption(const PreemptionRecord& record, SimTime) override {
    count += record.num_refunded_tokens > 0;
  }
  int64_t count = 0;
};

struct ReplayedCase {
  bool async = false;
  int64_t drafts = 0;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  int64_t window = 0;
};

TEST(VerifyingObserverTest, ReplaysOfEveryKindHaveNoWrongNumber) {
  for (const ReplayedCase& c :
       {ReplayedCase{}, ReplayedCase{.async = true}, ReplayedCase{.drafts = 2},
        ReplayedCase{.async = true, .drafts = 3},
        ReplayedCase{.policy = SchedulingPolicy::kPriority}, ReplayedCase{.window = 9},
        ReplayedCase{.async = true, .drafts = 2, .window = 6}}) {
    SCOPED_TRACE(testing::Message() << c.async << c.drafts << c.window);
    Replay replay;
    UseSmallSteps(c.window > 0 ? 50 : 30, &replay);
    if (c.window > 0) replay.config.kv_cache.groups.push_back(WindowGroup(4, c.window));
    replay.config.scheduler.async = c.async;
    replay.config.scheduler.policy = c.policy;
    UseDrafts(c.drafts, &replay);
    VerifyingObserver observer(InLayout(PoolLayout::kUniform));
    const attention::VerifierStats stats = StatsOf(observer, &replay);
    EXPECT_EQ(stats.num_tokens, replay.result.scheduler.num_computed);
    EXPECT_EQ(stats.num_steps, replay.result.scheduler.num_steps);
    EXPECT_EQ(stats.num_rows_attended, stats.num_tokens * observer.num_layers());
    EXPECT_EQ(stats.num_hit_tokens,
              replay.result.prefix_cache.hits + replay.result.prefix_cache.preempted_hits);
    EXPECT_GT(stats.num_hit_tokens, 0);
    EXPECT_GT(replay.result.scheduler.num_preemptions, 0);
    EXPECT_EQ(replay.result.num_finished, 40);
    if (c.drafts > 0) {
      EXPECT_GT(replay.result.scheduler.num_rejected_drafts, 0);
    }
  }
}

// --- Layouts ---

void UseWindow(PoolLayout layout, Replay* replay) {
  UseSmallSteps(70, replay);
  replay->config.kv_cache.groups.push_back(WindowGroup(2, 9));
  if (layout == PoolLayout::kNative) InChunks(12, {3, 7}, &replay->config.kv_cache);
}

TEST(VerifyingObserverTest, LayersAreAttendedToWhereThePlannerPutsThem) {
  for (const PoolLayout layout : kLayouts) {
    for (const bool async : {false, true}) {
      SCOPED_TRACE(testing::Message() << LayoutName(layout) << async);
      Replay replay;
      UseWindow(layout, &replay);
      replay.config.scheduler.async = async;
      VerifyingObserver observer(InLayout(layout));
      const attention::VerifierStats stats = StatsOf(observer, &replay);
      EXPECT_EQ(observer.layout(), layout);
      EXPECT_EQ(stats.num_tokens, replay.result.scheduler.num_computed);
      EXPECT_EQ(stats.num_rows_attended, stats.num_tokens * 4);
      EXPECT_GT(stats.num_hit_tokens, 0);
      EXPECT_GT(stats.num_rows_read_back, 0);
      EXPECT_GT(replay.result.scheduler.num_preemptions, 0);
      EXPECT_EQ(replay.result.num_finished, 40);
    }
  }
}

// DeepSeek V4's: a window and compressed rows, which queries also see as one set of keys.
TEST(VerifyingObserverTest, AWindowAndCompressedRowsAreAttendedToAtOnce) {
  for (const PoolLayout layout : kLayouts) {
    SCOPED_TRACE(testing::Message() << LayoutName(layout));
    Replay replay;
    UseWindow(PoolLayout::kUniform, &replay);
    KvCacheConfig& config = replay.config.kv_cache;
    config.groups = {
        {.spec = *SlidingWindowMlaSpec::Create(
             {.block_size = 4, .head_size = 16, .sliding_window = 9}),
         .layer_names = {"window"}},
        {.spec = *MlaAttentionSpec::Create({.block_size = 8, .head_size = 16, .compress_ratio = 4}),
         .layer_names = {"rows"}}};
    config.num_blocks = 36;
    if (layout == PoolLayout::kNative) InChunks(8, {4, 7}, &config);
    VerifyingObserver observer(InLayout(layout));
    const attention::VerifierStats stats = StatsOf(observer, &replay);
    EXPECT_EQ(observer.verifier()->num_joint_layers(), 2);
    EXPECT_EQ(stats.num_joint_rows_attended, 2 * stats.num_tokens);
    EXPECT_GT(stats.num_hit_tokens, 0);
    EXPECT_GT(replay.result.scheduler.num_preemptions, 0);
  }
}

// DeepSeek V3.2's: an indexer chooses among all rows.
TEST(VerifyingObserverTest, AnIndexerChoosesAmongTheRowsOfItsGroup) {
  Replay replay;
  UseWindow(PoolLayout::kUniform, &replay);
  replay.config.kv_cache.groups = {
      {.spec = *MlaAttentionSpec::Create({.block_size = 4, .head_size = 16}),
       .layer_names = {"mla", "indexer"}}};
  VerifyingObserver observer(InLayout(PoolLayout::kUniform));
  const attention::VerifierStats stats = StatsOf(observer, &replay);
  EXPECT_EQ(stats.num_joint_rows_attended,
            observer.verifier()->num_joint_layers() * stats.num_tokens);
  EXPECT_GT(stats.num_joint_rows_attended, 0);
  EXPECT_GT(stats.num_hit_tokens, 0);
}

// And a compressor's states, of which rows are made again where they are complete.
TEST(VerifyingObserverTest, RowsAreMadeOfStatesAgain) {
  Replay replay;
  UseWindow(PoolLayout::kUniform, &replay);
  KvCacheConfig& config = replay.config.kv_cache;
  config.groups = {
      {.spec =
           *SlidingWindowMlaSpec::Create({.block_size = 4, .head_size = 16, .sliding_window = 9}),
       .layer_names = {"window"}},
      {.spec = *MlaAttentionSpec::Create({.block_size = 8, .head_size = 16, .compress_ratio = 4}),
       .layer_names = {"rows"}},
      {.spec =
           *SlidingWindowMlaSpec::Create({.block_size = 4, .head_size = 64, .sliding_window = 8}),
       .layer_names = {"states"}}};
  config.num_blocks = 60;
  VerifyingObserver observer(InLayout(PoolLayout::kUniform));
  const attention::VerifierStats stats = StatsOf(observer, &replay);
  EXPECT_EQ(observer.verifier()->num_joint_layers(), 2);
  // Of two layers, one row for every fourth token.
  EXPECT_GT(stats.num_rows_compressed, stats.num_tokens / 4);
}

// Sound operations, but for how tokens are written.
class OpsWithBadWrites : public attention::AttentionOps {
 public:
  template <typename Args>
  using Checked = attention::Checked<Args>;
  const char* name() const override { return "BAD"; }
  absl::Status Run(const Checked<attention::PagedDecodeArgs>& call) const override {
    return sound_.Run(call);
  }
  absl::Status Run(const Checked<attention::PagedPrefillArgs>& call) const override {
    return sound_.Run(call);
  }

 protected:
  const attention::AttentionOps& sound_ = attention::CpuReference();
  mutable int num_writes_ = 0;
};

// Takes blocks as they come: ids of a chunk for pages, wherever they lie.
class BlindOps final : public OpsWithBadWrites {
 public:
  using OpsWithBadWrites::Run;
  absl::Status Run(const Checked<attention::ReshapeAndCacheArgs>& call) const override {
    attention::ReshapeAndCacheArgs with = call.args();
    const int64_t step = with.cache.k.stride[0];
    if (with.cache.overlapping_blocks && ++num_writes_ > 20) {
      for (attention::TensorView* view : {&with.cache.k, &with.cache.v}) {
        view->extent[0] -= 1;
        view->data += step * static_cast<int64_t>(sizeof(float));  // one step off
      }
    }
    return sound_.ReshapeAndCache(call.context(), with);
  }
};

TEST(VerifyingObserverTest, AStepBesideThePageIsAWrongNumber) {
  Replay replay;
  UseWindow(PoolLayout::kNative, &replay);
  const BlindOps ops;
  VerifyingObserver observer({.ops = &ops});
  replay.further_observers = {&observer};
  AddWorkload(&replay);
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(observer.status().code(), absl::StatusCode::kDataLoss) << observer.status();
}

// --- Encoders ---

void UseEncoder(PoolLayout layout, Replay* replay) {
  UseSmallSteps(60, replay);
  replay->config.kv_cache.groups.push_back(CrossGroup(2));
  if (layout == PoolLayout::kNative) InChunks(10, {3, 7}, &replay->config.kv_cache);
  replay->config.manager.enable_caching = false;
  replay->config.manager.max_encoder_tokens = 20;
  replay->config.scheduler.max_num_batched_tokens = 24;
}

TEST(VerifyingObserverTest, EachStepFindsTheEncodersRowsOfTheFirst) {
  for (const PoolLayout layout : kLayouts) {
    for (const bool async : {false, true}) {
      for (const int64_t drafts : {0, 2}) {
        SCOPED_TRACE(testing::Message() << LayoutName(layout) << async << drafts);
        Replay replay;
        UseEncoder(layout, &replay);
        replay.config.scheduler.async = async;
        UseDrafts(drafts, &replay);
        VerifyingObserver observer(InLayout(layout));
        const attention::VerifierStats stats = StatsOf(observer, &replay, true);
        EXPECT_EQ(observer.group_texts()[1], "cross_attention, rows of an encoder");
        const SchedulerTotals& totals = replay.result.scheduler;
        EXPECT_EQ(stats.num_tokens, totals.num_computed);
        // Once per admission.
        EXPECT_EQ(stats.num_rows_written, 2 * (totals.num_computed + totals.num_encoder_tokens));
        EXPECT_GT(totals.num_encoder_tokens, 40 * 19 / 2 - 40);
        EXPECT_GT(stats.num_encoder_rows_read, 2 * totals.num_encoder_tokens);
        EXPECT_GT(stats.num_rows_attended, 3 * stats.num_tokens);
        EXPECT_EQ(stats.num_hit_tokens, 0);
        EXPECT_GT(totals.num_preemptions, 0);
        EXPECT_EQ(replay.result.num_finished, 40);
      }
    }
  }
}

// Tells a verifier of steps otherwise than they are.
class Between final : public EngineObserver {
 public:
  using Tell = std::function<void(const StepRecord& step, EngineObserver* to)>;
  Between(EngineObserver* to, Tell tell) : to_(to), tell_(std::move(tell)) {}
  void OnRunStart(const RunInfo& info) override { to_->OnRunStart(info); }
  void OnPreemption(const PreemptionRecord& r, SimTime now) override { to_->OnPreemption(r, now); }
  void OnStepScheduled(const StepRecord& step) override { tell_(step, to_); }
  void OnStepFinished(const StepRecord& step) override { to_->OnStepFinished(step); }
  void OnFinish(const SimRequest& request, SimTime now) override { to_->OnFinish(request, now); }

 private:
  EngineObserver* const to_;
  const Tell tell_;
};

// A token more or less than the manager counts.
TEST(VerifyingObserverTest, AnInputOfAnotherLengthIsNoticed) {
  for (const int64_t change : {-1, 1}) {
    Replay replay;
    UseEncoder(PoolLayout::kUniform, &replay);
    replay.Add({.id = "A", .prompt = 5, .output = 3, .encoder = change < 0 ? 9 : 8});
    VerifyingObserver observer({.ops = &attention::CpuReference()});
    Between between(&observer, [change](const StepRecord& step, EngineObserver* to) {
      for (const ScheduledRecord& r : step.scheduled) r.request->num_encoder += change;
      to->OnStepScheduled(step);
      for (const ScheduledRecord& r : step.scheduled) r.request->num_encoder -= change;
    });
    replay.further_observers = {&between};
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(observer.status().code(), absl::StatusCode::kDataLoss) << observer.status();
    EXPECT_THAT(
        std::string(observer.status().message()),
        HasSubstr(change < 0 ? "the block table has 5 entries, but the 8 rows of the encoder "
                               "take 4: blocks were taken more than once"
                             : "token 8 of the encoder is in reach of every query, but entry 4 "
                               "of the block table is missing"));
  }
}

// --- Tiers ---

// The workload over tiers; `mangle` may change what is copied.
absl::Status VerifyTiers(const std::string& text, LoadMode mode, bool has_window, Replay* replay,
                         std::unique_ptr<TierConnector>* tiers,
                         const std::function<void(std::vector<KvCopy>*)>& mangle = nullptr) {
  const auto clock = MakeFixedStepTime(kSecond);
  UseSmallSteps(has_window ? 50 : 30, replay);
  if (has_window) replay->config.kv_cache.groups.push_back(WindowGroup(4, 9));
  replay->config.scheduler.reserve_full_isl = true;
  *tiers = TierConnector::Create({.tiers = ParseTiers(text).value(),
                                  .mode = mode,
                                  .group_block_bytes = std::vector<int64_t>(
                                      replay->config.kv_cache.groups.size(), 128),
                                  .step_time = clock->get(),
                                  .load_failures = mode == LoadMode::kAsync ? 0.3 : 0})
               .value();
  // Attaches at the start of the run, before the verifier asks how large the tiers are.
  VerifyingObserver observer(
      {.ops = &attention::CpuReference(), .layers_per_group = 2, .tiers = tiers->get()});
  (*tiers)->set_on_copies([&](absl::Span<const KvCopy> listed) {
    std::vector<KvCopy> copies(listed.begin(), listed.end());
    if (mangle) mangle(&copies);
    observer.OnCopies(copies);
  });
  replay->connector = tiers->get();
  replay->further_observers = {tiers->get(), &observer};
  AddWorkload(replay);
  if (absl::Status status = replay->Run(); !status.ok()) return status;
  return observer.status();
}

constexpr const char* kTwoTiers =
    "host:10chunks:read=600B/s,disk:60chunks:read=300B/s:store=on-evict";

TEST(VerifyingObserverTest, WhatTiersBringIsWhatWasStored) {
  for (const char* text : {kTwoTiers, "host:40chunks:read=600B/s:chunk=2"}) {
    for (const LoadMode mode : {LoadMode::kAsync, LoadMode::kSync, LoadMode::kLayerwise}) {
      for (const bool has_window : {false, true}) {
        SCOPED_TRACE(testing::Message() << text << static_cast<int>(mode) << has_window);
        Replay replay;
        std::unique_ptr<TierConnector> tiers;
        const absl::Status status = VerifyTiers(text, mode, has_window, &replay, &tiers);
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_GT(tiers->load_totals().num_loads, 3);
        EXPECT_EQ(tiers->load_totals().num_failed > 0, mode == LoadMode::kAsync);
      }
    }
  }
}

TEST(VerifyingObserverTest, TiersBehindChunksAreRefused) {
  Replay replay;
  UseWindow(PoolLayout::kNative, &replay);
  const auto clock = MakeFixedStepTime(kSecond);
  const auto tiers = TierConnector::Create({.tiers = ParseTiers(kTwoTiers).value(),
                                            .group_block_bytes = {128, 128},
                                            .step_time = clock->get()})
                         .value();
  VerifyingObserver observer({.ops = &attention::CpuReference(), .tiers = tiers.get()});
  replay.further_observers = {&observer};
  AddWorkload(&replay);
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(std::string(observer.status().message()), HasSubstr("choose another --layout"));
}

// One block of a load is another one's.
TEST(VerifyingObserverTest, AWrongSlotIsAWrongNumber) {
  for (const LoadMode mode : {LoadMode::kAsync, LoadMode::kSync}) {
    Replay replay;
    std::unique_ptr<TierConnector> tiers;
    const absl::Status status =
        VerifyTiers(kTwoTiers, mode, false, &replay, &tiers, [](std::vector<KvCopy>* copies) {
          for (KvCopy& copy : *copies) {
            if (copy.to_tier == offload::kDevice) copy.from = copy.from == 1 ? 2 : 1;
          }
        });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }
}

// SM-14: with priorities a request may lose the part of the step that it had got already, and what
// was registered for it keeps its keys, as in the engine, although nobody writes it. Of its blocks
// the deepest are taken first, so the request that preempts it takes at least one: that is well if
// the part filled no more. Otherwise the request hits what is left when it resumes.
TEST(VerifyingObserverTest, AVictimOfItsOwnStepHitsWhatNobodyWrote) {
  // V's part fills one block or two; R takes one.
  for (const int64_t part : {2, 4}) {
    SCOPED_TRACE(part);
    Replay replay;
    replay.config.kv_cache.groups = {FullGroup(2)};
    // At time 2 V has its third part, and R finds no block for its second token.
    replay.config.kv_cache.num_blocks = part == 2 ? 7 : 10;
    replay.config.scheduler.long_prefill_token_threshold = part;
    replay.config.scheduler.policy = SchedulingPolicy::kPriority;
    replay.config.scheduler.reserve_full_isl = false;
    replay.Add({.id = "D", .prompt = 2, .output = 3});
    replay.Add({.id = "V", .prompt = 4 * part, .output = 1, .priority = 1});
    replay.Add({.id = "R", .prompt = 2, .output = 2, .at = 0.5});
    VerifyingObserver observer({.ops = &attention::CpuReference()});
    PartsTakenBack taken_back;
    replay.further_observers = {&observer, &taken_back};
    ASSERT_TRUE(replay.Run().ok());
    ASSERT_EQ(taken_back.count, 1);
    // V computed two parts.
    EXPECT_EQ(replay.result.prefix_cache.preempted_hits, part == 2 ? 4 : 8 + 2);
    EXPECT_EQ(observer.status().ok(), part == 2) << observer.status();
  }
}

// --- States and copies ---

void UseStates(MambaCacheMode mode, bool partial_hits, bool native, Replay* replay) {
  UseSmallSteps(70, replay);
  replay->config.kv_cache.groups.push_back(StateGroup(4, 0, mode));
  if (native) InChunks(14, {3, 5}, &replay->config.kv_cache);
  if (partial_hits) replay->config.kv_cache.hash_block_size = 2;
  replay->config.manager.partial_hits = partial_hits;
}

// Rows and states that a hit inside a block goes on with are copied for real.
TEST(VerifyingObserverTest, EachStepFindsTheStateBehindTheTokensBefore) {
  for (const MambaCacheMode mode :
       {MambaCacheMode::kNone, MambaCacheMode::kAlign, MambaCacheMode::kAll}) {
    for (const bool partial_hits : {false, true}) {
      if (partial_hits && mode != MambaCacheMode::kAlign) continue;
      for (const bool native : {false, true}) {
        for (const bool async : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << MambaCacheModeName(mode) << partial_hits << native << async);
          Replay replay;
          UseStates(mode, partial_hits, native, &replay);
          replay.config.scheduler.async = async;
          VerifyingObserver observer(InLayout(PoolLayout::kUniform));
          const attention::VerifierStats stats = StatsOf(observer, &replay);
          EXPECT_EQ(observer.num_state_layers(), 2);
          EXPECT_GT(stats.num_states_read, 0);
          EXPECT_GT(stats.num_states_written, stats.num_states_read);
          EXPECT_EQ(stats.num_hit_tokens > 0, mode != MambaCacheMode::kNone);
          EXPECT_EQ(stats.num_blocks_copied > 0, partial_hits);
          EXPECT_EQ(stats.num_blocks_copied, replay.result.scheduler.num_block_copies);
          EXPECT_EQ(stats.num_hit_tokens,
                    replay.result.prefix_cache.hits + replay.result.prefix_cache.preempted_hits);
        }
      }
    }
  }
}

// The first copy of a group is forgotten: of rows and of a state.
TEST(VerifyingObserverTest, AForgottenCopyIsAWrongNumber) {
  for (const bool native : {false, true}) {
    for (const GroupId group : {0, 1}) {
      SCOPED_TRACE(testing::Message() << native << group);
      Replay replay;
      UseStates(MambaCacheMode::kAlign, true, native, &replay);
      VerifyingObserver observer({.ops = &attention::CpuReference()});
      bool is_forgotten = false;
      Between between(&observer, [&](const StepRecord& step, EngineObserver* to) {
        std::vector<BlockCopy> kept(step.copies.begin(), step.copies.end());
        for (auto it = kept.begin(); !is_forgotten && it != kept.end(); ++it) {
          if (it->group != group) continue;
          kept.erase(it);
          is_forgotten = true;
          break;
        }
        StepRecord mangled = step;
        mangled.copies = kept;
        to->OnStepScheduled(mangled);
      });
      replay.further_observers = {&between};
      AddWorkload(&replay);
      ASSERT_TRUE(replay.Run().ok());
      ASSERT_TRUE(is_forgotten);
      EXPECT_EQ(observer.status().code(), absl::StatusCode::kDataLoss) << observer.status();
    }
  }
}

// Loses the write of one step.
class ForgetfulOps final : public OpsWithBadWrites {
 public:
  using OpsWithBadWrites::Run;
  absl::Status Run(const Checked<attention::ReshapeAndCacheArgs>& call) const override {
    return ++num_writes_ == 20 ? absl::OkStatus() : sound_.Run(call);
  }
};

TEST(VerifyingObserverTest, AFailureIsKeptAndChangesNoSchedule) {
  const ForgetfulOps ops;
  VerifyingObserver observer({.ops = &ops});
  Replay verified, plain;
  verified.further_observers = {&observer};
  for (Replay* replay : {&verified, &plain}) {
    replay->config.kv_cache.num_blocks = 40;
    replay->config.scheduler.max_num_batched_tokens = 16;
    AddWorkload(replay);
    ASSERT_TRUE(replay->Run().ok());
  }
  EXPECT_EQ(observer.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(observer.verifier()->failure()->step, 19);
  EXPECT_THAT(std::string(observer.status().message()), HasSubstr("step 19, request r"));
  EXPECT_THAT(std::string(observer.status().message()), HasSubstr("holds poison"));
  EXPECT_EQ(verified.lines, plain.lines);
}

}  // namespace
}  // namespace kvblocks::sim
