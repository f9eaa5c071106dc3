// Timeline: the observer that writes a run as Chrome trace events (JSON), which Perfetto opens.
//
// One process per replica, "replica 0", with
//   device           a lane of the steps: one slice for each step with prefill tokens, one for
//                    consecutive steps that only decode
//   request lanes    each live request has the lowest lane that is free from its arrival to its
//                    end: "queued", a slice "prefill" per chunk, "decode", "preempted"
//   counters         blocks (used, cached, free) and requests (running, waiting)
// Slices of a lane never overlap. Times are microseconds of simulated time, cut to nanoseconds, the
// resolution that Perfetto has.
//
//   queued     arrival to first admission
//   prefill    a step in which known tokens of the request are computed after an admission, on the
//              device; the last one of an admission yields a token
//   decode     end of that step to the last token before a preemption or the end, in one slice
//   preempted  preemption to resume, or to the end if there is none. A step that is under way then
//              still runs: its slice ends with the preemption, its tokens count.
// So queued slices add up to the queueing time of the report, preempted ones to its lost time, and
// the tokens of slices to the output tokens, whatever requests are left out of steps.
//
// The text is written as it comes: memory is O(live requests) and one buffer. It is bounded by
// max_bytes, behind which slices and counter values are only counted; the file and Close's caller
// say how many. Counter values are written where they change, and thinned: the least time between
// two doubles after every 8,192.
// Cost: about 5 ns per record and 300 ns per slice.

#ifndef KVBLOCKS_SIM_REPORT_TIMELINE_H_
#define KVBLOCKS_SIM_REPORT_TIMELINE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "sim/engine/engine_observer.h"
#include "sim/report/pool_metrics.h"
#include "sim/report/request_rows.h"

namespace kvblocks::sim {

// The file of one replica's timeline, or of several.
class TimelineFile {
 public:
  static constexpr int64_t kDefaultMaxBytes = 100'000'000;
  static constexpr int64_t kMinMaxBytes = 10'000;
  static constexpr SimTime kNever = -1;
  enum class Kind { kSlice, kCounters, kName };

  // Bytes are counted before compression.
  // REQUIRES: max_bytes >= kMinMaxBytes.
  explicit TimelineFile(std::unique_ptr<ByteSink> sink, int64_t max_bytes = kDefaultMaxBytes);

  // Keeps the event, which begins with a comma, unless that is more than the limit has room for.
  bool Keep(std::string_view event, Kind kind, SimTime now);
  // The run has come so far.
  void Reach(SimTime now) { last_event_ = std::max(last_event_, now); }
  // Writes the end. Reports the first error of all writes; the file is complete only then.
  absl::Status Close();
  // What the limit left out, in a sentence; empty if nothing.
  std::string DescribeLeftOut() const;

 private:
  BufferedSink file_;
  const int64_t max_bytes_;
  int64_t num_bytes_ = 0;  // kept so far
  int64_t num_slices_ = 0, num_counter_values_ = 0;
  int64_t slices_left_out_ = 0, counter_values_left_out_ = 0;
  bool has_events_ = false;
  SimTime last_event_ = 0;
  SimTime cut_at_ = kNever;  // when the limit was reached
};

class Timeline final : public EngineObserver {
 public:
  static constexpr int64_t kValuesPerSpacing = 8192;

  // `file` must outlive this. `replica`: its number in the file, from 0, and its name.
  explicit Timeline(TimelineFile* file, int64_t replica = 0, std::string_view name = "replica 0");

  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override { manager_ = info.manager; }
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnSkippedDecodes(const SimRequest& request, int64_t num_steps) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;
  void OnRunEnd(SimTime now) override;

 private:
  static constexpr SimTime kNever = TimelineFile::kNever;

  // A live request, by its slot.
  struct Life {
    int64_t row = -1;
    int64_t lane = 0;
    SimTime waits_since = 0;        // while it does
    SimTime preempted_at = kNever;  // while it is
    bool is_running = false;
    bool is_prefilling = false;   // no token since its admission
    int64_t num_hit_tokens = -1;  // to tell with the next prefill slice
    SimTime decodes_since = 0;
    SimTime last_token = 0;
    int64_t num_decode_steps = 0;  // of the slice that is open
    int64_t num_decode_tokens = 0;
  };
  // Steps of the device that share a slice.
  struct Steps {
    SimTime start = 0, end = 0, busy = 0;
    int64_t count = 0, prefill_tokens = 0, decode_tokens = 0, most_requests = 0;
  };

  // Null for a request that was given up before it arrived.
  Life* Find(const SimRequest& request);
  void EndDecode(const SimRequest& request, Life& life);
  void WriteSteps();
  void WriteCounters(SimTime now, bool is_forced);

  // Each begins an event. Arguments follow by AddArgument, then End*.
  void BeginSlice(int64_t lane, std::string_view name, SimTime from, SimTime to);
  void BeginRequestSlice(const SimRequest& request, const Life& life, std::string_view name,
                         SimTime from, SimTime to);
  void AddArgument(std::string_view name, int64_t value);
  void EndSlice(SimTime now);
  void WriteInstant(std::string_view name, const SimRequest& request, SimTime now);
  void NameLane(int64_t lane, std::string_view name);
  void At(SimTime now) {
    last_event_ = now;
    file_.Reach(now);
  }

  TimelineFile& file_;
  const int64_t process_;
  const KvCacheManager* manager_ = nullptr;
  std::vector<Life> lives_;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> free_lanes_;
  int64_t num_lanes_ = 0;
  int64_t num_running_ = 0, num_waiting_ = 0;
  SimTime last_step_end_ = 0;
  SimTime last_event_ = 0;
  Steps steps_;
  struct CounterValues {
    PoolBlocks blocks;
    int64_t running = 0, waiting = 0;
    bool operator==(const CounterValues&) const = default;
  };
  CounterValues written_;  // last
  SimTime next_counters_ = 0;
  SimTime counter_spacing_;
  int64_t values_at_spacing_ = 0;

  std::string event_;  // the one that is written
  bool has_arguments_ = false;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_TIMELINE_H_
