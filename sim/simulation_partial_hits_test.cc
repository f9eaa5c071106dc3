// Replays with hits that end inside blocks: a worked example, and random workloads on a naive
// device that holds what was written into each block.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/model_facts.h"
#include "sim/cost/roofline.h"
#include "sim/testing/draw.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/replay.h"
#include "sim/trace/content_keys.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the blocks hold, by the tokens up to which they were computed: a row per token, or one
// state. Steps are done when they are scheduled, whose order a device keeps: copies, writes, reads.
class NaiveDevice final : public EngineObserver {
 public:
  std::vector<std::string> errors;
  std::vector<std::string> copies;  // "0: 3>4"
  int64_t hit_tokens = 0, hits_inside = 0, num_copies = 0, num_checkpoints = 0;
  std::map<std::string, int64_t> hits_of, prompt_of;  // at first admissions

  void OnRunStart(const RunInfo& info) override {
    manager_ = info.manager;
    trace_ = info.trace;
  }
  void OnAdmission(const AdmissionRecord& record, SimTime) override {
    hit_tokens += record.num_hit_tokens;
    hits_inside += record.num_hit_tokens % manager_->scheduler_block_size() != 0;
    if (record.is_resume) return;
    hits_of[record.request->spec.id] = record.num_hit_tokens;
    prompt_of[record.request->spec.id] = record.request->num_prompt;
  }
  void OnStepScheduled(const StepRecord& step) override {
    for (const BlockCopy& copy : step.copies) {
      Block(copy.target) = Block(copy.source);
      copies.push_back(absl::StrCat(copy.group, ": ", copy.source, ">", copy.target));
      ++num_copies;
    }
    for (const ScheduledRecord& record : step.scheduled) ReadStates(record);
    for (const ScheduledRecord& record : step.scheduled) Write(record);
    for (const ScheduledRecord& record : step.scheduled) ReadRows(record);
  }

 private:
  std::map<int64_t, uint64_t>& Block(BlockId id) { return blocks_[id]; }
  bool IsState(GroupId g) const {
    return manager_->group(g).spec().kind() == KvCacheSpecKind::kMamba;
  }
  // A name for each prefix of the request.
  const std::vector<uint64_t>& NamesOf(const SimRequest& request, int64_t num_tokens) {
    std::vector<uint64_t>& names = names_[request.spec.row];
    std::vector<absl::uint128> keys;
    ContentKeys all(*trace_, request.spec, /*block_tokens=*/1);
    all.AppendBlocks(request.spec, num_tokens, &keys);
    names.clear();
    for (const absl::uint128 key : keys) names.push_back(absl::Uint128Low64(key));
    return names;
  }
  void Check(const SimRequest& request, GroupId g, int64_t position, BlockId id, int64_t row,
             uint64_t name) {
    const auto found = Block(id).find(row);
    if (found != Block(id).end() && found->second == name) return;
    errors.push_back(absl::StrCat("request ", request.spec.id, ", group ", g, ", token ", position,
                                  ", block ", id));
  }
  // Of states the one behind the computed tokens, which the step begins with.
  void ReadStates(const ScheduledRecord& record) {
    const SimRequest& request = *record.request;
    if (record.num_context == 0) return;
    const auto& names = NamesOf(request, record.num_context);
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      if (!IsState(g)) continue;
      const auto table = manager_->GetBlocks(*request.kv, g);
      const int64_t at = (record.num_context - 1) / manager_->group(g).block_size();
      Check(request, g, record.num_context - 1, table[static_cast<size_t>(at)], 0, names.back());
    }
  }
  void Write(const ScheduledRecord& record) {
    const SimRequest& request = *record.request;
    const int64_t end = record.num_context + record.num_tokens;
    const auto& names = NamesOf(request, end);
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      const auto table = manager_->GetBlocks(*request.kv, g);
      const int64_t size = manager_->group(g).block_size();
      if (IsState(g)) {
        Block(table[static_cast<size_t>((end - 1) / size)]) = {{0, names.back()}};
        if (const auto checkpoint = manager_->GetStateCheckpoint(*request.kv, g)) {
          Block(checkpoint->block) = {{0, names[static_cast<size_t>(checkpoint->num_tokens - 1)]}};
          ++num_checkpoints;
        }
        continue;
      }
      for (int64_t t = record.num_context; t < end; ++t) {
        Block(table[static_cast<size_t>(t / size)])[t % size] = names[static_cast<size_t>(t)];
      }
    }
  }
  void ReadRows(const ScheduledRecord& record) {
    const SimRequest& request = *record.request;
    const int64_t end = record.num_context + record.num_tokens;
    const auto& names = NamesOf(request, end);
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      if (IsState(g)) continue;
      const auto table = manager_->GetBlocks(*request.kv, g);
      const int64_t size = manager_->group(g).block_size();
      const int64_t window = manager_->group(g).spec().sliding_window().value_or(end + 1);
      for (int64_t t = std::max<int64_t>(0, record.num_context - window + 1); t < end; ++t) {
        Check(request, g, t, table[static_cast<size_t>(t / size)], t % size,
              names[static_cast<size_t>(t)]);
      }
    }
  }

  const KvCacheManager* manager_ = nullptr;
  const TraceInfo* trace_ = nullptr;
  std::map<BlockId, std::map<int64_t, uint64_t>> blocks_;
  std::map<int64_t, std::vector<uint64_t>> names_;
};

