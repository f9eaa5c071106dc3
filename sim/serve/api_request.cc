#include "kvblocks/sim/serve/api_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/serve/api_fields.h"

namespace kvblocks::sim {
namespace {

using namespace api_fields;  // NOLINT: a part of this file

constexpr size_t kDeepest = 64;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxSaltBytes = 4096;
constexpr size_t kMaxTextBytes = 256;  // of names
constexpr size_t kMaxTokenizeBytes = size_t{4} << 20;  // whose pieces take ten times as much
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// A parser keeps memory for the longest body so far; behind this it is given back.
constexpr size_t kKeptBytes = size_t{1} << 20;
constexpr size_t kMaxFields = 1024;  // of a body: each is looked at some 60 times

Error ReadTokens(const std::string& name, const dom::array& list, std::vector<TokenId>* out) {
  out->reserve(list.size());
  for (const dom::element value : list) {
    int64_t token;
    if (value.get(token) != simdjson::SUCCESS || token < 0 || token > kMaxInt32) {
      return Wrong(name, value, absl::StrCat("token ids from 0 to ", kMaxInt32));
    }
    out->push_back(static_cast<TokenId>(token));
  }
  return std::nullopt;
}

// A text, a list of texts, a list of token ids, or a list of such lists.
Error ReadPrompts(const dom::element& value, int64_t most, std::vector<PromptInput>* out) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) {
    out->push_back({.text = std::string(text)});
    return std::nullopt;
  }
  dom::array list;
  if (value.get(list) != simdjson::SUCCESS) {
    return Wrong("prompt", value, "a text, a list of texts, token ids, or a list of lists of them");
  }
  if (list.begin() == list.end()) return Wrong("prompt", value, "a prompt that is not empty");
  const dom::element first = *list.begin();
  if (first.is_number()) {
    out->push_back({.is_tokens = true});
    return ReadTokens("prompt", list, &out->back().tokens);
  }
  for (const dom::element element : list) {
    if (static_cast<int64_t>(out->size()) == most) {
      return Bad("prompt", absl::StrCat("prompt: got more than ", most, " prompts in one body"));
    }
    dom::array tokens;
    if (element.get(text) == simdjson::SUCCESS) {
      out->push_back({.text = std::string(text)});
    } else if (element.get(tokens) == simdjson::SUCCESS) {
      out->push_back({.is_tokens = true});
      if (Error error = ReadTokens("prompt", tokens, &out->back().tokens)) return error;
    } else {
      return Wrong("prompt", element, "texts, or lists of token ids");
    }
  }
  return std::nullopt;
}

Error ReadContent(const std::string& name, const dom::element& value, std::string* out) {
  std::string_view text;
  dom::array parts;
  if (value.get(text) == simdjson::SUCCESS) {
    *out = std::string(text);
    return std::nullopt;
  }
  if (value.get(parts) != simdjson::SUCCESS) {
    return Wrong(name, value, "a text or a list of parts");
  }
  for (const dom::element part : parts) {
    dom::object object;
    if (part.get(object) != simdjson::SUCCESS) return Wrong(name, part, "parts that are objects");
    const Fields fields(object, absl::StrCat(name, "."));
    std::string type = "text", piece;
    if (Error error = fields.Text("type", kMaxTextBytes, &type)) return error;
    if (type != "text" && type != "input_text" && type != "refusal") {
      return Bad(name, absl::StrCat(name, ": got a part of type \"", type,
                                    "\", expected text: images and sounds are not simulated"));
    }
    const char* key = type == "refusal" ? "refusal" : "text";
    if (!fields.Find(key)) return Bad(name, absl::StrCat(name, ".", key, ": is missing"));
    if (Error error = fields.Text(key, SIZE_MAX, &piece)) return error;
    absl::StrAppend(out, piece);
  }
  return std::nullopt;
}

