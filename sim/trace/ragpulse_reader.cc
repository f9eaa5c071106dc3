// RAGPulse: requests of a question-answering service, whose prompts are put together from
// components.
//
// JSONL with timestamp (seconds as a text, in no order), input_length, output_length, session_id
// and hash_ids, an object with one list of ids per kind of component: sys_prompt, passages_ids,
// history, web_search, user_input. How many tokens a component has stands in side files, one per
// kind: 1_sys_prompt.jsonl, 2_passages.jsonl, 3_history.jsonl, 4_user_input.jsonl and
// 5_web_search.jsonl, plain or as .gz or .zst, in the folder of the trace or where
// options.rag_lengths says. The prompt is the components in the order of options.rag_order, and
// then what input_length has more than they: the template, which nobody shares.
//
// Content ids are one per token, as components have lengths of their own. Memory: one table entry
// per component, and 8 bytes per token of a prompt.

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "sim/trace/decimal.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMostRagIds = int64_t{1} << 32;
constexpr int64_t kMostRagLength = int64_t{1} << 24;

// A kind of component: its name in rag_order, in hash_ids, and where its lengths are.
struct RagKind {
  std::string_view name;
  std::string_view path;
  std::string_view file;
  std::string_view id;
};
constexpr std::array<RagKind, 5> kRagKinds = {{
    {"sys_prompt", "hash_ids.sys_prompt", "1_sys_prompt.jsonl", "sys_prompt_id"},
    {"passages", "hash_ids.passages_ids", "2_passages.jsonl", "passage_id"},
    {"history", "hash_ids.history", "3_history.jsonl", "history_id"},
    {"web_search", "hash_ids.web_search", "5_web_search.jsonl", "web_search_id"},
    {"user_input", "hash_ids.user_input", "4_user_input.jsonl", "user_input_id"},
}};

using RagLengths = std::array<absl::flat_hash_map<int64_t, int64_t>, kRagKinds.size()>;

