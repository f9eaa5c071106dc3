// DecodedTrace: the requests of a trace in memory, read once for many replays; DecodedReader: one
// replay's view of them, at its own speed.
//
// Always: what a DecodedReader yields is what a TraceReader of the file yields with the same
// options, --speedup included. A DecodedTrace never changes and is read by many threads at once.
// Memory: all requests, with 8 bytes per content id; bounded by CheckHeldBytes.

#ifndef KVBLOCKS_SIM_SWEEP_DECODED_TRACE_H_
#define KVBLOCKS_SIM_SWEEP_DECODED_TRACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

struct DecodedTrace {
  TraceInfo info;
  TraceReaderCounters counters;
  std::vector<std::string> warnings;
  std::string dialect;
  ReadProgress progress;  // all of the file
  std::vector<TraceRequest> requests;  // at their own times
  // Requests of a session are one, and what waits for others belongs to the first of them.
  int64_t num_conversations = 0;

  // From the first arrival to the last one.
  double arrival_seconds() const;
};

absl::StatusOr<DecodedTrace> DecodeTrace(TraceReader* reader);

class DecodedReader final : public TraceReader {
 public:
  // The trace must outlive this.
  DecodedReader(const DecodedTrace* trace, Rational speedup) : trace_(trace), speedup_(speedup) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override;
  const TraceInfo& info() const override { return trace_->info; }
  ReadProgress progress() const override { return trace_->progress; }
  absl::Status Restart() override;
  const TraceReaderCounters& counters() const override { return trace_->counters; }
  const std::vector<std::string>& warnings() const override { return trace_->warnings; }
  std::string dialect() const override { return trace_->dialect; }

 private:
  const DecodedTrace* trace_;
  const Rational speedup_;
  size_t next_ = 0;
};

// Traces by the options that a reader has, but for the speed-up. Any thread may call it; a trace is
// decoded once, and who wants it meanwhile waits.
class DecodedTraces {
 public:
  absl::StatusOr<std::shared_ptr<const DecodedTrace>> Get(
      const ::kvblocks::config::v1::ReplayConfig& config);
  // Of all traces, once each.
  std::vector<std::string> TakeWarnings();

 private:
  struct Entry {
    std::once_flag once;
    absl::StatusOr<std::shared_ptr<const DecodedTrace>> trace;
  };
  absl::StatusOr<std::shared_ptr<const DecodedTrace>> Decode(
      const ::kvblocks::config::v1::ReplayConfig& config);

  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> warnings_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_DECODED_TRACE_H_