Error ReadMessages(const dom::object& body, const Fields& fields, std::string* rendered,
                   std::string* last) {
  const auto value = fields.Find("messages");
  if (!value) return Bad("messages", "messages: is missing, expected a list of messages");
  dom::array messages;
  if (value->get(messages) != simdjson::SUCCESS || messages.begin() == messages.end()) {
    return Wrong("messages", *value, "a list of at least one message");
  }
  dom::element tools;
  dom::array tool_list;
  if (body["tools"].get(tools) == simdjson::SUCCESS && tools.get(tool_list) == simdjson::SUCCESS &&
      tool_list.begin() != tool_list.end()) {
    absl::StrAppend(rendered, "<|tools|>\n", std::string(simdjson::minify(tools)), "\n");
  }
  size_t index = 0;
  for (const dom::element element : messages) {
    const std::string name = absl::StrCat("messages[", index++, "]");
    dom::object object;
    if (element.get(object) != simdjson::SUCCESS) return Wrong(name, element, "an object");
    const Fields message(object, absl::StrCat(name, "."));
    std::string role;
    if (Error error = message.Text("role", kMaxTextBytes, &role)) return error;
    if (role.empty()) return Bad(name, absl::StrCat(name, ".role: is missing"));
    last->clear();
    if (const auto content = message.Find("content")) {
      if (Error error = ReadContent(absl::StrCat(name, ".content"), *content, last)) return error;
    }
    absl::StrAppend(rendered, "<|", role, "|>\n", *last, "\n");
    if (const auto calls = message.Find("tool_calls")) {
      absl::StrAppend(rendered, std::string(simdjson::minify(*calls)), "\n");
    }
  }
  bool adds_prompt = true;
  if (Error error = fields.Flag("add_generation_prompt", &adds_prompt)) return error;
  if (adds_prompt) absl::StrAppend(rendered, "<|assistant|>\n");
  if (Error error = fields.Refuse("chat_template", "messages become one text in one way here")) {
    return error;
  }
  bool goes_on = false;
  if (Error error = fields.Flag("continue_final_message", &goes_on)) return error;
  if (goes_on) {
    return Bad("continue_final_message",
               "continue_final_message: got true, expected false: an answer is a message of its own");
  }
  return std::nullopt;
}

Error ReadStops(const Fields& fields, CompletionRequest* out) {
  const auto add = [&](std::string_view text) -> Error {
    if (text.empty() || text.size() > kMaxStopBytes || out->stop.size() == kMaxStops) {
      return Bad("stop", absl::StrCat("stop: expected at most ", kMaxStops, " texts of 1 to ",
                                      kMaxStopBytes, " bytes"));
    }
    out->stop.emplace_back(text);
    return std::nullopt;
  };
  if (const auto value = fields.Find("stop")) {
    std::string_view text;
    dom::array list;
    if (value->get(text) == simdjson::SUCCESS) {
      if (Error error = add(text)) return error;
    } else if (value->get(list) == simdjson::SUCCESS) {
      for (const dom::element element : list) {
        if (element.get(text) != simdjson::SUCCESS) return Wrong("stop", element, "texts");
        if (Error error = add(text)) return error;
      }
    } else {
      return Wrong("stop", *value, "a text or a list of texts");
    }
  }
  if (const auto value = fields.Find("stop_token_ids")) {
    dom::array list;
    if (value->get(list) != simdjson::SUCCESS || list.size() > kMaxStops) {
      return Wrong("stop_token_ids", *value, absl::StrCat("at most ", kMaxStops, " token ids"));
    }
    if (Error error = ReadTokens("stop_token_ids", list, &out->stop_token_ids)) return error;
  }
  return fields.Flag("include_stop_str_in_output", &out->include_stop);
}

