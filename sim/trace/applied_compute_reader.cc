// Applied Compute's agents, a session per line of JSONL: num_turns, input_prompt_length,
// assistant_response_length (one per turn), tool_call_output_length (one less) and
// tool_call_latency (s, as many). A turn's prompt is all of the session before it and the output of
// the tool. All sessions start at 0. A session is good or bad as a whole.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/line_rows.h"
#include "kvblocks/sim/trace/trace_formats.h"

namespace kvblocks::sim {
namespace {

// Content ids of all turns of a session together.
constexpr int64_t kMostSessionIds = int64_t{1} << 24;

class AppliedComputeReader : public LineRows {
 public:
  AppliedComputeReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                       RowLog* log)
      : LineRows(std::move(source), options, log, "applied-compute"),
        fields_({{"num_turns", kTurns},
                 {"input_prompt_length", kPrompt},
                 {"assistant_response_length", kAnswers},
                 {"tool_call_output_length", kToolOutputs},
                 {"tool_call_latency", kToolTimes}},
                log) {
    SetConversationInfo(&info_);
    info_.sorted = true;  // all that has a time of its own starts at 0
  }

  std::string dialect() const override { return "prompts repeat the turns before"; }

 private:
  enum Field { kTurns, kPrompt, kAnswers, kToolOutputs, kToolTimes };

  void Parse(std::string_view text, RawRow&& at, std::vector<RawRow>* rows,
             std::vector<TraceProblem>* problems) override {
    const RawRow place = std::move(at);
    answers_.clear();
    tool_outputs_.clear();
    tool_ns_.clear();
    fields_.Begin(&place.request, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) { return Read(field, value); });
    if (!problems->empty() && problems->back().kind == ProblemKind::kSyntax) return;
    fields_.Require({kTurns, kPrompt, kAnswers});
    if (!problems->empty()) return;
    const int64_t calls = num_turns_ - 1;
    CheckSize("assistant_response_length", answers_.size(), num_turns_);
    if (calls > 0 || fields_.Seen(kToolOutputs)) {
      CheckSize("tool_call_output_length", tool_outputs_.size(), calls);
    }
    if (fields_.Seen(kToolTimes)) CheckSize("tool_call_latency", tool_ns_.size(), calls);
    if (!problems->empty() || !CheckLength()) return;
    AddTurns(place.request.row, rows);
  }

  absl::Status Read(int field, JsonValue& value) {
    constexpr int kSecondsToNs = 9;
    const auto lengths = [&](std::vector<int64_t>* out) {
      return value.ReadList([&](JsonValue& element) {
        return element.ReadInteger(0, kMaxTraceLength, &out->emplace_back());
      });
    };
    switch (field) {
      case kTurns:
        return value.ReadInteger(1, kMaxTraceLength, &num_turns_);
      case kPrompt:
        return value.ReadInteger(0, kMaxTraceLength, &prompt_);
      case kAnswers:
        return lengths(&answers_);
      case kToolOutputs:
        return lengths(&tool_outputs_);
      default:
        return value.ReadRoundedList(kSecondsToNs, &tool_ns_);
    }
  }

  void CheckSize(const char* name, size_t got, int64_t expected) {
    if (static_cast<int64_t>(got) == expected) return;
    fields_.Bad(ProblemKind::kValue, absl::StrCat(name, ": got ", got, " values, expected ",
                                                  expected, " for ", num_turns_, " turns"));
  }

  // Before anything is made of it.
  bool CheckLength() {
    int64_t tokens = prompt_;
    int64_t ids = 0;
    for (size_t i = 0; i < answers_.size(); ++i) {
      tokens += answers_[i] + (i > 0 ? tool_outputs_[i - 1] : 0);
      ids += tokens / kConversationBlockTokens + 1;
      if (tokens > kMaxTraceLength) {
        fields_.Bad(
            ProblemKind::kLength,
            absl::StrCat("turn ", i, ": got ", tokens,
                         " tokens of prompt and output, expected at most ", kMaxTraceLength));
        return false;
      }
      if (ids > kMostSessionIds) {
        fields_.Bad(
            ProblemKind::kLength,
            absl::StrCat("turn ", i, ": got more than ", kMostSessionIds * kConversationBlockTokens,
                         " tokens in the prompts up to it, expected fewer"));
        return false;
      }
    }
    return true;
  }

  void AddTurns(int64_t first_row, std::vector<RawRow>* rows) {
    ++num_sessions_;
    int64_t history = prompt_;
    for (size_t i = 0; i < answers_.size(); ++i) {
      RawRow& row = rows->emplace_back();
      TraceRequest& r = row.request;
      r.input_length = history + (i > 0 ? tool_outputs_[i - 1] : 0);
      r.output_length = answers_[i];
      history = r.input_length + r.output_length;
      SetConversationContent(&r);
      r.session = num_sessions_;
      r.turn = static_cast<uint32_t>(i);
      row.has_turn = true;
      row.has_timestamp = i == 0;
      if (i == 0) continue;
      r.waits_for.push_back(first_row + static_cast<int64_t>(i) - 1);
      if (!tool_ns_.empty()) r.think_ns = tool_ns_[i - 1];
    }
  }

  JsonFields fields_;
  uint64_t num_sessions_ = 0;
  // Of the line being read.
  int64_t num_turns_ = 0;
  int64_t prompt_ = 0;
  std::vector<int64_t> answers_, tool_outputs_, tool_ns_;
};

}  // namespace

OpenedRows MakeAppliedComputeReader(std::unique_ptr<ByteSource> source,
                                    const TraceReaderOptions& options, RowLog* log) {
  return OpenLineRows<AppliedComputeReader>(std::move(source), options, log);
}

}  // namespace kvblocks::sim
