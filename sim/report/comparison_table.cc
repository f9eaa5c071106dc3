#include "sim/report/human_table.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "sim/report/comparison.pb.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr size_t kNameWidth = 44;
constexpr size_t kValueWidth = 13;
constexpr size_t kChangeWidth = 11;
constexpr size_t kTextWidth = 46;

// Whole numbers with thousands, others and those that do not fit with 6 digits, texts cut.
std::string Shortened(const std::string& text, size_t width) {
  int64_t whole;
  double real;
  if (absl::SimpleAtoi(text, &whole)) {
    const std::string grouped = WithThousands(whole);
    return grouped.size() <= width ? grouped : absl::StrFormat("%.6g", static_cast<double>(whole));
  }
  if (absl::SimpleAtod(text, &real)) {
    std::string grouped = GroupThousands(text);
    if (grouped.size() > width) grouped = GroupThousands(absl::StrFormat("%.6g", real));
    return grouped.size() <= width ? grouped : absl::StrFormat("%.6g", real);
  }
  const std::string shown = absl::CHexEscape(text);
  return shown.size() <= width ? shown : absl::StrCat(shown.substr(0, width - 3), "...");
}

std::string Shown(bool is_there, const std::string& text, size_t width) {
  return is_there ? Shortened(text, width) : "-";
}

std::string Relative(const pb::MetricChange& change) {
  if (!change.has_relative()) return change.has_change() ? "from 0" : "";
  const double percent = 100 * change.relative();
  const double size = std::abs(percent);
  if (size >= 1e5 || (size != 0 && size < 0.005)) return absl::StrFormat("%+.0e %%", percent);
  const std::string text = GroupThousands(absl::StrFormat("%+.2f %%", percent));
  return text.size() < kChangeWidth ? text : absl::StrFormat("%+.2f %%", percent);
}

// A name that leaves no room has a line of its own.
void AddNamed(const std::string& name, size_t width, const std::string& rest, TextPage& page) {
  if (name.size() > width) {
    page.Plain(absl::StrCat("  ", name));
    page.Plain(absl::StrCat(std::string(width + 2, ' '), rest));
  } else {
    page.Plain(absl::StrCat("  ", name, std::string(width - name.size(), ' '), rest));
  }
}

void AddHeading(const std::string& text, TextPage& page) {
  page.Blank();
  page.Heading(text);
}

std::string Columns(const std::string& a, const std::string& b, const std::string& change,
                    const std::string& relative, const char* mark) {
  return absl::StrFormat(" %*s %*s %*s %10s%s", kValueWidth, a, kValueWidth, b, kChangeWidth,
                         change, relative, mark);
}

void AddConfiguration(const pb::Comparison& comparison, TextPage& page) {
  if (comparison.configuration_size() == 0) return;
  AddHeading("configuration", page);
  constexpr size_t kWidth = 34;
  constexpr size_t kWhole = 1000;  // names of files are not cut
  for (const pb::FieldDifference& field : comparison.configuration()) {
    if (field.a().size() > kWidth || field.b().size() > kWidth) {
      page.Plain(absl::StrCat("  ", field.name()));
      page.Plain(absl::StrCat("    a  ", Shown(field.has_a(), field.a(), kWhole)));
      page.Plain(absl::StrCat("    b  ", Shown(field.has_b(), field.b(), kWhole)));
      continue;
    }
    AddNamed(field.name(), 28,
             absl::StrFormat("%-*s %s", kWidth, Shown(field.has_a(), field.a(), kWidth),
                             Shown(field.has_b(), field.b(), kWidth)),
             page);
  }
}

