// Session: one connection of HttpServer. Included by http.cc alone: what it includes takes long
// to compile.

#ifndef KVBLOCKS_SIM_SERVE_HTTP_SESSION_H_
#define KVBLOCKS_SIM_SERVE_HTTP_SESSION_H_

#include <poll.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_cat.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "absl/strings/str_cat.h"
#include "sim/serve/answer.h"
#include "sim/serve/http.h"
#include "sim/serve/http_request_parser.h"

namespace kvblocks::sim::http_session {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

inline constexpr size_t kPieceBytes = 64 << 10;  // of a stream per write
inline constexpr size_t kReadBytes = 4096;       // of the first piece of a head
inline constexpr double kDiscardSeconds = 1;     // to read the error that ends a connection
// How often a client that sent more than its request is looked at.
inline constexpr std::chrono::milliseconds kLookInterval{100};
inline constexpr size_t kMaxRequestId = 128;

inline std::chrono::nanoseconds AsDuration(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

class Session;

// What connections share.
struct Shared {
  explicit Shared(const HttpLimits& all_limits) : limits(all_limits) {}
  const HttpLimits limits;
  std::set<Session*> sessions;
  int64_t held_bytes = 0;
  int64_t num_refused = 0;
  bool is_closing = false;
  asio::io_context io{1};  // goes first, with the operations that hold sessions
};

// One connection. Operations under way hold it, and so does the code that answers.
class Session final : public Exchange, public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared* shared, int entry, HttpHandler* handler)
      : shared_(shared),
        entry_(entry),
        handler_(handler),
        stream_(std::move(socket)),
        // Also the longest line between two chunks.
        buffer_(std::max<size_t>(kReadBytes, static_cast<size_t>(shared->limits.max_head_bytes))),
        look_again_(shared->io) {
    shared_->sessions.insert(this);
    beast::error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
  }
  ~Session() override {
    Hold(0);
    shared_->sessions.erase(this);
  }

  int entry() const { return entry_; }
  bool is_waiting() const { return state_ == State::kReading && !has_begun_; }

  void Start() { ReadHead(shared_->limits.head_seconds); }

  void Close() {
    Code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
    Gone();
  }

  // --- Exchange ---

  void Reply(HttpReply reply) override {
    if (state_ != State::kHandling) return;
    state_ = State::kReplying;
    gone_ = nullptr;
    Hold(static_cast<int64_t>(reply.body.capacity()));
    if (shared_->held_bytes > shared_->limits.max_held_bytes) {
      const ApiError error = {.status = 503,
                              .message = "the server holds too many answers; try again"};
      reply = {.status = error.status, .body = ErrorJson(error)};
      Hold(static_cast<int64_t>(reply.body.capacity()));
    }
    reply_ = {};
    reply_.version(version_);
    reply_.result(static_cast<unsigned>(reply.status));
    reply_.set(http::field::server, "kvsim");
    reply_.set(http::field::content_type, reply.content_type);
    for (const auto& [name, value] : reply.headers) reply_.set(name, value);
    if (shared_->is_closing) keep_alive_ = false;
    reply_.keep_alive(keep_alive_);
    reply_.body() = std::move(reply.body);
    reply_.prepare_payload();
    ExpiresAfter(shared_->limits.write_seconds);
    const auto done = [self = shared_from_this()](Code code, size_t) { self->OnReplied(code); };
    if (!is_head_) return http::async_write(stream_, reply_, done);
    // As to GET, with its length and without its body.
    head_ = http::response<http::empty_body>(std::move(reply_.base()));
    http::async_write(stream_, head_, done);
  }

  void Stream(std::shared_ptr<BodySource> source) override {
    if (state_ != State::kHandling) return;
    state_ = State::kStreaming;
    Hold(0);
    source_ = std::move(source);
    head_ = {};
    head_.version(version_);
    head_.result(http::status::ok);
    head_.set(http::field::server, "kvsim");
    head_.set(http::field::content_type, "text/event-stream; charset=utf-8");
    head_.set(http::field::cache_control, "no-cache");
    // Without chunks the end of the connection is the end of the answer.
    is_chunked_ = version_ >= 11;
    if (!is_chunked_ || shared_->is_closing) keep_alive_ = false;
    head_.keep_alive(keep_alive_);
    head_.chunked(is_chunked_);
    head_writer_.emplace(head_);
    is_writing_ = true;
    ExpiresAfter(shared_->limits.write_seconds);
    http::async_write_header(stream_, *head_writer_,
                             [self = shared_from_this()](Code code, size_t) {
                               self->OnPieceWritten(code);
                             });
  }

  void Wake() override {
    if (state_ == State::kStreaming && !is_writing_) WritePiece();
  }

