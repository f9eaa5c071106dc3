#include "sim/serve/run_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sim/serve/tokenizer.h"

namespace kvblocks::sim {
namespace {

// As many descriptors as the connections need, as far as the system lets us.
absl::Status RaiseDescriptors(int64_t max_connections) {
  constexpr int64_t kOthers = 128;
  const auto needed = static_cast<rlim_t>(max_connections + kOthers);
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return absl::OkStatus();
  if (limit.rlim_max < needed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-connections: got ", max_connections, ", expected at most ",
        static_cast<int64_t>(limit.rlim_max) - kOthers, ": this system gives a process ",
        limit.rlim_max, " descriptors (ulimit -n)"));
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return absl::OkStatus();
  return absl::UnavailableError("cannot raise the number of descriptors (ulimit -n)");
}

// The end of the server, from the first signal on.
class Drain {
 public:
  Drain(HttpServer* server, std::vector<std::unique_ptr<Service>>* services, double seconds)
      : server_(server), services_(services), seconds_(seconds) {}

  void OnSignal() {
    if (std::exchange(is_draining_, true)) {
      std::fprintf(stderr, "kvsim serve: second signal, ends now\n");
      return server_->Stop();
    }
    std::fprintf(stderr,
                 "kvsim serve: takes no new requests, ends when those under way are done\n");
    for (auto& service : *services_) service->StartDraining();
    server_->CloseGently();
    end_ = std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::duration<double>(seconds_));
    Look();
  }

 private:
  void Look() {
    const bool is_idle = std::all_of(services_->begin(), services_->end(),
                                     [](const auto& service) { return service->is_idle(); });
    // Answers may still be on their way out.
    if (is_idle && server_->num_connections() == 0) return server_->Stop();
    if (std::chrono::steady_clock::now() >= end_) {
      std::fprintf(stderr, "kvsim serve: %lld connections are cut after %g s\n",
                   static_cast<long long>(server_->num_connections()), seconds_);
      return server_->Stop();
    }
    server_->After(std::chrono::milliseconds(20), [this] { Look(); });
  }

  HttpServer* const server_;
  std::vector<std::unique_ptr<Service>>* const services_;
  const double seconds_;
  bool is_draining_ = false;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace

std::string EndpointOfReplica(const std::string& endpoint, int64_t replica) {
  if (endpoint.empty() || replica == 0) return endpoint;
  const size_t colon = endpoint.rfind(':');
  int64_t port;
  if (colon != std::string::npos && absl::SimpleAtoi(endpoint.substr(colon + 1), &port)) {
    return port == 0 ? endpoint : absl::StrCat(endpoint.substr(0, colon + 1), port + replica);
  }
  return absl::StrCat(endpoint, "-", replica);
}

absl::Status RunServer(const ServerOptions& options, const EngineOptionsFactory& make_options,
                       const std::function<void(const std::vector<ReplicaAddress>&)>& started) {
  if (absl::Status status = RaiseDescriptors(options.limits.max_connections); !status.ok()) {
    return status;
  }
  HttpServer server(options.limits);
  std::unique_ptr<Tokenizer> tokenizer = std::make_unique<ByteTokenizer>();
  if (!options.tokenizer.empty()) {
    auto made = MakeHfTokenizer(options.tokenizer, options.python);
    if (!made.ok()) return made.status();
    tokenizer = *std::move(made);
  }
  const auto text = PseudoText::Make(*tokenizer);
  if (!text.ok()) return text.status();
  auto queue = std::make_unique<TokenizerQueue>(std::move(tokenizer), &server);

  std::vector<int> entries;
  std::vector<std::unique_ptr<Service>> services;
  std::vector<ReplicaAddress> addresses;
  for (int64_t r = 0; r < options.num_replicas; ++r) {
    Service::Options asked = options.service;
    asked.replica = r;
    asked.seed += static_cast<uint64_t>(r);
    const std::vector<int64_t>& faulty = options.fault_replicas;
    if (!faulty.empty() && std::find(faulty.begin(), faulty.end(), r) == faulty.end()) {
      asked.faults = {};
    }
    EngineEvents events = options.events;
    events.endpoint = EndpointOfReplica(events.endpoint, r);
    events.replay_endpoint = EndpointOfReplica(events.replay_endpoint, r);
    auto service = Service::Create(
        std::move(asked), &*text, queue.get(), &server,
        [&make_options, events](std::function<void()> wake)
            -> absl::StatusOr<std::unique_ptr<LiveEngine>> {
          auto engine = make_options();
          if (!engine.ok()) return engine.status();
          engine->events = events;
          return LiveEngine::Create(*std::move(engine), std::move(wake));
        },
        [&server, &entries, r](bool is_up) {
          server.SetUp(entries[static_cast<size_t>(r)], is_up);
        },
        [&server] {
          return Service::Connections{server.num_connections(), server.num_refused()};
        });
    if (!service.ok()) return service.status();
    const auto entry = server.Listen(
        options.host, static_cast<int>(options.port == 0 ? 0 : options.port + r), service->get());
    if (!entry.ok()) return entry.status();
    entries.push_back(*entry);
    addresses.push_back({.port = server.port(*entry),
                         .events = (*service)->engine()->events_endpoint(),
                         .replay = (*service)->engine()->replay_endpoint()});
    services.push_back(*std::move(service));
  }
  Drain drain(&server, &services, options.drain_seconds);
  server.OnSignal([&drain] { drain.OnSignal(); });
  started(addresses);
  server.Run();
  queue = nullptr;  // its thread works for the services
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