void AddMetric(const pb::MetricChange& change, TextPage& page) {
  const char* mark = change.exceeded() ? " !" : "";
  if (!change.has_change() && change.has_a() && change.has_b()) {
    AddNamed(change.name(), kNameWidth, absl::StrCat(" ", Shortened(change.a(), kTextWidth), mark),
             page);
    AddNamed("", kNameWidth, absl::StrCat(" ", Shortened(change.b(), kTextWidth)), page);
    return;
  }
  AddNamed(change.name(), kNameWidth,
           Columns(Shown(change.has_a(), change.a(), kValueWidth),
                   Shown(change.has_b(), change.b(), kValueWidth),
                   Shortened(change.change(), kChangeWidth), Relative(change), mark),
           page);
  if (change.elements() > 0) {
    AddNamed("", kNameWidth,
             absl::StrFormat(" at [%d]; %s of %s differ", change.element(),
                             WithThousands(change.elements_changed()),
                             WithThousands(change.elements())),
             page);
  }
}

// What most comparisons are about, in this order.
constexpr const char* kHeadline[] = {
    "whole_run.token_hit_rate.value", "latency.ttft.mean_ms",
    "latency.ttft.p99_ms",            "latency.tpot.mean_ms",
    "latency.tpot.p99_ms",            "latency.e2e.mean_ms",
    "throughput.requests_per_s",      "throughput.output_tokens_per_s",
    "goodput.good_share",             "preemption.preemptions"};

// The headline's figures first, then the others in the order of the report.
void AddMetrics(const pb::Comparison& comparison, TextPage& page) {
  if (comparison.changes_size() == 0) return;
  std::vector<const pb::MetricChange*> headline, others;
  for (const char* name : kHeadline) {
    for (const pb::MetricChange& change : comparison.changes()) {
      if (change.name() == name) headline.push_back(&change);
    }
  }
  for (const pb::MetricChange& change : comparison.changes()) {
    if (std::ranges::count(headline, &change) == 0) others.push_back(&change);
  }
  for (const auto& [what, changes] : {std::pair("headline", headline), {"metric", others}}) {
    if (changes.empty()) continue;
    AddHeading(absl::StrFormat("%-*s%s", kNameWidth + 2, what,
                               Columns("a", "b", "change", "relative", "")),
               page);
    for (const pb::MetricChange* change : changes) AddMetric(*change, page);
  }
}

// Where the first new block that two lists do not share stands; 0 if that is near the beginning.
size_t CommonPart(const std::string& a, const std::string& b) {
  const size_t length =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const size_t entry = a.rfind('+', length);
  constexpr size_t kEarly = 10;
  return entry == std::string::npos || entry < kEarly ? 0 : entry;
}

std::string From(const std::string& text, size_t begin) {
  if (begin == 0 || begin > text.size()) return Shortened(text, 30);
  return Shortened(absl::StrCat("...", text.substr(begin)), 30);
}

void AddRows(const pb::StepDifference& difference, bool all_columns, TextPage& page) {
  page.Plain(absl::StrFormat(
      "  %-18s %-30s %s", "",
      difference.line_a() > 0 ? absl::StrCat("a, line ", difference.line_a()) : "a has ended",
      difference.line_b() > 0 ? absl::StrCat("b, line ", difference.line_b()) : "b has ended"));
  for (const auto& column : difference.columns()) {
    if (!all_columns && !column.differs()) continue;
    page.Plain(absl::StrFormat("%s %-18s %-30s %s", column.differs() ? "!" : " ", column.name(),
                              Shown(column.has_a(), column.a(), 30),
                              Shown(column.has_b(), column.b(), 30)));
  }
  if (difference.requests_differ() == 0) return;
  page.Plain(absl::StrCat("  requests by row, tokens+new blocks; ",
                         WithThousands(difference.requests_differ()), " differ"));
  for (const auto& request : difference.requests()) {
    const size_t common = CommonPart(request.a(), request.b());
    page.Plain(absl::StrFormat("! %-18s %-30s %s", Shortened(request.row(), 18),
                              request.has_a() ? From(request.a(), common) : "-",
                              request.has_b() ? From(request.b(), common) : "-"));
  }
  if (difference.requests_differ() > difference.requests_size()) page.Plain("  ...");
}

