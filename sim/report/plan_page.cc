#include "kvblocks/sim/report/plan_page.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/html_page.h"
#include "kvblocks/sim/report/human_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

using PlanText = std::function<std::string(const pb::PolicyPlan&)>;
using LengthText = std::function<std::string(const pb::PlanAtLength&)>;

std::vector<std::string> PlanColumns(const pb::PlanReport& report) {
  std::vector<std::string> columns = {""};
  for (const pb::PolicyPlan& plan : report.plans()) {
    columns.push_back(absl::StrCat(plan.policy(), " ", plan.layout()));
  }
  return columns;
}

std::vector<int64_t> AllLengths(const pb::PlanReport& report) {
  std::vector<int64_t> lengths;
  for (const pb::PolicyPlan& plan : report.plans()) {
    for (const pb::PlanAtLength& at : plan.lengths()) lengths.push_back(at.length());
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

const pb::PlanAtLength* AtLength(const pb::PolicyPlan& plan, int64_t length) {
  for (const pb::PlanAtLength& at : plan.lengths()) {
    if (at.length() == length) return &at;
  }
  return nullptr;
}

void AddPlanTable(const pb::PlanReport& report, HtmlPage* page) {
  HtmlTable table = {.title = "Plans", .columns = PlanColumns(report)};
  const auto row = [&](const std::string& name, const PlanText& text) {
    std::vector<std::string> cells = {name};
    for (const pb::PolicyPlan& plan : report.plans()) {
      cells.push_back(plan.num_blocks() > 0 ? text(plan) : "nothing fits");
    }
    table.rows.push_back(std::move(cells));
  };
  row("groups", [](const pb::PolicyPlan& p) { return absl::StrCat(p.groups_size()); });
  row("blocks, null block included",
      [](const pb::PolicyPlan& p) { return WithThousands(p.num_blocks()); });
  row("tokens a hit advances by",
      [](const pb::PolicyPlan& p) { return WithThousands(p.scheduler_block_tokens()); });
  row("longest request alone, tokens",
      [](const pb::PolicyPlan& p) { return WithThousands(p.longest_context()); });
  for (const int64_t length : AllLengths(report)) {
    const auto at = [&](const std::string& name, const LengthText& text) {
      row(name, [&](const pb::PolicyPlan& p) {
        const pb::PlanAtLength* entry = AtLength(p, length);
        return entry == nullptr ? std::string("n/a") : text(*entry);
      });
    };
    at(absl::StrCat("requests of ", WithThousands(length), " tokens"),
       [](const pb::PlanAtLength& e) { return absl::StrFormat("%.2f", e.concurrency()); });
    at(absl::StrCat("wasted of ", WithThousands(length)),
       [](const pb::PlanAtLength& e) { return absl::StrFormat("%.2f %%", 100 * e.waste_share()); });
  }
  page->AddTable(table);
}

void AddLayerTable(const pb::PlanReport& report, HtmlPage* page) {
  HtmlTable table = {.title = "Layer caches",
                     .columns = {"", "layers", "block, tokens", "page, bytes", "window, tokens",
                                 "bytes per token", "blocks of the longest request"}};
  for (const pb::LayerKind& kind : report.layer_kinds()) {
    table.rows.push_back(
        {kind.kind(), absl::StrCat(kind.layers()), WithThousands(kind.block_tokens()),
         WithThousands(kind.page_bytes()), kind.window() == 0 ? "" : WithThousands(kind.window()),
         absl::StrCat(kind.bytes_per_token()), WithThousands(kind.blocks_at_max_len())});
  }
  page->AddTable(table);
}

void AddLengthChart(const pb::PlanReport& report, const Chart& empty,
                    double (*value)(const pb::PlanAtLength&), HtmlPage* page) {
  Chart chart = empty;
  const std::vector<int64_t> lengths = AllLengths(report);
  for (const int64_t length : lengths) chart.categories.push_back(WithThousands(length));
  for (const pb::PolicyPlan& plan : report.plans()) {
    ChartLine line = {.name = absl::StrCat(plan.policy(), " ", plan.layout())};
    for (const int64_t length : lengths) {
      const pb::PlanAtLength* at = AtLength(plan, length);
      line.bars.push_back(at == nullptr ? 0.0 : value(*at));
    }
    chart.lines.push_back(std::move(line));
  }
  page->AddChart(chart);
}

void AddLayerChart(const pb::PlanReport& report, HtmlPage* page) {
  constexpr double kMegabyte = 1e6;
  Chart chart = {.title = "Memory of the longest request, by kind of layer",
                 .caption = "What one request of the length asked for takes on one device.",
                 .y_label = "MB"};
  ChartLine line = {.name = "MB"};
  for (const pb::LayerKind& kind : report.layer_kinds()) {
    chart.categories.push_back(absl::StrCat(kind.layers(), " x ", kind.kind()));
    line.bars.push_back(static_cast<double>(kind.blocks_at_max_len()) *
                        static_cast<double>(kind.page_bytes()) *
                        static_cast<double>(kind.layers()) / kMegabyte);
  }
  chart.lines = {std::move(line)};
  page->AddChart(chart);
}

}  // namespace

std::string PlanPage(const pb::PlanReport& report) {
  HtmlPage page(
      absl::StrCat("Plan of ", report.model()),
      absl::StrCat(report.kv_cache_dtype(), " cache on ", report.tensor_parallel(), " x ",
                   report.device(),
                   report.pipeline_parallel() > 1
                       ? absl::StrCat(" in each of ", report.pipeline_parallel(), " stages")
                   : report.data_parallel() > 1
                       ? absl::StrCat(", one of ", report.data_parallel(), " data-parallel ranks")
                       : "",
                   ", ",
                   absl::StrFormat("%.2f GB", static_cast<double>(report.available_bytes()) / 1e9),
                   " per device = ", report.available_source()));
  for (const pb::PolicyPlan& plan : report.plans()) {
    for (const pb::PlanProblem& problem : plan.problems()) {
      page.AddNote(absl::StrCat("Does not fit, ", plan.policy(), ", ", problem.code(), ": ",
                                problem.message()));
    }
  }
  for (const std::string& suggestion : report.suggestions()) page.AddNote(suggestion);
  for (const std::string& note : report.notes()) page.AddNote(note);
  AddPlanTable(report, &page);
  AddLengthChart(
      report,
      {.title = "Requests at once",
       .caption = "Requests of one length that the pool holds together.",
       .x_label = "tokens per request",
       .y_label = "requests"},
      [](const pb::PlanAtLength& at) { return at.concurrency(); }, &page);
  AddLengthChart(
      report,
      {.title = "Waste",
       .caption = "Share of a request's bytes in which no layer stores anything.",
       .x_label = "tokens per request",
       .y_label = "%"},
      [](const pb::PlanAtLength& at) { return 100 * at.waste_share(); }, &page);
  AddLayerChart(report, &page);
  AddLayerTable(report, &page);
  return page.Finish();
}

}  // namespace kvblocks::sim
