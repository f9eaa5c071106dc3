// ShareGPT: one JSON array of conversations, each with conversations or messages, a list of {from
// or role, value or content}. Texts become pseudo-tokens (line_rows.h). With first-turn, the
// first message of a user and the first answer after it are one request, left out as the usual
// benchmarks do if either has fewer than 4 tokens, the prompt more than 1024 or both more than
// 2048; first-turn-all leaves none out. With sessions, every answer is a request, whose prompt is
// all before it; a request waits for the one before. There are no arrivals: all are there from the
// start.

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// The elements of one JSON array that is a whole file, one at a time.
//
// Finds where an element ends by counting brackets outside of strings; whether it is JSON is for
// its reader to say. Elements that are objects may have any number of lines; one longer than a line
// may be is a bad record. Memory: the longest element. Cost: one look at each byte.
class JsonElements : public RowRecords {
 public:
  explicit JsonElements(RowInput& input);

  // The line of an element is the physical one on which it begins.
  absl::StatusOr<RowOutcome> Next(Line* line, TraceProblem* problem) override;
  ReadProgress progress() const override;

  int64_t num_elements() const { return num_elements_; }  // so far, from 1 for the last one
  // Of the last element's first character, from 1; 0 if the element has several lines.
  int64_t column() const { return has_line_end_ ? 0 : column_; }

 private:
  absl::StatusOr<bool> Peek(char* c);  // false: the end
  void Step();                         // over the character last seen
  absl::StatusOr<bool> PeekAfterBlanks(char* c);
  absl::Status Expected(const std::string& got, const char* expected) const;

  BufferedSource source_;
  const size_t max_bytes_;
  RowLog* const log_;
  bool is_started_ = false;
  bool is_ended_ = false;
  int64_t line_ = 1;    // of the next character
  int64_t offset_ = 1;  // its column
  int64_t num_elements_ = 0;
  int64_t column_ = 0;
  bool has_line_end_ = false;
  std::string element_;
};

JsonElements::JsonElements(RowInput& input)
    : source_(std::move(input.source)),
      max_bytes_(static_cast<size_t>(std::max<int64_t>(input.options.max_line_bytes, 1))),
      log_(input.log) {}

ReadProgress JsonElements::progress() const {
  return {source_.bytes_read(), source_.bytes_total()};
}

absl::StatusOr<bool> JsonElements::Peek(char* c) {
  if (const absl::Status status = source_.Fill(1); !status.ok()) {
    return absl::Status(status.code(),
                        RowError(*log_, line_,
                                 absl::StrCat(status.message(), " (the last good element is ",
                                              num_elements_, ")")));
  }
  if (source_.bytes().empty()) return false;
  *c = source_.bytes()[0];
  return true;
}

void JsonElements::Step() {
  const bool is_line_end = source_.bytes()[0] == '\n';
  source_.Consume(1);
  line_ += is_line_end ? 1 : 0;
  offset_ = is_line_end ? 1 : offset_ + 1;
}

absl::StatusOr<bool> JsonElements::PeekAfterBlanks(char* c) {
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, Peek(c));
    if (!more) return false;
    const bool is_mark = line_ == 1 && offset_ <= 3 && !is_started_ &&
                         *c == "\xef\xbb\xbf"[static_cast<size_t>(offset_ - 1)];
    if (*c != ' ' && *c != '\t' && *c != '\r' && *c != '\n' && !is_mark) return true;
    Step();
  }
}

absl::Status JsonElements::Expected(const std::string& got, const char* expected) const {
  return absl::DataLossError(RowError(*log_, line_, offset_,
                                      absl::StrCat("JSON: got ", got, " after ", num_elements_,
                                                   " elements of the array, expected ", expected)));
}

