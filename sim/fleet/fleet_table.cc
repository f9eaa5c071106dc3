#include "kvblocks/sim/fleet/fleet_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/fleet/scaling_report.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::fleet::v1;

constexpr int kMostRows = 16;

std::string InPercent(double share) { return absl::StrFormat("%.2f %%", 100 * share); }

std::string Latencies(const ::kvblocks::report::v1::Distribution& d) {
  return absl::StrFormat("mean %s, p50 %s, p90 %s, p99 %s", Span(d.mean_ms() / 1e3),
                         Span(d.p50_ms() / 1e3), Span(d.p90_ms() / 1e3), Span(d.p99_ms() / 1e3));
}

// Every router says what it looks at.
std::string DescribeRouter(const pb::RouterSetup& router) {
  const std::string& name = router.router();
  std::string text = name;
  const bool scores = name == "prefix" || name == "prefix-approximate" || name == "oracle";
  if (scores) {
    absl::StrAppendFormat(&text, ", score = %g x blocks held - %g x load - %g x queue",
                          router.hit_weight(), router.load_weight(), router.queue_weight());
    if (router.temperature() > 0) {
      absl::StrAppendFormat(&text, ", temperature %g", router.temperature());
    }
  }
  if (name == "prefix-approximate") {
    absl::StrAppend(&text, ", tree of ", WithThousands(router.tree_blocks()), " blocks");
  }
  if (name == "session") {
    absl::StrAppendFormat(&text, ", at most %g x the mean", router.session_factor());
  }
  if (router.router_delay_ms() > 0) {
    absl::StrAppendFormat(&text, ", delay %g ms", router.router_delay_ms());
  }
  if (name == "prefix" && router.event_delay_ms() > 0) {
    absl::StrAppendFormat(&text, ", events %g ms late", router.event_delay_ms());
  }
  if (name == "prefix" && router.event_loss() > 0) {
    absl::StrAppend(&text, ", ", InPercent(router.event_loss()), " of the events lost");
  }
  return text;
}

void AddDecisions(const pb::FleetReport& report, TextPage& page) {
  const pb::Decisions& d = report.decisions();
  page.Text("choices", absl::StrCat(WithThousands(d.routed()), " requests sent; for ",
                                    WithThousands(d.another_held_more()),
                                    " another replica held more of the prompt, by ",
                                    WithThousands(d.oracle_more_tokens()), " tokens in all"));
  const std::string& router = report.router().router();
  if (router != "prefix" && router != "prefix-approximate" && router != "oracle") return;
  page.Text("claims",
            absl::StrCat(WithThousands(d.claimed_tokens()), " tokens claimed, ",
                         WithThousands(d.found_tokens()), " found at admission; too high for ",
                         Plural(d.claims_too_high(), "request"), " (",
                         WithThousands(d.missing_tokens()), " tokens missing), too low for ",
                         WithThousands(d.claims_too_low()), " (",
                         WithThousands(d.unknown_tokens()), " tokens unknown)"));
}

}  // namespace

