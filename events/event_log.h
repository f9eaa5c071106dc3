// A recorded stream of KV events: messages as they came from the wire, in one file that any
// MessagePack library reads.
//
//   "kvblocks-events-1"                        first value
//   [source, topic, sequence, payload]         each message: text, text, integer, bytes
//
// A sequence of -1 with an empty payload says that the source was found to have started anew; -2,
// that messages before the next one were lost for good.

#ifndef KVBLOCKS_EVENTS_EVENT_LOG_H_
#define KVBLOCKS_EVENTS_EVENT_LOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblocks::events {

struct LoggedMessage {
  static constexpr int64_t kRestart = -1;
  static constexpr int64_t kLoss = -2;

  std::string source = {};
  std::string topic = {};
  int64_t sequence = 0;
  std::string payload = {};

  friend bool operator==(const LoggedMessage&, const LoggedMessage&) = default;
};

// The bytes that a log begins with, and those of one message.
void AppendLogHead(std::string* out);
void AppendToLog(const LoggedMessage& message, std::string* out);

// Takes a log in pieces of any size. Memory: the largest message, twice.
class EventLogReader {
 public:
  static constexpr size_t kMaxMessageBytes = size_t{1} << 28;

  void Feed(std::string_view bytes);
  // The next message; none until more bytes come. InvalidArgument: what is wrong, and at which byte.
  absl::StatusOr<std::optional<LoggedMessage>> Next();
  // Whether every byte belonged to a message; else the log is cut off.
  bool is_complete() const { return has_head_ && begin_ == bytes_.size(); }

 private:
  absl::Status Wrong(std::string_view what) const;

  std::string bytes_;
  size_t begin_ = 0;     // of what is not read yet
  int64_t dropped_ = 0;  // bytes before bytes_
  bool has_head_ = false;
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_EVENT_LOG_H_
