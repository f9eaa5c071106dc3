#include "sim/serve/service.h"

#include <arpa/inet.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checks/json_text.h"
#include "sim/report/open_metrics.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kOpenMetricsType =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";
constexpr const char* kPrometheusType = "text/plain; version=0.0.4; charset=utf-8";

struct Route {
  const char* path;
  const char* method;
  bool is_open;     // needs no key
  bool is_control;  // changes the server: not for pages in browsers
};
constexpr Route kRoutes[] = {{"/v1/completions", "POST", false, false},
                             {"/v1/chat/completions", "POST", false, false},
                             {"/v1/models", "GET", false, false},
                             {"/health", "GET", true, false},
                             {"/ping", "GET", true, false},
                             {"/version", "GET", true, false},
                             {"/metrics", "GET", true, false},
                             {"/tokenize", "POST", false, false},
                             {"/detokenize", "POST", false, false},
                             {"/reset_prefix_cache", "POST", false, true},
                             {"/kvsim/faults", "POST", false, true}};

const Route* FindRoute(const std::string& path) {
  for (const Route& route : kRoutes) {
    if (path == route.path) return &route;
  }
  return nullptr;
}

// Takes the same time wherever two texts of one length differ.
bool IsSameKey(std::string_view a, std::string_view b) {
  unsigned different = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    different |= static_cast<unsigned char>(a[i]) ^
                 static_cast<unsigned char>(b[b.empty() ? 0 : i % b.size()]);
  }
  return different == 0;
}

// Whether this Host names a machine as no name of a stranger's domain can: by its address.
bool IsAddress(std::string_view host) {
  if (const size_t end = host.find(']'); !host.empty() && host.front() == '[') {
    return end == host.size() - 1 || (end < host.size() && host[end + 1] == ':');
  }
  const std::string name(host.substr(0, host.find(':')));
  in_addr address;
  return absl::EqualsIgnoreCase(name, "localhost") ||
         inet_pton(AF_INET, name.c_str(), &address) == 1;
}

// A page that a browser shows can send requests to servers of its user. Its browser then says where
// it is from, in Origin; or its own name leads to this server, which Host shows. It cannot send a
// key.
std::optional<ApiError> CheckControl(const HttpRequest& request, bool has_key) {
  const std::string_view origin = request.origin;
  const size_t host = origin.find("://");
  if (!origin.empty() &&
      (host == std::string_view::npos ||
       !absl::EqualsIgnoreCase(std::string(origin.substr(host + 3)), request.host))) {
    return ApiError{.status = 403,
                    .message = absl::StrCat(request.path, ": got a request of a page from ",
                                            request.origin, ", expected none from other pages")};
  }
  if (!has_key && !request.host.empty() && !IsAddress(request.host)) {
    return ApiError{.status = 403,
                    .message = absl::StrCat(request.path, ": got the Host ", request.host,
                                            ", expected an address or localhost; a server with "
                                            "--api-key takes names, too")};
  }
  const std::string type = request.content_type.substr(0, request.content_type.find(';'));
  if (request.path != "/kvsim/faults" ||
      absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type), "application/json")) {
    return std::nullopt;
  }
  return ApiError{.status = 415,
                  .message = absl::StrCat(request.path, ": got Content-Type \"", type,
                                          "\", expected application/json")};
}

HttpReply ErrorReply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = ErrorJson(error)};
  if (error.retry_after_seconds > 0) {
    reply.headers.emplace_back("Retry-After", absl::StrCat(error.retry_after_seconds));
  }
  return reply;
}

ApiError Draining() {
  return {.status = 503,
          .message = "the server is being shut down and takes no new requests",
          .retry_after_seconds = 1};
}

std::string JsonText(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

}  // namespace

