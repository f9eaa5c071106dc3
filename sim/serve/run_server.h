// RunServer: kvsim serve from its parts - replicas on ports of their own, one I/O thread, a
// tokenizer, and a gentle end.
//
// On the first SIGTERM or SIGINT the ports close, /health says 503 on connections that are open,
// and requests under way go on for at most drain_seconds; what is left then is cut. A second signal
// ends at once.

#ifndef KVBLOCKS_SIM_SERVE_RUN_SERVER_H_
#define KVBLOCKS_SIM_SERVE_RUN_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/serve/http.h"
#include "sim/serve/live_engine.h"
#include "sim/serve/service.h"

namespace kvblocks::sim {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000;  // of the first replica, the others follow; 0: the system chooses each
  int64_t num_replicas = 1;
  HttpLimits limits;
  double drain_seconds = 30;
  std::string tokenizer;  // a tokenizer.json; empty: bytes
  std::string python = "python3";
  EngineEvents events;       // of the first replica; ports of the others follow
  Service::Options service;  // of the first replica
  std::vector<int64_t> fault_replicas;  // who have the service's faults from the start; empty: all
};

// A fresh engine's options but for its events.
using EngineOptionsFactory = std::function<absl::StatusOr<LiveEngine::Options>()>;

// What is printed once all replicas listen.
struct ReplicaAddress {
  int64_t port;
  std::string events;
  std::string replay;
};

// Returns after the end; an error says why it could not start. `started` gets the addresses.
absl::Status RunServer(const ServerOptions& options, const EngineOptionsFactory& make_options,
                       const std::function<void(const std::vector<ReplicaAddress>&)>& started);

// "tcp://*:5557" for replica 2 is "tcp://*:5559"; endpoints without a port get "-2" at their end.
// Port 0 stays.
std::string EndpointOfReplica(const std::string& endpoint, int64_t replica);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_RUN_SERVER_H_
