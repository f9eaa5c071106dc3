// Replays of small hand-written workloads, with the schedule as text: for tests.
//
//   Replay replay;
//   replay.config.kv_cache.num_blocks = 10;
//   replay.Add({.id = "A", .prompt = 7, .output = 3});
//   replay.Run();
//   replay.lines     // {"0: A:7 [1,2]", "1: A:1 []", "2: A:1 [3] fin A"}
//
// Defaults: block size 4, one full-attention group, synchronous steps of 1 s. A line is the time in
// seconds at which the step was scheduled, then per request its tokens, its hit tokens if it enters
// with hits ("h4"), those from elsewhere ("+8"), and the blocks taken; then the requests preempted,
// the loads started ("load A h4+8"), and the requests that the step finished.

#ifndef KVBLOCKS_SIM_TESTING_REPLAY_H_
#define KVBLOCKS_SIM_TESTING_REPLAY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/eviction.h"
#include "sim/simulation.h"

namespace kvblocks::sim {

// One full-attention group.
KvCacheGroup FullGroup(int64_t block_size);
KvCacheGroup WindowGroup(int64_t block_size, int64_t window);
KvCacheGroup CrossGroup(int64_t block_size);
KvCacheGroup StateGroup(int64_t block_size, int64_t num_checkpoint_blocks = 0,
                        MambaCacheMode mode = MambaCacheMode::kAlign);
// The pool in chunks that hold these pages of each group; groups behind the last have its class.
void InChunks(int64_t num_chunks, std::vector<int64_t> pages_per_chunk, KvCacheConfig* config);
// Token ids that count up.
std::vector<int64_t> Document(int64_t length, int64_t first = 0);

class VectorTraceReader final : public TraceReader {
 public:
  // Requests in arrival order.
  VectorTraceReader(TraceInfo info, std::vector<TraceRequest> requests)
      : info_(std::move(info)), requests_(std::move(requests)) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override;
  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return {}; }
  absl::Status Restart() override;
  const TraceReaderCounters& counters() const override { return counters_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

  size_t num_read() const { return next_; }
  // After so many requests, Next fails.
  void set_fail_after(size_t n) { fail_after_ = n; }

 private:
  TraceInfo info_;
  std::vector<TraceRequest> requests_;
  size_t next_ = 0;
  size_t fail_after_ = static_cast<size_t>(-1);
  TraceReaderCounters counters_;
  std::vector<std::string> warnings_;
};

struct ReplayRequest {
  std::string id;
  int64_t prompt = 0;
  int64_t output = 0;
  double at = 0;  // seconds
  int32_t priority = 0;
  std::vector<int64_t> content = {};      // token ids from the first token on; the rest is unique
  std::vector<uint32_t> output_ids = {};  // of all output tokens, or none
  std::vector<uint32_t> accepted = {};
  double abort_after = 0;  // seconds
  uint64_t session = 0;
  std::vector<int64_t> waits_for = {};  // indices of requests added before
  double think = 0;                     // seconds
  bool has_arrival = true;
  std::optional<int64_t> encoder = {};  // tokens of the encoder's input
};

class Replay : public EngineObserver {
 public:
  Replay();

  void Add(const ReplayRequest& request);
  // All requests added, as a trace.
  std::unique_ptr<VectorTraceReader> MakeReader();
  // Runs all requests added; the status is that of Simulation::Create or Run.
  absl::Status Run();
  // Adds these and runs all. The test fails where Run does. Returns the lines.
  const std::vector<std::string>& RunAll(const std::vector<ReplayRequest>& requests);

  SimulationConfig config;
  const StepTimeModel* step_time = nullptr;  // null: 1 s each
  std::vector<EngineObserver*> further_observers;
  KvConnector* connector = nullptr;
  // False: only the further observers watch, and of what happened there are only result, blocks and
  // evictions.
  bool is_watching = true;

  // What happened.
  std::vector<std::string> lines;
  std::vector<std::string> device;  // when it ran the steps that are not empty, as "1-2"
  std::map<std::string, std::vector<double>> token_times;  // seconds
  std::map<std::string, double> first_scheduled;
  std::map<std::string, std::string> ends;  // "length", "abort", ...
  std::map<std::string, std::string> rejections;
  int64_t admission_attempts = 0;
  SimulationResult result;
  std::vector<BlockId> free_queue;    // front first, at the end
  std::vector<BlockId> keyed_blocks;  // ascending, at the end
  int64_t evictions = 0;
  RetentionTotals retention;  // zeros where nothing can be retained
  size_t peak_read_ahead = 0;  // requests read but not arrived, at most

  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnReadmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

 private:
  std::vector<TraceRequest> requests_;
  std::unique_ptr<VectorTraceReader> reader_;      // null: only watches
  std::map<const SimRequest*, std::string> hits_;  // of this step's admissions
  std::vector<std::string> loads_;                 // started in this step
  std::vector<std::string> preempted_;         // in this step
  std::vector<size_t> line_of_step_;           // of steps that are not empty
  size_t finished_line_ = 0;                   // of the step that was finished last
  size_t num_arrived_ = 0;
};

// A random small workload: prompts branch off a few stems, and some requests are aborted.
void AddRandomRequests(uint64_t seed, Replay& replay);
// For it: small steps, few blocks, of every third seed a window beside the full group, and of every
// third drafts.
void TightenPool(uint64_t seed, Replay& replay);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_REPLAY_H_
