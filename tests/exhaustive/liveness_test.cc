// SchedulerModel: a scheduler of a few lines over a KvCacheManager, small enough that all its
// states can be visited.
//
// First come, first served. A step gives every running request, oldest first, up to `budget`
// tokens; when one does not fit, the youngest running request is preempted and returns to the head
// of the queue. A step that preempted nobody admits from the head of the queue until one does not
// fit. Requests end by length.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvblocks/check.h"
#include "kvblocks/kv_cache_manager.h"
#include "tests/group_specs.h"

namespace kvblocks::exhaustive {

struct Job {
  std::vector<TokenId> prompt;
  int64_t num_output_tokens = 1;
};

struct SchedulerSetting {
  std::string name;
  KvCacheConfig config;
  KvCacheManagerOptions options;
  std::vector<Job> jobs;
  bool full_sequence_must_fit = false;

  friend std::ostream& operator<<(std::ostream& out, const SchedulerSetting& setting) {
    return out << setting.name;
  }
};

class SchedulerModel {
 public:
  explicit SchedulerModel(const SchedulerSetting& setting);

  // False: it has arrived already.
  bool Arrive(size_t job);
  // One engine step with up to `budget` tokens for each request.
  void Step(int64_t budget);
  // Ends the running request `index` early, as a stop token or a client does. False: no such.
  bool Stop(size_t index);

  size_t num_waiting() const { return waiting_.size(); }
  size_t num_running() const { return running_.size(); }
  size_t num_finished() const { return num_finished_; }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const KvCacheManager& manager() const { return *manager_; }

  // Everything that decides what comes next, blocks named by their first mention.
  std::string StateKey() const;

 private:
  struct State {
    std::unique_ptr<Request> request;
    bool arrived = false;
    bool finished = false;
  };

  bool Allocate(size_t job, int64_t budget);
  // False: does not fit.
  bool Admit(size_t job, int64_t budget);
  void Advance(size_t job, int64_t num_new);
  void Finish(size_t job);

