#include "sim/report/human_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/plan.pb.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int kRowLabelWidth = 28;
constexpr int kColumnWidth = 22;

std::string Number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15
             ? WithThousands(static_cast<int64_t>(value))
             : GroupThousands(absl::StrFormat("%.4g", value));
}

void AddHead(const pb::PlanReport& report, TextPage& page) {
  page.Text(
      "model",
      absl::StrCat(report.model(), ": ", report.num_layers(), " layers, ", report.kv_cache_dtype(),
                   " cache, on ", report.tensor_parallel(), " x ", report.device(),
                   report.pipeline_parallel() > 1
                       ? absl::StrCat(", ", report.pipeline_parallel(), " stages of them")
                   : report.data_parallel() > 1
                       ? absl::StrCat(", ", report.data_parallel(),
                                      " data-parallel ranks of them; the plan is of one rank")
                       : ""));
  page.Text("memory", absl::StrCat(Gigabytes(static_cast<double>(report.available_bytes())),
                                   " per device = ", report.available_source()));
  page.Text(
      "limits",
      absl::StrCat(WithThousands(report.max_model_len()), " tokens per request, ",
                   WithThousands(report.max_in_flight_tokens()),
                   report.steps_in_flight() > 2
                       ? absl::StrCat(" tokens in flight (", report.steps_in_flight(), " steps)")
                   : report.steps_in_flight() == 2
                       ? " tokens in flight (a step is scheduled while the one before runs)"
                       : " tokens in flight (one step)"));
  page.Text("per token",
            Say("$0 bytes inside all windows, $1 for good, $2",
                Number(report.bytes_per_recent_token()), Number(report.bytes_per_kept_token()),
                report.pipeline_parallel() > 1 ? "on the devices of all stages" : "per device"));
  page.Blank();
}

void AddLayerKinds(const pb::PlanReport& report, TextPage& page) {
  page.Line("layer caches",
            absl::StrFormat("%-24s %6s %6s %11s %8s %11s %10s", "", "layers", "block", "page bytes",
                            "window", "bytes/token", "blocks"));
  for (const pb::LayerKind& kind : report.layer_kinds()) {
    page.Line("",
              absl::StrFormat("%-24s %6d %6s %11s %8s %11s %10s", kind.kind(), kind.layers(),
                              WithThousands(kind.block_tokens()), WithThousands(kind.page_bytes()),
                              kind.window() == 0 ? "" : WithThousands(kind.window()),
                              kind.bytes_per_token() == 0 ? "" : Number(kind.bytes_per_token()),
                              WithThousands(kind.blocks_at_max_len())));
  }
  page.Line("", absl::StrCat("blocks: of one request of ", WithThousands(report.max_model_len()),
                             " tokens, at most"));
  page.Blank();
}

// "10 full_attention | 9 9 9 9 8 8 sliding_window": layers of each group, in order.
std::string Groups(const pb::PolicyPlan& plan) {
  constexpr int kMaxListed = 24;
  std::string text;
  std::string last;
  for (int g = 0; g < plan.groups_size() && g < kMaxListed; ++g) {
    const pb::PlanGroup& group = plan.groups(g);
    const std::string kind = absl::StrCat(group.kind(), " of ", group.block_tokens());
    if (g > 0 && kind != last) absl::StrAppend(&text, " ", last, " |");
    absl::StrAppend(&text, text.empty() ? "" : " ", group.layers());
    last = kind;
  }
  absl::StrAppend(&text, " ", last);
  if (plan.groups_size() > kMaxListed) {
    absl::StrAppend(&text, " and ", plan.groups_size() - kMaxListed, " more");
  }
  return text;
}

using Cell = std::function<std::string(const pb::PolicyPlan&)>;

void AddRow(const pb::PlanReport& report, const std::string& label, const Cell& cell,
            TextPage& page) {
  std::string line = absl::StrFormat("%-*s", kRowLabelWidth, label);
  bool has_any = false;
  for (const pb::PolicyPlan& plan : report.plans()) {
    const std::string text = plan.num_blocks() > 0 ? cell(plan) : "-";
    has_any = has_any || !text.empty();
    absl::StrAppend(&line, absl::StrFormat(" %*s", kColumnWidth, text));
  }
  if (has_any) page.Line("", line);
}

double SumOfWaste(const pb::PolicyPlan& plan, absl::string_view reason) {
  double sum = 0;
  for (const pb::PlanWaste& waste : plan.waste()) {
    if (waste.reason() == reason) sum += static_cast<double>(waste.bytes());
  }
  return sum;
}

