#include "sim/serve/api_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/checked_int64.h"
#include "sim/serve/api_fields.h"

namespace kvblocks::sim {
namespace {

using namespace api_fields;  // NOLINT: a part of this file

constexpr size_t kDeepest = 64;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxSaltBytes = 4096;
constexpr size_t kMaxTextBytes = 256;  // of names
constexpr size_t kMaxTokenizeBytes = size_t{4} << 20;  // whose pieces take ten times as much
// A parser keeps memory for the longest body so far; behind this it is given back.
constexpr size_t kKeptBytes = size_t{1} << 20;
constexpr size_t kMaxFields = 1024;  // of a body: each is looked at some 60 times

void ReadTokens(const Fields& fields, const char* key, const dom::array& list,
                std::vector<TokenId>* out) {
  out->reserve(list.size());
  for (const dom::element value : list) {
    int64_t token;
    if (value.get(token) != simdjson::SUCCESS || token < 0 || token > kMaxInt32) {
      return fields.Wrong(key, value, absl::StrCat("token ids from 0 to ", kMaxInt32));
    }
    out->push_back(static_cast<TokenId>(token));
  }
}

// A text, a list of texts, a list of token ids, or a list of such lists.
void ReadPrompts(const Fields& fields, int64_t most, std::vector<PromptInput>* out) {
  const auto value = fields.Find("prompt");
  if (!value) return fields.Bad("prompt", "is missing");
  std::string_view text;
  if (value->get(text) == simdjson::SUCCESS) {
    out->push_back({.text = std::string(text)});
    return;
  }
  dom::array list;
  if (value->get(list) != simdjson::SUCCESS) {
    return fields.Wrong("prompt", *value,
                        "a text, a list of texts, token ids, or a list of lists of them");
  }
  if (list.begin() == list.end()) {
    return fields.Wrong("prompt", *value, "a prompt that is not empty");
  }
  const dom::element first = *list.begin();
  if (first.is_number()) {
    out->push_back({.is_tokens = true});
    return ReadTokens(fields, "prompt", list, &out->back().tokens);
  }
  for (const dom::element element : list) {
    if (static_cast<int64_t>(out->size()) == most) {
      return fields.Bad("prompt", absl::StrCat("got more than ", most, " prompts in one body"));
    }
    dom::array tokens;
    if (element.get(text) == simdjson::SUCCESS) {
      out->push_back({.text = std::string(text)});
    } else if (element.get(tokens) == simdjson::SUCCESS) {
      out->push_back({.is_tokens = true});
      ReadTokens(fields, "prompt", tokens, &out->back().tokens);
      if (!fields.problem().is_none()) return;
    } else {
      return fields.Wrong("prompt", element, "texts, or lists of token ids");
    }
  }
}

void ReadContent(const std::string& name, const dom::element& value, Problem* problem,
                 std::string* out) {
  std::string_view text;
  dom::array parts;
  if (value.get(text) == simdjson::SUCCESS) {
    *out = std::string(text);
    return;
  }
  if (value.get(parts) != simdjson::SUCCESS) {
    return problem->Wrong(name, value, "a text or a list of parts");
  }
  for (const dom::element part : parts) {
    dom::object object;
    if (part.get(object) != simdjson::SUCCESS) {
      return problem->Wrong(name, part, "parts that are objects");
    }
    const Fields fields(object, problem, absl::StrCat(name, "."));
    std::string type = "text", piece;
    fields.Text("type", kMaxTextBytes, &type);
    if (type != "text" && type != "input_text" && type != "refusal") {
      return problem->Bad(name,
                          absl::StrCat(name, ": got a part of type \"", type,
                                       "\", expected text: images and sounds are not simulated"));
    }
    const char* key = type == "refusal" ? "refusal" : "text";
    if (!fields.Find(key)) {
      return problem->Bad(name, absl::StrCat(name, ".", key, ": is missing"));
    }
    fields.Text(key, SIZE_MAX, &piece);
    if (!problem->is_none()) return;
    absl::StrAppend(out, piece);
  }
}

void ReadMessages(const Fields& fields, std::string* rendered, std::string* last) {
  const auto value = fields.Find("messages");
  dom::array messages;
  if (value->get(messages) != simdjson::SUCCESS || messages.begin() == messages.end()) {
    return fields.Wrong("messages", *value, "a list of at least one message");
  }
  dom::element tools;
  dom::array tool_list;
  if (fields.object()["tools"].get(tools) == simdjson::SUCCESS &&
      tools.get(tool_list) == simdjson::SUCCESS && tool_list.begin() != tool_list.end()) {
    absl::StrAppend(rendered, "<|tools|>\n", std::string(simdjson::minify(tools)), "\n");
  }
  Problem& problem = fields.problem();
  size_t index = 0;
  for (const dom::element element : messages) {
    const std::string name = absl::StrCat("messages[", index++, "]");
    dom::object object;
    if (element.get(object) != simdjson::SUCCESS) return problem.Wrong(name, element, "an object");
    const Fields message(object, &problem, absl::StrCat(name, "."));
    std::string role;
    message.Text("role", kMaxTextBytes, &role);
    if (role.empty()) problem.Bad(name, absl::StrCat(name, ".role: is missing"));
    last->clear();
    if (const auto content = message.Find("content")) {
      ReadContent(absl::StrCat(name, ".content"), *content, &problem, last);
    }
    if (!problem.is_none()) return;
    absl::StrAppend(rendered, "<|", role, "|>\n", *last, "\n");
    if (const auto calls = message.Find("tool_calls")) {
      absl::StrAppend(rendered, std::string(simdjson::minify(*calls)), "\n");
    }
  }
  bool adds_prompt = true;
  fields.Flag("add_generation_prompt", &adds_prompt);
  if (adds_prompt) absl::StrAppend(rendered, "<|assistant|>\n");
  fields.Refuse("chat_template", "messages become one text in one way here");
  bool goes_on = false;
  fields.Flag("continue_final_message", &goes_on);
  if (goes_on) {
    fields.Bad("continue_final_message",
               "got true, expected false: an answer is a message of its own");
  }
}

// A prompt or, for a chat, its messages.
void ReadInput(const Fields& fields, int64_t most, std::vector<PromptInput>* prompts,
               std::string* last) {
  if (!fields.Find("messages")) return ReadPrompts(fields, most, prompts);
  prompts->emplace_back();
  ReadMessages(fields, &prompts->back().text, last);
}

void ReadStops(const Fields& fields, CompletionRequest* out) {
  const auto add = [&](std::string_view text) {
    if (text.empty() || text.size() > kMaxStopBytes || out->stop.size() == kMaxStops) {
      return fields.Bad("stop", absl::StrCat("expected at most ", kMaxStops, " texts of 1 to ",
                                             kMaxStopBytes, " bytes"));
    }
    out->stop.emplace_back(text);
  };
  if (const auto value = fields.Find("stop")) {
    std::string_view text;
    dom::array list;
    if (value->get(text) == simdjson::SUCCESS) {
      add(text);
    } else if (value->get(list) == simdjson::SUCCESS) {
      for (const dom::element element : list) {
        if (element.get(text) != simdjson::SUCCESS) return fields.Wrong("stop", element, "texts");
        add(text);
        if (!fields.problem().is_none()) return;
      }
    } else {
      fields.Wrong("stop", *value, "a text or a list of texts");
    }
  }
  if (const auto value = fields.Find("stop_token_ids")) {
    dom::array list;
    if (value->get(list) != simdjson::SUCCESS || list.size() > kMaxStops) {
      return fields.Wrong("stop_token_ids", *value,
                          absl::StrCat("at most ", kMaxStops, " token ids"));
    }
    ReadTokens(fields, "stop_token_ids", list, &out->stop_token_ids);
  }
  fields.Flag("include_stop_str_in_output", &out->include_stop);
}

// What pseudo tokens cannot do.
void RefuseOthers(const Fields& fields, int64_t n) {
  constexpr struct {
    const char* key;
    const char* why;
  } kRefused[] = {
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
  for (const auto& field : kRefused) fields.Refuse(field.key, field.why);
  // Completions count them, and 0 asks for those of the tokens themselves.
  if (const auto value = fields.Find("logprobs")) {
    bool flag = true;
    if (value->get(flag) != simdjson::SUCCESS || flag) {
      fields.Wrong("logprobs", *value, "none: pseudo tokens have no probabilities");
    }
  }
  int64_t best_of = n;
  fields.Integer("best_of", 1, kMaxInt32, &best_of);
  if (best_of != n) {
    fields.Bad("best_of", absl::StrCat("got ", best_of, ", expected n, which is ", n,
                                       ": no pseudo answer is better than another"));
  }
  if (const auto format = fields.Find<dom::object>("response_format", "an object")) {
    std::string type;
    Fields(*format, &fields.problem(), "response_format.").Text("type", kMaxTextBytes, &type);
    if (type != "text") {
      fields.Bad("response_format", absl::StrCat("got type \"", type,
                                                 "\", expected \"text\": pseudo text is no JSON"));
    }
  }
  if (const auto choice = fields.Find("tool_choice")) {
    std::string_view text;
    if (choice->get(text) != simdjson::SUCCESS || (text != "auto" && text != "none")) {
      fields.Wrong("tool_choice", *choice, "\"auto\" or \"none\": pseudo answers call no tool");
    }
  }
  fields.Find<dom::array>("tools", "a list");
  // Ignored, but a client that writes nonsense shall know.
  double ignored;
  for (const char* key : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                          "repetition_penalty", "length_penalty"}) {
    fields.Number(key, -1e9, 1e9, &ignored);
  }
  int64_t ignored_integer;
  for (const char* key : {"seed", "top_k"}) {
    fields.Integer(key, INT64_MIN, INT64_MAX, &ignored_integer);
  }
}

void ReadStreaming(const Fields& fields, CompletionRequest* out) {
  fields.Flag("stream", &out->stream);
  const auto options = fields.Find<dom::object>("stream_options", "an object");
  if (!options) return;
  if (!out->stream) {
    fields.Bad("stream_options", "set without stream, expected it beside stream");
  }
  const Fields inner(*options, &fields.problem(), "stream_options.");
  inner.Flag("include_usage", &out->include_usage);
  inner.Flag("continuous_usage_stats", &out->continuous_usage);
}

void ReadLengths(const Fields& fields, CompletionRequest* out) {
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    int64_t most = -1;
    fields.Integer(key, 1, kMaxInt32, &most);
    if (most > 0) out->max_tokens = most;
  }
  if (!out->is_chat && !out->max_tokens) out->max_tokens = 16;  // as the API has it
  fields.Integer("min_tokens", 0, kMaxInt32, &out->min_tokens);
  if (out->max_tokens && out->min_tokens > *out->max_tokens) {
    fields.Bad("min_tokens", absl::StrCat("got ", out->min_tokens,
                                          ", expected at most max_tokens, which is ",
                                          *out->max_tokens));
  }
  fields.Flag("ignore_eos", &out->ignore_eos);
}

void ReadCompletion(const Fields& fields, const ApiParser::Limits& limits,
                    CompletionRequest* out) {
  fields.Text("model", kMaxTextBytes, &out->model);
  fields.Integer("n", 1, limits.max_answers, &out->n);
  if (out->is_chat != fields.Find("messages").has_value()) {
    return fields.Bad("messages", out->is_chat
                                      ? "is missing, expected a list of messages"
                                      : "belong to /v1/chat/completions, expected prompt");
  }
  ReadInput(fields, limits.max_prompts, &out->prompts, &out->last_message);
  if (static_cast<int64_t>(out->prompts.size()) * out->n > limits.max_answers) {
    fields.Bad("n", absl::StrCat(out->prompts.size(), " prompts with ", out->n,
                                 " answers each, expected at most ", limits.max_answers,
                                 " answers"));
  }
  ReadStreaming(fields, out);
  ReadLengths(fields, out);
  ReadStops(fields, out);
  RefuseOthers(fields, out->n);
  fields.Flag("echo", &out->echo);
  if (out->is_chat && out->echo) fields.Bad("echo", "belongs to /v1/completions");
  int64_t priority = 0;
  fields.Integer("priority", -kMaxInt32, kMaxInt32, &priority);
  out->priority = static_cast<int32_t>(priority);
  fields.Text("cache_salt", kMaxSaltBytes, &out->cache_salt);
  if (fields.Find("cache_salt") && out->cache_salt.empty()) {
    fields.Bad("cache_salt", "got \"\", expected a text that is not empty");
  }
  fields.Text("request_id", kMaxTextBytes, &out->request_id);
  out->adds_special = !out->is_chat;
  fields.Flag("add_special_tokens", &out->adds_special);
}

}  // namespace

