#include "sim/serve/answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/json_text.h"

namespace kvblocks::sim {

namespace {

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

// What the API calls an error of this status.
const char* TypeOf(int status) {
  constexpr std::pair<int, const char*> kTypes[] = {{401, "Unauthorized"},
                                                    {403, "Forbidden"},
                                                    {404, "NotFoundError"},
                                                    {405, "MethodNotAllowed"},
                                                    {413, "RequestEntityTooLarge"},
                                                    {415, "UnsupportedMediaType"},
                                                    {431, "RequestHeaderFieldsTooLarge"},
                                                    {500, "InternalServerError"},
                                                    {501, "NotImplementedError"},
                                                    {503, "ServiceUnavailableError"}};
  for (const auto& [of, type] : kTypes) {
    if (of == status) return type;
  }
  return "BadRequestError";
}

}  // namespace

Answer::Answer(const CompletionRequest& request, std::string id, std::string model, int64_t created)
    : is_chat_(request.is_chat),
      stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage) {
  const char* object = !is_chat_  ? "text_completion"
                       : stream_ ? "chat.completion.chunk"
                                 : "chat.completion";
  head_ = absl::StrCat("{\"id\":", Quoted(id), ",\"object\":\"", object, "\",\"created\":", created,
                       ",\"model\":", Quoted(model), ",\"choices\":[");
}

bool Answer::is_ended() const {
  return std::all_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& sequence) { return sequence.is_ended; });
}

std::string Answer::Text(const Sequence& sequence) const {
  std::string text;
  for (int64_t i = 0; i < sequence.num_produced; ++i) text += sequence.plan.piece(i);
  text.resize(std::min(text.size(), sequence.plan.text_bytes));
  return text;
}

// Prompt tokens count once per prompt, whatever n is.
std::string Answer::Usage(bool all) const {
  int64_t prompt = 0, cached = 0, produced = 0, last_prompt = -1;
  for (const Sequence& sequence : sequences_) {
    if (sequence.prompt != last_prompt) {
      prompt += sequence.num_prompt_tokens;
      cached += sequence.num_cached_tokens;
      last_prompt = sequence.prompt;
    }
    produced += all ? sequence.num_produced : sequence.num_written;
  }
  return absl::StrCat("{\"prompt_tokens\":", prompt, ",\"total_tokens\":", prompt + produced,
                      ",\"completion_tokens\":", produced,
                      ",\"prompt_tokens_details\":{\"cached_tokens\":", cached, "}}");
}

std::string Answer::FinishReason(const Sequence& sequence) const {
  if (!sequence.abort_reason.empty()) return sequence.abort_reason;
  return sequence.plan.is_stop ? "\"stop\"" : "\"length\"";
}

void Answer::AppendChoiceEnd(const Sequence& sequence, bool is_last, std::string* out) const {
  absl::StrAppend(out, ",\"logprobs\":null,\"finish_reason\":",
                  is_last ? FinishReason(sequence) : "null", ",\"stop_reason\":",
                  is_last && sequence.abort_reason.empty() ? sequence.plan.stop_reason : "null",
                  "}");
}

std::string Answer::Json() const {
  std::string out = head_;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    absl::StrAppend(&out, i == 0 ? "" : ",", "{\"index\":", i);
    const std::string text =
        absl::StrCat(sequence.echo == nullptr ? "" : *sequence.echo, Text(sequence));
    if (is_chat_) {
      absl::StrAppend(&out, ",\"message\":{\"role\":\"assistant\",\"content\":", Quoted(text),
                      ",\"refusal\":null,\"tool_calls\":[]}");
    } else {
      absl::StrAppend(&out, ",\"text\":", Quoted(text));
    }
    AppendChoiceEnd(sequence, /*is_last=*/true, &out);
  }
  absl::StrAppend(&out, "],\"usage\":", Usage(/*all=*/true), "}");
  return out;
}

void Answer::AppendEvent(size_t index, const char* role, std::string_view text, bool is_last,
                         std::string* out) {
  absl::StrAppend(out, "data: ", head_, "{\"index\":", index, ",",
                  is_chat_ ? absl::StrCat("\"delta\":{", role, "\"content\":") : "\"text\":");
  AppendJsonString(text, out);
  if (is_chat_) out->push_back('}');
  AppendChoiceEnd(sequences_[index], is_last, out);
  out->push_back(']');
  if (continuous_usage_) {
    absl::StrAppend(out, ",\"usage\":", Usage(/*all=*/false));
  } else if (include_usage_) {
    absl::StrAppend(out, ",\"usage\":null");
  }
  absl::StrAppend(out, "}\n\n");
}

