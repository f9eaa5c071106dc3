// Endpoints of KV-event sockets by vLLM's rules (V-65).

#ifndef KVBLOCKS_EVENTS_ZMQ_ENDPOINT_H_
#define KVBLOCKS_EVENTS_ZMQ_ENDPOINT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblocks::events {

// Whether a publisher binds it (wildcards, "::", ipc, inproc), else it connects to it.
bool IsBoundByPublisher(std::string_view endpoint);
// A subscriber binds wildcards, for publishers that connect; it connects to everything else.
bool IsBoundBySubscriber(std::string_view endpoint);

// Of one data-parallel rank: the port plus the rank, for inproc the suffix "_dpRANK". A port of 0 is
// left to the system. InvalidArgument: no transport "tcp://", "ipc://" or "inproc://", a port beyond
// 65,535, or ipc with a rank above 0.
absl::StatusOr<std::string> EndpointOfRank(std::string_view endpoint, int64_t rank);

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_ENDPOINT_H_
