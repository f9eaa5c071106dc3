#include "kvblocks/sim/sweep/split_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/commands/fleet_input.h"
#include "kvblocks/sim/commands/fleet_replay.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/commands/split_replay.h"
#include "kvblocks/sim/fleet/router.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/run_in_parallel.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

using Row = pb::SplitSearchReport::Row;

// Prefill and decode replicas; prefill 0: all alike.
using Division = std::pair<int64_t, int64_t>;

double MeanBusy(const google::protobuf::RepeatedPtrField<::kvblocks::split::v1::SplitReplicaRow>& rows) {
  double sum = 0;
  for (const auto& row : rows) sum += row.busy_share();
  return rows.empty() ? 0 : sum / rows.size();
}

class SplitSearch {
 public:
  // `alike` is as replicas are that do both.
  SplitSearch(const ReplaySetup& setup, const ::kvblocks::config::v1::ReplayConfig& alike, SplitPlan plan,
              std::shared_ptr<const DecodedTrace> trace, int num_threads, bool quiet)
      : setup_(setup),
        alike_(alike),
        plan_(std::move(plan)),
        trace_(std::move(trace)),
        num_threads_(num_threads > 0 ? num_threads
                                     : static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u))),
        progress_(quiet) {}

  void Replay(const std::vector<Division>& divisions);
  const Row& RowOf(const Division& division) const { return rows_.at(division); }
  // Of so many replicas, the division that keeps most requests; the one with fewer prefill replicas
  // if two keep as many. `ratio` is where to begin, and becomes what was found.
  Row Climb(int64_t num_replicas, double* ratio);
  // The fewest replicas, up to `most`, for which `best_of` reaches the share.
  std::optional<Row> Fewest(int64_t least, int64_t most, double share,
                            const std::function<Row(int64_t)>& best_of);
  const std::map<Division, Row>& rows() const { return rows_; }

 private:
  absl::Status ReplayDivided(const Division& division, Row* row) const;
  absl::Status ReplayAlike(int64_t num_replicas, Row* row) const;

  const ReplaySetup& setup_;
  const ::kvblocks::config::v1::ReplayConfig& alike_;
  const SplitPlan plan_;
  const std::shared_ptr<const DecodedTrace> trace_;
  const int num_threads_;
  ProgressLine progress_;
  std::map<Division, Row> rows_;
};

absl::Status SplitSearch::ReplayDivided(const Division& division, Row* row) const {
  SplitPlan plan = plan_;
  std::tie(plan.num_prefill, plan.num_decode) = division;
  DecodedReader reader(trace_.get(), setup_.reader.speedup);
  ::kvblocks::split::v1::SplitReport report;
  absl::Status status = ReplaySplit(&reader, setup_, plan, {.quiet = true}, &report);
  if (!status.ok()) return status;
  row->set_good_share(report.goodput().good_share());
  row->set_ttft_p50_ms(report.latency().ttft().p50_ms());
  row->set_ttft_p99_ms(report.latency().ttft().p99_ms());
  row->set_tpot_p50_ms(report.latency().tpot().p50_ms());
  row->set_tpot_p99_ms(report.latency().tpot().p99_ms());
  row->set_prefill_busy_share(MeanBusy(report.prefill()));
  row->set_decode_busy_share(MeanBusy(report.decode()));
  return absl::OkStatus();
}

// Behind the router that the prefill replicas have.
absl::Status SplitSearch::ReplayAlike(int64_t num_replicas, Row* row) const {
  ::kvblocks::config::v1::ReplayConfig config = alike_;
  config.set_replicas(num_replicas);
  if (num_replicas > 1) {
    config.set_router(std::string(RouterName(plan_.options.prefill_router.kind)));
  }
  const auto fleet = FleetReplay::Create(config);
  if (!fleet.ok()) return fleet.status();
  DecodedReader reader(trace_.get(), setup_.reader.speedup);
  if (absl::Status status = (*fleet)->Run(&reader, {}); !status.ok()) return status;
  ::kvblocks::fleet::v1::FleetReport report;
  (*fleet)->Fill(reader, &report);
  row->set_good_share(report.goodput().good_share());
  row->set_ttft_p50_ms(report.latency().ttft().p50_ms());
  row->set_ttft_p99_ms(report.latency().ttft().p99_ms());
  row->set_tpot_p50_ms(report.latency().tpot().p50_ms());
  row->set_tpot_p99_ms(report.latency().tpot().p99_ms());
  for (const auto& replica : report.replicas()) {
    row->set_prefill_busy_share(row->prefill_busy_share() +
                                replica.busy_share() / static_cast<double>(num_replicas));
  }
  row->set_decode_busy_share(row->prefill_busy_share());
  return absl::OkStatus();
}

