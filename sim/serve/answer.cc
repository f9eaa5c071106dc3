#include "kvblocks/sim/serve/answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/checks/json_text.h"

namespace kvblocks::sim {
namespace {

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
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
    const std::string text = absl::StrCat(sequence.echo == nullptr ? "" : *sequence.echo, Text(sequence));
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

void Answer::AppendEvent(size_t index, std::string_view text, bool is_last, std::string* out) {
  absl::StrAppend(out, "data: ", head_, "{\"index\":", index, ",",
                  is_chat_ ? "\"delta\":{\"content\":" : "\"text\":");
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
        absl::StrAppend(out, "data: ", head_, "{\"index\":", i,
                        ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
        AppendChoiceEnd(sequence, /*is_last=*/false, out);
        absl::StrAppend(out, "]", include_usage_ && !continuous_usage_ ? ",\"usage\":null" : "",
                        continuous_usage_ ? absl::StrCat(",\"usage\":", Usage(false)) : "",
                        "}\n\n");
      } else if (sequence.echo != nullptr) {
        AppendEvent(i, *sequence.echo, /*is_last=*/false, out);
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
      AppendEvent(i, text, is_last, out);
      sequence.is_finished |= is_last;
    }
    if (sequence.is_ended && !sequence.is_finished) {
      AppendEvent(i, sequence.held, /*is_last=*/true, out);
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
                      ",\"type\":", Quoted(error.type),
                      ",\"param\":", error.param.empty() ? "null" : Quoted(error.param),
                      ",\"code\":", error.status, "}}");
}

}  // namespace kvblocks::sim
