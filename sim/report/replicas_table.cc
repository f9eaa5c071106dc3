#include "sim/report/replicas_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/explanation.pb.h"
#include "sim/report/human_table.h"
#include "sim/report/text_page.h"
#include "sim/report/tier_section.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int kMostRows = 16;   // of replicas
constexpr int kMostLines = 12;  // of the timeline

// Whether the router claims hits.
bool LooksAtContent(const pb::Router& router) {
  const std::string& name = router.router();
  return name == "prefix" || name == "prefix-approximate" || name == "oracle";
}

// What each router compares.
std::string DescribeRouter(const pb::Router& router) {
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

void AddScaling(const pb::Scaling& scaling, TextPage& page) {
  std::string text =
      absl::StrFormat("%s replica-seconds, %.4g replicas on average, %d live at most; ",
                      WithThousands(static_cast<int64_t>(scaling.replica_s() + 0.5)),
                      scaling.mean_on(), scaling.most_live());
  absl::StrAppend(&text, Plural(scaling.starts(), "start"), " (", scaling.restarts(), " again), ",
                  Plural(scaling.stops(), "stop"), ", ", scaling.crashes(),
                  scaling.crashes() == 1 ? " crash" : " crashes");
  if (scaling.refused() > 0) {
    absl::StrAppend(&text, "; ", Plural(scaling.refused(), "change"),
                    " found no replica in the right state");
  }
  page.Text("scaling", text);
  if (scaling.requests_lost() > 0) {
    page.Text("lost", Say("$0 by crashes: $1 sent again, $2 failed; $3 tokens computed in vain",
                          Plural(scaling.requests_lost(), "request"), scaling.requests_retried(),
                          scaling.requests_failed(), scaling.lost_tokens()));
  }
  if (scaling.requests_held() > 0) {
    page.Text("held", absl::StrCat(Plural(scaling.requests_held(), "request"),
                                   " found no live replica and waited for one"));
  }
  const int lines = std::min(scaling.timeline_size(), kMostLines);
  for (int i = 0; i < lines; ++i) {
    const auto& event = scaling.timeline(i);
    page.Line(i == 0 ? "timeline" : "",
              absl::StrFormat("%10.6g s  replica %d %-5s  %d live", event.time_s(), event.replica(),
                              event.kind(), event.live()));
  }
  if (lines < scaling.timeline_size()) {
    page.Line("", absl::StrCat("and ", scaling.timeline_size() - lines, " more, see --json"));
  }
}

std::string LinkText(const pb::Handover& setup) {
  return absl::StrFormat(
      "%g GB/s, latency %g ms, %s, %s; %s bytes per token%s of what the decode replica %s",
      setup.link_gb_per_s(), setup.link_latency_ms(),
      setup.link_scope() == "shared" ? "one for all" : "one into each decode replica",
      setup.link_sharing() == "fifo" ? "one transfer after the other" : "in equal parts",
      WithThousands(setup.bytes_per_token()),
      setup.window_bytes_per_token() == 0
          ? ""
          : absl::StrCat(", ", WithThousands(setup.window_bytes_per_token()),
                         " more in windows,"),
      setup.transferred() == "all" ? "needs, also if it is there" : "lacks");
}

void AddTransfers(const pb::Handover& handover, TextPage& page) {
  const pb::Transfers& transfers = handover.transfers();
  page.Text("transfers",
            Say("$0 of $1 tokens, $2 GB; link busy $3, at most $4 at once, queueing mean $5$6",
                transfers.count(), transfers.loaded_tokens(),
                absl::StrFormat("%.4g", static_cast<double>(transfers.bytes()) / 1e9),
                Percent(transfers.busy_share()), transfers.peak_under_way(),
                Span(transfers.queueing().mean_ms() / 1e3),
                handover.requests_local() > 0
                    ? Say("; $0 more computed where they decode",
                          Plural(handover.requests_local(), "request"))
                    : ""));
  page.Text("holds", Say("blocks without work, time x requests: $0 on prefill replicas, $1 on "
                         "decode replicas",
                         Span(transfers.prefill_hold_s()), Span(transfers.decode_hold_s())));
}

bool IsAnyInLockstep(const pb::Report& report) {
  return std::any_of(report.rank_groups().begin(), report.rank_groups().end(),
                     [](const pb::RankGroup& group) { return group.lockstep(); });
}

// "1 prefill replica (least-tokens), 3 decode replicas (prefix); ...".
std::string RolesText(const pb::Report& report) {
  const auto& rows = report.replicas();
  const pb::Handover& setup = report.handover();
  const auto prefill = std::count_if(rows.begin(), rows.end(), [](const pb::Replica& row) {
    return row.role() == "prefill";
  });
  return absl::StrCat(Plural(prefill, "prefill replica"), " (", setup.prefill_router(), "), ",
                      Plural(rows.size() - prefill, "decode replica"), " (", setup.decode_router(),
                      "); the first token is the ", setup.first_token(), "'s");
}

// "2 replicas of 8 data-parallel ranks in lockstep".
std::string RanksText(const pb::Report& report) {
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
    absl::StrAppend(&text, text.empty() ? "" : ", ", Plural(count, "replica"), " of ",
                    group.ranks(), " data-parallel ranks", group.lockstep() ? " in lockstep" : "");
  }
  if (others > 0) absl::StrAppend(&text, ", ", others, " of one");
  return text;
}