BodySource::State Answer::AppendEvents(size_t limit, std::string* out) {
  if (is_done_) return BodySource::State::kEnd;
  if (failure_) {
    absl::StrAppend(out, "data: ", ErrorJson(*failure_), "\n\ndata: [DONE]\n\n");
    is_done_ = true;
    return BodySource::State::kEnd;
  }
  bool all_finished = true;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (out->size() >= limit) return BodySource::State::kMore;
    Sequence& sequence = sequences_[i];
    if (!sequence.is_started && (sequence.num_produced > 0 || sequence.is_ended)) {
      sequence.is_started = true;
      if (is_chat_) {
        AppendEvent(i, "\"role\":\"assistant\",", "", /*is_last=*/false, out);
      } else if (sequence.echo != nullptr) {
        AppendEvent(i, "", *sequence.echo, /*is_last=*/false, out);
      }
    }
    while (sequence.num_written < sequence.num_produced) {
      if (out->size() >= limit) return BodySource::State::kMore;
      const bool is_last = sequence.is_ended && sequence.num_written + 1 == sequence.num_produced;
      // The engine says in one word that the last token came and that it was the last.
      std::string text = std::move(sequence.held);
      sequence.held.clear();
      std::string_view piece = sequence.plan.piece(sequence.num_written);
      piece = piece.substr(0, sequence.plan.text_bytes - std::min(sequence.plan.text_bytes,
                                                                  sequence.num_bytes));
      sequence.num_bytes += piece.size();
      text += piece;
      if (!is_last) {
        const size_t whole = WholeCharacters(text);
        sequence.held = text.substr(whole);
        text.resize(whole);
      }
      ++sequence.num_written;
      AppendEvent(i, "", text, is_last, out);
      sequence.is_finished |= is_last;
    }
    if (sequence.is_ended && !sequence.is_finished) {
      AppendEvent(i, "", sequence.held, /*is_last=*/true, out);
      sequence.is_finished = true;
    }
    all_finished &= sequence.is_finished;
  }
  if (!all_finished) return BodySource::State::kWait;
  if (include_usage_) {
    absl::StrAppend(out, "data: ", head_, "],\"usage\":", Usage(/*all=*/true), "}\n\n");
  }
  absl::StrAppend(out, "data: [DONE]\n\n");
  is_done_ = true;
  return BodySource::State::kEnd;
}

std::string ErrorJson(const ApiError& error) {
  return absl::StrCat("{\"error\":{\"message\":", Quoted(error.message),
                      ",\"type\":\"", TypeOf(error.status), "\"",
                      ",\"param\":", error.param.empty() ? "null" : Quoted(error.param),
                      ",\"code\":", error.status, "}}");
}

StopMatcher::StopMatcher(const CompletionRequest& request) : request_(request), nodes_(1) {
  for (size_t i = 0; i < request.stop.size(); ++i) {
    int32_t at = 0;
    for (const char byte : request.stop[i]) {
      int32_t child = Child(at, byte);
      if (child == 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({.sibling = nodes_[at].first_child, .byte = byte});
        nodes_[at].first_child = child;
      }
      at = child;
    }
    if (nodes_[at].stop < 0) nodes_[at].stop = static_cast<int32_t>(i);
  }
  // Shorter beginnings first: a suffix is shorter than what it is a suffix of.
  std::vector<int32_t> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t parent = order[i];
    for (int32_t child = nodes_[parent].first_child; child != 0; child = nodes_[child].sibling) {
      Node& node = nodes_[child];
      node.suffix = parent == 0 ? 0 : Next(nodes_[parent].suffix, node.byte);
      node.end = node.stop >= 0 ? child : nodes_[node.suffix].end;
      order.push_back(child);
    }
  }
}

int32_t StopMatcher::Child(int32_t node, char byte) const {
  int32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].sibling;
  return child;
}

int32_t StopMatcher::Next(int32_t node, char byte) const {
  while (true) {
    const int32_t child = Child(node, byte);
    if (child != 0 || node == 0) return child;
    node = nodes_[node].suffix;
  }
}

void StopMatcher::Apply(AnswerPlan* plan) const {
  const std::vector<TokenId>& ids = request_.stop_token_ids;
  if (request_.stop.empty() && ids.empty()) return;
  const auto turn = static_cast<int64_t>(plan->tokens->size());
  int32_t node = 0, node_of_turn = -1;
  size_t text_bytes = 0;
  for (int64_t i = 0; i < plan->length; ++i) {
    const bool counts = i >= request_.min_tokens;
    if (counts && (i - request_.min_tokens) % turn == 0) {
      if (node == node_of_turn) return;
      node_of_turn = node;
    }
    if (counts && std::find(ids.begin(), ids.end(), plan->token(i)) != ids.end()) {
      plan->length = i + 1;
      plan->is_stop = true;
      plan->stop_reason = absl::StrCat(plan->token(i));
      if (!request_.include_stop) plan->text_bytes = text_bytes;
      return;
    }
    size_t first = SIZE_MAX;
    int32_t found = -1;
    for (const char byte : plan->piece(i)) {
      node = Next(node, byte);
      ++text_bytes;
      if (!counts) continue;
      for (int32_t end = nodes_[node].end; end != 0; end = nodes_[nodes_[end].suffix].end) {
        const int32_t stop = nodes_[end].stop;
        const size_t begin = text_bytes - request_.stop[static_cast<size_t>(stop)].size();
        if (begin < first || (begin == first && stop < found)) first = begin, found = stop;
      }
    }
    if (found >= 0) {
      const std::string& stop = request_.stop[static_cast<size_t>(found)];
      plan->length = i + 1;
      plan->is_stop = true;
      plan->stop_reason.clear();
      AppendJsonString(stop, &plan->stop_reason);
      plan->text_bytes = first + (request_.include_stop ? stop.size() : 0);
      return;
    }
  }
}

}  // namespace kvblocks::sim
