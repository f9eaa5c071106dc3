// What the API's side and the network's side of the server know of each other.
//
// The network reads a request, hands it to an HttpHandler with its Exchange, and the handler answers
// through that: with a reply, or with a stream that the network draws from as fast as the client
// takes it. Everything here happens on the I/O thread but for EventLoop::Post.

#ifndef KVBLOCKS_SIM_SERVE_HTTP_H_
#define KVBLOCKS_SIM_SERVE_HTTP_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_HTTP_H_