std::string PrometheusText(std::string_view open_metrics) {
  std::string out, family;
  const char* suffix = "";
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(open_metrics.data(), open_metrics.size()), '\n')) {
    if (line.empty() || line == "# EOF" || absl::StartsWith(line, "# UNIT ")) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (parts.size() == 4 && parts[0] == "#" && parts[1] == "TYPE") {
      suffix = parts[3] == "counter" ? "_total" : parts[3] == "info" ? "_info" : "";
      absl::StrAppend(&out, "# TYPE ", parts[2], suffix, " ",
                      parts[3] == "info" ? "gauge" : parts[3], "\n");
    } else if (parts.size() == 4 && parts[0] == "#" && parts[1] == "HELP") {
      absl::StrAppend(&out, "# HELP ", parts[2], suffix, " ", parts[3], "\n");
    } else {
      absl::StrAppend(&out, line, "\n");
    }
  }
  return out;
}

// --- Routing ---

void Service::Count(const std::string& path, int status) {
  ++counts_[{FindRoute(path) == nullptr ? "other" : path, status}];
}

void Service::Reply(const std::string& path, Exchange& exchange, HttpReply reply) {
  Count(path, reply.status);
  exchange.Reply(std::move(reply));
}

void Service::ReplyError(const std::string& path, Exchange& exchange, const ApiError& error) {
  Reply(path, exchange, ErrorReply(error));
}

std::optional<HttpReply> Service::CheckHead(const HttpRequest& request) {
  const auto refuse = [&](ApiError error) {
    Count(request.path, error.status);
    return ErrorReply(error);
  };
  const Route* route = FindRoute(request.path);
  if (route == nullptr && !absl::StartsWith(request.path, "/v1/models/")) {
    return refuse({.status = 404,
                   .message = absl::StrCat("there is no ", request.path, " here")});
  }
  if (!options_.api_key.empty() && (route == nullptr || !route->is_open)) {
    absl::string_view key = request.authorization;
    const bool is_bearer = absl::StartsWithIgnoreCase(key, "Bearer ");
    if (is_bearer) key.remove_prefix(7);
    if (!is_bearer || !IsSameKey({key.data(), key.size()}, options_.api_key)) {
      return refuse({.status = 401,
                     .message =
                         "expected the server's key in the header Authorization: Bearer KEY"});
    }
  }
  const char* method = route == nullptr ? "GET" : route->method;
  const bool is_head = request.method == "HEAD" && std::string_view(method) == "GET";
  if (request.method != method && !is_head &&
      !(request.path == "/ping" && request.method == "POST")) {
    return refuse({.status = 405,
                   .message = absl::StrCat(request.path, ": got ", request.method, ", expected ",
                                           method)});
  }
  if (route != nullptr && route->is_control) {
    if (auto error = CheckControl(request, !options_.api_key.empty())) {
      return refuse(*std::move(error));
    }
  }
  return std::nullopt;
}

void Service::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  const std::string path = request.path;
  if (path == "/v1/completions" || path == "/v1/chat/completions") {
    if (is_draining_) return ReplyError(path, *exchange, Draining());
    HandleCompletion(std::move(request), std::move(exchange));
  } else if (path == "/health" || path == "/ping") {
    if (is_draining_) return ReplyError(path, *exchange, Draining());
    Reply(path, *exchange, {.content_type = "text/plain"});
  } else if (path == "/v1/models") {
    Reply(path, *exchange,
          {.body = absl::StrCat("{\"object\":\"list\",\"data\":[", ModelsJson(), "]}")});
  } else if (path == "/version") {
    Reply(path, *exchange,
          {.body = absl::StrCat("{\"version\":", JsonText(options_.version), "}")});
  } else if (path == "/tokenize") {
    HandleTokenize(std::move(request), std::move(exchange));
  } else if (path == "/detokenize") {
    HandleDetokenize(std::move(request), std::move(exchange));
  } else if (path == "/metrics") {
    HandleMetrics(std::move(request), std::move(exchange));
  } else if (path == "/reset_prefix_cache") {
    HandleReset(std::move(exchange));
  } else if (path == "/kvsim/faults") {
    HandleFaults(std::move(request), std::move(exchange));
  } else {
    const std::string name = path.substr(std::string("/v1/models/").size());
    const LoraModule* lora;
    if (const auto error = CheckModel(name, &lora); error || name.empty()) {
      return ReplyError(path, *exchange, error.value_or(ApiError{.status = 404}));
    }
    Reply(path, *exchange, {.body = absl::StrCat("{\"id\":", JsonText(name),
                                                 ",\"object\":\"model\",\"created\":",
                                                 options_.created, ",\"owned_by\":\"kvsim\"}")});
  }
}