// A comma-separated list of all kinds, each once.
absl::StatusOr<std::vector<size_t>> ParseRagOrder(std::string_view text) {
  std::vector<size_t> order, all(kRagKinds.size());
  std::iota(all.begin(), all.end(), size_t{0});
  for (const absl::string_view name : absl::StrSplit(View(text), ',')) {
    const auto kind = std::find_if(kRagKinds.begin(), kRagKinds.end(),
                                   [&](const RagKind& k) { return View(k.name) == name; });
    order.push_back(static_cast<size_t>(kind - kRagKinds.begin()));
  }
  if (std::is_permutation(order.begin(), order.end(), all.begin(), all.end())) return order;
  return absl::InvalidArgumentError(
      absl::StrCat("--rag-order: got ", Shown(text),
                   ", expected sys_prompt, passages, history, web_search and user_input in some "
                   "order, with commas between them"));
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenSideFile(std::string_view name,
                                                         const TraceReaderOptions& options,
                                                         const RowLog& log, std::string* path) {
  if (options.side_files != nullptr) {
    *path = std::string(name);
    const auto found = options.side_files->find(*path);
    if (found != options.side_files->end()) return ByteSourceOfString(found->second);
  } else {
    const std::filesystem::path folder = options.rag_lengths.empty()
                                             ? std::filesystem::path(log.file).parent_path()
                                             : std::filesystem::path(options.rag_lengths);
    for (const char* suffix : {"", ".gz", ".zst"}) {
      *path = (folder / absl::StrCat(View(name), suffix)).string();
      std::error_code error;
      if (std::filesystem::exists(*path, error)) {
        return OpenByteSource(*path, options.zstd_window_log);
      }
    }
    *path = (folder / std::string(name)).string();
  }
  return absl::NotFoundError(
      RowError(log, 1,
               absl::StrCat("lengths of components: got no file ", *path,
                            " (.gz, .zst), expected it beside the trace (--rag-lengths=FOLDER)")));
}

absl::Status ReadRagLengths(size_t kind, const TraceReaderOptions& options, const RowLog& trace_log,
                            absl::flat_hash_map<int64_t, int64_t>* lengths) {
  RowLog log;
  KVBLOCKS_ASSIGN_OR_RETURN(auto source,
                            OpenSideFile(kRagKinds[kind].file, options, trace_log, &log.file));
  RowInput input{std::move(source), options, &log};
  RowLines lines(input);
  int64_t id = 0, length = 0;
  JsonFields fields({{kRagKinds[kind].id, Whole(0, kMostRagIds - 1, &id)},
                     {"token_length", Whole(0, kMostRagLength - 1, &length)}},
                    &log);
  std::vector<TraceProblem> problems;
  while (true) {
    Line line;
    TraceProblem problem;
    KVBLOCKS_ASSIGN_OR_RETURN(const RowOutcome got, lines.Next(&line, &problem));
    if (got == RowOutcome::kEnd) return absl::OkStatus();
    TraceRequest at;
    at.line = line.number;
    if (got == RowOutcome::kBad) {
      problems.push_back(problem);
    } else if (fields.ParseLine(line.text, &at, &problems) && problems.empty()) {
      fields.Require({kRagKinds[kind].id, "token_length"});
    }
    if (problems.empty() && !lengths->try_emplace(id, length).second) {
      fields.Bad(ProblemKind::kDuplicateId,
                 absl::StrCat(View(kRagKinds[kind].id), ": got ", id, " again, expected it once"));
    }
    // Without all lengths no prompt is sure.
    if (!problems.empty()) {
      return absl::InvalidArgumentError(ProblemMessage(log.file, problems.front()));
    }
  }
}

class RagPulseReader : public LineRows {
 public:
  RagPulseReader(RowInput& input, std::vector<size_t> order, RagLengths lengths)
      : LineRows(input),
        order_(std::move(order)),
        lengths_(std::move(lengths)),
        rag_order_(input.options.rag_order),
        fields_(Fields(), input.log) {
    info_.block_tokens = 1;
    info_.notes["rag_order"] = rag_order_;
  }

  std::string dialect() const override { return absl::StrCat("components: ", rag_order_); }

 private:
  std::vector<JsonFields::Field> Fields() {
    std::vector<JsonFields::Field> fields = {
        {"timestamp", [this](JsonValue& value) { return ReadTime(value); }},
        {"input_length", By(&JsonValue::ReadLength, &row_.request.input_length)},
        {"output_length", By(&JsonValue::ReadLength, &row_.request.output_length)},
        {"session_id", By(&JsonValue::ReadId, &session_)}};
    for (size_t kind = 0; kind < kRagKinds.size(); ++kind) {
      fields.emplace_back(kRagKinds[kind].path, By(&JsonValue::ReadIntegers, &ids_[kind]));
    }
    return fields;
  }

  void Parse(std::string_view text) override {
    for (auto& ids : ids_) ids.clear();
    if (!fields_.ParseLine(text, &row_.request, problems_)) return;
    fields_.Require({"timestamp", "input_length", "output_length"});
    const bool has_components =
        std::any_of(ids_.begin(), ids_.end(), [](const auto& ids) { return !ids.empty(); });
    if (!has_components) {
      Bad(ProblemKind::kMissingField,
          "field hash_ids: got no component, expected an object with lists of ids");
    }
    if (!problems_->empty() || !CheckLengths(row_.request)) return;
    AddContent(&row_.request);
    if (fields_.Seen("session_id")) row_.request.session = sessions_.NumberOf(session_);
    AddRow();
  }

  absl::Status ReadTime(JsonValue& value) {
    std::string text;
    KVBLOCKS_RETURN_IF_ERROR(value.ReadText(&text));
    KVBLOCKS_ASSIGN_OR_RETURN(row_.timestamp_ns, ParseScaledDecimal(text, 9));
    return absl::OkStatus();
  }

  bool CheckLengths(const TraceRequest& r) {
    int64_t sum = 0;
    for (size_t kind = 0; kind < kRagKinds.size(); ++kind) {
      for (const int64_t id : ids_[kind]) {
        const auto found = lengths_[kind].find(id);
        if (found == lengths_[kind].end()) {
          Bad(
              ProblemKind::kContentIds,
              absl::StrCat(View(kRagKinds[kind].path), ": got ", id,
                           ", expected an id whose length stands in ", View(kRagKinds[kind].file)));
          return false;
        }
        sum = std::min(sum + found->second, kMaxTraceLength);
      }
    }
    if (r.input_length < sum) {
      Bad(ProblemKind::kLength,
                  absl::StrCat("input_length: got ", r.input_length, ", expected at least ", sum,
                               ", the sum of its components"));
    } else if (r.input_length > kMostTokenIds) {
      Bad(ProblemKind::kLength,
                  absl::StrCat("input_length: got ", r.input_length, ", expected at most ",
                               kMostTokenIds, ", as every token has an id"));
    } else {
      return true;
    }
    return false;
  }

  // Token o of component c of kind k: all three make the id. The template's tokens are negative.
  void AddContent(TraceRequest* r) {
    r->content_ids.reserve(static_cast<size_t>(r->input_length));
    for (const size_t kind : order_) {
      for (const int64_t id : ids_[kind]) {
        const int64_t first = (static_cast<int64_t>(kind) + 1) << 57 | id << 24;
        for (int64_t o = 0; o < lengths_[kind].at(id); ++o) r->content_ids.push_back(first + o);
      }
    }
    while (static_cast<int64_t>(r->content_ids.size()) < r->input_length) {
      r->content_ids.push_back(--last_of_templates_);
    }
  }

  const std::vector<size_t> order_;
  const RagLengths lengths_;
  const std::string rag_order_;
  JsonFields fields_;
  SessionNumbers sessions_;
  int64_t last_of_templates_ = 0;
  // Of the row being read.
  std::array<std::vector<int64_t>, kRagKinds.size()> ids_;
  JsonId session_;
};

}  // namespace

OpenedRows MakeRagPulseReader(RowInput& input) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto order, ParseRagOrder(input.options.rag_order));
  RagLengths lengths;
  for (size_t kind = 0; kind < kRagKinds.size(); ++kind) {
    KVBLOCKS_RETURN_IF_ERROR(ReadRagLengths(kind, input.options, *input.log, &lengths[kind]));
  }
  return OpenLineRows<RagPulseReader>(input, std::move(order), std::move(lengths));
}

}  // namespace kvblocks::sim