absl::StatusOr<RowOutcome> JsonElements::Next(Line* line, TraceProblem* problem) {
  if (is_ended_) return RowOutcome::kEnd;
  char c = 0;
  KVBLOCKS_ASSIGN_OR_RETURN(bool more, PeekAfterBlanks(&c));
  if (!is_started_) {
    if (!more || c != '[') return Expected(more ? Shown({&c, 1}) : "the end", "[ at the begin");
    is_started_ = true;
    Step();
    KVBLOCKS_ASSIGN_OR_RETURN(more, PeekAfterBlanks(&c));
  } else if (more && c == ',') {
    Step();
    KVBLOCKS_ASSIGN_OR_RETURN(more, PeekAfterBlanks(&c));
    if (more && c == ']') return Expected("]", "an element after the comma");
  } else if (more && c != ']') {
    return Expected(Shown({&c, 1}), "a comma or ]");
  }
  if (!more) return Expected("the end", "a comma or ] (a truncated file)");
  if (c == ']') {
    Step();
    KVBLOCKS_ASSIGN_OR_RETURN(more, PeekAfterBlanks(&c));
    if (more) return Expected(Shown({&c, 1}), "nothing after the array");
    is_ended_ = true;
    return RowOutcome::kEnd;
  }

  element_.clear();
  line->number = line_;
  column_ = offset_;
  has_line_end_ = false;
  int64_t bytes = 0;
  int64_t depth = 0;
  bool in_string = false;
  bool is_escaped = false;
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(more, Peek(&c));
    if (!more) return Expected("the end", "the end of the next element (a truncated file)");
    if (in_string) {
      in_string = is_escaped || c != '"';
      is_escaped = !is_escaped && c == '\\';
    } else if (depth == 0 && (c == ',' || c == ']')) {
      break;
    } else {
      in_string = c == '"';
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
    }
    has_line_end_ = has_line_end_ || c == '\n';
    ++bytes;
    if (element_.size() <= max_bytes_) element_.push_back(c);
    Step();
  }
  ++num_elements_;
  line->bytes = bytes;
  line->too_long = element_.size() > max_bytes_;
  if (line->too_long) {
    problem->kind = ProblemKind::kSyntax;
    problem->line = line->number;
    problem->text = absl::StrCat("element ", num_elements_, ": length: got ", bytes,
                                 " bytes, expected at most ", max_bytes_);
    return RowOutcome::kBad;
  }
  const size_t size = element_.size();
  element_.append(LineReader::kPadding, ' ');
  line->text = std::string_view(element_).substr(0, size);
  return RowOutcome::kRow;
}

// What the usual benchmark scripts keep.
constexpr int64_t kLeastTokens = 4;
constexpr int64_t kMostPromptTokens = 1024;
constexpr int64_t kMostTurnTokens = 2048;

constexpr std::array<std::string_view, 2> kUserRoles = {"user", "human"};
constexpr std::array<std::string_view, 6> kAssistantRoles = {"assistant", "gpt",  "chatgpt",
                                                             "bing",      "bard", "model"};

template <size_t n>
bool IsRoleOf(const std::array<std::string_view, n>& roles, const std::string& role) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

class ShareGptReader : public LineRows {
 public:
  // `elements` are the records.
  ShareGptReader(RowInput& input, const JsonElements* elements, std::unique_ptr<RowRecords> records)
      : LineRows(input, std::move(records)),
        elements_(elements),
        tokens_(input.options.bytes_per_token),
        is_sessions_(input.options.sharegpt == "sessions"),
        is_filtered_(input.options.sharegpt == "first-turn"),
        fields_(
            {{"conversations", Each([this](JsonValue& message) { return ReadMessage(message); })},
             {"messages", "conversations"},
             {"id", By(&JsonValue::Skip)}},
            input.log),
        message_fields_({{"from", By(&JsonValue::ReadString, &message_.role)},
                         {"role", "from"},
                         {"value", By(&JsonValue::ReadString, &message_.text)},
                         {"content", "value"}},
                        input.log) {
    info_.block_tokens = 1;
    info_.pseudo_tokens = true;
    info_.sorted = true;
  }

  std::string dialect() const override {
    return is_sessions_   ? "every turn with its history, pseudo-tokens"
           : is_filtered_ ? absl::StrCat("first turns, pseudo-tokens, ", num_left_out_,
                                         " left out as benchmarks do")
                          : "first turns, pseudo-tokens";
  }

 private:
  struct Message {
    std::string role, text;
  };

  void Parse(std::string_view text) override {
    messages_.clear();
    where_ = absl::StrCat("element ", elements_->num_elements(), ": ");
    fields_.ParseLine(text, &row_.request, problems_, where_);
    if (!problems_->empty()) {
      // Columns of the element become those of its line.
      int64_t& column = problems_->back().column;
      if (column > 0) column = elements_->column() > 0 ? column + elements_->column() - 1 : 0;
      return;
    }
    if (!fields_.Require({"conversations"})) return;
    int64_t tokens = 0;
    if (is_sessions_) {
      AddSession(&tokens);
    } else {
      AddFirstTurn(&tokens);
    }
    if (tokens > kMostTokenIds) {
      fields_.Bad(ProblemKind::kLength,
                  absl::StrCat("conversation: got ", tokens,
                               " tokens in all prompts, expected at most ", kMostTokenIds));
    } else if (rows_.empty()) {
      ++num_left_out_;
      ++log()->counters.not_selected;
    }
  }

