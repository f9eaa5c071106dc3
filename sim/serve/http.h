// What the API's side and the network's side of the server know of each other.
//
// The network reads a request, hands it to an HttpHandler with its Exchange, and the handler
// answers through that: with a reply, or with a stream that the network draws from as fast as the
// client takes it. Everything here happens on the I/O thread but for EventLoop::Post.

#ifndef KVBLOCKS_SIM_SERVE_HTTP_H_
#define KVBLOCKS_SIM_SERVE_HTTP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kvblocks::sim {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string authorization;
  std::string accept;
  std::string request_id;  // X-Request-Id
  std::string host;
  std::string origin;
  std::string content_type;
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// A body that is not known yet.
class BodySource {
 public:
  enum class State {
    kWait,  // nothing more now; Exchange::Wake says when there is
    kMore,  // `limit` was reached
    kEnd,   // that was all
  };
  virtual ~BodySource() = default;
  // Appends what there is, until `out` has `limit` bytes or somewhat more.
  virtual State Append(size_t limit, std::string* out) = 0;
};

// One request on a connection. Exactly one of Reply, Stream and Cut is called, once; Cut also
// during a stream. After the client is gone calls do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void Reply(HttpReply reply) = 0;
  // As server-sent events.
  virtual void Stream(std::shared_ptr<BodySource> source) = 0;
  virtual void Wake() = 0;
  // Closes the connection without an end of the answer.
  virtual void Cut() = 0;
  // Called once if the client goes before the answer is complete.
  virtual void set_gone(std::function<void()> gone) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before the body is read: why it need not be. `request` has no body yet.
  virtual std::optional<HttpReply> CheckHead(const HttpRequest& request) = 0;
  virtual void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
};

class EventLoop {
 public:
  virtual ~EventLoop() = default;
  // From any thread: `task` runs on the I/O thread.
  virtual void Post(std::function<void()> task) = 0;
  virtual void After(std::chrono::duration<double> delay, std::function<void()> task) = 0;
};

// HttpServer: HTTP/1.1 for the handlers of several ports, by Boost.Beast, on one I/O thread.
//
//   HttpServer server(limits);
//   auto port = server.Listen("127.0.0.1", 8000, service.get());
//   server.OnSignal([&] { ... });
//   server.Run();                       // until Stop()
//
// What it takes from clients has limits (HttpLimits): bytes of a head and of a body, bytes of all
// bodies together, connections, and the time that each part of an exchange may take. Beyond a limit
// the client gets an answer that says so, and the connection is closed.
//
// Always: a connection has one exchange at a time, and memory for one body and one piece of an
// answer. A client that closes its side while it waits for an answer is gone, also if it only
// closed the sending half.
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
  // SetUp. `handler` must outlive Run. InvalidArgument for a host that is no address, Unavailable
  // if the port cannot be bound.
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

#endif  // KVBLOCKS_SIM_SERVE_HTTP_H_