class ApiParser::Impl {
 public:
  explicit Impl(const Limits& most) : limits(most) {}

  // Hands the fields of the body to `read`, which fills a request. It becomes `out` if all is well.
  template <typename Request, typename Read>
  std::optional<ApiError> Parse(std::string_view body, Request* out, const Read& read) {
    Problem problem;
    Request request;
    text_.assign(body.data(), body.size());
    text_.reserve(text_.size() + simdjson::SIMDJSON_PADDING);
    dom::element root;
    dom::object object;
    simdjson::error_code error = parser_->allocate(std::max<size_t>(text_.size(), 1024), kDeepest);
    if (error == simdjson::SUCCESS) {
      error = parser_->parse(text_.data(), text_.size(), false).get(root);
    }
    if (error != simdjson::SUCCESS) {
      problem.Bad("", absl::StrCat("the body is no JSON: ", simdjson::error_message(error)));
    } else if (root.get(object) != simdjson::SUCCESS) {
      problem.Wrong("the body", root, "an object");
    } else if (object.size() > kMaxFields) {
      problem.Bad("", absl::StrCat("the body has ", object.size(), " fields, expected at most ",
                                   kMaxFields));
    } else {
      read(Fields(object, &problem), &request);
    }
    if (problem.is_none()) *out = std::move(request);
    // Gives back what a long body took.
    if (text_.size() > kKeptBytes) {
      parser_ = std::make_unique<dom::parser>();
      std::string().swap(text_);
    }
    return problem.Take();
  }