// What pseudo tokens cannot do.
Error RefuseOthers(const Fields& fields, int64_t n) {
  const struct {
    const char* key;
    const char* why;
  } refused[] = {
      {"prompt_logprobs", "pseudo tokens have no probabilities"},
      {"top_logprobs", "pseudo tokens have no probabilities"},
      {"use_beam_search", "there are no beams of pseudo tokens"},
      {"suffix", "insertion is not simulated"},
      {"prompt_embeds", "prompts are texts or token ids here"},
      {"structured_outputs", "pseudo text follows no grammar"},
      {"guided_json", "pseudo text follows no grammar"},
      {"guided_regex", "pseudo text follows no grammar"},
      {"guided_choice", "pseudo text follows no grammar"},
      {"guided_grammar", "pseudo text follows no grammar"},
      {"functions", "it is the form before tools, which are taken"},
      {"audio", "sounds are not simulated"},
      {"kv_transfer_params", "prefill and decode happen on one replica here"},
  };
  for (const auto& field : refused) {
    if (Error error = fields.Refuse(field.key, field.why)) return error;
  }
  // Completions count them, and 0 asks for those of the tokens themselves.
  if (const auto value = fields.Find("logprobs")) {
    bool flag = true;
    if (value->get(flag) != simdjson::SUCCESS || flag) {
      return Wrong("logprobs", *value, "none: pseudo tokens have no probabilities");
    }
  }
  int64_t best_of = n;
  if (Error error = fields.Integer("best_of", 1, kMaxInt32, &best_of)) return error;
  if (best_of != n) {
    return Bad("best_of", absl::StrCat("best_of: got ", best_of, ", expected n, which is ", n,
                                       ": no pseudo answer is better than another"));
  }
  if (const auto format = fields.Find("response_format")) {
    dom::object object;
    std::string type;
    if (format->get(object) != simdjson::SUCCESS) {
      return Wrong("response_format", *format, "an object");
    }
    if (Error error = Fields(object, "response_format.").Text("type", kMaxTextBytes, &type)) {
      return error;
    }
    if (type != "text") {
      return Bad("response_format", absl::StrCat("response_format: got type \"", type,
                                                 "\", expected \"text\": pseudo text is no JSON"));
    }
  }
  if (const auto choice = fields.Find("tool_choice")) {
    std::string_view text;
    if (choice->get(text) != simdjson::SUCCESS || (text != "auto" && text != "none")) {
      return Wrong("tool_choice", *choice, "\"auto\" or \"none\": pseudo answers call no tool");
    }
  }
  if (const auto tools = fields.Find("tools"); tools && !tools->is_array()) {
    return Wrong("tools", *tools, "a list");
  }
  // Ignored, but a client that writes nonsense shall know.
  double ignored;
  for (const char* key : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                          "repetition_penalty", "length_penalty"}) {
    if (Error error = fields.Number(key, -1e9, 1e9, &ignored)) return error;
  }
  int64_t ignored_integer;
  for (const char* key : {"seed", "top_k"}) {
    if (Error error = fields.Integer(key, std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max(), &ignored_integer)) {
      return error;
    }
  }
  return std::nullopt;
}

Error ReadStreaming(const Fields& fields, CompletionRequest* out) {
  if (Error error = fields.Flag("stream", &out->stream)) return error;
  const auto options = fields.Find("stream_options");
  if (!options) return std::nullopt;
  dom::object object;
  if (options->get(object) != simdjson::SUCCESS) return Wrong("stream_options", *options, "an object");
  if (!out->stream) {
    return Bad("stream_options", "stream_options: set without stream, expected it beside stream");
  }
  const Fields inner(object, "stream_options.");
  if (Error error = inner.Flag("include_usage", &out->include_usage)) return error;
  return inner.Flag("continuous_usage_stats", &out->continuous_usage);
}

Error ReadLengths(const Fields& fields, CompletionRequest* out) {
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    int64_t most = -1;
    if (Error error = fields.Integer(key, 1, kMaxInt32, &most)) return error;
    if (most > 0) out->max_tokens = most;
  }
  if (!out->is_chat && !out->max_tokens) out->max_tokens = 16;  // as the API has it
  if (Error error = fields.Integer("min_tokens", 0, kMaxInt32, &out->min_tokens)) return error;
  if (out->max_tokens && out->min_tokens > *out->max_tokens) {
    return Bad("min_tokens", absl::StrCat("min_tokens: got ", out->min_tokens,
                                          ", expected at most max_tokens, which is ",
                                          *out->max_tokens));
  }
  return fields.Flag("ignore_eos", &out->ignore_eos);
}

}  // namespace

