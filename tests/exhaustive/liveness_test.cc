// No request waits for nothing: all reachable states of a small scheduler are visited, with
// requests arriving at any time, any budget, and running requests stopping at any time.

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <unordered_map>

#include "tests/exhaustive/scheduler_model.h"
#include "tests/group_specs.h"

namespace kvblocks::exhaustive {
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
