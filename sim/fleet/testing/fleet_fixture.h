// FleetTest: a fleet over requests that a test adds, and what became of each of them.

#ifndef KVBLOCKS_SIM_FLEET_TESTING_FLEET_FIXTURE_H_
#define KVBLOCKS_SIM_FLEET_TESTING_FLEET_FIXTURE_H_

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sim/fleet/fleet.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {

struct EndTimes final : public EngineObserver {
  bool NeedsEveryRecord() const override { return false; }
  void OnFinish(const SimRequest& request, SimTime now) override {
    seconds[request.spec.id] = static_cast<double>(now) / static_cast<double>(kSecond);
  }
  std::map<std::string, double> seconds;
};

// Two replicas unless said otherwise, steps of 1 s, blocks of 4 tokens.
class FleetTest : public testing::Test, public FleetObserver {
 protected:
  void Add(const std::string& id, double at, int64_t prompt, int64_t output, int64_t document,
           int64_t shared) {
    ReplayRequest request{.id = id, .prompt = prompt, .output = output, .at = at};
    for (int64_t t = 0; t < shared; ++t) request.content.push_back(1000 * document + t);
    workload_.Add(request);
  }

  absl::Status Run(size_t count = 2) {
    const auto one_second = MakeFixedStepTime(kSecond);
    std::vector<ReplicaSetup> setups;
    watches_.clear();
    watches_.resize(count);
    for (size_t r = 0; r < count; ++r) {
      setups.push_back({workload_.config, one_second->get(), {&watches_[r], &ended_}});
    }
    sent_.clear();
    ended_.seconds.clear();
    claimed_.clear();
    found_.clear();
    sent_at_.clear();
    ended_at_router_.clear();
    const auto reader = workload_.MakeReader();
    auto fleet = Fleet::Create(options_, std::move(setups), reader.get(), {this});
    if (!fleet.ok()) return fleet.status();
    const absl::Status status = (*fleet)->Run();
    result_ = (*fleet)->result();
    return status;
  }

  void OnRouted(const RoutingRecord& record, SimTime now) override {
    const std::string& id = record.request.spec.id;
    sent_[id] = record.replica;
    sent_at_[id] = static_cast<double>(now) / static_cast<double>(kSecond);
    if (!record.claimed_tokens.empty()) {
      claimed_[id] = record.claimed_tokens[static_cast<size_t>(record.replica)];
    }
  }
  void OnFound(const SimRequest& request, int32_t, int64_t, int64_t num_hit_tokens,
               SimTime) override {
    found_[request.spec.id] = num_hit_tokens;
  }

  void OnEndedAtRouter(const SimRequest& request, SimTime now) override {
    const bool is_rejected = request.finish_reason == FinishReason::kRejected;
    ended_at_router_[request.spec.id] =
        std::string(is_rejected ? "rejected" : AbortCauseName(request.abort_cause)) + " " +
        std::to_string(now / kSecond);
  }

  double FinishOf(const std::string& id) const {
    double last = -1;
    for (const Replay& watch : watches_) {
      const auto times = watch.token_times.find(id);
      if (times != watch.token_times.end()) last = std::max(last, times->second.back());
    }
    return last;
  }
  int64_t HitTokens() const {
    int64_t sum = 0;
    for (const auto& [id, tokens] : found_) sum += tokens;
    return sum;
  }

  FleetOptions options_;
  Replay workload_;
  std::vector<Replay> watches_;
  EndTimes ended_;
  std::map<std::string, int32_t> sent_;
  std::map<std::string, double> sent_at_;
  std::map<std::string, std::string> ended_at_router_;
  std::map<std::string, int64_t> claimed_, found_;
  FleetResult result_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_TESTING_FLEET_FIXTURE_H_