class ApiParser::Impl {
 public:
  explicit Impl(const Limits& most) : limits(most) {}

  // Gives back what a long body took, when it goes.
  class Use {
   public:
    explicit Use(Impl* impl) : impl_(impl) {}
    ~Use() {
      if (impl_->text.size() <= kKeptBytes) return;
      impl_->parser = std::make_unique<dom::parser>();
      std::string().swap(impl_->text);
    }

   private:
    Impl* const impl_;
  };

  // The body as one object, good until the next call or the end of a Use.
  Error Parse(std::string_view body, dom::object* out) {
    text.assign(body.data(), body.size());
    text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
    dom::element root;
    simdjson::error_code error = parser->allocate(std::max<size_t>(text.size(), 1024), kDeepest);
    if (error == simdjson::SUCCESS) error = parser->parse(text.data(), text.size(), false).get(root);
    if (error != simdjson::SUCCESS) {
      return Bad("", absl::StrCat("the body is no JSON: ", simdjson::error_message(error)));
    }
    if (root.get(*out) != simdjson::SUCCESS) return Wrong("the body", root, "an object");
    if (out->size() > kMaxFields) {
      return Bad("", absl::StrCat("the body has ", out->size(), " fields, expected at most ",
                                  kMaxFields));
    }
    return std::nullopt;
  }

  // A prompt or, for a chat, its messages.
  Error ReadInput(const dom::object& object, const Fields& fields, int64_t most,
                  std::vector<PromptInput>* prompts, std::string* last) const {
    if (fields.Find("messages")) {
      prompts->emplace_back();
      return ReadMessages(object, fields, &prompts->back().text, last);
    }
    const auto prompt = fields.Find("prompt");
    if (!prompt) return Bad("prompt", "prompt: is missing");
    return ReadPrompts(*prompt, most, prompts);
  }

  const Limits limits;
  std::unique_ptr<dom::parser> parser = std::make_unique<dom::parser>();
  std::string text;
};

ApiParser::ApiParser(const Limits& limits) : impl_(std::make_unique<Impl>(limits)) {}
ApiParser::~ApiParser() = default;

Error ApiParser::ParseCompletion(std::string_view body, bool is_chat, CompletionRequest* out) {
  const Impl::Use use(impl_.get());
  dom::object object;
  if (Error error = impl_->Parse(body, &object)) return error;
  const Fields fields(object);
  CompletionRequest request;
  request.is_chat = is_chat;
  if (Error error = fields.Text("model", kMaxTextBytes, &request.model)) return error;
  if (Error error = fields.Integer("n", 1, impl_->limits.max_answers, &request.n)) return error;
  if (is_chat && !fields.Find("messages")) {
    return Bad("messages", "messages: is missing, expected a list of messages");
  }
  if (!is_chat && fields.Find("messages")) {
    return Bad("messages", "messages: belong to /v1/chat/completions, expected prompt");
  }
  if (Error error = impl_->ReadInput(object, fields, impl_->limits.max_prompts, &request.prompts,
                                     &request.last_message)) {
    return error;
  }
  if (const auto answers = static_cast<int64_t>(request.prompts.size()) * request.n;
      answers > impl_->limits.max_answers) {
    return Bad("n", absl::StrCat("n: ", request.prompts.size(), " prompts with ", request.n,
                                 " answers each, expected at most ", impl_->limits.max_answers,
                                 " answers"));
  }
  if (Error error = ReadStreaming(fields, &request)) return error;
  if (Error error = ReadLengths(fields, &request)) return error;
  if (Error error = ReadStops(fields, &request)) return error;
  if (Error error = RefuseOthers(fields, request.n)) return error;
  if (Error error = fields.Flag("echo", &request.echo)) return error;
  if (is_chat && request.echo) return Bad("echo", "echo: belongs to /v1/completions");
  int64_t priority = 0;
  if (Error error = fields.Integer("priority", -kMaxInt32, kMaxInt32, &priority)) return error;
  request.priority = static_cast<int32_t>(priority);
  if (Error error = fields.Text("cache_salt", kMaxSaltBytes, &request.cache_salt)) return error;
  if (fields.Find("cache_salt") && request.cache_salt.empty()) {
    return Bad("cache_salt", "cache_salt: got \"\", expected a text that is not empty");
  }
  if (Error error = fields.Text("request_id", kMaxTextBytes, &request.request_id)) return error;
  request.adds_special = !is_chat;
  if (Error error = fields.Flag("add_special_tokens", &request.adds_special)) return error;
  *out = std::move(request);
  return std::nullopt;
}

