// A load for kvsim serve, or any server with the OpenAI API: so many connections that ask one
// request after the other, and count what comes back.
//
//   ./kvsim serve --port=8000 & bazel run -c opt //bench:serve -- --port=8000 --connections=64
//
// One thread. A request counts as an error unless its answer is 200 and complete: with its usage,
// or as a stream with an event per token and its [DONE].

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/command_line.h"

namespace kvblocks::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

struct LoadOptions {
  std::string host = "127.0.0.1";
  int64_t port = 8000, replicas = 1;
  int64_t connections = 64, requests = 20000;
  int64_t prompt_tokens = 32, max_tokens = 1;
  int64_t abort_percent = 0;
  bool stream = false;
  bool faults_are_fine = false;
};

struct Totals {
  int64_t started = 0, done = 0, errors = 0, aborted = 0, refused = 0, events = 0, bytes = 0;
  int64_t under_way = 0, most_under_way = 0;
  std::vector<double> latencies;  // seconds
  std::string first_error;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& io, const LoadOptions& options, Totals* totals, int64_t index)
      : io_(io), options_(options), totals_(totals), index_(index) {}

  void Start() {
    stream_.emplace(io_);
    const auto port = static_cast<uint16_t>(options_.port + index_ % options_.replicas);
    const tcp::endpoint endpoint(asio::ip::make_address(options_.host), port);
    stream_->async_connect(endpoint, [self = shared_from_this()](beast::error_code code) {
      if (code) return self->Reconnect(code.message());
      beast::error_code ignored;
      self->stream_->socket().set_option(tcp::no_delay(true), ignored);
      self->Ask();
    });
  }

 private:
  void Reconnect(const std::string& why) {
    if (!options_.faults_are_fine) Fail(why);
    if (totals_->started >= options_.requests) return;
    timer_.emplace(io_, std::chrono::milliseconds(50));
    timer_->async_wait([self = shared_from_this()](beast::error_code) { self->Start(); });
  }

  void Fail(const std::string& why) {
    ++totals_->errors;
    if (totals_->first_error.empty()) totals_->first_error = why;
  }

  void Ask() {
    if (totals_->started >= options_.requests) return;
    const int64_t number = totals_->started++;
    totals_->most_under_way = std::max(totals_->most_under_way, ++totals_->under_way);
    std::string prompt = absl::StrCat("request ", number, " ");
    prompt.resize(static_cast<size_t>(options_.prompt_tokens), 'x');
    request_ = {http::verb::post, "/v1/completions", 11};
    request_.set(http::field::host, options_.host);
    request_.set(http::field::content_type, "application/json");
    request_.body() =
        absl::StrCat("{\"prompt\":\"", prompt, "\",\"max_tokens\":", options_.max_tokens,
                     ",\"ignore_eos\":true", options_.stream ? ",\"stream\":true}" : "}");
    request_.prepare_payload();
    start_ = Clock::now();
    will_abort_ = number * 7919 % 100 < options_.abort_percent;
    http::async_write(*stream_, request_,
                      [self = shared_from_this()](beast::error_code code, size_t) {
                        if (code) return self->End(code.message());
                        if (self->will_abort_) return self->Abort();
                        self->parser_.emplace();
                        self->parser_->body_limit(std::numeric_limits<uint64_t>::max());
                        http::async_read(*self->stream_, self->buffer_, *self->parser_,
                                         [self](beast::error_code failed, size_t bytes) {
                                           self->totals_->bytes += static_cast<int64_t>(bytes);
                                           self->End(failed ? failed.message() : "");
                                         });
                      });
  }

  // The client goes, some time into the answer.
  void Abort() {
    timer_.emplace(io_, std::chrono::milliseconds(totals_->started % 40));
    timer_->async_wait([self = shared_from_this()](beast::error_code) {
      --self->totals_->under_way;
      ++self->totals_->aborted;
      self->stream_->close();
      self->buffer_.clear();
      if (self->totals_->started < self->options_.requests) self->Start();
    });
  }

  std::string Check() const {
    const auto& reply = parser_->get();
    if (reply.result_int() != 200) {
      return absl::StrCat(reply.result_int(), " ", reply.body().substr(0, 200));
    }
    if (!options_.stream) {
      const std::string usage = absl::StrCat("\"completion_tokens\":", options_.max_tokens, ",");
      return reply.body().find(usage) == std::string::npos ? "an answer without its usage" : "";
    }
    int64_t events = 0;
    for (size_t at = 0; (at = reply.body().find("data: ", at)) != std::string::npos; ++at) ++events;
    totals_->events += events;
    const bool is_whole = reply.body().ends_with("data: [DONE]\n\n");
    return is_whole && events == options_.max_tokens + 1
               ? ""
               : absl::StrCat("a stream with ", events, " events");
  }

  void End(std::string problem) {
    --totals_->under_way;
    const bool has_reply = problem.empty();
    if (has_reply) problem = Check();
    if (problem.empty()) {
      ++totals_->done;
      totals_->latencies.push_back(std::chrono::duration<double>(Clock::now() - start_).count());
    } else if (options_.faults_are_fine) {
      ++totals_->refused;
    } else {
      Fail(problem);
    }
    if (has_reply && parser_->get().keep_alive()) return Ask();
    stream_->close();
    buffer_.clear();
    if (totals_->started < options_.requests) Reconnect(problem);
  }

  asio::io_context& io_;
  const LoadOptions& options_;
  Totals* const totals_;
  const int64_t index_;
  std::optional<beast::tcp_stream> stream_;
  std::optional<asio::steady_timer> timer_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  std::optional<http::response_parser<http::string_body>> parser_;
  Clock::time_point start_;
  bool will_abort_ = false;
};

