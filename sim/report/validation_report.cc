#include "sim/report/validation_report.h"


#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/text_page.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

double SecondsOfNs(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// "[request "a"]", with whatever the trace calls it made harmless.
std::string Whose(const TraceProblem& problem) {
  if (problem.id.empty()) return "";
  return absl::StrCat(" [request ", absl::CHexEscape(problem.id.substr(0, 60)), "]");
}

void AddFacts(const TraceValidation& v, TextPage& lines) {
  if (v.info.format.empty()) {
    lines.Line("trace", absl::StrCat(v.file, ": of no format that can be read"));
    return;
  }
  const int64_t bt = v.info.block_tokens;
  lines.Line("trace",
            absl::StrCat(v.file, ": ", v.info.format, v.dialect.empty() ? "" : ", ", v.dialect,
                         bt == 0   ? ", lengths only"
                         : bt == 1 ? ", token ids"
                                   : absl::StrCat(", ", bt, " tokens per content id")));
  lines.Line("rows", absl::StrCat(WithThousands(v.num_rows), ": ", WithThousands(v.num_requests),
                                 " good, ", WithThousands(v.num_bad_rows), " bad",
                                 v.is_complete ? "" : "; the rest cannot be read"));
  if (v.num_requests == 0) return;
  lines.Line("prompts",
            absl::StrCat(WithThousands(v.input_tokens), " tokens, at most ",
                         WithThousands(v.max_input), "; ", Plural(v.content_ids, "content id")));
  lines.Line("outputs", absl::StrCat(WithThousands(v.output_tokens), " tokens, at most ",
                                    WithThousands(v.max_output)));
  lines.Line("arrivals",
            absl::StrCat(FormatScaledDecimal(v.first_arrival_ns, 9), " s to ",
                         FormatScaledDecimal(v.last_arrival_ns, 9), " s, ",
                         v.num_backwards == 0 ? "in order"
                                              : absl::StrCat(Plural(v.num_backwards, "row"),
                                                             " earlier than the row before")));
  if (v.num_sessions > 0 || v.num_waiting > 0) {
    lines.Line("sessions", absl::StrCat(WithThousands(v.num_sessions), "; ",
                                       Plural(v.num_waiting, "request"), " that wait for others"));
  }
}

void AddProblems(const TraceValidation& v, TextPage& lines) {
  if (v.counts.empty()) return;
  lines.Blank();
  lines.Line("problems", "         count  first on line");
  for (const ProblemCount& count : v.counts) {
    lines.Plain(absl::StrFormat("  %-8s %-14s %6s %14d  %s", View(SeverityName(count.severity)),
                              View(ProblemKindName(count.kind)), WithThousands(count.count),
                              count.first_line, View(ProblemKindMeaning(count.kind))));
  }
  if (!v.problems.empty()) lines.Blank();
  for (const TraceProblem& problem : v.problems) {
    lines.Plain(absl::StrCat(ProblemMessage(v.file, problem), Whose(problem)));
  }
  const int64_t more =
      v.num_errors() + v.num_warnings() + v.num_notes() - static_cast<int64_t>(v.problems.size());
  if (more > 0) lines.Plain(absl::StrCat("and ", WithThousands(more), " more (--max-messages)"));
}

}  // namespace

bool IsGood(const TraceValidation& validation, bool strict) {
  return validation.num_errors() == 0 && !(strict && validation.num_warnings() > 0);
}

pb::TraceValidation ToProto(const TraceValidation& v, bool strict) {
  pb::TraceValidation out;
  out.set_schema_version(1);
  out.set_file(v.file);
  out.set_good(IsGood(v, strict));
  out.set_strict(strict);
  out.set_complete(v.is_complete);
  out.set_format(v.info.format);
  out.set_dialect(v.dialect);
  out.set_content_block_tokens(v.info.block_tokens);
  out.set_rows(v.num_rows);
  out.set_bad_rows(v.num_bad_rows);
  out.set_requests(v.num_requests);
  out.set_input_tokens(v.input_tokens);
  out.set_output_tokens(v.output_tokens);
  out.set_longest_input(v.max_input);
  out.set_longest_output(v.max_output);
  out.set_first_arrival_s(SecondsOfNs(v.first_arrival_ns));
  out.set_last_arrival_s(SecondsOfNs(v.last_arrival_ns));
  out.set_backwards_rows(v.num_backwards);
  out.set_sessions(v.num_sessions);
  out.set_waiting_requests(v.num_waiting);
  out.set_content_ids(v.content_ids);
  out.set_errors(v.num_errors());
  out.set_warnings(v.num_warnings());
  out.set_notes(v.num_notes());
  for (const ProblemCount& count : v.counts) {
    auto* c = out.add_counts();
    c->set_severity(std::string(SeverityName(count.severity)));
    c->set_kind(std::string(ProblemKindName(count.kind)));
    c->set_count(count.count);
    c->set_first_line(count.first_line);
    c->set_meaning(std::string(ProblemKindMeaning(count.kind)));
  }
  for (const TraceProblem& problem : v.problems) {
    const ProblemParts parts = SplitProblem(problem.text);
    auto* p = out.add_problems();
    p->set_severity(std::string(SeverityName(problem.severity)));
    p->set_kind(std::string(ProblemKindName(problem.kind)));
    p->set_line(problem.line);
    p->set_column(problem.column);
    p->set_row(problem.row);
    p->set_request_id(problem.id);
    p->set_field(parts.what);
    p->set_value(parts.got);
    p->set_expected(parts.expected);
    p->set_hint(parts.hint);
    p->set_message(ProblemMessage(v.file, problem));
  }
  return out;
}

std::string FormatValidation(const TraceValidation& v, bool strict, bool color) {
  TextPage lines(color);
  AddFacts(v, lines);
  AddProblems(v, lines);
  lines.Blank();
  lines.Line("result",
            absl::StrCat(IsGood(v, strict) ? "good: " : "bad: ", Plural(v.num_errors(), "error"),
                         ", ", Plural(v.num_warnings(), "warning"),
                         strict && v.num_warnings() > 0 ? " (--strict counts them)" : "", ", ",
                         Plural(v.num_notes(), "note")));
  return lines.Take();
}

}  // namespace kvblocks::sim