  const SchedulerSetting* setting_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<State> jobs_;
  std::deque<size_t> waiting_;
  std::vector<size_t> running_;
  size_t num_finished_ = 0;
};

SchedulerModel::SchedulerModel(const SchedulerSetting& setting)
    : setting_(&setting),
      manager_(KvCacheManager::Create(setting.config, setting.options).value()),
      jobs_(setting.jobs.size()) {
  for (size_t i = 0; i < jobs_.size(); ++i) {
    jobs_[i].request = manager_
                           ->NewRequest({.id = std::string(1, static_cast<char>('A' + i)),
                                         .content = {.token_ids = setting.jobs[i].prompt}})
                           .value();
  }
}

bool SchedulerModel::Arrive(size_t job) {
  if (jobs_[job].arrived) return false;
  jobs_[job].arrived = true;
  waiting_.push_back(job);
  return true;
}

bool SchedulerModel::Stop(size_t index) {
  if (index >= running_.size()) return false;
  Finish(running_[index]);
  return true;
}

void SchedulerModel::Finish(size_t job) {
  const absl::Status status = manager_->Free(*jobs_[job].request);
  KVBLOCKS_CHECK(status.ok(), status.ToString());
  jobs_[job].finished = true;
  ++num_finished_;
  running_.erase(std::find(running_.begin(), running_.end(), job));
}

bool SchedulerModel::Allocate(size_t job, int64_t budget) {
  Request& request = *jobs_[job].request;
  const int64_t num_new = std::min(budget, request.num_tokens() - request.num_computed_tokens());
  const auto result =
      manager_->AllocateSlots(request, {.num_new_tokens = num_new, .has_scheduled_requests = true});
  KVBLOCKS_CHECK(result.ok(), result.status().ToString());
  if (result->has_value()) Advance(job, num_new);
  return result->has_value();
}

bool SchedulerModel::Admit(size_t job, int64_t budget) {
  Request& request = *jobs_[job].request;
  const auto hits = manager_->GetComputedBlocks(request);
  KVBLOCKS_CHECK(hits.ok(), hits.status().ToString());
  request.set_shared_prefix_boundary(hits->shared_prefix_boundary());
  const int64_t num_new = std::min(budget, request.num_tokens() - hits->num_tokens());
  const auto result =
      manager_->AllocateSlots(request, {.num_new_tokens = num_new,
                                        .computed_blocks = &*hits,
                                        .full_sequence_must_fit = setting_->full_sequence_must_fit,
                                        .has_scheduled_requests = !running_.empty()});
  KVBLOCKS_CHECK(result.ok(), result.status().ToString());
  if (!result->has_value()) return false;
  request.set_num_computed_tokens(hits->num_tokens());
  request.set_status(RequestStatus::kRunning);
  running_.push_back(job);
  Advance(job, num_new);
  return true;
}

void SchedulerModel::Advance(size_t job, int64_t num_new) {
  Request& request = *jobs_[job].request;
  request.set_num_computed_tokens(request.num_computed_tokens() + num_new);
  if (request.num_computed_tokens() < request.num_tokens()) return;
  const int64_t made = request.num_tokens() - request.num_prompt_tokens();
  if (made == setting_->jobs[job].num_output_tokens) return Finish(job);
  const absl::Status status =
      request.AppendOutputTokens({1000 + static_cast<TokenId>(request.num_tokens())});
  KVBLOCKS_CHECK(status.ok(), status.ToString());
}

void SchedulerModel::Step(int64_t budget) {
  bool preempted = false;
  const std::vector<size_t> scheduled = running_;
  for (size_t job : scheduled) {
    const auto is_running = [&] {
      return std::find(running_.begin(), running_.end(), job) != running_.end();
    };
    while (is_running() && !Allocate(job, budget)) {
      const size_t victim = running_.back();
      const absl::Status status = manager_->Free(*jobs_[victim].request);
      KVBLOCKS_CHECK(status.ok(), status.ToString());
      jobs_[victim].request->MarkPreempted();
      running_.pop_back();
      waiting_.push_front(victim);
      preempted = true;
    }
  }
  if (preempted) return;
  while (!waiting_.empty() && Admit(waiting_.front(), budget)) waiting_.pop_front();
}

std::string SchedulerModel::StateKey() const {
  std::string key;
  const BlockPool& pool = manager_->pool();
  std::vector<char> names(static_cast<size_t>(pool.num_blocks()), 0);
  std::vector<BlockId> mentioned;
  const auto put = [&](int64_t value) { key.push_back(static_cast<char>(value)); };
  const auto put_block = [&](BlockId id) {
    char& name = names[static_cast<size_t>(id)];
    if (id != kNullBlockId && name == 0) {
      mentioned.push_back(id);
      name = static_cast<char>(mentioned.size());
    }
    key.push_back(name);
  };
  for (const State& job : jobs_) {
    put(job.arrived + 2 * job.finished);
    put(job.request->num_tokens());
    put(job.request->num_computed_tokens());
    put(job.request->shared_prefix_boundary());
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      const auto table = manager_->GetBlocks(*job.request, g);
      put(static_cast<int64_t>(table.size()));
      for (BlockId id : table) put_block(id);
    }
  }
  put(static_cast<int64_t>(waiting_.size()));
  for (size_t job : waiting_) put(static_cast<int64_t>(job));
  for (size_t job : running_) put(static_cast<int64_t>(job));
  for (BlockId id : pool.free_queue().Walk()) put_block(id);
  for (BlockId id : mentioned) {
    put(pool.block(id).key_group);
    if (!pool.block(id).has_key()) continue;
    key += pool.hash(id).ToHex().substr(0, 16);
    const auto holders = pool.table().FindAll(pool.hash(id), pool.block(id).key_group);
    put(std::find(holders.begin(), holders.end(), id) - holders.begin());
  }
  return key;
}

// No request waits for nothing: all reachable states of a small scheduler are visited, with
// requests arriving at any time, any budget, and running requests stopping at any time.

namespace {

using testing::Full;
using testing::Window;

// Something that can happen to the model; false if it cannot now.
using Happening = std::function<bool(SchedulerModel&)>;

std::vector<Happening> Happenings(const SchedulerSetting& setting) {
  std::vector<Happening> all;
  for (size_t job = 0; job < setting.jobs.size(); ++job) {
    all.push_back([job](SchedulerModel& model) { return model.Arrive(job); });
    all.push_back([job](SchedulerModel& model) { return model.Stop(job); });
  }
  for (int64_t budget : {1, 2, 3, 16}) {
    all.push_back([budget](SchedulerModel& model) {
      if (model.idle()) return false;
      model.Step(budget);
      return true;
    });
  }
  return all;
}

std::vector<SchedulerSetting> SchedulerSettings() {
  const auto make = [](std::string name, int64_t num_blocks, std::vector<KvCacheSpec> specs,
                       double watermark, bool gate, std::optional<int64_t> retention = {}) {
    SchedulerSetting setting;
    setting.name = std::move(name);
    setting.config.num_blocks = num_blocks;
    for (KvCacheSpec& spec : specs) setting.config.groups.push_back({.spec = std::move(spec)});
    setting.options = {.max_model_len = 8,
                       .watermark = watermark,
                       .hash_algorithm = HashAlgorithm::kXxh3_128,
                       .hash_seed = "liveness"};
    setting.options.semantics.retention_interval = retention;
    // Each fits alone; no two fit at their full lengths.
    setting.jobs = {{{0, 1, 2, 3, 4}, 2}, {{0, 1, 2, 3}, 3}, {{0, 1, 22}, 4}};
    setting.full_sequence_must_fit = gate;
    return setting;
  };
  const auto with_drafts = [](SchedulerSetting setting, int64_t prefill_lookahead) {
    setting.options.use_eagle = true;
    setting.options.prefill_lookahead_tokens = prefill_lookahead;
    return setting;
  };
  return {make("Full", 5, {Full(2)}, 0, false), make("FullGate", 5, {Full(2)}, 0, true),
          make("FullWatermark", 5, {Full(2)}, 0.5, false),
          make("FullGateWatermark", 5, {Full(2)}, 0.5, true),
          make("Window", 4, {Window(2, 3)}, 0, false),
          make("FullWindow", 8, {Full(2), Window(2, 3)}, 0, false),
          make("FullWindowGate", 8, {Full(2), Window(2, 3)}, 0.25, true),
          make("CoarseFullWindowGate", 7, {Full(4), Window(2, 3)}, 0, true),
          // V-1 to V-4: windows keep what a resend of the prompt uses, and what others shared.
          make("WindowReplay", 4, {Window(2, 3)}, 0, false, 0),
          make("FullWindowReplay", 8, {Full(2), Window(2, 3)}, 0, false, 0),
          make("FullWindowReplayGate", 8, {Full(2), Window(2, 3)}, 0.25, true, 0),
          make("CoarseFullWindowReplayGate", 7, {Full(4), Window(2, 3)}, 0, true, 0),
          with_drafts(make("DraftReplay", 8, {Full(2), Window(2, 3)}, 0, true, 0), 1),
          // V-14: windows keep a token more.
          with_drafts(make("MtpReplayGate", 8, {Full(2), Window(2, 3)}, 0, true, 0), 2)};
}

class LivenessTest : public ::testing::TestWithParam<SchedulerSetting> {
 protected:
  struct State {
    int parent = 0;
    size_t happening = 0;
  };