void UsePartialHits(Replay* replay, int64_t unit) {
  replay->config.kv_cache.hash_block_size = unit;
  replay->config.manager.partial_hits = true;
}

// BM-121, BM-122, V-21, V-81: the prompts of the library's example, one after the other.
void AddExample(Replay* replay) {
  replay->config.kv_cache.groups = {FullGroup(4), StateGroup(4)};
  replay->config.kv_cache.num_blocks = 20;
  replay->Add({.id = "A", .prompt = 7, .output = 2, .content = {0, 0, 1, 1, 2, 2, 7}});
  replay->Add({.id = "B", .prompt = 8, .output = 1, .at = 10, .content = {0, 0, 1, 1, 2, 2, 3, 3}});
}

TEST(PartialHitsTest, AHitInsideABlockGoesOnInCopies) {
  Replay replay;
  AddExample(&replay);
  UsePartialHits(&replay, 2);
  NaiveDevice device;
  ReplayMetrics metrics({});
  replay.further_observers = {&device, &metrics};
  ASSERT_TRUE(replay.Run().ok());
  // A's prompt is cut at the block's end and at six tokens, the last place where its resend can
  // hit; the state there moves before the seventh token overwrites it, to block 2, where the state
  // behind four tokens was, which nobody keeps. B hits six tokens, and has copies of A's block 3
  // and of the state in block 2.
  EXPECT_THAT(replay.lines, ElementsAre("0: A:4 [1,2]", "1: A:2 [3,4]", "2: A:1 []",
                                        "3: A:1 [] fin A", "10: B:2h6 [4,5] fin B"));
  EXPECT_THAT(device.copies, ElementsAre("1: 4>2", "0: 3>4", "1: 2>5"));
  EXPECT_THAT(device.errors, ElementsAre());
  EXPECT_EQ(replay.result.scheduler.num_block_copies, 3);
  EXPECT_EQ(replay.result.copy_time, 0);  // every step takes a second
  pb::Report report;
  metrics.Fill(replay.result, &report);
  EXPECT_EQ(report.partial_hits().hits(), 1);
  EXPECT_EQ(report.partial_hits().tokens(), 2);
  EXPECT_EQ(report.partial_hits().block_copies(), 3);
  EXPECT_EQ(report.setup().block_tokens(), 4);
  EXPECT_EQ(report.setup().hit_unit_tokens(), 2);
  // Seven and eight tokens; one is behind the last hash block.
  EXPECT_EQ(report.prompt_tokens().known(), 15);
  EXPECT_EQ(report.prompt_tokens().hit(), 6);
  EXPECT_EQ(report.prompt_tokens().missed_full_blocks(), 8);
  EXPECT_EQ(report.prompt_tokens().partial_blocks(), 1);
}