  void Cut() override {
    gone_ = nullptr;
    Code ignored;
    stream_.socket().set_option(asio::socket_base::linger(true, 0), ignored);
    stream_.close();
    state_ = State::kOver;
    source_ = nullptr;
  }

  void set_gone(std::function<void()> gone) override {
    if (state_ == State::kOver) {
      gone();
      return;
    }
    gone_ = std::move(gone);
  }

 private:
  enum class State { kReading, kHandling, kReplying, kStreaming, kOver };

  void ExpiresAfter(double seconds) { stream_.expires_after(AsDuration(seconds)); }

  // Counts the bytes that this connection's body or answer takes.
  void Hold(int64_t bytes) {
    shared_->held_bytes += bytes - held_bytes_;
    held_bytes_ = bytes;
  }
  bool MayHold(int64_t bytes) {
    if (shared_->held_bytes - held_bytes_ + bytes > shared_->limits.max_held_bytes) return false;
    Hold(bytes);
    return true;
  }

  // The client went, or time did.
  void Gone() {
    state_ = State::kOver;
    source_ = nullptr;
    if (auto gone = std::exchange(gone_, nullptr)) gone();
  }

  // --- Reading ---

  void ReadHead(double seconds) {
    state_ = State::kReading;
    has_begun_ = buffer_.size() > 0;
    parser_.emplace([this](int64_t bytes) { return MayHold(bytes); });
    parser_->header_limit(static_cast<uint32_t>(shared_->limits.max_head_bytes));
    parser_->body_limit(static_cast<uint64_t>(shared_->limits.max_body_bytes));
    if (has_begun_) return ReadRestOfHead();
    ExpiresAfter(seconds);
    // The head's own time begins with its first byte.
    stream_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](Code code, size_t count) {
                              if (code) return self->Close();
                              self->buffer_.commit(count);
                              self->has_begun_ = true;
                              self->ReadRestOfHead();
                            });
  }

  void ReadRestOfHead() {
    ExpiresAfter(shared_->limits.head_seconds);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](Code code, size_t count) {
                              self->OnHead(code, count);
                            });
  }

  // Refuses what was not read to its end; so the connection ends with it.
  void Refuse(const ApiError& error) {
    RefuseWith({.status = error.status, .body = ErrorJson(error)});
  }
  void RefuseWith(HttpReply reply) {
    state_ = State::kHandling;
    keep_alive_ = false;
    Reply(std::move(reply));
  }

  // Answers what cannot be read on with its reason; a connection that ended has nobody to read it.
  void RefuseBytes(Code code) {
    if (const auto& refusal = parser_->refusal()) return Refuse(*refusal);
    if (code == http::error::header_limit || code == http::error::buffer_overflow) {
      return Refuse(
          {.status = 431,
           .message = absl::StrCat("the head of the request, or a line between the chunks "
                                   "of its body, has more than ",
                                   shared_->limits.max_head_bytes, " bytes")});
    }
    if (code == http::error::body_limit) {
      return Refuse({.status = 413,
                     .message = absl::StrCat("the body of the request has more than ",
                                             shared_->limits.max_body_bytes, " bytes")});
    }
    if (code.category() != http::make_error_code(http::error::bad_method).category() ||
        code == http::error::end_of_stream || code == http::error::partial_message) {
      return Close();
    }
    Refuse({.message = absl::StrCat("this is no HTTP request: ", code.message())});
  }

  void OnHead(Code code, size_t num_bytes) {
    is_head_ = parser_->is_head_method();
    version_ = parser_->version();
    // Beast forgets the fields of a head that it took from earlier reads.
    if (!code && num_bytes > static_cast<size_t>(shared_->limits.max_head_bytes)) {
      code = http::error::header_limit;
    }
    if (code) return RefuseBytes(code);
    keep_alive_ = parser_->keep_alive();
    HttpRequest& request = parser_->request();
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7F; };
    if (request.request_id.size() > kMaxRequestId ||
        !std::all_of(request.request_id.begin(), request.request_id.end(), is_plain)) {
      request.request_id.clear();
    }
    if (auto refusal = handler_->CheckHead(request)) return RefuseWith(*std::move(refusal));
    ExpiresAfter(shared_->limits.body_seconds);
    if (!parser_->expects_continue() || parser_->is_done()) return ReadBody();
    continue_ = {http::status::continue_, version_};
    http::async_write(stream_, continue_, [self = shared_from_this()](Code failed, size_t) {
      if (failed) return self->Close();
      self->ReadBody();
    });
  }

  void ReadBody() {
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](Code code, size_t) { self->OnBody(code); });
  }

  void OnBody(Code code) {
    if (code) return RefuseBytes(code);
    HttpRequest request = std::move(parser_->request());
    parser_.reset();
    stream_.expires_never();
    state_ = State::kHandling;
    WatchForEnd();
    handler_->Handle(std::move(request), shared_from_this());
  }

  // Notices that the client goes while it waits for its answer.
  void WatchForEnd() {
    if (std::exchange(is_watching_, true)) return;
    stream_.socket().async_wait(tcp::socket::wait_read,
                                [self = shared_from_this()](Code code) { self->OnReadable(code); });
  }

  void OnReadable(Code code) {
    is_watching_ = false;
    if (state_ != State::kHandling && state_ != State::kStreaming) return;
    if (code) return Close();
    // Bytes of the next request may lie before the end, and are not read yet.
    pollfd socket = {stream_.socket().native_handle(), POLLIN | POLLRDHUP, 0};
    const int count = poll(&socket, 1, 0);
    if (count > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0) {
      return Close();
    }
    // They stay readable, so waiting for more of them would not wait.
    is_watching_ = true;
    look_again_.expires_after(kLookInterval);
    look_again_.async_wait([weak = weak_from_this()](Code cancelled) {
      const auto self = weak.lock();
      if (cancelled || self == nullptr) return;
      self->is_watching_ = false;
      if (self->state_ == State::kHandling || self->state_ == State::kStreaming) {
        self->WatchForEnd();
      }
    });
  }

  // --- Writing ---

  void OnReplied(Code code) {
    if (code || !keep_alive_) return EndConnection(code);
    ForgetAnswer();
    ReadHead(shared_->limits.idle_seconds);
  }

  // Texts that are assigned an empty one keep their memory.
  void ForgetAnswer() {
    std::string().swap(reply_.body());
    std::string().swap(piece_);
    Hold(0);
  }

  // Lets the client read what was written, also if it still sends.
  void EndConnection(Code code) {
    Code ignored;
    if (!code) {
      stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
      state_ = State::kOver;
      ForgetAnswer();
      ExpiresAfter(kDiscardSeconds);  // for all of it
      Discard(1 << 20);
      return;
    }
    Close();
  }

  // Closing a socket with unread bytes would reset the connection before the answer is read.
  void Discard(size_t budget) {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this(), budget](Code code, size_t count) {
                              if (code || count >= budget) return self->Close();
                              self->Discard(budget - count);
                            });
  }

  void WritePiece() {
    piece_.clear();
    const BodySource::State state = source_->Append(kPieceBytes, &piece_);
    is_last_ = state == BodySource::State::kEnd;
    if (piece_.empty() && !is_last_) {
      stream_.expires_never();
      return;
    }
    is_writing_ = true;
    ExpiresAfter(shared_->limits.write_seconds);
    const auto done = [self = shared_from_this()](Code code, size_t) {
      self->OnPieceWritten(code);
    };
    const asio::const_buffer piece = asio::buffer(piece_);
    if (!is_chunked_) {
      asio::async_write(stream_, piece, done);
    } else if (piece_.empty()) {
      asio::async_write(stream_, http::make_chunk_last(), done);
    } else if (is_last_) {
      asio::async_write(stream_,
                        beast::buffers_cat(http::make_chunk(piece), http::make_chunk_last()), done);
    } else {
      asio::async_write(stream_, http::make_chunk(piece), done);
    }
  }

  void OnPieceWritten(Code code) {
    is_writing_ = false;
    if (state_ != State::kStreaming) return;
    if (code) return Close();
    if (!is_last_) return WritePiece();
    is_last_ = false;
    gone_ = nullptr;
    source_ = nullptr;
    head_writer_.reset();
    OnReplied({});
  }

  Shared* const shared_;
  const int entry_;
  HttpHandler* const handler_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  State state_ = State::kReading;
  bool has_begun_ = false;  // bytes of the next request are there
  bool is_watching_ = false;
  asio::steady_timer look_again_;
  int64_t held_bytes_ = 0;
  std::optional<RequestParser> parser_;
  unsigned version_ = 11;
  bool keep_alive_ = true;
  bool is_head_ = false;  // the method is HEAD
  std::function<void()> gone_;

  http::response<http::empty_body> continue_;
  http::response<http::string_body> reply_;
  http::response<http::empty_body> head_;
  std::optional<http::response_serializer<http::empty_body>> head_writer_;
  std::shared_ptr<BodySource> source_;
  std::string piece_;
  bool is_chunked_ = true, is_writing_ = false, is_last_ = false;
};

}  // namespace kvblocks::sim::http_session

#endif  // KVBLOCKS_SIM_SERVE_HTTP_SESSION_H_
