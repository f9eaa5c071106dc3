#include "kvblocks/sim/fleet/fleet_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/fleet/scaling_report.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/report/tier_section.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::fleet::v1;

constexpr int kMostRows = 16;

// Whether the router claims hits.
bool LooksAtContent(const pb::RouterSetup& router) {
  const std::string& name = router.router();
  return name == "prefix" || name == "prefix-approximate" || name == "oracle";
}

// Every router says what it looks at.
std::string DescribeRouter(const pb::RouterSetup& router) {
  const std::string& name = router.router();
  std::string text = name;
  if (LooksAtContent(router)) {
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
  if (router.queue_requests() > 0 || router.queue_tokens() > 0) {
    absl::StrAppend(&text, ", at most ");
    if (router.queue_requests() > 0) {
      absl::StrAppend(&text, Plural(router.queue_requests(), "request"),
                      router.queue_tokens() > 0 ? " and " : "");
    }
    if (router.queue_tokens() > 0) absl::StrAppend(&text, Plural(router.queue_tokens(), "token"));
    absl::StrAppend(&text, " per replica, others wait",
                    router.queue_by_priority() ? " by priority" : "");
    if (router.queue_limit() >= 0) {
      absl::StrAppend(&text, ", ", WithThousands(router.queue_limit()), " of them at most");
    }
  }
  if (router.router_delay_ms() > 0) {
    absl::StrAppendFormat(&text, ", delay %g ms", router.router_delay_ms());
  }
  if (name == "prefix" && router.event_delay_ms() > 0) {
    absl::StrAppendFormat(&text, ", events %g ms late", router.event_delay_ms());
  }
  if (name == "prefix" && router.event_loss() > 0) {
    absl::StrAppend(&text, ", ", Percent(router.event_loss()), " of the events lost");
  }
  return text;
}

bool IsAnyInLockstep(const pb::FleetReport& report) {
  return std::any_of(report.rank_groups().begin(), report.rank_groups().end(),
                     [](const pb::RankGroup& group) { return group.lockstep(); });
}

// "2 replicas of 8 data-parallel ranks in lockstep".
std::string RanksText(const pb::FleetReport& report) {
  std::string text;
  int others = report.replicas_size();
  for (int g = 0; g < report.rank_groups_size();) {
    const pb::RankGroup& group = report.rank_groups(g);
    int count = 0;
    for (; g < report.rank_groups_size() && report.rank_groups(g).ranks() == group.ranks() &&
           report.rank_groups(g).lockstep() == group.lockstep();
         ++g) {
      ++count;
      others -= group.ranks();
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", Plural(count, "replica"), " of ", group.ranks(),
                    " data-parallel ranks", group.lockstep() ? " in lockstep" : "");
  }
  if (others > 0) absl::StrAppend(&text, ", ", others, " of one");
  return text;
}

std::string ChoicesText(const pb::Decisions& d) {
  return absl::StrCat(WithThousands(d.routed()), " requests sent; for ",
                      WithThousands(d.another_held_more()),
                      " another replica held more of the prompt, by ",
                      WithThousands(d.oracle_more_tokens()), " tokens in all");
}

std::string ClaimsText(const pb::Decisions& d) {
  return absl::StrCat(WithThousands(d.claimed_tokens()), " tokens claimed, ",
                      WithThousands(d.found_tokens()), " found at admission; too high for ",
                      Plural(d.claims_too_high(), "request"), " (",
                      WithThousands(d.missing_tokens()), " tokens missing), too low for ",
                      WithThousands(d.claims_too_low()), " (", WithThousands(d.unknown_tokens()),
                      " tokens unknown)");
}

std::string RequestsText(const pb::FleetTotals& totals) {
  std::string requests = absl::StrCat(WithThousands(totals.requests_arrived()), " arrived, ",
                                      WithThousands(totals.requests_finished()), " finished");
  if (totals.requests_rejected() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_rejected()), " rejected");
  }
  if (totals.requests_aborted() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_aborted()), " aborted");
  }
  if (totals.requests_failed() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_failed()), " failed");
  }
  if (totals.requests_skipped() > 0) {
    absl::StrAppend(&requests, ", ", WithThousands(totals.requests_skipped()), " left out");
  }
  return absl::StrCat(requests, " in ", Span(totals.duration_s()), "; ",
                      absl::StrFormat("%.4g requests/s, %.4g output tokens/s",
                                      totals.requests_per_s(), totals.output_tokens_per_s()));
}