void AddSchedule(const pb::ScheduleComparison& schedule, TextPage& page) {
  if (schedule.only_in_a_size() > 0) {
    page.Plain(absl::StrCat("  only a has ", absl::StrJoin(schedule.only_in_a(), ", ")));
  }
  if (schedule.only_in_b_size() > 0) {
    page.Plain(absl::StrCat("  only b has ", absl::StrJoin(schedule.only_in_b(), ", ")));
  }
  if (schedule.has_first_divergence()) AddRows(schedule.first_divergence(), true, page);
  if (schedule.has_first_difference()) {
    AddHeading(absl::StrCat("step ", schedule.first_difference().step(),
                            " was scheduled alike and differs in"),
               page);
    AddRows(schedule.first_difference(), false, page);
  }
}

// The first block ids, or numbers of tokens, in which two entries like "16+5+6" differ.
std::pair<std::string, std::string> FirstDifference(const std::string& a, const std::string& b) {
  const std::vector<std::string> of_a = absl::StrSplit(a, '+'), of_b = absl::StrSplit(b, '+');
  for (size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
    const auto word = [i](const std::vector<std::string>& list) {
      if (i >= list.size()) return std::string("no further block");
      return absl::StrCat(i == 0 ? "tokens " : "block ", Shortened(list[i], 20));
    };
    if (word(of_a) != word(of_b)) return {word(of_a), word(of_b)};
  }
  return {};
}

std::string ScheduleSentence(const pb::ScheduleComparison& schedule) {
  const std::string steps = WithThousands(schedule.equal_steps());
  if (schedule.same()) return absl::StrCat("schedules are the same in all ", steps, " steps");
  return absl::StrCat("schedules part at step ", schedule.first_divergence().step(), ", after ",
                      Plural(schedule.equal_steps(), "equal step"), schedule.judged() ? " !" : "");
}

// What one run gave the first request that differs, and what the other gave it.
std::string FirstRequest(const pb::StepDifference& difference) {
  if (difference.requests_size() == 0) return "";
  const auto& request = difference.requests(0);
  const std::string row = absl::StrCat("  request ", Shortened(request.row(), 18));
  if (!request.has_a()) return absl::StrCat(row, " is in b's step only");
  if (!request.has_b()) return absl::StrCat(row, " is in a's step only");
  const auto [a, b] = FirstDifference(request.a(), request.b());
  return absl::StrCat(row, " has ", a, " in a and ", b, " in b");
}

}  // namespace

std::string FormatComparison(const pb::Comparison& comparison, bool color) {
  TextPage page(color);
  page.Plain(absl::StrCat("a  ", comparison.a()));
  page.Plain(absl::StrCat("b  ", comparison.b()));
  // Where the schedules part explains the figures that follow.
  if (comparison.has_schedule()) {
    AddHeading(ScheduleSentence(comparison.schedule()), page);
    const std::string request = FirstRequest(comparison.schedule().first_divergence());
    if (!request.empty()) page.Plain(request);
    AddSchedule(comparison.schedule(), page);
  }
  AddConfiguration(comparison, page);
  AddMetrics(comparison, page);
  const bool is_judged = comparison.metrics_judged() > 0 || comparison.schedule().judged();
  std::string result = comparison.same()     ? "the same"
                       : !is_judged          ? "different"
                       : comparison.passed() ? "passed"
                                             : "failed";
  if (comparison.metrics() > 0) {
    absl::StrAppend(
        &result, ": ", WithThousands(comparison.metrics_changed()), " of ",
        WithThousands(comparison.metrics()), " metrics differ, ",
        comparison.metrics_judged() == 0
            ? std::string("no tolerance given")
            : absl::StrCat(WithThousands(comparison.metrics_exceeded()), " of ",
                           WithThousands(comparison.metrics_judged()), " exceed their tolerance"));
  }
  AddHeading(absl::StrCat("result        ", result), page);
  return page.Take();
}

}  // namespace kvblocks::sim