TEST(PartialHitsTest, WithoutThemTheHitEndsAtABlock) {
  Replay replay;
  AddExample(&replay);
  replay.config.manager.semantics.retention_interval.reset();
  ReplayMetrics metrics({});
  replay.further_observers = {&metrics};
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines[0], HasSubstr("A:4"));
  EXPECT_THAT(replay.lines[1], HasSubstr("A:3"));
  EXPECT_THAT(replay.lines[3], HasSubstr("B:4h4"));
  pb::Report report;
  metrics.Fill(replay.result, &report);
  EXPECT_FALSE(report.has_partial_hits());
}

TEST(PartialHitsTest, CopiesTakeTheTimeOfReadingAndWriting) {
  RooflineOptions options;
  options.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  options.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  options.memory_efficiency = 0.5;
  const auto roofline = MakeRoofline(options);
  ASSERT_TRUE(roofline.ok());
  const double bytes_per_s = options.device.memory_gb_per_s * 1e9 * 0.5;
  EXPECT_NEAR(static_cast<double>((*roofline)->CopyTime(1 << 20)), 2e12 * (1 << 20) / bytes_per_s,
              1);
  EXPECT_EQ((*roofline)->CopyTime(3 << 20), 3 * (*roofline)->CopyTime(1 << 20));
  // Further ranks copy their own part at the same time.
  options.tensor_parallel = 4;
  EXPECT_EQ((*MakeRoofline(options))->CopyTime(1 << 20), (*roofline)->CopyTime(1 << 20));

  Replay with, without;
  for (Replay* replay : {&with, &without}) {
    AddExample(replay);
    UsePartialHits(replay, 2);
  }
  with.step_time = roofline->get();
  ASSERT_TRUE(with.Run().ok());
  // One block of rows and two states.
  const auto page = [&](size_t g) { return with.config.kv_cache.groups[g].spec.page_bytes(); };
  EXPECT_EQ(with.result.copied_bytes, page(0) + 2 * page(1));
  EXPECT_GE(with.result.copy_time, 0);
}

// The pool holds B's three blocks of rows and three states. While its first step is under way, the
// blocks that it copied are held as well: five of six blocks, and the second step needs two.
TEST(PartialHitsTest, WhoRunsAloneWaitsForItsCopies) {
  Replay replay;
  replay.config.kv_cache.groups = {FullGroup(4), StateGroup(4)};
  replay.config.kv_cache.num_blocks = 7;
  replay.config.scheduler.async = true;
  replay.config.scheduler.reserve_full_isl = false;
  replay.config.scheduler.max_num_batched_tokens = 2;
  replay.config.scheduler.max_num_seqs = 2;
  UsePartialHits(&replay, 2);
  replay.Add({.id = "A", .prompt = 7, .output = 1, .content = {0, 0, 1, 1, 2, 2, 7}});
  replay.Add({.id = "B", .prompt = 11, .output = 1, .at = 20, .content = {0, 0, 1, 1, 2, 2, 3, 3}});
  NaiveDevice device;
  replay.further_observers = {&device};
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(device.errors, ElementsAre());
  EXPECT_EQ(device.hits_of["B"], 6);
  EXPECT_EQ(replay.ends["B"], "length");
  EXPECT_EQ(replay.result.scheduler.num_preemptions, 0);
}

// A's blocks are all that the pool has, and its resend would need two more, to copy the ends of its
// hit from.
TEST(PartialHitsTest, WhoIsAloneDoesWithoutHitsThatDoNotFit) {
  Replay replay;
  replay.config.kv_cache.groups = {FullGroup(4), StateGroup(4)};
  replay.config.kv_cache.num_blocks = 6;
  UsePartialHits(&replay, 2);
  for (const char* id : {"A", "B"}) {
    replay.Add({.id = id, .prompt = 7, .output = 1, .at = id[0] == 'A' ? 0.0 : 20.0,
                .content = {0, 0, 1, 1, 2, 2, 7}});
  }
  NaiveDevice device;
  replay.further_observers = {&device};
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(device.errors, ElementsAre());
  EXPECT_EQ(replay.ends["A"], "length");
  EXPECT_EQ(replay.ends["B"], "length");
}