void SplitSearch::Replay(const std::vector<Division>& divisions) {
  std::vector<std::function<void()>> tasks;
  std::mutex mutex;
  int64_t num_done = 0;
  for (const Division& division : divisions) {
    const auto [entry, is_new] = rows_.try_emplace(division);
    if (!is_new) continue;
    Row* row = &entry->second;
    tasks.push_back([&, division, row] {
      const bool is_alike = division.first == 0;
      if (is_alike) {
        row->set_alike(division.second);
      } else {
        row->set_prefill(division.first);
        row->set_decode(division.second);
      }
      const absl::Status status =
          is_alike ? ReplayAlike(division.second, row) : ReplayDivided(division, row);
      if (!status.ok()) row->set_problem(std::string(status.message()));
      const std::lock_guard lock(mutex);
      progress_.UpdateCount(++num_done, static_cast<int64_t>(tasks.size()), "replays");
    });
  }
  RunInParallel(num_threads_, tasks);
  progress_.Clear();
}

Row SplitSearch::Climb(int64_t num_replicas, double* ratio) {
  const auto is_possible = [&](int64_t prefill) { return prefill >= 1 && prefill < num_replicas; };
  int64_t prefill = std::clamp<int64_t>(
      std::llround(*ratio * static_cast<double>(num_replicas)), 1, num_replicas - 1);
  while (true) {
    std::vector<Division> around;
    for (const int64_t p : {prefill - 1, prefill, prefill + 1}) {
      if (is_possible(p)) around.push_back({p, num_replicas - p});
    }
    Replay(around);
    Division best = around.front();
    for (const Division& one : around) {
      if (RowOf(one).good_share() > RowOf(best).good_share()) best = one;
    }
    if (best.first == prefill || RowOf(best).good_share() ==
                                     RowOf({prefill, num_replicas - prefill}).good_share()) {
      *ratio = static_cast<double>(prefill) / static_cast<double>(num_replicas);
      return RowOf({prefill, num_replicas - prefill});
    }
    prefill = best.first;
  }
}

std::optional<Row> SplitSearch::Fewest(int64_t least, int64_t most, double share,
                                       const std::function<Row(int64_t)>& best_of) {
  int64_t too_few = least - 1;
  int64_t count = least;
  Row found = best_of(count);
  while (found.good_share() < share) {
    if (count == most) return std::nullopt;
    too_few = count;
    count = std::min(2 * count, most);
    found = best_of(count);
  }
  while (count - too_few > 1) {
    const int64_t middle = too_few + (count - too_few) / 2;
    const Row row = best_of(middle);
    if (row.good_share() >= share) {
      count = middle;
      found = row;
    } else {
      too_few = middle;
    }
  }
  return found;
}

}  // namespace

absl::StatusOr<pb::SplitSearchReport> FindSplit(const SplitSearchOptions& options,
                                                const SplitInput& split, int num_threads, bool quiet,
                                                DecodedTraces* traces) {
  const auto& config = options.config;
  if (config.slo().empty()) {
    return absl::InvalidArgumentError("--slo: none given, expected limits, like ttft:2s,tpot:50ms");
  }
  if (config.time() == "fixed") {
    return absl::InvalidArgumentError(
        "--time: got fixed: with steps of one length no latency means anything; expected another "
        "clock");
  }
  if (IsFleet(config) || AsksForRouter(config)) {
    return absl::InvalidArgumentError(
        "--split-replicas: set next to --replicas, --replica, --data-parallel or an option of --router, "
        "expected one or the other");
  }
  const auto setup = MakeReplaySetup(OfSplitReplica(config));
  if (!setup.ok()) return setup.status();
  if (absl::Status status = RefuseTiers(*setup); !status.ok()) return status;
  auto plan = split.Configure(*setup);
  if (!plan.ok()) return plan.status();
  auto trace = traces->Get(config);
  if (!trace.ok()) return trace.status();

  pb::SplitSearchReport report;
  report.set_schema_version(1);
  report.set_workload(absl::StrCat(
      config.trace().empty() ? "example" : config.trace(), ": ",
      Plural(static_cast<int64_t>((*trace)->requests.size()), "request"), ", ", config.model(),
      " on ", config.tensor_parallel() * config.pipeline_parallel(), " x ", config.device(),
      " per replica"));
  report.set_slo(config.slo());
  report.set_goodput(options.goodput);
  report.set_replicas(options.most_replicas);
  report.set_devices_each(config.tensor_parallel() * config.pipeline_parallel());
  SplitSearch search(*setup, config, *std::move(plan), *std::move(trace), num_threads, quiet);
  const int64_t most = options.most_replicas;
  if (options.goodput == 0) {
    std::vector<Division> all = {{0, most}};
    for (int64_t p = 1; p < most; ++p) all.push_back({p, most - p});
    search.Replay(all);
    const auto best =
        std::max_element(all.begin() + 1, all.end(), [&](const Division& a, const Division& b) {
          return search.RowOf(a).good_share() < search.RowOf(b).good_share();
        });
    if (search.RowOf(*best).problem().empty()) *report.mutable_best_split() = search.RowOf(*best);
    *report.mutable_best_alike() = search.RowOf({0, most});
  } else {
    double ratio = 0.5;
    const auto divided = search.Fewest(2, most, options.goodput,
                                       [&](int64_t n) { return search.Climb(n, &ratio); });
    if (divided) *report.mutable_best_split() = *divided;
    const auto doing_both = search.Fewest(1, most, options.goodput, [&](int64_t n) {
      search.Replay({{0, n}});
      return search.RowOf({0, n});
    });
    if (doing_both) *report.mutable_best_alike() = *doing_both;
  }
  std::vector<Row> rows;
  for (const auto& [division, row] : search.rows()) rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.prefill() + a.decode() + a.alike() < b.prefill() + b.decode() + b.alike();
  });
  for (Row& row : rows) *report.add_rows() = std::move(row);
  return report;
}

