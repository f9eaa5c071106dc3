#include "kvblocks/kv_events.h"

#include <limits>

#include "events/msgpack.h"
#include "kvblocks/check.h"

namespace kvblocks::events {
namespace {

constexpr std::string_view kMagic = "kvblocks-events-1";

}  // namespace

void AppendLogHead(std::string* out) { msgpack::Writer(out).Text(kMagic); }

void AppendToLog(const LoggedMessage& message, std::string* out) {
  msgpack::Writer writer(out);
  writer.Array(4);
  writer.Text(message.source);
  writer.Text(message.topic);
  writer.Int(message.sequence);
  writer.Bytes(message.payload);
}

void EventLogReader::Feed(std::string_view bytes) {
  bytes_.erase(0, begin_);
  dropped_ += static_cast<int64_t>(begin_);
  begin_ = 0;
  bytes_.append(bytes);
}

absl::Status EventLogReader::Wrong(std::string_view what) const {
  return InvalidArgument("KV event log: byte ", dropped_ + static_cast<int64_t>(begin_), ": ",
                         std::string(what));
}

absl::StatusOr<std::optional<LoggedMessage>> EventLogReader::Next() {
  using msgpack::Item;
  using msgpack::Type;
  const std::string_view waiting = std::string_view(bytes_).substr(begin_);
  msgpack::Reader reader(waiting);
  Item item;
  if (!has_head_) {
    std::string head;
    AppendLogHead(&head);
    const size_t known = std::min(head.size(), waiting.size());
    if (waiting.substr(0, known) != std::string_view(head).substr(0, known)) {
      return Wrong("got no log of KV events, expected one that kvsim events --record wrote");
    }
    if (known < head.size()) return std::nullopt;
    begin_ += head.size();
    has_head_ = true;
    return Next();
  }
  if (waiting.empty()) return std::nullopt;
  if (static_cast<uint8_t>(waiting[0]) != 0x94) {
    return Wrong("expected a message, an array of source, topic, sequence and payload");
  }
  LoggedMessage message;
  if (!reader.Next(&item)) return std::nullopt;  // the head of an array needs its items' bytes
  constexpr Type kTypes[] = {Type::kText, Type::kText, Type::kUint, Type::kBytes};
  for (size_t i = 0; i < 4; ++i) {
    if (!reader.Next(&item)) {
      // Cut off, or still to come.
      if (waiting.size() > kMaxMessageBytes) {
        return Wrong(absl::StrCat("a message of more than ", kMaxMessageBytes, " bytes"));
      }
      return std::nullopt;
    }
    const bool is_mark =
        i == 2 && item.type == Type::kNegative &&
        (item.negative() == LoggedMessage::kRestart || item.negative() == LoggedMessage::kLoss);
    if ((item.type != kTypes[i] && !is_mark) ||
        (item.type == Type::kUint && item.bits > std::numeric_limits<int64_t>::max())) {
      return Wrong(absl::StrCat("item ", i, " of a message is ", msgpack::TypeName(item.type),
                                ", expected source, topic, sequence and payload"));
    }
    if (i == 0) message.source = item.bytes;
    if (i == 1) message.topic = item.bytes;
    if (i == 2) message.sequence = static_cast<int64_t>(item.bits);
    if (i == 3) message.payload = item.bytes;
  }
  begin_ += reader.position();
  return message;
}

}  // namespace kvblocks::events