// --- States exported inside a step (V-45) ---

TEST(StateCheckpointsTest, APromptIsNotCutWhereItsStateIsExported) {
  for (const int64_t num_checkpoint_blocks : {0, 1}) {
    Replay replay;
    replay.config.kv_cache.groups = {FullGroup(4), StateGroup(4, num_checkpoint_blocks)};
    replay.config.kv_cache.num_blocks = 40;
    const std::vector<int64_t> content = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    replay.Add({.id = "A", .prompt = 10, .output = 2, .content = content});
    replay.Add({.id = "B", .prompt = 10, .output = 2, .at = 20, .content = content});
    NaiveDevice device;
    replay.further_observers = {&device};
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_THAT(device.errors, ElementsAre());
    EXPECT_EQ(device.hits_of["B"], 8);
    const bool exports = num_checkpoint_blocks > 0;
    EXPECT_THAT(replay.lines[0], HasSubstr(exports ? "A:10 " : "A:8 "));
    EXPECT_EQ(replay.result.scheduler.num_state_checkpoints, exports ? 1 : 0);
    EXPECT_EQ(device.num_checkpoints, exports ? 1 : 0);
  }
}

// Here a state can be exported behind a multiple of three tokens, which eight is not.
TEST(StateCheckpointsTest, WhereNoStateIsExportedThePromptIsCut) {
  Replay replay;
  replay.config.kv_cache.groups = {FullGroup(4), StateGroup(4, 1)};
  replay.config.kv_cache.num_blocks = 40;
  replay.config.manager.checkpoint_alignment = 3;
  replay.Add({.id = "A", .prompt = 10, .output = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines[0], HasSubstr("A:8 "));
  EXPECT_EQ(replay.result.scheduler.num_state_checkpoints, 0);
}

// --- Random workloads ---

void AddPartialHits(uint64_t seed, bool one_by_one, Replay* replay) {
  Draw draw(seed);
  const int64_t count = draw(2, 14);
  for (int64_t i = 0; i < count; ++i) {
    ReplayRequest request{.id = std::to_string(i),
                          .prompt = draw(1, 30),
                          .output = draw(1, 12),
                          .at = one_by_one ? 100.0 * static_cast<double>(i)
                                           : static_cast<double>(draw(0, 40)) / 4.0,
                          .priority = static_cast<int32_t>(draw(0, 2))};
    const int64_t document = draw(0, 1);
    const int64_t shared = draw(0, request.prompt);
    for (int64_t t = 0; t < request.prompt; ++t) {
      request.content.push_back(t < shared ? 1000 * document + t : 1000 * (i + 5) + t);
    }
    replay->Add(request);
    if (!one_by_one) continue;
    request.id += " again";
    request.at += 50;
    replay->Add(request);
  }
  replay->config.manager.max_model_len = 60;
  replay->config.scheduler.async = draw.OneIn(2);
  replay->config.scheduler.max_num_batched_tokens = draw(5, 40);
  replay->config.scheduler.max_num_seqs = draw(1, 5);
  replay->config.scheduler.reserve_full_isl = !draw.OneIn(3);
}

void SetModel(uint64_t seed, bool is_tight, Replay* replay) {
  Draw draw(1000 + seed);
  KvCacheConfig& cache = replay->config.kv_cache;
  const int64_t exports = draw.OneIn(4) ? 1 : 0;
  switch (draw(0, 3)) {
    case 0:
      cache.groups = {FullGroup(4), StateGroup(4, exports)};
      break;
    case 1:
      cache.groups = {FullGroup(8), StateGroup(4, exports)};
      break;
    case 2:
      cache.groups = {FullGroup(6), StateGroup(6, exports), WindowGroup(2, 7)};
      break;
    default:
      cache.groups = {StateGroup(8, exports), FullGroup(2), FullGroup(4)};
      cache.groups[2].layer_names = {"second"};
  }
  UsePartialHits(replay, 2);
  const int64_t interval = draw(0, 2);
  auto& retention = replay->config.manager.semantics.retention_interval;
  retention.reset();
  if (interval > 0) retention = (interval - 1) * 24;
  if (draw.OneIn(4)) replay->config.manager.num_hash_lookahead_tokens = 1;
  cache.num_blocks = is_tight ? draw(20, 50) : 500;
  if (draw.OneIn(3)) InChunks(is_tight ? draw(8, 20) : 150, {draw(2, 5), draw(1, 3)}, &cache);
}

TEST(PartialHitsTest, TightPoolsServeEverybodyTheyAdmit) {
  int64_t hits_inside = 0, copies = 0, checkpoints = 0, preempted = 0, evicted = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Replay replay;
    AddPartialHits(seed, /*one_by_one=*/false, &replay);
    SetModel(seed, /*is_tight=*/true, &replay);
    NaiveDevice device;
    replay.further_observers = {&device};
    const absl::Status status = replay.Run();
    ASSERT_TRUE(status.ok()) << status;
    for (const auto& [id, end] : replay.ends) EXPECT_EQ(end, "length") << id;
    ASSERT_THAT(device.errors, ElementsAre());
    EXPECT_EQ(device.num_copies, replay.result.scheduler.num_block_copies);
    hits_inside += device.hits_inside;
    copies += device.num_copies;
    checkpoints += device.num_checkpoints;
    EXPECT_EQ(device.num_checkpoints, replay.result.scheduler.num_state_checkpoints);
    preempted += replay.result.scheduler.num_preemptions;
    evicted += replay.evictions;
  }
  EXPECT_GT(hits_inside, 200);
  EXPECT_GT(copies, 1000);
  EXPECT_GT(checkpoints, 50);
  EXPECT_GT(preempted, 100);
  EXPECT_GT(evicted, 1000);
}