  // The model in a state, reached again from the start.
  SchedulerModel Reach(int state) const {
    std::vector<size_t> path;
    for (; state != 0; state = states_[static_cast<size_t>(state)].parent) {
      path.push_back(states_[static_cast<size_t>(state)].happening);
    }
    SchedulerModel model(GetParam());
    for (auto it = path.rbegin(); it != path.rend(); ++it) happenings_[*it](model);
    return model;
  }

  // Visits every reachable state, at most `max_states`, and calls `check` in each.
  void VisitAll(const std::function<void(SchedulerModel&)>& check) {
    happenings_ = Happenings(GetParam());
    states_ = {State()};
    known_ = {{SchedulerModel(GetParam()).StateKey(), 0}};
    for (int state = 0; state < static_cast<int>(states_.size()) && !HasFailure(); ++state) {
      for (size_t h = 0; h < happenings_.size(); ++h) {
        SchedulerModel model = Reach(state);
        if (!happenings_[h](model)) continue;
        ++num_transitions_;
        if (!known_.try_emplace(model.StateKey(), states_.size()).second) continue;
        states_.push_back({state, h});
        check(model);
      }
    }
  }

  std::vector<Happening> happenings_;
  std::vector<State> states_;
  std::unordered_map<std::string, size_t> known_;
  int64_t num_transitions_ = 0;
};

TEST_P(LivenessTest, EveryWaitingRequestIsAdmittedAndFinishes) {
  int64_t num_stalls_possible = 0;
  VisitAll([&](SchedulerModel& model) {
    ASSERT_TRUE(model.manager().CheckInvariants().ok()) << model.manager().CheckInvariants();
    num_stalls_possible += model.num_waiting() > 0 && model.num_running() == 0;
    // From here on no request arrives. With nothing running all blocks are free, and every job
    // fits alone: a step must admit the head of the queue then. And the work must end.
    const size_t to_finish = model.num_waiting() + model.num_running();
    const size_t finished_before = model.num_finished();
    for (int step = 0; !model.idle(); ++step) {
      ASSERT_LT(step, 200) << "the work does not end";
      const bool nothing_runs = model.num_running() == 0;
      if (nothing_runs) {
        ASSERT_EQ(model.manager().num_free_blocks(), GetParam().config.num_blocks - 1);
      }
      const size_t waiting = model.num_waiting();
      model.Step(1 + step % 3);
      ASSERT_TRUE(!nothing_runs || model.num_waiting() < waiting)
          << waiting << " requests wait, nothing runs, the head is not admitted";
    }
    ASSERT_EQ(model.num_finished() - finished_before, to_finish);
    ASSERT_EQ(model.manager().num_free_blocks(), GetParam().config.num_blocks - 1);
  });
  std::printf("%s: %zu states, %lld transitions\n", GetParam().name.c_str(), states_.size(),
              static_cast<long long>(num_transitions_));
  EXPECT_GT(num_stalls_possible, 0);
}

INSTANTIATE_TEST_SUITE_P(Settings, LivenessTest, ::testing::ValuesIn(SchedulerSettings()),
                         [](const auto& test) { return test.param.name; });

}  // namespace

}  // namespace kvblocks::exhaustive