std::optional<ApiError> Service::CheckModel(const std::string& model,
                                            const LoraModule** lora) const {
  *lora = nullptr;
  if (model.empty() || model == options_.model) return std::nullopt;
  for (const LoraModule& module : options_.loras) {
    if (model != module.name) continue;
    *lora = &module;
    return std::nullopt;
  }
  return ApiError{.status = 404,
                  .message = absl::StrCat("The model `", model, "` does not exist."),
                  .param = "model"};
}

std::string Service::ModelsJson() const {
  const auto entry = [&](const std::string& name, const std::string& root, bool is_lora) {
    return absl::StrCat("{\"id\":", JsonText(name), ",\"object\":\"model\",\"created\":",
                        options_.created, ",\"owned_by\":\"kvsim\",\"root\":", JsonText(root),
                        ",\"parent\":", is_lora ? JsonText(options_.model) : "null",
                        ",\"max_model_len\":",
                        is_lora ? "null" : absl::StrCat(options_.max_model_len),
                        ",\"permission\":[]}");
  };
  std::string out = entry(options_.model, options_.root, false);
  for (const LoraModule& lora : options_.loras) {
    absl::StrAppend(&out, ",", entry(lora.name, lora.path, true));
  }
  return out;
}

// --- Tokens ---

void Service::HandleTokenize(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  TokenizeRequest asked;
  const LoraModule* lora;
  auto error = parser_.ParseTokenize(request.body, &asked);
  if (!error) error = CheckModel(asked.model, &lora);
  if (error) return ReplyError(request.path, *exchange, *error);
  auto result = std::make_shared<absl::StatusOr<Encoding>>();
  const bool with_pieces = asked.return_token_strs;
  tokenizer_->Run(
      [result, text = std::move(asked.prompt.text), adds_special = asked.adds_special,
       with_pieces](Tokenizer& tokenizer) {
        *result = tokenizer.Encode(text, adds_special, with_pieces);
      },
      [this, result, exchange, with_pieces, path = request.path] {
        if (!result->ok()) {
          return ReplyError(path, *exchange,
                            {.status = 500,
                             .message = std::string(result->status().message())});
        }
        std::string strings = "null";
        if (with_pieces) {
          strings = absl::StrCat(
              "[", absl::StrJoin((*result)->pieces, ",",
                                 [](std::string* out, const std::string& piece) {
                                   AppendJsonString(piece, out);
                                 }),
              "]");
        }
        Reply(path, *exchange,
              {.body = absl::StrCat("{\"count\":", (*result)->tokens.size(),
                                    ",\"max_model_len\":", options_.max_model_len, ",\"tokens\":[",
                                    absl::StrJoin((*result)->tokens, ","),
                                    "],\"token_strs\":", strings, "}")});
      });
}

void Service::HandleDetokenize(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  DetokenizeRequest asked;
  const LoraModule* lora;
  auto error = parser_.ParseDetokenize(request.body, &asked);
  if (!error) error = CheckModel(asked.model, &lora);
  if (error) return ReplyError(request.path, *exchange, *error);
  auto result = std::make_shared<absl::StatusOr<std::vector<std::string>>>();
  tokenizer_->Run(
      [result, tokens = std::move(asked.tokens)](Tokenizer& tokenizer) {
        *result = tokenizer.Pieces(tokens);
      },
      [this, result, exchange, path = request.path] {
        if (!result->ok()) {
          return ReplyError(path, *exchange,
                            {.message = std::string(result->status().message())});
        }
        Reply(path, *exchange,
              {.body = absl::StrCat("{\"prompt\":", JsonText(absl::StrJoin(**result, "")), "}")});
      });
}

// --- What is asked of the engine's thread ---

