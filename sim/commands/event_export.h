// EventExport: the KV events of a replay, published on a ZeroMQ endpoint as an engine would, or
// recorded in a file. Several replicas publish as data-parallel ranks do, each on a port of its
// own; in the file each is a source of its own.
//
//   export.AddOptions(options);
//   export.Open(num_replicas);        // before the run, if it is asked for
//   observers.push_back(export.of_replica(0)); ...  // of managers with enable_events
//   export.Close();                   // after it

#ifndef KVBLOCKS_SIM_COMMANDS_EVENT_EXPORT_H_
#define KVBLOCKS_SIM_COMMANDS_EVENT_EXPORT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/replay_setup.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::events {
class EventPublisher;
}

namespace kvblocks::sim {

// What to say where ZeroMQ is missing.
absl::Status BuiltWithoutZmq(const std::string& option);
// Whether it names a socket and no file.
bool IsEndpoint(const std::string& text);

class EventExport {
 public:
  EventExport();
  ~EventExport();

  void AddOptions(OptionParser* options);
  // The file; empty if none is asked for.
  std::string file() const { return IsEndpoint(target_) ? "" : target_; }
  bool is_asked_for() const { return !target_.empty(); }
  absl::Status Check() const;

  // Binds or opens, and waits for subscribers. REQUIRES: is_asked_for().
  absl::Status Open(size_t num_replicas = 1);
  // REQUIRES: opened.
  EngineObserver* of_replica(size_t replica);
  // Sends what is queued, keeps the replay socket for the time asked for, and completes the file.
  absl::Status Close();

 private:
  class OfReplica;
  absl::Status Bind(OfReplica* replica);
  void Publish(OfReplica* replica, absl::Span<const KvEvent> events, SimTime now);
  void Record(OfReplica* replica, absl::Span<const KvEvent> events, SimTime now);

  std::string target_, replay_, topic_;
  int64_t num_subscribers_ = 0;
  double pace_ = 0;  // simulated seconds per second; 0: as fast as possible
  double linger_seconds_ = 0;

  std::vector<std::unique_ptr<OfReplica>> replicas_;
  std::unique_ptr<ByteSink> sink_;
  absl::Status sink_status_;
  std::chrono::system_clock::time_point epoch_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_EVENT_EXPORT_H_