namespace {

std::string NameOf(const Row& row) {
  return row.alike() > 0 ? absl::StrCat(row.alike(), " alike")
                         : absl::StrCat(row.prefill(), " + ", row.decode());
}

std::string InPercent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

std::string Answer(const pb::SplitSearchReport& report, const Row& row) {
  const int64_t replicas = row.prefill() + row.decode() + row.alike();
  return absl::StrCat(
      row.alike() > 0
          ? absl::StrCat(Plural(row.alike(), "replica"), " that do both")
          : absl::StrCat(row.prefill(), " for prefill and ", row.decode(), " for decode"),
      report.devices_each() > 1 ? absl::StrCat(" (", replicas * report.devices_each(), " devices)") : "",
      ": ", InPercent(row.good_share()));
}

}  // namespace

std::string FormatSplitSearch(const pb::SplitSearchReport& report, bool color) {
  TextPage page(color);
  page.Text("workload", report.workload());
  page.Text("limits", report.goodput() > 0
                          ? absl::StrFormat("%s, both for %.4g %% of requests", report.slo(),
                                            100 * report.goodput())
                          : report.slo());
  page.Blank();
  page.Line("replicas", absl::StrFormat("%10s %10s %10s %10s %10s %9s %9s", "TTFT p50", "p99",
                                                "TPOT p50", "p99", "in limits", "prefill", "decode"));
  page.Line("", absl::StrFormat("%10s %10s %10s %10s %10s %9s %9s", "", "", "", "", "", "busy", "busy"));
  for (const Row& row : report.rows()) {
    if (!row.problem().empty()) {
      page.Text(absl::StrCat("  ", NameOf(row)), row.problem());
      continue;
    }
    page.Line(absl::StrCat("  ", NameOf(row)),
              absl::StrFormat("%10s %10s %10s %10s %10s %9s %9s", Span(row.ttft_p50_ms() / 1e3),
                              Span(row.ttft_p99_ms() / 1e3), Span(row.tpot_p50_ms() / 1e3),
                              Span(row.tpot_p99_ms() / 1e3), InPercent(row.good_share()),
                              InPercent(row.prefill_busy_share()),
                              InPercent(row.decode_busy_share())));
  }
  page.Blank();
  const char* title = report.goodput() > 0 ? "fewest" : "most";
  if (report.has_best_split()) {
    page.Text(title, Answer(report, report.best_split()));
  } else {
    page.Text(title, absl::StrCat("no division of up to ", report.replicas(), " replicas reaches it"));
  }
  if (report.has_best_alike()) {
    page.Text("", Answer(report, report.best_alike()));
  } else {
    page.Text("", absl::StrCat("nor do up to ", report.replicas(), " that do both"));
  }
  if (report.goodput() > 0) {
    page.Text("note",
              "more replicas are taken to keep no fewer requests, and the divisions of one number to "
              "have one peak");
  }
  return page.Take();
}

}  // namespace kvblocks::sim