void Print(const LoadOptions& options, Totals& totals, double seconds) {
  absl::PrintF("%d requests on %d connections, at most %d at once, in %.2f s: %.0f requests/s\n",
               totals.started, options.connections, totals.most_under_way, seconds,
               static_cast<double>(totals.started) / seconds);
  absl::PrintF("%d answered, %d errors, %d aborted by us, %d met a fault\n", totals.done,
               totals.errors, totals.aborted, totals.refused);
  if (options.stream) {
    std::printf("%.0f events/s, %.1f MB/s\n", static_cast<double>(totals.events) / seconds,
                static_cast<double>(totals.bytes) / seconds / 1e6);
  }
  std::sort(totals.latencies.begin(), totals.latencies.end());
  const size_t count = totals.latencies.size();
  if (count > 0) {
    std::printf("latency, ms: p50 %.1f, p90 %.1f, p99 %.1f, max %.1f\n",
                totals.latencies[count / 2] * 1e3, totals.latencies[count * 9 / 10] * 1e3,
                totals.latencies[count * 99 / 100] * 1e3, totals.latencies[count - 1] * 1e3);
  }
  if (!totals.first_error.empty()) std::printf("first error: %s\n", totals.first_error.c_str());
}

int Main(int argc, char** argv) {
  LoadOptions load;
  sim::OptionParser options("serve", "Puts load on kvsim serve, and counts what comes back.");
  options.Add({.name = "--host", .unit = "ADDRESS", .help = "[127.0.0.1]"}, &load.host);
  options.Add({.name = "--port", .unit = "PORT", .help = "of the first replica [8000]"}, 1, 65535,
              &load.port);
  options.Add({.name = "--replicas", .unit = "N", .help = "ports that follow each other [1]"}, 1,
              256, &load.replicas);
  options.Add({.name = "--connections", .unit = "N", .help = "at once [64]"}, 1, 60000,
              &load.connections);
  options.Add({.name = "--requests", .unit = "N", .help = "in all [20000]"}, 1, 1'000'000'000,
              &load.requests);
  options.Add({.name = "--prompt-tokens", .unit = "TOKENS", .help = "of bytes [32]"}, 1, 1'000'000,
              &load.prompt_tokens);
  options.Add({.name = "--max-tokens", .unit = "TOKENS", .help = "per answer [1]"}, 1, 1'000'000,
              &load.max_tokens);
  options.Add(
      {.name = "--abort-percent", .unit = "N", .help = "of requests that the client leaves [0]"}, 0,
      100, &load.abort_percent);
  options.AddFlag({.name = "--stream", .help = "as server-sent events"}, &load.stream);
  options.AddFlag({.name = "--faults-are-fine", .help = "cuts, errors and crashes were asked for"},
                  &load.faults_are_fine);
  if (const auto status = ParseOrPrint(options, argc, argv)) return *status;
  asio::io_context io(1);
  Totals totals;
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < load.connections; ++i) {
    std::make_shared<Connection>(io, load, &totals, i)->Start();
  }
  io.run();
  Print(load, totals, std::chrono::duration<double>(Clock::now() - start).count());
  return totals.errors == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