  const Limits limits;

 private:
  std::unique_ptr<dom::parser> parser_ = std::make_unique<dom::parser>();
  std::string text_;
};

ApiParser::ApiParser(const Limits& limits) : impl_(std::make_unique<Impl>(limits)) {}
ApiParser::~ApiParser() = default;

std::optional<ApiError> ApiParser::ParseCompletion(std::string_view body, bool is_chat,
                                                   CompletionRequest* out) {
  return impl_->Parse(body, out, [&](const Fields& fields, CompletionRequest* request) {
    request->is_chat = is_chat;
    ReadCompletion(fields, impl_->limits, request);
  });
}

std::optional<ApiError> ApiParser::ParseTokenize(std::string_view body, TokenizeRequest* out) {
  return impl_->Parse(body, out, [](const Fields& fields, TokenizeRequest* request) {
    std::vector<PromptInput> prompts;
    std::string last;
    fields.Text("model", kMaxTextBytes, &request->model);
    ReadInput(fields, 1, &prompts, &last);
    if (prompts.empty()) return;  // ReadInput said why
    if (prompts.front().is_tokens) fields.Bad("prompt", "got token ids, expected a text");
    if (prompts.front().text.size() > kMaxTokenizeBytes) {
      fields.Bad("prompt", absl::StrCat("got ", prompts.front().text.size(),
                                        " bytes, expected at most ", kMaxTokenizeBytes));
    }
    request->adds_special = !fields.Find("messages");
    fields.Flag("add_special_tokens", &request->adds_special);
    fields.Flag("return_token_strs", &request->return_token_strs);
    request->prompt = std::move(prompts.front());
  });
}

