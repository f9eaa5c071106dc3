#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/sweep/capacity_search.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

// `is_dealt`: replicas are independent, and their percentiles do not add up.
std::string ProbeText(const pb::CapacityReport::Probe& probe, bool is_dealt) {
  std::string text = absl::StrFormat("%.4g requests/s:", probe.requests_per_s());
  for (const auto& objective : probe.objectives()) {
    if (objective.percentile() > 0) {
      absl::StrAppendFormat(&text, " %s p%g %s,", objective.metric(), objective.percentile(),
                            Span(objective.observed_ms() / 1e3));
    } else {
      absl::StrAppendFormat(&text, " %s within %s for %.2f %%,", objective.metric(),
                            Span(objective.limit_ms() / 1e3), 100 * objective.share());
    }
  }
  absl::StrAppendFormat(&text, " %.2f %% of requests meet all limits", 100 * probe.good_share());
  if (probe.replicas() > 1 && is_dealt) {
    absl::StrAppend(&text, " (latencies of the worst replica)");
  }
  return text;
}

std::string CandidateName(const pb::CapacityReport::Candidate& candidate) {
  return absl::StrCat(candidate.tensor_parallel(), " x ", candidate.device());
}

void AddCandidate(const pb::CapacityReport& report, const pb::CapacityReport::Candidate& candidate,
                  TextPage* page) {
  page->Blank();
  const std::string name = CandidateName(candidate);
  const bool is_dealt = report.router().empty();
  if (candidate.highest_rate() > 0) {
    const double devices =
        static_cast<double>(candidate.tensor_parallel() * std::max<int64_t>(report.fleet(), 1));
    page->Text(name.size() < 14 ? name : "",
               absl::StrCat(name.size() < 14 ? "" : absl::StrCat(name, ": "),
                            report.fleet() > 0 ? absl::StrCat(report.fleet(), " replicas behind ",
                                                              report.router(), " serve ")
                                               : "one replica serves ",
                            absl::StrFormat("%.4g", candidate.highest_rate()),
                            " requests/s within the limits (kvsim replay --speedup=",
                            candidate.at_highest().speedup(), ")"));
    page->Text("  met", ProbeText(candidate.at_highest(), is_dealt));
    if (candidate.failing_rate() > 0) {
      page->Text("  missed", ProbeText(candidate.at_failing(), is_dealt));
      page->Text("  because", candidate.binding());
    } else {
      page->Text("  missed", "no rate that was tried misses the limits");
    }
    if (candidate.price_per_hour() > 0) {
      page->Text("  price",
                 absl::StrFormat("%.4g per hour of %s, %.4g per million requests",
                                 candidate.price_per_hour() * devices,
                                 report.fleet() > 0 ? "them all" : "a replica",
                                 candidate.price_per_hour() * devices /
                                     (candidate.highest_rate() * 3600) * 1e6));
    }
  }
  if (candidate.replicas() > 0) {
    page->Text("  needs",
               absl::StrFormat("%s of %s%s for %.4g requests/s: %s%s",
                               Plural(candidate.replicas(), "replica"), name,
                               is_dealt ? "" : absl::StrCat(" behind ", report.router()),
                               report.target_rate(),
                               Plural(candidate.devices(), "device"),
                               candidate.price_per_hour() > 0
                                   ? absl::StrFormat(", %.4g per hour", candidate.cost_per_hour())
                                   : ""));
    page->Text("  with them", ProbeText(candidate.at_target(), is_dealt));
    if (candidate.one_less().replicas() > 0) {
      page->Text("  one less", ProbeText(candidate.one_less(), is_dealt));
    }
  }
  if (!candidate.problem().empty()) {
    page->Text(candidate.highest_rate() > 0 ? "  problem" : "problem",
               absl::StrCat(name, ": ", candidate.problem()));
    if (candidate.highest_rate() == 0 && !candidate.binding().empty()) {
      page->Text("  because", candidate.binding());
    }
  }
}

}  // namespace

void AddCapacityNotes(const CapacityNoteFacts& facts, pb::CapacityReport* report) {
  double fastest = report->target_rate();
  std::string met_if_spread;
  for (const auto& candidate : report->candidates()) {
    fastest = std::max(fastest, candidate.highest_rate());
    const std::string name = absl::StrCat(candidate.tensor_parallel(), " x ", candidate.device());
    if (!candidate.is_monotone()) {
      report->add_notes(absl::StrCat(
          name,
          ": a rate above the highest one shown meets the limits again; look at the curve with "
          "kvsim sweep --grid speedup=..."));
    }
    if (candidate.met_if_spread()) {
      absl::StrAppendFormat(&met_if_spread, "%s%s at %.4g requests/s",
                            met_if_spread.empty() ? "" : ", ", name, candidate.failing_rate());
    }
  }
  if (!met_if_spread.empty()) {
    report->add_notes(absl::StrCat(
        Plural(facts.num_arrivals, "request"), " arrive at ",
        Plural(facts.num_arrival_times, "time"),
        ", so that they march in step, perhaps only because of how they were recorded. Spread over "
        "the time up to the next ones (--spread) they are served within the limits where they miss "
        "them here: ",
        met_if_spread));
  }
  constexpr double kShort = 120;
  const double seconds = fastest > 0
                             ? facts.arrival_seconds * report->trace_rate() / fastest
                             : facts.arrival_seconds;
  if (seconds < kShort) {
    report->add_notes(
        absl::StrCat("at the highest rate here the trace arrives within ", Span(seconds),
                     ": a burst that ends before queues are as long as they would get; a longer "
                     "trace gives a lower rate"));
  }
  if (report->target_rate() > 0 && report->router().empty()) {
    report->add_notes(
        "replicas are independent and get conversations round robin; a router that looks at caches "
        "or load may need fewer (--router)");
  }
  report->add_notes(absl::StrFormat(
      "rates are searched to %.1f %%; the two next higher ones that were tried miss, unless a note "
      "says otherwise",
      100 * report->tolerance()));
}

std::string FormatCapacity(const pb::CapacityReport& report, bool color) {
  TextPage page(color);
  page.Text("workload", report.workload());
  page.Text("limits", report.goodput() > 0
                          ? absl::StrFormat("%s, all of them for %.4g %% of requests", report.slo(),
                                            100 * report.goodput())
                          : report.slo());
  for (const auto& candidate : report.candidates()) AddCandidate(report, candidate, &page);
  page.Blank();
  if (report.candidates_size() > 1) {
    const auto best = std::find_if(report.candidates().begin(), report.candidates().end(),
                                   [](const auto& candidate) { return candidate.is_cheapest(); });
    const bool has_price = best != report.candidates().end() && best->price_per_hour() > 0;
    if (best == report.candidates().end()) {
      page.Text("answer", "none of these meets the limits");
    } else if (report.target_rate() > 0) {
      page.Text(
          "answer",
          absl::StrCat(has_price ? "cheapest" : "fewest devices", ": ",
                       Plural(best->replicas(), "replica"), " of ", CandidateName(*best),
                       has_price ? absl::StrFormat(", %.4g per hour", best->cost_per_hour()) : ""));
    } else {
      page.Text("answer",
                absl::StrCat(has_price ? "cheapest per request: " : "most requests per device: ",
                             CandidateName(*best)));
    }
  }
  for (const std::string& note : report.notes()) page.Text("note", note);
  return page.Take();
}

}  // namespace kvblocks::sim