  absl::Status ReadMessage(JsonValue& value) {
    message_ = Message();
    KVBLOCKS_RETURN_IF_ERROR(message_fields_.ReadObject(
        value, &row_.request, problems_, absl::StrCat(where_, "message ", messages_.size(), ": ")));
    message_fields_.Require({"from", "value"});
    messages_.push_back(std::move(message_));
    constexpr size_t kMostReported = 20;
    return problems_->size() < kMostReported ? absl::OkStatus()
                                             : absl::CancelledError("enough problems");
  }

  void AppendMessage(const Message& message, std::vector<uint32_t>* tokens) const {
    PseudoTokens::AppendRole(message.role, tokens);
    tokens_.AppendText(message.text, tokens);
    PseudoTokens::AppendEndOfTurn(tokens);
  }

  // The answer's role belongs to the prompt, its end to the output.
  int64_t LengthOf(const Message& message) const { return tokens_.NumberOf(message.text) + 2; }

  void AddTurn(const std::vector<uint32_t>& history, const Message& answer) {
    TraceRequest& r = rows_.emplace_back().request;
    r.content_ids.assign(history.begin(), history.end());
    std::vector<uint32_t> role;
    PseudoTokens::AppendRole(answer.role, &role);
    r.content_ids.push_back(role[0]);
    tokens_.AppendText(answer.text, &r.output_ids);
    PseudoTokens::AppendEndOfTurn(&r.output_ids);
    r.input_length = static_cast<int64_t>(r.content_ids.size());
    r.output_length = static_cast<int64_t>(r.output_ids.size());
  }

  void AddFirstTurn(int64_t* num_tokens) {
    const auto user = std::find_if(messages_.begin(), messages_.end(),
                                   [](const Message& m) { return IsRoleOf(kUserRoles, m.role); });
    const auto answer = std::find_if(
        user, messages_.end(), [](const Message& m) { return IsRoleOf(kAssistantRoles, m.role); });
    if (answer == messages_.end()) return;
    const int64_t input = LengthOf(*user) + 1;
    const int64_t output = LengthOf(*answer) - 1;
    *num_tokens = input + output;
    if (is_filtered_ && (input < kLeastTokens || output < kLeastTokens ||
                         input > kMostPromptTokens || input + output > kMostTurnTokens)) {
      *num_tokens = 0;
      return;
    }
    if (*num_tokens > kMostTokenIds) return;
    std::vector<uint32_t> history;
    AppendMessage(*user, &history);
    AddTurn(history, *answer);
  }

  void AddSession(int64_t* num_tokens) {
    // Counted first, as histories of histories may be far longer than the file.
    int64_t before = 0;
    for (const Message& message : messages_) {
      before += LengthOf(message);
      if (IsRoleOf(kAssistantRoles, message.role)) *num_tokens += before;
      if (*num_tokens > kMostTokenIds) return;
    }
    std::vector<uint32_t> history;
    bool is_asked = false;
    for (const Message& message : messages_) {
      const bool is_answer = IsRoleOf(kAssistantRoles, message.role);
      if (is_answer && is_asked) {
        AddTurn(history, message);
        RawRow& row = rows_.back();
        row.request.session = next_session_;
        row.waits_for_session = true;
        row.has_timestamp = rows_.size() == 1;
      }
      is_asked = !is_answer;
      AppendMessage(message, &history);
    }
    if (!rows_.empty()) ++next_session_;
  }

  const JsonElements* elements_;  // the records, which LineRows owns
  const PseudoTokens tokens_;
  const bool is_sessions_;
  const bool is_filtered_;
  Message message_;  // being read
  JsonFields fields_;
  JsonFields message_fields_;
  uint64_t next_session_ = 1;
  int64_t num_left_out_ = 0;
  // Of the element being read.
  std::string where_;
  std::vector<Message> messages_;
};

}  // namespace

OpenedRows MakeShareGptReader(RowInput& input) {
  auto records = std::make_unique<JsonElements>(input);
  const JsonElements* const elements = records.get();
  return OpenLineRows<ShareGptReader>(input, elements, std::move(records));
}

}  // namespace kvblocks::sim