std::optional<ApiError> ApiParser::ParseDetokenize(std::string_view body, DetokenizeRequest* out) {
  return impl_->Parse(body, out, [](const Fields& fields, DetokenizeRequest* request) {
    fields.Text("model", kMaxTextBytes, &request->model);
    const auto tokens = fields.Find("tokens");
    dom::array list;
    if (!tokens || tokens->get(list) != simdjson::SUCCESS) {
      return fields.Bad("tokens", "expected a list of token ids");
    }
    if (list.size() > kMaxTokenizeBytes) {
      return fields.Bad("tokens", absl::StrCat("expected at most ", kMaxTokenizeBytes));
    }
    ReadTokens(fields, "tokens", list, &request->tokens);
  });
}

std::optional<ApiError> ApiParser::ParseFaults(std::string_view body, Faults* out) {
  return impl_->Parse(body, out, [out](const Fields& fields, Faults* faults) {
    *faults = *out;
    const struct {
      const char* key;
      double most;
      double* value;
    } rows[] = {{"delay_seconds", 3600, &faults->delay_seconds},
                {"error_rate", 1, &faults->error_rate},
                {"cut_rate", 1, &faults->cut_rate},
                {"crash_seconds", 3600, nullptr}};
    for (const dom::key_value_pair field : fields.object()) {
      const auto* row = std::find_if(std::begin(rows), std::end(rows),
                                     [&](const auto& r) { return field.key == r.key; });
      if (row == std::end(rows)) {
        return fields.Bad(field.key,
                          "is no fault, expected delay_seconds, error_rate, cut_rate or "
                          "crash_seconds");
      }
      double value = 0;
      fields.Number(row->key, 0, row->most, row->value != nullptr ? row->value : &value);
      if (row->value == nullptr && fields.Find(row->key)) faults->crash_seconds = value;
    }
  });
}

}  // namespace kvblocks::sim
