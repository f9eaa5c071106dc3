// EventExport: the KV events of a replay, published on a ZeroMQ endpoint as an engine would, or
// recorded in a file.
//
//   export.AddOptions(options, "Output");
//   export.Open(&setup, &observers);  // before the run
//   export.Close();                   // after it

#ifndef KVBLOCKS_SIM_COMMANDS_EVENT_EXPORT_H_
#define KVBLOCKS_SIM_COMMANDS_EVENT_EXPORT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::events {
class EventPublisher;
}

namespace kvblocks::sim {

// What to say where ZeroMQ is missing.
absl::Status BuiltWithoutZmq(const std::string& option);
// Whether it names a socket and no file.
bool IsEndpoint(const std::string& text);

class EventExport final : public EngineObserver {
 public:
  EventExport();
  ~EventExport() override;

  void AddOptions(OptionParser* options, const std::string& group);
  // The file; empty if none is asked for.
  std::string file() const { return IsEndpoint(target_) ? "" : target_; }
  bool is_asked_for() const { return !target_.empty(); }
  absl::Status Check() const;

  // Turns the manager's events on if they are asked for, binds or opens, and waits for subscribers.
  absl::Status Open(ReplaySetup* setup, std::vector<EngineObserver*>* observers);
  // Sends what is queued, keeps the replay socket for the time asked for, and completes the file.
  absl::Status Close();

  bool NeedsEveryRecord() const override { return false; }
  void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) override;

 private:
  void Record(absl::Span<const KvEvent> events, SimTime now);

  std::string target_, replay_, topic_, pace_text_ = "0", linger_text_ = "0s";
  int64_t num_subscribers_ = 0;
  double pace_ = 0;  // simulated seconds per second; 0: as fast as possible

  std::unique_ptr<events::EventPublisher> publisher_;
  std::unique_ptr<ByteSink> sink_;
  absl::Status sink_status_;
  int64_t next_sequence_ = 0;  // of the file
  std::chrono::system_clock::time_point epoch_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_EVENT_EXPORT_H_
