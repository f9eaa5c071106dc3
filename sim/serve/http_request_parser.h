// RequestParser: Beast's parser of one HTTP request, with this server's limits. Included by
// http_session.h alone.
//
// It keeps of a head what handlers read, and no other field. A body grows as it comes, and every
// growth asks `may_hold` first, so that what a client announces costs nothing. Requests whose end
// two servers could see at different places are refused: a transfer coding other than "chunked"
// alone, one in HTTP/1.0, two Content-Length, two Host.
//
// Always: memory is at most that of the head's kept fields and of the body's bytes so far, twice.
// Beast stops at a head of header_limit and a body of body_limit; lines between chunks and behind
// the last are as long as the buffer that is parsed from.

#ifndef KVBLOCKS_SIM_SERVE_HTTP_REQUEST_PARSER_H_
#define KVBLOCKS_SIM_SERVE_HTTP_REQUEST_PARSER_H_

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "absl/strings/str_cat.h"
#include "sim/serve/api_request.h"
#include "sim/serve/http.h"

namespace kvblocks::sim::http_session {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Code = beast::error_code;

class RequestParser final : public http::basic_parser<true> {
 public:
  static constexpr int kMaxFields = 256;

  // `may_hold` gets the bytes that the body will take, and returns whether it may.
  explicit RequestParser(std::function<bool(int64_t bytes)> may_hold)
      : may_hold_(std::move(may_hold)) {}

  HttpRequest& request() { return request_; }
  unsigned version() const { return version_; }
  bool is_head_method() const { return is_head_method_; }
  bool expects_continue() const { return expects_continue_ && version_ >= 11; }
  // Why parsing ended with an error, where this class says so and not Beast.
  const std::optional<ApiError>& refusal() const { return refusal_; }

 private:
  using string_view = beast::string_view;

  // The fields of a head that handlers read.
  static constexpr std::pair<const char*, std::string HttpRequest::*> kKept[] = {
      {"Host", &HttpRequest::host},
      {"Origin", &HttpRequest::origin},
      {"Content-Type", &HttpRequest::content_type},
      {"Authorization", &HttpRequest::authorization},
      {"Accept", &HttpRequest::accept},
      {"X-Request-Id", &HttpRequest::request_id}};

  void Refuse(ApiError error, Code& code) {
    refusal_ = std::move(error);
    code = http::error::bad_value;
  }
  static std::string TextOf(string_view text) { return std::string(text.data(), text.size()); }

  void on_request_impl(http::verb method, string_view name, string_view target, int version,
                       Code&) override {
    is_head_method_ = method == http::verb::head;
    version_ = static_cast<unsigned>(version);
    request_.method = TextOf(name);
    request_.path = TextOf(target.substr(0, target.find('?')));
  }
  void on_response_impl(int, string_view, int, Code&) override {}

  void on_field_impl(http::field name, string_view text, string_view value, Code& code) override {
    if (is_header_done()) return;  // behind the last chunk
    if (++num_fields_ > kMaxFields) {
      return Refuse({.status = 431,
                     .message = absl::StrCat("the head of the request has more than ", kMaxFields,
                                             " fields")},
                    code);
    }
    switch (name) {
      case http::field::transfer_encoding:
        if (version_ < 11 || has_coding_) {
          return Refuse({.message = version_ < 11 ? "Transfer-Encoding: HTTP/1.0 has none"
                                                  : "Transfer-Encoding: is there twice"},
                        code);
        }
        has_coding_ = true;
        if (beast::iequals(value, "chunked")) return;
        return Refuse({.status = 501,
                       .message = absl::StrCat("Transfer-Encoding: got \"",
                                               TextOf(value.substr(0, 40)),
                                               "\", expected \"chunked\" or none")},
                      code);
      case http::field::content_length:
        if (std::exchange(has_length_, true) || value.find(',') != string_view::npos) {
          Refuse({.message = "Content-Length: is there twice"}, code);
        }
        return;
      case http::field::host:
        if (std::exchange(has_host_, true))
          return Refuse({.message = "Host: is there twice"}, code);
        break;
      case http::field::expect:
        expects_continue_ = beast::iequals(value, "100-continue");
        return;
      default:
        break;
    }
    for (const auto& [kept, to] : kKept) {
      if (beast::iequals(text, kept)) request_.*to = TextOf(value);
    }
  }
  void on_header_impl(Code&) override {}

  void on_body_init_impl(const boost::optional<uint64_t>& length, Code&) override {
    announced_ = length.value_or(UINT64_MAX);
  }
  size_t on_body_impl(string_view piece, Code& code) override { return Append(piece, code); }
  void on_chunk_header_impl(uint64_t, string_view, Code&) override {}
  size_t on_chunk_body_impl(uint64_t, string_view piece, Code& code) override {
    return Append(piece, code);
  }
  void on_finish_impl(Code&) override {}

  size_t Append(string_view piece, Code& code) {
    std::string& body = request_.body;
    const size_t needed = body.size() + piece.size();
    if (needed > body.capacity()) {
      const auto doubled = std::min<uint64_t>(2 * body.capacity(), announced_);
      const size_t wanted = std::max<size_t>(needed, doubled);
      if (!may_hold_(static_cast<int64_t>(wanted))) {
        Refuse({.status = 503,
                .message = "the server holds too many request bodies; try again"},
               code);
        return 0;
      }
      body.reserve(wanted);
    }
    body.append(piece.data(), piece.size());
    return piece.size();
  }

  const std::function<bool(int64_t)> may_hold_;
  HttpRequest request_;
  std::optional<ApiError> refusal_;
  uint64_t announced_ = 0;
  unsigned version_ = 11;
  int num_fields_ = 0;
  bool is_head_method_ = false, expects_continue_ = false;
  bool has_coding_ = false, has_length_ = false, has_host_ = false;
};

}  // namespace kvblocks::sim::http_session

#endif  // KVBLOCKS_SIM_SERVE_HTTP_REQUEST_PARSER_H_
