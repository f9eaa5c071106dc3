// Scaling: replicas that start, stop and crash during a run, by schedule and by rule (SM-102).
//
// A replica is off, starting, live or draining. A start takes start_time, with empty caches behind
// it. A stop lets the replica finish what it has: it gets no more requests. A crash takes its
// requests away. Where a count is given and no number, the lowest replica that is off starts, and
// the highest one that is live or starting stops or crashes.
//
// The Scaler keeps the books and decides; its owner moves requests and engines. Always: integers
// decide, so the same calls give the same changes everywhere. Cost: O(replicas) per change.
// Single-threaded.

#ifndef KVBLOCKS_SIM_FLEET_SCALING_H_
#define KVBLOCKS_SIM_FLEET_SCALING_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sim/cost/sim_time.h"

namespace kvblocks::sim {

enum class ScaleAction : uint8_t { kStart, kStop, kCrash };

struct ScaleEntry {
  SimTime time = 0;
  ScaleAction action = ScaleAction::kStart;
  int32_t count = 1;
  int32_t replica = -1;  // -1: by count

  friend bool operator==(const ScaleEntry&, const ScaleEntry&) = default;
};

// "10s:start=2,60s:stop,90s:crash@3"; InvalidArgument names the entry and what is expected.
absl::StatusOr<std::vector<ScaleEntry>> ParseSchedule(std::string_view text);

// Every `interval` one replica starts or stops, or none.
struct ScaleRule {
  // Of the interval that ends: requests that wait in engines, per live replica, in millionths; or
  // of the requests that got their first token those who got it within `limit`, in millionths.
  enum class Measure : uint8_t { kQueue, kTtft };
  Measure measure = Measure::kQueue;
  SimTime limit = 0;
  // One starts when a queue is above `high` or a share below `low`, and one stops in the opposite
  // case.
  int64_t low = 0, high = 0;
  int32_t least = 1, most = 1;  // replicas; those that drain count for `most` only
  SimTime interval = 10 * kSecond;
  SimTime cool_down = 0;  // after a start or stop by the rule
};

// "queue:1:8" or "ttft:2s:0.9:0.99", into measure, limit, low and high.
absl::Status ParseRule(std::string_view text, ScaleRule* rule);

struct ScalingOptions {
  std::vector<ScaleEntry> schedule;
  std::optional<ScaleRule> rule;
  SimTime start_time = 0;
  // Requests of a replica that crashes end there; else they are sent again at once.
  bool fails_lost = false;

  bool is_used() const { return !schedule.empty() || rule.has_value(); }
};

// What became of a replica.
struct ScaleRecord {
  enum class Kind : uint8_t { kStart, kLive, kStop, kOff, kCrash };
  SimTime time = 0;
  int32_t replica = 0;
  Kind kind = Kind::kStart;

  friend bool operator==(const ScaleRecord&, const ScaleRecord&) = default;
};
std::string_view KindName(ScaleRecord::Kind kind);

struct ScalingResult {
  std::vector<ScaleRecord>
      timeline;  // in order of time; those live from the beginning are left out
  // Per replica: from start to the end of the drain, or the crash.
  std::vector<SimTime> on_time;
  int32_t most_live = 0;
  int64_t num_starts = 0, num_stops = 0, num_crashes = 0;
  int64_t num_restarts = 0;  // of the starts: of replicas that had been live before
  int64_t num_refused = 0;   // changes that found no replica in the right state
  // Requests that a crash took from a replica; of these those sent again and those that ended.
  int64_t num_lost = 0, num_retried = 0, num_failed = 0;
  int64_t num_lost_tokens = 0;  // computed for them there, beyond what the cache had
  int64_t num_held = 0;         // requests that found no live replica and waited for one

  friend bool operator==(const ScalingResult&, const ScalingResult&) = default;
};

class Scaler {
 public:
  static constexpr SimTime kNever = std::numeric_limits<SimTime>::max();

  struct Change {
    ScaleRecord::Kind kind;
    int32_t replica;
  };
  // What a rule decides by.
  struct Measures {
    int64_t num_waiting = 0;                            // in engines
    int64_t num_first_tokens = 0, num_in_time = 0;      // since the last check
  };

  // Replicas that a run may need at once: to be made before it. InvalidArgument for bad options.
  static absl::StatusOr<int32_t> NumReplicas(const ScalingOptions& options, int32_t num_live);

  // The first `num_live` are live at time 0. REQUIRES: NumReplicas gives num_replicas.
  Scaler(const ScalingOptions& options, int32_t num_live, int32_t num_replicas);

  // Of the schedule, of starts that end, and of the rule's checks.
  SimTime NextTime() const;
  bool checks_rule_at(SimTime now) const { return options_.rule.has_value() && next_check_ <= now; }
  // What changes by `now`, in order; good until the next call. kOff does not come this way.
  absl::Span<const Change> Take(SimTime now, const Measures& measures);

  // A replica got a request, or one of its requests left it. The last to leave one that drains
  // turns it off.
  void OnSent(int32_t replica) { ++slots_[static_cast<size_t>(replica)].num_requests; }
  void OnLeft(int32_t replica, SimTime now);

  absl::Span<const int32_t> live() const { return live_; }  // ascending
  bool is_live(int32_t replica) const { return StateOf(replica) == State::kLive; }
  ScalingResult& result() { return result_; }
  // Once, at the end of the run.
  void Close(SimTime now);
  // The highest replica that was ever on is one below; those above were made for nothing.
  int32_t num_used() const;

 private:
  enum class State : uint8_t { kOff, kStarting, kLive, kDraining };
  struct Slot {
    State state = State::kOff;
    SimTime since = 0;  // its start
    SimTime live_at = 0;
    int64_t num_requests = 0;
    bool was_live = false, was_on = false;
  };

  State StateOf(int32_t replica) const { return slots_[static_cast<size_t>(replica)].state; }
  void Apply(const ScaleEntry& entry, SimTime now);
  bool ChangeOne(ScaleAction action, int32_t replica, SimTime now);
  int32_t Pick(ScaleAction action) const;
  bool Suits(ScaleAction action, int32_t replica) const;
  void CheckRule(SimTime now, const Measures& measures);
  void Record(SimTime now, int32_t replica, ScaleRecord::Kind kind);
  void TurnOff(int32_t replica, SimTime now);
  void RefreshLive();

  const ScalingOptions options_;
  std::vector<Slot> slots_;
  std::vector<int32_t> live_;
  std::vector<Change> changes_;
  size_t next_entry_ = 0;
  SimTime next_check_ = 0;
  SimTime cool_until_ = 0;
  ScalingResult result_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_SCALING_H_
