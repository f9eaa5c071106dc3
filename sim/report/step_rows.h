// StepRows: the observer that writes one CSV row per step, from which `kvsim compare` finds the
// first step at which two schedules part.
//
// Columns, in this order (times are exact milliseconds of simulated time):
//   step             from 0; steps that computed nothing have no row
//   start_ms         when it was scheduled
//   end_ms
//   tokens           = prefill_tokens + decode_tokens
//   prefill_tokens, decode_tokens
//   scheduled        requests
//   running, waiting, free_blocks
//                    when the step had been scheduled
//   preempted        since the row before, those of empty steps included
//   new_blocks       taken, over all groups
//   hit_tokens       that the requests which entered in it found in the prefix cache
//   replica          only of several
//   requests         only if asked for: ROW:TOKENS+BLOCK+BLOCK@GROUP of each scheduled request, in
//                    order (group 0 is not named), after -ROW of each preempted one
//   digest           64 bits of everything scheduled up to this step: rows, tokens, ids of new
//                    blocks, preempted rows. Times play no part.
// Two runs with equal digests at a step had equal schedules up to it. Rows of several replicas stand in
// the order in which the run came to them; steps, their order and digests are those of each replica alone.
//
// Cost: about 10 ns per scheduled request and 1 us per row, more if compressed. Memory: the
// steps in flight and one buffer.

#ifndef KVBLOCKS_SIM_REPORT_STEP_ROWS_H_
#define KVBLOCKS_SIM_REPORT_STEP_ROWS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {

// The file of one replica's rows, or of several.
class StepFile {
 public:
  StepFile(std::unique_ptr<ByteSink> sink, bool with_requests, bool has_replicas = false);

  void Append(std::string_view row);
  // Reports the first error of all writes. The file is complete only then.
  absl::Status Close();

  bool with_requests() const { return with_requests_; }
  bool has_replicas() const { return has_replicas_; }

  // With the line end.
  static std::string Header(bool with_requests, bool has_replicas = false);

 private:
  void Flush();

  std::unique_ptr<ByteSink> sink_;
  const bool with_requests_, has_replicas_;
  std::string buffer_;
  absl::Status status_;
};

class StepRows final : public EngineObserver {
 public:
  // `file` must outlive this. `replica`: its name in the column, if there is one.
  explicit StepRows(StepFile* file, std::string replica = "")
      : file_(*file), replica_(std::move(replica)) {}

  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;

  uint64_t digest() const { return digest_; }

 private:
  // A step that has been scheduled and has no end yet.
  struct Row {
    int64_t step = 0;
    int64_t num_waiting = 0, num_running = 0, num_free = 0, num_preempted = 0, num_new_blocks = 0,
            num_hit_tokens = 0;
    uint64_t digest = 0;
    std::string requests;
  };

  void Describe(const ScheduledRecord& record, std::string* out) const;

  StepFile& file_;
  const std::string replica_;
  uint64_t digest_ = 0;
  std::vector<int64_t> preempted_;  // rows, since the last step that computed something
  std::vector<int64_t> words_;      // scratch: what goes into the digest
  std::deque<Row> in_flight_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_STEP_ROWS_H_
