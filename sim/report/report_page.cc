#include "kvblocks/sim/report/report_page.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/sim/report/html_page.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/report_charts.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

// One row's cells: the first names it, then one per run.
using Cells = std::vector<std::string>;
using Runs = std::vector<DrawnRun>;

std::string PercentText(double share) { return absl::StrFormat("%.2f %%", 100 * share); }

std::string RatioText(const pb::Ratio& ratio) {
  if (ratio.denominator() == 0) return "n/a";
  return absl::StrCat(PercentText(ratio.value()), " (", WithThousands(ratio.numerator()), " of ",
                      WithThousands(ratio.denominator()), ")");
}

std::string MillisecondText(double ms) {
  return ms >= 1e4 ? WithThousands(std::llround(ms)) : GroupThousands(absl::StrFormat("%.4g", ms));
}

std::string NumberText(double value) {
  return value >= 1e4 ? WithThousands(std::llround(value)) : GroupThousands(absl::StrFormat("%.4g", value));
}

std::string WorkloadText(const pb::Report& report) {
  const pb::Workload& w = report.workload();
  return absl::StrCat(w.name(), ": ", WithThousands(w.requests_arrived()), " requests, ",
                      WithThousands(w.input_tokens()), " prompt and ",
                      WithThousands(w.requested_output_tokens()), " output tokens");
}

class Tables {
 public:
  Tables(const Runs& runs, HtmlPage* page) : runs_(runs), page_(*page) {}

  void AddAll() {
    AddSetup();
    AddResults();
    AddLatency();
    AddMisses();
  }

 private:
  std::vector<std::string> Columns() const {
    if (runs_.size() == 1) return {};
    std::vector<std::string> columns = {""};
    for (const DrawnRun& run : runs_) columns.push_back(run.name);
    return columns;
  }

  template <typename Text>
  Cells Row(const std::string& name, Text&& text) const {
    Cells row = {name};
    for (const DrawnRun& run : runs_) row.push_back(text(*run.report));
    return row;
  }

  void AddSetup() {
    page_.AddTable(
        {.title = "What was replayed",
         .columns = Columns(),
         .rows = {
             Row("workload", WorkloadText),
             Row("pool",
                 [](const pb::Report& r) {
                   return absl::StrCat(WithThousands(r.setup().num_blocks()), " blocks of ",
                                       r.setup().block_tokens(), " tokens; ",
                                       r.setup().num_blocks_source());
                 }),
             Row("engine",
                 [](const pb::Report& r) {
                   const auto& config = r.config();
                   return absl::StrCat(config.engine(), config.async() ? ", async" : ", sync",
                                       "; at most ", WithThousands(config.max_num_batched_tokens()),
                                       " tokens and ", WithThousands(config.max_num_seqs()),
                                       " requests per step");
                 }),
             Row("model and device",
                 [](const pb::Report& r) {
                   return absl::StrCat(r.config().model(), " on ", r.config().tensor_parallel(),
                                       " x ", r.config().device());
                 }),
             Row("step times from", [](const pb::Report& r) { return r.setup().time_source(); })}});
  }

  void AddResults() {
    page_.AddTable(
        {.title = "What came of it",
         .columns = Columns(),
         .rows = {
             Row("token hit rate",
                 [](const pb::Report& r) { return RatioText(r.whole_run().token_hit_rate()); }),
             Row("of what an infinite cache would hit",
                 [](const pb::Report& r) { return RatioText(r.whole_run().possible_hit_rate()); }),
             Row("token hit rate after warm-up",
                 [](const pb::Report& r) { return RatioText(r.after_warmup().token_hit_rate()); }),
             Row("requests finished, rejected, aborted",
                 [](const pb::Report& r) {
                   return absl::StrCat(WithThousands(r.totals().requests_finished()), ", ",
                                       WithThousands(r.totals().requests_rejected()), ", ",
                                       WithThousands(r.totals().requests_aborted()));
                 }),
             Row("requests per second",
                 [](const pb::Report& r) { return NumberText(r.throughput().requests_per_s()); }),
             Row("output tokens per second",
                 [](const pb::Report& r) {
                   return NumberText(r.throughput().output_tokens_per_s());
                 }),
             Row("device busy",
                 [](const pb::Report& r) { return PercentText(r.throughput().busy_share()); }),
             Row("pool referenced, mean and peak",
                 [](const pb::Report& r) {
                   return absl::StrCat(PercentText(r.pool().usage().mean()), ", ",
                                       PercentText(r.pool().usage().peak()));
                 }),
             Row("cached blocks evicted",
                 [](const pb::Report& r) { return WithThousands(r.pool().evictions()); }),
             Row("preemptions",
                 [](const pb::Report& r) { return WithThousands(r.preemption().preemptions()); }),
             Row("requests that meet every SLO", [](const pb::Report& r) {
               if (!r.has_goodput()) return std::string("no SLO given");
               return absl::StrCat(PercentText(r.goodput().good_share()), " of ",
                                   WithThousands(r.goodput().requests_total()), "; ",
                                   r.config().slo());
             })}});
  }