Error ApiParser::ParseTokenize(std::string_view body, TokenizeRequest* out) {
  const Impl::Use use(impl_.get());
  dom::object object;
  if (Error error = impl_->Parse(body, &object)) return error;
  const Fields fields(object);
  TokenizeRequest request;
  std::vector<PromptInput> prompts;
  std::string last;
  if (Error error = fields.Text("model", kMaxTextBytes, &request.model)) return error;
  if (Error error = impl_->ReadInput(object, fields, 1, &prompts, &last)) return error;
  if (prompts.front().is_tokens) return Bad("prompt", "prompt: got token ids, expected a text");
  if (prompts.front().text.size() > kMaxTokenizeBytes) {
    return Bad("prompt", absl::StrCat("prompt: got ", prompts.front().text.size(),
                                      " bytes, expected at most ", kMaxTokenizeBytes));
  }
  request.adds_special = !fields.Find("messages");
  if (Error error = fields.Flag("add_special_tokens", &request.adds_special)) return error;
  if (Error error = fields.Flag("return_token_strs", &request.return_token_strs)) return error;
  request.prompt = std::move(prompts.front());
  *out = std::move(request);
  return std::nullopt;
}

Error ApiParser::ParseDetokenize(std::string_view body, DetokenizeRequest* out) {
  const Impl::Use use(impl_.get());
  dom::object object;
  if (Error error = impl_->Parse(body, &object)) return error;
  const Fields fields(object);
  DetokenizeRequest request;
  if (Error error = fields.Text("model", kMaxTextBytes, &request.model)) return error;
  const auto tokens = fields.Find("tokens");
  dom::array list;
  if (!tokens || tokens->get(list) != simdjson::SUCCESS) {
    return Bad("tokens", "tokens: expected a list of token ids");
  }
  if (list.size() > kMaxTokenizeBytes) {
    return Bad("tokens", absl::StrCat("tokens: expected at most ", kMaxTokenizeBytes));
  }
  if (Error error = ReadTokens("tokens", list, &request.tokens)) return error;
  *out = std::move(request);
  return std::nullopt;
}

Error ApiParser::ParseFaults(std::string_view body, FaultChange* out) {
  const Impl::Use use(impl_.get());
  dom::object object;
  if (Error error = impl_->Parse(body, &object)) return error;
  const Fields fields(object);
  FaultChange change;
  const struct {
    const char* key;
    double most;
    std::optional<double>* value;
  } rows[] = {{"delay_seconds", 3600, &change.delay_seconds},
              {"error_rate", 1, &change.error_rate},
              {"cut_rate", 1, &change.cut_rate},
              {"crash_seconds", 3600, &change.crash_seconds}};
  for (const dom::key_value_pair field : object) {
    bool is_known = false;
    for (const auto& row : rows) {
      if (field.key != row.key) continue;
      is_known = true;
      double value;
      if (Error error = fields.Number(row.key, 0, row.most, &value)) return error;
      if (fields.Find(row.key)) *row.value = value;
    }
    if (!is_known) {
      return Bad(field.key, absl::StrCat(std::string(field.key),
                                         ": is no fault, expected delay_seconds, error_rate, "
                                         "cut_rate or crash_seconds"));
    }
  }
  *out = change;
  return std::nullopt;
}

}  // namespace kvblocks::sim
