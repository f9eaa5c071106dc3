// A connection of the server on any bytes, through a pair of sockets: at once and in pieces, with
// the end of the connection behind them. Both ways the handler sees the same requests; what is held
// stays within the limits and is given back; no answer comes behind one that closes.

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "sim/serve/http_session.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;
using namespace kvblocks::sim::http_session;

class Words final : public BodySource {
 public:
  State Append(size_t, std::string* out) override {
    if (++num_calls_ > 3) return State::kEnd;
    out->append(100, 'w');
    return State::kMore;
  }

 private:
  int num_calls_ = 0;
};

class Handler final : public HttpHandler {
 public:
  explicit Handler(const HttpLimits& limits) : limits_(limits) {}
  std::optional<HttpReply> CheckHead(const HttpRequest& request) override {
    if (request.path == "/none") return HttpReply{.status = 404};
    return std::nullopt;
  }
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    FUZZ_EXPECT(request.body.size() <= static_cast<size_t>(limits_.max_body_bytes), "a body");
    seen.push_back(request.method + " " + request.path + " " + request.body);
    if (request.path == "/stream") {
      exchange->Stream(std::make_shared<Words>());
    } else {
      exchange->Reply({.body = std::string(request.body.size() % 10, 'r')});
    }
  }

  std::vector<std::string> seen;

 private:
  const HttpLimits limits_;
};

struct Outcome {
  std::vector<std::string> seen;
  std::string answers;
};

Outcome Run(std::string_view bytes, size_t piece) {
  const HttpLimits limits = {
      .max_head_bytes = 1024, .max_body_bytes = 4096, .max_held_bytes = 8192};
  Shared shared(limits);
  Handler handler(limits);
  Outcome outcome;
  int ends[2];
  FUZZ_EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "sockets");
  tcp::socket socket(shared.io);
  socket.assign(tcp::v4(), ends[0]);
  std::make_shared<Session>(std::move(socket), &shared, 0, &handler)->Start();
  const auto work = [&] {
    shared.io.restart();
    shared.io.poll();
    FUZZ_EXPECT(shared.held_bytes >= 0 && shared.held_bytes <= limits.max_held_bytes, "held");
    char buffer[4096];
    ssize_t count;
    while ((count = recv(ends[1], buffer, sizeof(buffer), MSG_DONTWAIT)) > 0) {
      outcome.answers.append(buffer, static_cast<size_t>(count));
      shared.io.poll();
    }
  };
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const std::string_view part = bytes.substr(at, piece);
    if (send(ends[1], part.data(), part.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    work();
  }
  shutdown(ends[1], SHUT_WR);
  for (int i = 0; i < 20 && !shared.sessions.empty(); ++i) work();
  FUZZ_EXPECT(shared.sessions.empty(), "the connection ends");
  FUZZ_EXPECT(shared.held_bytes == 0, "all is given back");
  close(ends[1]);
  outcome.seen = std::move(handler.seen);
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), std::min<size_t>(size, 16384));
  const Outcome whole = Run(bytes, std::max<size_t>(bytes.size(), 1));
  const Outcome pieces = Run(bytes, 1 + bytes.size() / 7);
  FUZZ_EXPECT(whole.seen == pieces.seen, "the same requests");
  FUZZ_EXPECT(whole.answers.empty() || whole.answers.rfind("HTTP/1.", 0) == 0, whole.answers);
  return 0;
}