  void AddLatency() {
    HtmlTable table = {.title = "Latency, ms",
                       .columns = {"", "mean", "p50", "p90", "p99", "max", "what"}};
    const auto add = [&](const std::string& name,
                         const pb::Distribution& (pb::Latency::*values)() const) {
      for (const DrawnRun& run : runs_) {
        if (!run.report->setup().latency_is_meaningful()) continue;
        const pb::Distribution& d = (run.report->latency().*values)();
        if (d.count() == 0) continue;
        table.rows.push_back({run.name.empty() ? name : absl::StrCat(name, ", ", run.name),
                              MillisecondText(d.mean_ms()), MillisecondText(d.p50_ms()),
                              MillisecondText(d.p90_ms()), MillisecondText(d.p99_ms()),
                              MillisecondText(d.max_ms()), d.definition()});
      }
    };
    add("queueing", &pb::Latency::queueing);
    add("TTFT", &pb::Latency::ttft);
    add("TPOT, ITL per request", &pb::Latency::tpot);
    add("ITL per gap", &pb::Latency::itl);
    add("E2E", &pb::Latency::e2e);
    if (!table.rows.empty()) page_.AddTable(table);
  }

  void AddMisses() {
    if (runs_.size() != 1) return;
    const pb::Report& report = *runs_[0].report;
    const pb::PromptTokens& prompt = report.prompt_tokens();
    if (!report.config().prefix_caching() || prompt.known() == 0) return;
    HtmlTable table = {.title = "Where the prompt tokens went",
                       .columns = {"", "tokens", "share", "meaning"}};
    const auto add = [&](const std::string& name, int64_t tokens, const std::string& meaning) {
      if (tokens == 0) return;
      table.rows.push_back(
          {name, WithThousands(tokens),
           PercentText(static_cast<double>(tokens) / static_cast<double>(prompt.known())),
           meaning});
    };
    add("hit", prompt.hit(), "found in the prefix cache");
    for (const pb::MissCause& cause : report.first_admission_misses().causes()) {
      add(cause.cause(), cause.tokens(), cause.meaning());
    }
    add("partial blocks", prompt.partial_blocks(), "behind the last full block: never cached");
    page_.AddTable(table);
  }

  const Runs& runs_;
  HtmlPage& page_;
};

void AddNotes(const Runs& runs, HtmlPage* page) {
  for (const DrawnRun& run : runs) {
    for (const std::string& note : run.report->notes()) {
      page->AddNote(run.name.empty() ? note : absl::StrCat(run.name, ": ", note));
    }
  }
}

// All options of a run, as its report has them.
void AddConfiguration(const pb::Report& report, HtmlPage* page) {
  const auto& config = report.config();
  const auto* reflection = config.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(config, &fields);
  HtmlTable table = {.title = "Configuration"};
  for (const auto* field : fields) {
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    std::string text;
    google::protobuf::TextFormat::PrintFieldValueToString(config, field, -1, &text);
    table.rows.push_back({field->name(), text});
  }
  page->AddHeading("Configuration");
  page->AddTable(table);
}

void AddDifferences(const pb::Comparison& comparison, HtmlPage* page) {
  constexpr int kMostChanges = 200;
  page->AddHeading("Differences");
  if (comparison.same()) page->AddNote("The two runs are the same.");
  const auto cell = [](bool has, const std::string& text) { return has ? text : "n/a"; };
  if (comparison.configuration_size() > 0) {
    HtmlTable table = {.title = "Options", .columns = {"", "A", "B"}};
    for (const pb::FieldDifference& field : comparison.configuration()) {
      table.rows.push_back(
          {field.name(), cell(field.has_a(), field.a()), cell(field.has_b(), field.b())});
    }
    page->AddTable(table);
  }
  if (comparison.has_schedule()) {
    const pb::ScheduleComparison& schedule = comparison.schedule();
    page->AddNote(schedule.same()
                      ? "The schedules are the same."
                      : absl::StrCat("The schedules part after ",
                                     WithThousands(schedule.equal_steps()), " equal steps."));
  }
  HtmlTable table = {.title = "Metrics",
                     .columns = {"", "A", "B", "change", "relative", "tolerance"}};
  for (const pb::MetricChange& change : comparison.changes()) {
    if (table.rows.size() == kMostChanges) break;
    std::string tolerance = change.tolerance();
    if (change.exceeded()) absl::StrAppend(&tolerance, " exceeded");
    table.rows.push_back(
        {change.name(), cell(change.has_a(), change.a()), cell(change.has_b(), change.b()),
         cell(change.has_change(), change.change()),
         cell(change.has_relative(), absl::StrFormat("%+.2f %%", 100 * change.relative())),
         tolerance});
  }
  if (table.rows.empty()) return;
  page->AddTable(table);
  if (comparison.changes_size() > kMostChanges) {
    page->AddNote(absl::StrCat(comparison.changes_size() - kMostChanges,
                               " further metrics changed; kvsim compare lists them."));
  }
}

}  // namespace

std::string ReportPage(const pb::Report& report) {
  HtmlPage page(
      absl::StrCat("Replay of ", report.workload().name()),
      absl::StrCat(report.config().model(), " on ", report.config().tensor_parallel(), " x ",
                   report.config().device(), ", ", WithThousands(report.setup().num_blocks()),
                   " blocks of ", report.setup().block_tokens(), " tokens"));
  const Runs runs = {{.report = &report}};
  AddNotes(runs, &page);
  Tables(runs, &page).AddAll();
  AddReportCharts(runs, &page);
  AddConfiguration(report, &page);
  return page.Finish();
}

std::string ComparisonPage(const pb::Report& a, const pb::Report& b,
                           const pb::Comparison& comparison) {
  HtmlPage page("Two runs compared", absl::StrCat("A: ", comparison.a(), ", B: ", comparison.b()));
  const Runs runs = {{.report = &a, .name = "A"}, {.report = &b, .name = "B"}};
  AddNotes(runs, &page);
  Tables(runs, &page).AddAll();
  AddReportCharts(runs, &page);
  AddDifferences(comparison, &page);
  return page.Finish();
}

}  // namespace kvblocks::sim