void Service::HandleMetrics(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (engine_ == nullptr) return exchange->Cut();
  const bool wants_open_metrics = absl::StrContains(request.accept, "application/openmetrics-text");
  engine_->AskMetrics([this, exchange, wants_open_metrics](std::string text,
                                                           const LiveEngine::State& state) {
    loop_->Post([this, exchange, wants_open_metrics, text = std::move(text), state] {
      std::string all = MetricsText(text, state);
      if (!wants_open_metrics) all = PrometheusText(all);
      Reply("/metrics", *exchange,
            {.body = std::move(all),
             .content_type = wants_open_metrics ? kOpenMetricsType : kPrometheusType});
    });
  });
}

std::string Service::MetricsText(std::string text, const LiveEngine::State& state) const {
  constexpr absl::string_view kEnd = "# EOF\n";
  if (absl::EndsWith(text, kEnd)) text.resize(text.size() - kEnd.size());
  OpenMetricsText more({{"model_name", options_.model}, {"engine", "0"}});
  const auto gauge = [&](const char* name, const char* unit, const char* help, double value) {
    more.BeginFamily(name, "gauge", unit, help);
    more.Sample("", {}, absl::StrCat(value));
  };
  gauge("kvsim_clock_lag_seconds", "seconds",
        "How late the last step ended, because the machine is too slow.", state.lag_seconds);
  gauge("kvsim_clock_lag_max_seconds", "seconds", "The most of it so far.", state.max_lag_seconds);
  if (state.num_checks > 0) {
    more.BeginFamily("kvsim_invariant_checks", "counter", "", "Checks of --check-invariants.");
    more.Sample("_total", {}, absl::StrCat(state.num_checks));
  }
  const Connections connections = connections_();
  gauge("kvsim_connections", "", "Connections now.", static_cast<double>(connections.num_open));
  more.BeginFamily("kvsim_refused_connections", "counter", "",
                   "Connections beyond the most that the server takes.");
  more.Sample("_total", {}, absl::StrCat(connections.num_refused));
  more.BeginFamily("kvsim_crashes", "counter", "", "Crashes that were asked for.");
  more.Sample("_total", {}, absl::StrCat(num_crashes_));
  more.BeginFamily("kvsim_http_answers", "counter", "", "Answers, by path and status.");
  for (const auto& [key, count] : counts_) {
    more.Sample("_total", {{"path", key.first}, {"status", absl::StrCat(key.second)}},
                absl::StrCat(count));
  }
  if (options_.loras.empty()) return absl::StrCat(text, more.Finish());
  // As vLLM's: without the labels of the others, and its value is the time.
  OpenMetricsText loras({});
  loras.BeginFamily("vllm:lora_requests_info", "gauge", "",
                    "Adapters of requests that run and that wait.");
  loras.Sample("",
               {{"max_lora", absl::StrCat(options_.loras.size())},
                {"waiting_lora_adapters", absl::StrJoin(state.waiting_loras, ",")},
                {"running_lora_adapters", absl::StrJoin(state.running_loras, ",")}},
               absl::StrCat(std::time(nullptr)));
  std::string lines = loras.Finish();
  lines.resize(lines.size() - kEnd.size());
  return absl::StrCat(text, lines, more.Finish());
}

void Service::HandleReset(std::shared_ptr<Exchange> exchange) {
  if (engine_ == nullptr) return exchange->Cut();
  engine_->ResetPrefixCache([this, exchange](bool is_done) {
    loop_->Post([this, exchange, is_done] {
      Reply("/reset_prefix_cache", *exchange,
            {.body = is_done ? "{\"success\":true}" : "{\"success\":false}"});
    });
  });
}

void Service::HandleFaults(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (const auto error = parser_.ParseFaults(request.body, &faults_)) {
    return ReplyError(request.path, *exchange, *error);
  }
  Reply(request.path, *exchange,
        {.body = absl::StrCat("{\"delay_seconds\":", faults_.delay_seconds,
                              ",\"error_rate\":", faults_.error_rate,
                              ",\"cut_rate\":", faults_.cut_rate, "}")});
  if (const auto seconds = std::exchange(faults_.crash_seconds, std::nullopt)) {
    // The answer goes out first.
    loop_->After(std::chrono::milliseconds(50), [this, seconds] { Crash(*seconds); });
  }
}

}  // namespace kvblocks::sim