TEST(PartialHitsTest, LookingAtEveryStepChangesNothing) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Replay fast, exact;
    for (Replay* replay : {&fast, &exact}) {
      AddPartialHits(seed, /*one_by_one=*/false, replay);
      SetModel(seed, /*is_tight=*/true, replay);
    }
    exact.config.scheduler.exact_steps = true;
    ASSERT_TRUE(fast.Run().ok());
    ASSERT_TRUE(exact.Run().ok());
    EXPECT_EQ(fast.lines, exact.lines);
    EXPECT_EQ(fast.token_times, exact.token_times);
    EXPECT_EQ(fast.free_queue, exact.free_queue);
    EXPECT_EQ(fast.result, exact.result);
  }
}

// Where nothing is evicted, a resend hits all that hashes and its last token allow. (Other requests
// may hit less than without: states are where steps ended, and those end elsewhere.)
TEST(PartialHitsTest, ResendsHitUpToTheLastHashBlock) {
  int64_t more = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Replay with, without;
    NaiveDevice device_with, device_without;
    for (Replay* replay : {&with, &without}) {
      AddPartialHits(seed, /*one_by_one=*/true, replay);
      SetModel(seed, /*is_tight=*/false, replay);
    }
    without.config.manager.partial_hits = false;
    with.further_observers = {&device_with};
    without.further_observers = {&device_without};
    ASSERT_TRUE(with.Run().ok());
    ASSERT_TRUE(without.Run().ok());
    const int64_t unusable = std::max<int64_t>(1, with.config.manager.num_hash_lookahead_tokens);
    for (const auto& [id, prompt] : device_with.prompt_of) {
      if (!absl::StrContains(id, "again")) continue;
      const int64_t most = std::max<int64_t>(0, prompt - unusable);
      EXPECT_EQ(device_with.hits_of[id], most - most % 2) << id;
      EXPECT_GE(device_with.hits_of[id], device_without.hits_of[id]) << id;
      more += device_with.hits_of[id] - device_without.hits_of[id];
    }
    EXPECT_THAT(device_with.errors, ElementsAre());
    EXPECT_THAT(device_without.errors, ElementsAre());
  }
  EXPECT_GT(more, 300);
}

}  // namespace
}  // namespace kvblocks::sim
