#include "events/zmq/wire.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "kvblocks/check.h"

namespace kvblocks::events {
namespace {

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

}  // namespace

bool IsBoundByPublisher(std::string_view endpoint) {
  return endpoint.find('*') != endpoint.npos || endpoint.find("::") != endpoint.npos ||
         StartsWith(endpoint, "ipc://") || StartsWith(endpoint, "inproc://");
}

bool IsBoundBySubscriber(std::string_view endpoint) { return endpoint.find('*') != endpoint.npos; }

absl::StatusOr<std::string> EndpointOfRank(std::string_view endpoint, int64_t rank) {
  std::string text(endpoint);
  if (rank < 0) return InvalidArgument("data_parallel_rank: got ", rank, ", expected 0 or more");
  const bool is_tcp = StartsWith(endpoint, "tcp://");
  const bool is_inproc = StartsWith(endpoint, "inproc://");
  if (!is_tcp && !is_inproc && !StartsWith(endpoint, "ipc://")) {
    return InvalidArgument(
        "endpoint: got \"", text,
        "\", expected one like tcp://*:5557, ipc:///tmp/events or inproc://events");
  }
  if (is_tcp) {
    const size_t colon = endpoint.rfind(':');
    const std::string port_text(endpoint.substr(colon + 1));
    int64_t port;
    const bool is_any = port_text == "*";
    if (!is_any && (!absl::SimpleAtoi(port_text, &port) || port < 0 || port + rank > 65535)) {
      return InvalidArgument("endpoint: got \"", text, "\" for rank ", rank,
                             ", expected a port up to 65535 at its end, like tcp://*:5557");
    }
    if (rank == 0 || is_any || port == 0) return text;
    return absl::StrCat(text.substr(0, colon + 1), port + rank);
  }
  if (rank == 0) return text;
  if (is_inproc) return absl::StrCat(text, "_dp", rank);
  return InvalidArgument("endpoint: got \"", text, "\" for rank ", rank,
                         ", but ipc endpoints have no ranks; use tcp");
}

}  // namespace kvblocks::events
