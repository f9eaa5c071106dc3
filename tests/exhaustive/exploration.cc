#include "tests/exhaustive/exploration.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvblocks::exhaustive {
namespace {

class Explorer {
 public:
  Explorer(const Setting& setting, bool merge_states)
      : setting_(setting), merge_states_(merge_states) {}

  Exploration Run(int length) {
    World start(setting_, &numbers_);
    start.CompareState();
    start.CompareAnswers();
    Note(start, {});
    AddState(start.StateKey(), 0, 0);
    size_t level_end = 1;
    size_t state = 0;
    while (result_.length < length && state < level_end && result_.failure.empty()) {
      for (; state < level_end && result_.failure.empty(); ++state) Leave(state);
      level_end = states_.size();
      ++result_.length;
    }
    result_.complete = state == states_.size() && result_.failure.empty();
    result_.num_states = static_cast<int64_t>(states_.size());
    CountSequences(length);
    return result_;
  }

 private:
  struct State {
    int32_t parent = 0;
    int32_t action = 0;
  };
  struct Edge {
    int32_t from = 0;
    int32_t to = 0;
  };

  // Tries every action in a state.
  void Leave(size_t state) {
    const std::vector<Action> path = PathTo(state);
    const std::string key = merge_states_ ? *keys_[state] : std::string();
    std::optional<World> world;
    std::vector<Action> done;
    for (size_t a = 0; a < setting_.alphabet.size() && result_.failure.empty(); ++a) {
      if (!world) {
        world.emplace(setting_, &numbers_);
        for (const Action& action : path) world->Apply(action);
        world->DropEvents();
        done = path;
      }
      if (!world->Apply(setting_.alphabet[a])) continue;
      done.push_back(setting_.alphabet[a]);
      ++result_.num_transitions;
      world->CompareState();
      result_.num_steals = std::max(result_.num_steals, world->model_pool().num_steals());
      result_.num_packed = std::max(result_.num_packed, world->model_pool().num_packed());
      Note(*world, done);
      if (!result_.failure.empty()) return;
      const std::string reached = world->StateKey();
      const auto [to, is_new] =
          AddState(reached, static_cast<int32_t>(state), static_cast<int32_t>(a));
      edges_.push_back({static_cast<int32_t>(state), to});
      if (is_new) {
        world->CompareAnswers();
        Note(*world, done);
      }
      // An action without effect leaves the world where it was.
      if (!merge_states_ || reached != key) world.reset();
    }
  }

  std::vector<Action> PathTo(size_t state) const {
    std::vector<Action> path;
    for (; state != 0; state = static_cast<size_t>(states_[state].parent)) {
      path.push_back(setting_.alphabet[static_cast<size_t>(states_[state].action)]);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  std::pair<int32_t, bool> AddState(const std::string& key, int32_t parent, int32_t action) {
    const int32_t next = static_cast<int32_t>(states_.size());
    if (merge_states_) {
      const auto [it, is_new] = known_.try_emplace(key, next);
      if (!is_new) return {it->second, false};
      keys_.push_back(&it->first);
    }
    states_.push_back({parent, action});
    return {next, true};
  }

  void Note(const World& world, const std::vector<Action>& done) {
    if (!world.failed() || !result_.failure.empty()) return;
    result_.failure = setting_.name + ": " + world.error() + " after: " + ToString(done);
  }

  // Paths of `length` edges from the first state.
  void CountSequences(int length) {
    std::vector<double> paths(states_.size(), 0.0);
    paths[0] = 1;
    for (int i = 0; i < std::min(length, result_.length); ++i) {
      std::vector<double> longer(states_.size(), 0.0);
      for (const Edge& edge : edges_) {
        longer[static_cast<size_t>(edge.to)] += paths[static_cast<size_t>(edge.from)];
      }
      paths = std::move(longer);
    }
    for (double n : paths) result_.num_sequences += n;
  }

  const Setting& setting_;
  const bool merge_states_;
  oracle::ContentNumbers numbers_;
  std::vector<State> states_;
  std::unordered_map<std::string, int32_t> known_;
  std::vector<const std::string*> keys_;  // of the states, in the map
  std::vector<Edge> edges_;
  Exploration result_;
};

}  // namespace

Exploration Explore(const Setting& setting, int length, bool merge_states) {
  return Explorer(setting, merge_states).Run(length);
}

}  // namespace kvblocks::exhaustive
