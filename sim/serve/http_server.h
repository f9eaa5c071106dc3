// HttpServer: HTTP/1.1 for the handlers of several ports, by Boost.Beast, on one I/O thread.
//
//   HttpServer server(limits);
//   auto port = server.Listen("127.0.0.1", 8000, service.get());
//   server.OnSignal([&] { ... });
//   server.Run();                       // until Stop()
//
// What it takes of strangers has limits (HttpLimits): bytes of a head and of a body, bytes of all
// bodies together, connections, and the time that each part of an exchange may take. Beyond a limit
// the client gets an answer that says so, and the connection is closed.
//
// Always: a connection has one exchange at a time, and memory for one body and one piece of an
// answer. A client that closes its side while it waits for an answer is gone, also if it only closed
// the sending half.

#ifndef KVBLOCKS_SIM_SERVE_HTTP_SERVER_H_
#define KVBLOCKS_SIM_SERVE_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/serve/http.h"

namespace kvblocks::sim {

struct HttpLimits {
  int64_t max_head_bytes = 16 << 10;
  int64_t max_body_bytes = int64_t{32} << 20;
  int64_t max_held_bytes = int64_t{1} << 30;  // of all bodies being received or answered
  int64_t max_connections = 4096;             // of all ports
  double head_seconds = 10;    // from the first byte's turn to the end of the head
  double body_seconds = 30;    // to receive a body
  double idle_seconds = 75;    // between two requests of a connection
  double write_seconds = 30;   // that the client may let a piece of an answer wait
};

class HttpServer final : public EventLoop {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer() override;
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and listens; port 0 is chosen by the system. Returns the number of the port's entry, for
  // SetUp. `handler` must outlive Run. InvalidArgument for a host that is no address, Unavailable if
  // the port cannot be bound.
  absl::StatusOr<int> Listen(const std::string& host, int port, HttpHandler* handler);
  int port(int entry) const;

  // False: closes the port, and all of its connections at once. True: listens again. I/O thread.
  void SetUp(int entry, bool is_up);
  // Closes all ports and the connections that wait for a request; those with one are closed after
  // its answer. I/O thread.
  void CloseGently();
  // Of SIGTERM and SIGINT; called on the I/O thread.
  void OnSignal(std::function<void()> call);

  // Runs the I/O thread's work in the calling thread until Stop.
  void Run();
  void Stop();

  void Post(std::function<void()> task) override;
  void After(std::chrono::duration<double> delay, std::function<void()> task) override;

  int64_t num_connections() const;
  int64_t num_refused() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_HTTP_SERVER_H_