std::string FormatFleet(const pb::FleetReport& report, bool color) {
  TextPage page(color);
  const pb::FleetTotals& totals = report.totals();
  page.Line("fleet", Plural(report.replicas_size(), "replica"));
  page.Text("router", DescribeRouter(report.router()));
  std::string requests = absl::StrCat(WithThousands(totals.requests_arrived()), " arrived, ",
                                      WithThousands(totals.requests_finished()), " finished");
  if (totals.requests_rejected() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_rejected()), " rejected");
  }
  if (totals.requests_aborted() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_aborted()), " aborted");
  }
  if (totals.requests_skipped() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_skipped()), " left out");
  }
  page.Text("requests", absl::StrCat(requests, " in ", Span(totals.duration_s()), "; ",
                                     absl::StrFormat("%.4g requests/s, %.4g output tokens/s",
                                                     totals.requests_per_s(),
                                                     totals.output_tokens_per_s())));
  page.Line("hit rate", absl::StrCat(InPercent(report.hit_rate().value()), ": ",
                                     WithThousands(report.hit_rate().numerator()), " of ",
                                     WithThousands(report.hit_rate().denominator()),
                                     " prompt tokens"));
  page.Line("queueing", Latencies(report.latency().queueing()));
  page.Line("TTFT", Latencies(report.latency().ttft()));
  page.Line("E2E", Latencies(report.latency().e2e()));
  const pb::Imbalance& imbalance = report.imbalance();
  page.Line("most / mean",
            absl::StrFormat("requests %.3f, prompt tokens %.3f, output tokens %.3f, busy time %.3f",
                            imbalance.requests(), imbalance.prompt_tokens(),
                            imbalance.output_tokens(), imbalance.busy_time()));
  AddDecisions(report, page);
  if (report.has_scaling()) AddScaling(report.scaling(), page);
  page.Blank();
  page.Line("replica", absl::StrFormat("%10s %14s %9s %13s %8s %9s %13s", "requests",
                                       "prompt tokens", "hit rate", "output tokens", "busy",
                                       "preempted", "missed hits"));
  const int rows = std::min(report.replicas_size(), kMostRows);
  for (int r = 0; r < rows; ++r) {
    const pb::ReplicaRow& row = report.replicas(r);
    page.Line(absl::StrCat("  ", row.replica()),
              absl::StrFormat("%10s %14s %9s %13s %8s %9s %13s", WithThousands(row.requests_sent()),
                              WithThousands(row.prompt_tokens()), InPercent(row.hit_rate()),
                              WithThousands(row.output_tokens()), InPercent(row.busy_share()),
                              WithThousands(row.preemptions()),
                              WithThousands(row.oracle_more_tokens())));
  }
  if (rows < report.replicas_size()) {
    page.Line("", absl::StrCat("and ", report.replicas_size() - rows, " more, see --json"));
  }
  if (report.notes_size() > 0) page.Blank();
  for (const std::string& note : report.notes()) page.Text("note", note);
  return page.Take();
}

std::string FormatRouting(const pb::RoutingExplanation& routing, bool color) {
  TextPage page(color);
  page.Text("routing",
            absl::StrCat("request ", routing.request(), " was sent to replica ", routing.chosen(),
                         " at ", absl::StrFormat("%.6g s", routing.sent_s()), " by ",
                         routing.router()));
  page.Line("replica", absl::StrFormat("%10s %14s %16s %14s %14s %12s", "requests", "their tokens",
                                       "not yet admitted", "claimed hits", "would have hit",
                                       "score"));
  int64_t most = 0, chosen = 0;
  for (const pb::Candidate& c : routing.candidates()) {
    most = std::max(most, c.held_tokens());
    if (c.replica() == routing.chosen()) chosen = c.held_tokens();
    const bool has_score = c.claimed_tokens() >= 0;
    page.Line(absl::StrCat(c.replica() == routing.chosen() ? "> " : "  ", c.replica()),
              absl::StrFormat("%10s %14s %16s %14s %14s %12s", WithThousands(c.requests()),
                              WithThousands(c.tokens()), WithThousands(c.waiting_prompt_tokens()),
                              has_score ? WithThousands(c.claimed_tokens()) : "-",
                              WithThousands(c.held_tokens()),
                              has_score ? absl::StrFormat("%.6g", c.score()) : "-"));
  }
  if (routing.found_tokens() >= 0) {
    page.Text("", absl::StrCat("found ", Plural(routing.found_tokens(), "token"),
                               " at its first admission",
                               most > chosen ? absl::StrCat("; the best replica held ",
                                                            WithThousands(most - chosen),
                                                            " more when it was sent")
                                             : ""));
  } else {
    page.Line("", "never admitted");
  }
  return page.Take();
}

}  // namespace kvblocks::sim