void AddPlans(const pb::PlanReport& report, TextPage& page) {
  std::string head = absl::StrFormat("%-*s", kRowLabelWidth, "");
  for (const pb::PolicyPlan& plan : report.plans()) {
    absl::StrAppend(&head, absl::StrFormat(" %*s", kColumnWidth, plan.policy()));
  }
  page.Line("plans", head);
  const auto row = [&](const std::string& label, const Cell& cell) {
    AddRow(report, label, cell, page);
  };
  row("layout", [](const auto& p) { return p.layout(); });
  row("groups (block tables)", [](const auto& p) { return absl::StrCat(p.groups_size()); });
  row("blocks, null block included", [](const auto& p) { return WithThousands(p.num_blocks()); });
  row("bytes of a block", [](const auto& p) {
    return p.block_bytes() > 0 ? WithThousands(p.block_bytes()) : std::string();
  });
  row("chunks", [](const auto& p) {
    return p.num_chunks() > 0 ? absl::StrCat(WithThousands(p.num_chunks()), " of ",
                                             WithThousands(p.chunk_bytes()), " B")
                              : std::string();
  });
  row("tokens a hit advances by",
      [](const auto& p) { return WithThousands(p.scheduler_block_tokens()); });
  row("a request: fixed blocks",
      [](const auto& p) { return WithThousands(p.fixed_blocks_per_request()); });
  row("  + blocks per token", [](const auto& p) { return Number(p.blocks_per_token()); });
  std::vector<int64_t> lengths;
  for (const pb::PolicyPlan& plan : report.plans()) {
    for (const pb::PlanAtLength& at : plan.lengths()) lengths.push_back(at.length());
  }
  std::ranges::sort(lengths);
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const auto at = [](const pb::PolicyPlan& plan, int64_t length) -> const pb::PlanAtLength* {
    for (const pb::PlanAtLength& entry : plan.lengths()) {
      if (entry.length() == length) return &entry;
    }
    return nullptr;
  };
  for (int64_t length : lengths) {
    row(absl::StrCat("requests of ", WithThousands(length)), [&](const auto& p) {
      const auto* entry = at(p, length);
      return entry == nullptr ? std::string("-") : absl::StrFormat("%.2f", entry->concurrency());
    });
  }
  for (int64_t length : lengths) {
    row(absl::StrCat("  wasted of ", WithThousands(length)), [&](const auto& p) {
      const auto* entry = at(p, length);
      return entry == nullptr ? std::string("-") : Percent(entry->waste_share());
    });
  }
  row("kept for tokens in flight", [](const auto& p) {
    return p.in_flight_bytes() == 0
               ? std::string()
               : absl::StrCat(Gigabytes(static_cast<double>(p.in_flight_bytes())),
                              p.in_flight_per_request() ? " per request" : " once");
  });
  row("longest context alone", [](const auto& p) { return WithThousands(p.longest_context()); });
  std::vector<std::pair<std::string, std::string>> reasons;  // reason, what the share is of
  for (const pb::PolicyPlan& plan : report.plans()) {
    for (const pb::PlanWaste& waste : plan.waste()) {
      const std::pair<std::string, std::string> reason(waste.reason(), waste.of());
      if (waste.bytes() > 0 && std::ranges::find(reasons, reason) == reasons.end()) {
        reasons.push_back(reason);
      }
    }
  }
  for (const auto& [reason, of] : reasons) {
    row(absl::StrCat("bytes, ", reason, " per ", of), [&reason = reason](const auto& p) {
      const double sum = SumOfWaste(p, reason);
      return sum == 0 ? std::string("0") : WithThousands(std::llround(sum));
    });
  }
  page.Blank();
  for (const pb::PolicyPlan& plan : report.plans()) {
    if (plan.num_blocks() > 0) page.Text(absl::StrCat(plan.policy(), ":"), Groups(plan));
  }
}

// The answer to --requests.
void AddAnswer(const pb::PlanReport& report, TextPage& page) {
  if (!report.has_asked_requests()) return;
  const auto asked = static_cast<double>(report.asked_requests());
  for (int i = 0; i < report.plans_size(); ++i) {
    const pb::PolicyPlan& plan = report.plans(i);
    const bool fits = plan.problems().empty() && plan.asked_concurrency() >= asked;
    std::string text =
        absl::StrCat(Plural(report.asked_requests(), "request"), " of ",
                     WithThousands(report.asked_length()), " tokens: ", fits ? "yes" : "no", ", ",
                     plan.policy(), "'s plan holds ",
                     absl::StrFormat("%.2f", plan.asked_concurrency()));
    if (plan.asked_replicas() > 1) {
      const int64_t devices =
          report.tensor_parallel() * report.pipeline_parallel() * report.data_parallel();
      absl::StrAppend(&text, "; ", plan.asked_replicas(), " such replicas hold them (",
                      plan.asked_replicas() * devices, " devices), ", plan.asked_replicas() + 1,
                      " with one to spare");
    }
    page.Text(i == 0 ? "question" : "", text);
  }
}

void AddProblems(const pb::PlanReport& report, TextPage& page) {
  for (const pb::PolicyPlan& plan : report.plans()) {
    for (const pb::PlanProblem& problem : plan.problems()) {
      page.Text("does not fit",
                absl::StrCat(plan.policy(), ", ", problem.code(), ": ", problem.message()));
    }
    if (plan.problems_size() > 0 && plan.num_blocks() > 0) {
      page.Text("", Say("($0 figures above are for at most $1 tokens per request)", plan.policy(),
                        plan.max_model_len()));
    }
  }
  for (int i = 0; i < report.suggestions_size(); ++i) {
    page.Text(i == 0 ? "would fit" : "", report.suggestions(i));
  }
  for (int i = 0; i < report.notes_size(); ++i) {
    page.Text(i == 0 ? "note" : "", report.notes(i));
  }
}

}  // namespace

std::string FormatPlan(const pb::PlanReport& report, bool color) {
  TextPage page(color);
  AddHead(report, page);
  AddLayerKinds(report, page);
  AddPlans(report, page);
  AddAnswer(report, page);
  AddProblems(report, page);
  return page.Take();
}

}  // namespace kvblocks::sim
