#include "sim/serve/http.h"

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "sim/serve/http_session.h"

namespace kvblocks::sim {

namespace {

using namespace http_session;  // NOLINT: a part of this file

absl::Status Unavailable(const std::string& what, const Code& code) {
  return absl::UnavailableError(absl::StrCat(what, ": ", code.message()));
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(const HttpLimits& limits) : shared(limits), signals(shared.io) {}

  struct Entry {
    Entry(asio::io_context& io, HttpHandler* to) : acceptor(io), retry(io), handler(to) {}
    tcp::acceptor acceptor;
    asio::steady_timer retry;
    tcp::endpoint endpoint;
    HttpHandler* handler;
  };

  absl::Status Open(size_t index) {
    Entry& entry = *entries[index];
    Code code;
    const std::string name = absl::StrCat(entry.endpoint.address().to_string(), ":",
                                          entry.endpoint.port());
    entry.acceptor.open(entry.endpoint.protocol(), code);
    if (!code) entry.acceptor.set_option(tcp::acceptor::reuse_address(true), code);
    if (!code) entry.acceptor.bind(entry.endpoint, code);
    if (!code) entry.acceptor.listen(4096, code);
    if (!code) entry.endpoint = entry.acceptor.local_endpoint(code);
    if (code) {
      Code ignored;
      entry.acceptor.close(ignored);
      return Unavailable(absl::StrCat("cannot listen on ", name), code);
    }
    Accept(index);
    return absl::OkStatus();
  }

  void Accept(size_t index) {
    Entry& entry = *entries[index];
    entry.acceptor.async_accept([this, index](Code code, tcp::socket socket) {
      Entry& at = *entries[index];
      if (!at.acceptor.is_open()) return;
      if (code) {
        // Out of descriptors, or the client went: not to be tried at once.
        at.retry.expires_after(std::chrono::milliseconds(20));
        at.retry.async_wait([this, index](Code cancelled) {
          if (!cancelled && entries[index]->acceptor.is_open()) Accept(index);
        });
        return;
      }
      if (static_cast<int64_t>(shared.sessions.size()) >= shared.limits.max_connections) {
        RefuseConnection(std::move(socket));
      } else {
        std::make_shared<Session>(std::move(socket), &shared, static_cast<int>(index), at.handler)
            ->Start();
      }
      Accept(index);
    });
  }

  // What fits the socket's buffer; nobody waits for the client.
  void RefuseConnection(tcp::socket socket) {
    ++shared.num_refused;
    http::response<http::string_body> reply(http::status::service_unavailable, 11);
    reply.set(http::field::content_type, "application/json");
    reply.set(http::field::retry_after, "1");
    reply.keep_alive(false);
    reply.body() = ErrorJson({.status = 503,
                              .message = "the server has too many connections; try again"});
    reply.prepare_payload();
    std::ostringstream text;
    text << reply;
    Code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text.str()), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void WaitForSignal() {
    signals.async_wait([this](Code code, int) {
      if (code) return;
      on_signal();
      WaitForSignal();
    });
  }

  Shared shared;
  std::vector<std::unique_ptr<Entry>> entries;
  asio::signal_set signals;
  std::function<void()> on_signal;
};

HttpServer::HttpServer(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}

HttpServer::~HttpServer() {
  // A stream and its connection hold each other until one of them ends.
  const std::set<Session*> sessions = impl_->shared.sessions;
  for (Session* session : sessions) session->shared_from_this()->Cut();
}

absl::StatusOr<int> HttpServer::Listen(const std::string& host, int port, HttpHandler* handler) {
  Code code;
  const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, code);
  if (code) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host: got \"", host, "\", expected an address like 127.0.0.1 or 0.0.0.0"));
  }
  auto entry = std::make_unique<Impl::Entry>(impl_->shared.io, handler);
  entry->endpoint = tcp::endpoint(address, static_cast<uint16_t>(port));
  impl_->entries.push_back(std::move(entry));
  if (absl::Status status = impl_->Open(impl_->entries.size() - 1); !status.ok()) {
    impl_->entries.pop_back();
    return status;
  }
  return static_cast<int>(impl_->entries.size()) - 1;
}

int HttpServer::port(int entry) const {
  return impl_->entries[static_cast<size_t>(entry)]->endpoint.port();
}

void HttpServer::SetUp(int entry, bool is_up) {
  const auto index = static_cast<size_t>(entry);
  if (is_up) {
    if (impl_->shared.is_closing || impl_->entries[index]->acceptor.is_open()) return;
    if (!impl_->Open(index).ok()) After(std::chrono::seconds(1), [=, this] { SetUp(entry, true); });
    return;
  }
  Code ignored;
  impl_->entries[index]->acceptor.close(ignored);
  const std::set<Session*> sessions = impl_->shared.sessions;
  for (Session* session : sessions) {
    if (session->entry() == entry) session->shared_from_this()->Cut();
  }
}

void HttpServer::CloseGently() {
  impl_->shared.is_closing = true;
  Code ignored;
  for (auto& entry : impl_->entries) entry->acceptor.close(ignored);
  const std::set<Session*> sessions = impl_->shared.sessions;
  for (Session* session : sessions) {
    if (session->is_waiting()) session->shared_from_this()->Close();
  }
}

void HttpServer::OnSignal(std::function<void()> call) {
  impl_->on_signal = std::move(call);
  impl_->signals.add(SIGTERM);
  impl_->signals.add(SIGINT);
  impl_->WaitForSignal();
}

void HttpServer::Run() { impl_->shared.io.run(); }
void HttpServer::Stop() { impl_->shared.io.stop(); }

void HttpServer::Post(std::function<void()> task) { asio::post(impl_->shared.io, std::move(task)); }

void HttpServer::After(std::chrono::duration<double> delay, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->shared.io, AsDuration(delay.count()));
  timer->async_wait([timer, task = std::move(task)](Code code) {
    if (!code) task();
  });
}

int64_t HttpServer::num_connections() const {
  return static_cast<int64_t>(impl_->shared.sessions.size());
}
int64_t HttpServer::num_refused() const { return impl_->shared.num_refused; }

}  // namespace kvblocks::sim