std::vector<std::pair<std::string, std::string>> FleetFigures(const pb::FleetReport& report) {
  std::vector<std::pair<std::string, std::string>> figures;
  const auto add = [&](const char* name, std::string text) {
    figures.emplace_back(name, std::move(text));
  };
  const pb::FleetTotals& totals = report.totals();
  add("fleet", report.rank_groups().empty() ? Plural(report.replicas_size(), "replica")
                                            : RanksText(report));
  for (const pb::ReplicaKind& kind : report.kinds()) {
    const int64_t last = kind.first() + kind.count() - 1;
    figures.emplace_back(
        absl::StrCat("  ", kind.first(), last > kind.first() ? absl::StrCat(" to ", last) : ""),
        absl::StrCat(kind.model(), " on ", kind.tensor_parallel(), " x ", kind.device(), ", ",
                     WithThousands(kind.num_blocks()), " blocks",
                     kind.options().empty() ? "" : absl::StrCat(": ", kind.options())));
  }
  add("router", DescribeRouter(report.router()));
  add("requests", RequestsText(totals));
  add("hit rate",
      absl::StrCat(Percent(report.hit_rate().value()), ": ",
                   WithThousands(report.hit_rate().numerator()), " of ",
                   WithThousands(report.hit_rate().denominator()), " prompt tokens"));
  if (report.router().queue_requests() > 0 || report.router().queue_tokens() > 0) {
    std::string text = absl::StrCat(Plural(totals.requests_queued(), "request"), " waited, ",
                                    WithThousands(totals.most_queued()), " at once at most");
    if (totals.requests_queued() > 0) {
      absl::StrAppend(&text, "; ", LatencyText(report.latency().router_queueing()));
    }
    absl::StrAppend(&text, "; ", WithThousands(totals.requests_rejected_by_router()),
                    " rejected there, ", WithThousands(totals.requests_aborted_at_router()),
                    " gave up");
    add("router queue", text);
  }
  add("queueing", LatencyText(report.latency().queueing()));
  add("TTFT", LatencyText(report.latency().ttft()));
  add("TPOT", LatencyText(report.latency().tpot()));
  add("E2E", LatencyText(report.latency().e2e()));
  if (report.has_goodput()) {
    const auto& goodput = report.goodput();
    add("goodput", absl::StrFormat("%s of %s requests meet %s, %.4g requests/s; %s",
                                   Percent(goodput.good_share()),
                                   WithThousands(goodput.requests_total()), report.config().slo(),
                                   goodput.good_requests_per_s(),
                                   goodput.met() ? "all limits hold" : "not all limits hold"));
  }
  const pb::Imbalance& imbalance = report.imbalance();
  add("most / mean",
      absl::StrFormat("requests %.3f, prompt tokens %.3f, output tokens %.3f, busy time %.3f",
                      imbalance.requests(), imbalance.prompt_tokens(), imbalance.output_tokens(),
                      imbalance.busy_time()));
  add("choices", ChoicesText(report.decisions()));
  if (LooksAtContent(report.router())) add("claims", ClaimsText(report.decisions()));
  for (const pb::RankGroup& group : report.rank_groups()) {
    if (!group.lockstep()) continue;
    add("lockstep",
        absl::StrCat(report.rank_groups_size() > 1
                         ? absl::StrCat("ranks from ", group.first(), ": ")
                         : "",
                     WithThousands(group.passes()), " passes in ", Span(group.passes_s()),
                     ", of which a rank computes ", Percent(group.own_share()),
                     ", waits for a slower one ", Percent(group.lost_share()),
                     " and has no requests ", Percent(group.dummy_share()), "; ",
                     WithThousands(group.idle_passes()), " more passes without any requests"));
  }
  if (report.has_scaling()) AddScaling(report.scaling(), &figures);
  return figures;
}