std::string ChoicesText(const pb::Decisions& d) {
  return Say("$0 requests sent; for $1 another replica held more of the prompt, by $2 tokens in "
             "all",
             d.routed(), d.another_held_more(), d.oracle_more_tokens());
}

std::string ClaimsText(const pb::Decisions& d) {
  return Say("$0 tokens claimed, $1 found at admission; too high for $2 ($3 tokens missing), too "
             "low for $4 ($5 tokens unknown)",
             d.claimed_tokens(), d.found_tokens(), Plural(d.claims_too_high(), "request"),
             d.missing_tokens(), d.claims_too_low(), d.unknown_tokens());
}

void AddQueue(const pb::Router& router, TextPage& page) {
  if (router.queue_requests() == 0 && router.queue_tokens() == 0) return;
  page.Text("router queue",
            Say("$0 waited, $1 at once at most; $2$3 rejected there, $4 gave up",
                Plural(router.requests_queued(), "request"), router.most_queued(),
                router.requests_queued() > 0 ? LatencyText(router.queueing()) + "; " : "",
                router.requests_rejected(), router.requests_aborted()));
}

void AddLockstep(const pb::RankGroup& group, bool is_only_one, TextPage& page) {
  if (!group.lockstep()) return;
  page.Text("lockstep",
            Say("$0$1 passes in $2, of which a rank computes $3, waits for a slower one $4 and has "
                "no requests $5; $6 more passes without any requests",
                is_only_one ? "" : absl::StrCat("ranks from ", group.first(), ": "),
                group.passes(), Span(group.passes_s()), Percent(group.own_share()),
                Percent(group.lost_share()), Percent(group.dummy_share()), group.idle_passes()));
}

std::vector<std::string> ReplicaColumns(const pb::Report& report) {
  if (report.has_handover()) {
    return {"requests", "tokens hit", "computed", "output tokens", "busy", "preempted"};
  }
  std::vector<std::string> columns = {"requests", "prompt tokens", "hit rate",   "output tokens",
                                      "busy",     "preempted",     "missed hits"};
  if (IsAnyInLockstep(report)) columns.insert(columns.end(), {"waits", "no requests"});
  return columns;
}

std::vector<std::string> ReplicaCells(const pb::Report& report, const pb::Replica& row) {
  if (report.has_handover()) {
    return {WithThousands(row.requests_finished()), WithThousands(row.hit_tokens()),
            WithThousands(row.computed_tokens()),   WithThousands(row.output_tokens()),
            Percent(row.busy_share()),              WithThousands(row.preemptions())};
  }
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

void AddFleet(const pb::Report& report, TextPage& page) {
  page.Text("fleet", report.has_handover()          ? RolesText(report)
                     : report.rank_groups().empty() ? Plural(report.replicas_size(), "replica")
                                                    : RanksText(report));
  for (const pb::ReplicaKind& kind : report.kinds()) {
    const int64_t last = kind.first() + kind.count() - 1;
    page.Text(
        absl::StrCat("  ", kind.first(), last > kind.first() ? absl::StrCat(" to ", last) : ""),
        absl::StrCat(kind.model(), " on ", kind.tensor_parallel(), " x ", kind.device(), ", ",
                     WithThousands(kind.num_blocks()), " blocks",
                     kind.options().empty() ? "" : absl::StrCat(": ", kind.options())));
  }
  if (report.has_handover()) page.Text("link", LinkText(report.handover()));
  if (report.has_router()) page.Text("router", DescribeRouter(report.router()));
}

void AddReplicas(const pb::Report& report, TextPage& page) {
  const pb::Router& router = report.router();
  AddQueue(router, page);
  if (report.has_handover()) AddTransfers(report.handover(), page);
  if (router.has_imbalance()) {
    const pb::Imbalance& imbalance = router.imbalance();
    page.Text("most / mean", absl::StrFormat("requests %.3f, prompt tokens %.3f, output tokens "
                                             "%.3f, busy time %.3f",
                                             imbalance.requests(), imbalance.prompt_tokens(),
                                             imbalance.output_tokens(), imbalance.busy_time()));
  }
  if (router.has_decisions()) page.Text("choices", ChoicesText(router.decisions()));
  if (LooksAtContent(router)) page.Text("claims", ClaimsText(router.decisions()));
  for (const pb::RankGroup& group : report.rank_groups()) {
    AddLockstep(group, report.rank_groups_size() == 1, page);
  }
  if (report.has_scaling()) AddScaling(report.scaling(), page);
  page.Blank();
  std::vector<size_t> widths = {10, 14, 9, 13, 8, 9, 13, 8, 12};
  if (report.has_handover()) widths[2] = 13;
  page.Cells(report.rank_groups().empty() ? "replica" : "rank", ReplicaColumns(report), widths);
  const int rows = std::min(report.replicas_size(), kMostRows);
  for (int r = 0; r < rows; ++r) {
    const pb::Replica& row = report.replicas(r);
    page.Cells(absl::StrCat("  ", row.name()), ReplicaCells(report, row), widths);
  }
  if (rows < report.replicas_size()) {
    page.Line("", absl::StrCat("and ", report.replicas_size() - rows, " more, see --json"));
  }
  if (report.notes_size() > 0) page.Blank();
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
  page.Cells(
      "replica",
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
