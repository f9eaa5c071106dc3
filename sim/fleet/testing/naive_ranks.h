// What naive data-parallel ranks need beside naive engines: the step that a group takes together,
// and what vLLM's balancer knows of them. Times in seconds.

#ifndef KVBLOCKS_SIM_FLEET_TESTING_NAIVE_RANKS_H_
#define KVBLOCKS_SIM_FLEET_TESTING_NAIVE_RANKS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/cost/step_time_model.h"
#include "sim/fleet/router.h"
#include "sim/lockstep_group.h"
#include "sim/testing/naive_engine.h"

namespace kvblocks::sim {

// How long a rank with so many tokens takes for its part of a step.
using NaivePassTime = std::function<int64_t(int64_t own_tokens, const StepPeers& peers)>;

// Engines `first` to `first` + `count` - 1 step together.
struct NaiveLockstep {
  size_t first, count;
  LockstepOptions options;
  bool is_async;
  NaivePassTime time;
  std::vector<int64_t> ends = {};  // of passes under way
  int64_t passes = 0, free_at = 0;
  bool is_over = false;
  std::vector<int64_t> lost = std::vector<int64_t>(count), dummies = std::vector<int64_t>(count);

  void Step(std::vector<NaiveEngine>& engines, int64_t now) {
    const auto any = [&](auto is) {
      return std::any_of(engines.begin() + static_cast<int64_t>(first),
                         engines.begin() + static_cast<int64_t>(first + count), is);
    };
    const auto all_wait = [&](int64_t until) {
      for (size_t e = first; e < first + count; ++e) engines[e].Wait(until);
    };
    if (!any([](const NaiveEngine& e) { return e.wants_step(); })) return;
    if (!ends.empty() && ends.front() <= now) {
      ends.erase(ends.begin());
      const bool is_asked = passes == 1 || passes % options.sync_interval == 0;
      if (is_asked && !any([](const NaiveEngine& e) { return e.had_requests(); })) is_over = true;
      const bool is_real_left = any([](const NaiveEngine& e) { return !e.idles(); });
      if (is_over && is_real_left) return all_wait(ends.front());
      if (is_over)
        *this = {first, count, options, is_async, time, {}, 0, free_at, false, lost, dummies};
    }
    const bool holds = passes % options.prefill_interval != 0;
    for (size_t e = first; e < first + count; ++e) engines[e].Plan(now, holds);
    const bool has_plan = any([](const NaiveEngine& e) { return e.has_plan(); });
    const bool goes_on =
        has_plan || any([](const NaiveEngine& e) { return !e.idles() || e.has_preempted(); }) ||
        (passes > 0 && !any([](const NaiveEngine& e) { return e.has_requests(); }));
    if (!goes_on) {
      *this = {first, count, options, is_async, time, {}, 0, free_at, false, lost, dummies};
      return all_wait(-1);
    }
    std::vector<int64_t> tokens;
    StepPeers peers;
    for (size_t e = first; e < first + count; ++e) {
      const int64_t prompts = engines[e].planned_tokens(true);
      const int64_t decodes = engines[e].has_plan() ? engines[e].planned_tokens(false) : 1;
      tokens.push_back(prompts + decodes);
      peers.num_tokens += prompts + decodes;
      peers.num_decode_tokens += decodes;
    }
    const int64_t most = *std::max_element(tokens.begin(), tokens.end());
    if (most <= options.graph_tokens) {
      for (const int64_t own : tokens) {
        peers.num_tokens += most - own;
        peers.num_decode_tokens += most - own;
      }
      peers.padded_tokens = most;
    }
    int64_t longest = 0;
    for (const int64_t own : tokens) longest = std::max(longest, time(own, peers));
    free_at = std::max(free_at, now) + longest;
    ends.push_back(free_at);
    ++passes;
    for (size_t i = 0; i < count; ++i) {
      NaiveEngine& engine = engines[first + i];
      if (engine.has_plan()) {
        engine.SetEnd(free_at);
        lost[i] += longest - time(tokens[i], peers);
      } else {
        dummies[i] += has_plan;
      }
    }
    if (ends.size() < (is_async ? 2u : 1u)) {
      for (size_t e = first; e < first + count; ++e) engines[e].CallAgain();
    } else {
      all_wait(ends.front());
    }
  }
};

// Reports and sends in their order; what the front-end knows is found by going through all of them
// again.
class NaiveBalancer {
 public:
  explicit NaiveBalancer(int64_t interval) : interval_(interval) {}

  void Report(size_t rank, const RankCounts& counts, int64_t now) {
    events_.push_back({now, rank, false, counts});
  }

  // The rank, of those of [first, first + count) that `open` has.
  size_t Choose(size_t first, size_t count, const std::vector<size_t>& open,
                const std::function<int64_t(size_t)>& num_sent, int64_t num_sends, int64_t now) {
    const std::vector<RankCounts> known = Known(first, count, now);
    const auto score = [&](size_t e) {
      const RankCounts& k = known[e - first];
      const int64_t blocks = std::max<int64_t>(k.num_blocks, 1);
      return std::max(num_sent(e), k.num_waiting + k.num_running) * pool_ +
             (k.num_blocks == 0
                  ? 0
                  : k.num_waiting * std::max<int64_t>(6 * k.num_blocks_used - 3 * blocks, 0));
    };
    std::vector<size_t> order;
    for (size_t i = 0; i < count; ++i) {
      const size_t e = first + (static_cast<size_t>(num_sends) + i) % count;
      if (std::count(open.begin(), open.end(), e) > 0) order.push_back(e);
    }
    const size_t chosen = *std::min_element(order.begin(), order.end(), [&](size_t a, size_t b) {
      return score(a) < score(b);
    });
    events_.push_back({now, chosen, true, {}});
    return chosen;
  }
  void set_pool(int64_t num_blocks) { pool_ = num_blocks; }

 private:
  struct Event {
    int64_t time;
    size_t rank;
    bool is_send;
    RankCounts counts;
  };

  std::vector<RankCounts> Known(size_t first, size_t count, int64_t now) const {
    std::vector<RankCounts> reported(count), known(count);
    bool is_new = false, is_first = true;
    int64_t due = 0;
    const auto report = [&] {
      known = reported;
      is_new = is_first = false;
    };
    for (const Event& event : events_) {
      if (event.rank < first || event.rank >= first + count) continue;
      const size_t i = event.rank - first;
      if (event.is_send) {
        if (is_new && due <= event.time) report();
        ++known[i].num_waiting;
        continue;
      }
      if (reported[i] == event.counts) continue;
      if (is_new && due < event.time) report();
      reported[i] = event.counts;
      if (!is_new) due = is_first ? event.time : std::max(due + interval_, event.time);
      is_new = true;
    }
    if (is_new && due <= now) report();
    return known;
  }

  const int64_t interval_;
  int64_t pool_ = 1;
  std::vector<Event> events_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_TESTING_NAIVE_RANKS_H_
