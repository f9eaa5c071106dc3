// What a client asks for: the bodies of the OpenAI API, parsed and checked.
//
//   ApiParser parser({.max_prompts = 64});
//   CompletionRequest request;
//   if (auto error = parser.ParseCompletion(body, /*is_chat=*/true, &request)) Reply(*error);
//
// A field is honoured, ignored because pseudo tokens do not depend on it (temperature, top_p, seed
// and their kin; their types are checked), or refused with a message (logprobs, best_of,
// response_format of JSON, ...). docs/serve.md has the list. Fields that are not known are ignored,
// as vLLM ignores them; null means absent.
//
// Always: a refused body leaves nothing behind but the error. A body may nest 64 levels deep.
// Cost: about a nanosecond per byte. Single-threaded.

#ifndef KVBLOCKS_SIM_SERVE_API_REQUEST_H_
#define KVBLOCKS_SIM_SERVE_API_REQUEST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/block.h"

namespace kvblocks::sim {

// An answer that is an error, as OpenAI's API writes them.
struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};                     // the field; empty: none
  int retry_after_seconds = 0;  // 0: says nothing
};

// Text, or token ids that are taken as they are.
struct PromptInput {
  std::string text = {};
  std::vector<TokenId> tokens = {};
  bool is_tokens = false;
};

struct CompletionRequest {
  bool is_chat = false;
  std::string model = {};  // empty: the client named none
  std::vector<PromptInput> prompts = {};
  // Of a chat: the text of the last message, which --answer=echo repeats.
  std::string last_message = {};
  int64_t n = 1;  // answers per prompt
  std::optional<int64_t> max_tokens = std::nullopt;
  int64_t min_tokens = 0;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool echo = false;
  bool ignore_eos = false;
  std::vector<std::string> stop = {};
  std::vector<TokenId> stop_token_ids = {};
  bool include_stop = false;  // the stop text stays in the answer
  int32_t priority = 0;
  std::string cache_salt = {};
  std::string request_id = {};
  bool adds_special = true;  // tokens around a text, as a tokenizer has them
};

struct TokenizeRequest {
  std::string model = {};
  PromptInput prompt = {};
  bool adds_special = true;  // a chat says itself where messages begin
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model = {};
  std::vector<TokenId> tokens = {};
};

struct Faults {
  double delay_seconds = 0;  // before a request is looked at
  double error_rate = 0;     // share of requests that are answered by an error 500
  double cut_rate = 0;       // share of requests whose connection is cut inside the answer
  // Be gone for so long now, then come back empty.
  std::optional<double> crash_seconds = std::nullopt;
};

// Messages as one text: "<|ROLE|>\nTEXT\n" each, "<|tools|>\nJSON\n" before them where there are
// tools, and "<|assistant|>\n" behind them.
class ApiParser {
 public:
  struct Limits {
    int64_t max_prompts = 128;  // of one body
    int64_t max_answers = 128;  // prompts times n
  };
  explicit ApiParser(const Limits& limits);
  ~ApiParser();
  ApiParser(const ApiParser&) = delete;
  ApiParser& operator=(const ApiParser&) = delete;

  // Each: empty, or why the body is refused.
  std::optional<ApiError> ParseCompletion(std::string_view body, bool is_chat,
                                          CompletionRequest* out);
  std::optional<ApiError> ParseTokenize(std::string_view body, TokenizeRequest* out);
  std::optional<ApiError> ParseDetokenize(std::string_view body, DetokenizeRequest* out);
  // What the body does not name stays.
  std::optional<ApiError> ParseFaults(std::string_view body, Faults* out);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_API_REQUEST_H_