std::vector<std::string> ReplicaColumns(const pb::FleetReport& report) {
  std::vector<std::string> columns = {"requests", "prompt tokens", "hit rate",   "output tokens",
                                      "busy",     "preempted",     "missed hits"};
  if (IsAnyInLockstep(report)) columns.insert(columns.end(), {"waits", "no requests"});
  return columns;
}

std::vector<std::string> ReplicaCells(const pb::FleetReport& report, const pb::ReplicaRow& row) {
  std::vector<std::string> cells = {
      WithThousands(row.requests_sent()), WithThousands(row.prompt_tokens()),
      Percent(row.hit_rate()),            WithThousands(row.output_tokens()),
      Percent(row.busy_share()),          WithThousands(row.preemptions()),
      WithThousands(row.oracle_more_tokens())};
  if (IsAnyInLockstep(report)) {
    cells.insert(cells.end(), {Percent(row.lost_share()), Percent(row.dummy_share())});
  }
  return cells;
}

}  // namespace

std::string FormatFleet(const pb::FleetReport& report, bool color) {
  TextPage page(color);
  for (const auto& [name, text] : FleetFigures(report)) page.Text(name, text);
  if (report.has_scaling()) AddTimeline(report.scaling(), page);
  page.Blank();
  AddTiers(report.tiers(), page);
  const std::vector<size_t> widths = {10, 14, 9, 13, 8, 9, 13, 8, 12};
  page.Cells(report.rank_groups().empty() ? "replica" : "rank", ReplicaColumns(report), widths);
  const int rows = std::min(report.replicas_size(), kMostRows);
  for (int r = 0; r < rows; ++r) {
    const pb::ReplicaRow& row = report.replicas(r);
    page.Cells(absl::StrCat("  ", row.replica()), ReplicaCells(report, row), widths);
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
  if (!routing.refused().empty()) {
    page.Text("routing", absl::StrCat("request ", routing.request(), " was sent to no replica: at ",
                                      absl::StrFormat("%.6g s ", routing.sent_s()),
                                      routing.refused()));
    return page.Take();
  }
  page.Text("routing",
            absl::StrCat("request ", routing.request(), " was sent to replica ", routing.chosen(),
                         " at ", absl::StrFormat("%.6g s", routing.sent_s()), " by ",
                         routing.router(),
                         routing.waited_s() > 0
                             ? absl::StrCat(", after ", Span(routing.waited_s()), " in its queue")
                             : ""));
  const std::vector<size_t> widths = {10, 14, 16, 14, 14, 12};
  page.Cells("replica",
             {"requests", "their tokens", "not yet admitted", "claimed hits", "would have hit", "score"},
             widths);
  int64_t most = 0, chosen = 0;
  for (const pb::Candidate& c : routing.candidates()) {
    most = std::max(most, c.held_tokens());
    if (c.replica() == routing.chosen()) chosen = c.held_tokens();
    const bool has_score = c.claimed_tokens() >= 0;
    page.Cells(absl::StrCat(c.replica() == routing.chosen() ? "> " : "  ", c.replica()),
               {WithThousands(c.requests()), WithThousands(c.tokens()),
                WithThousands(c.waiting_prompt_tokens()),
                has_score ? WithThousands(c.claimed_tokens()) : "-", WithThousands(c.held_tokens()),
                c.is_full()  ? "no room"
                : has_score ? absl::StrFormat("%.6g", c.score())
                            : "-"},
               widths);
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
