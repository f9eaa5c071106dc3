#include "sim/sweep/capacity_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/option_table.h"
#include "sim/report/human_table.h"
#include "sim/sweep/border_search.h"
#include "sim/sweep/condition.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;

namespace {

constexpr double kMostSpeedup = 16384;
constexpr double kLeastSpeedup = 1.0 / 1024;
constexpr double kLongestRun = 50 * 86400;  // seconds
constexpr int kMostReplicaProbes = 64;

// Of several replicas, unless a router is asked for: load decides in most traces, and round robin
// needs up to a half more devices (docs/planning_capacity.md). Data-parallel ranks have a balancer.
constexpr const char* kCapacityRouter = "least-tokens";

std::string RouterOf(const ReplayConfig& config) {
  if (!config.router().empty()) return config.router();
  return config.data_parallel() > 1 ? "data-parallel" : kCapacityRouter;
}

std::string SpeedupText(double speedup) { return absl::StrFormat("%.4g", speedup); }

// Why even the lowest rate misses: one prompt alone may take longer than the limit.
std::string WhyNone(const Probed& lowest) {
  constexpr double kAlone = 0.01;
  const auto& report = lowest.worst.report();
  const std::string rate = absl::StrFormat("%.3g requests/s", lowest.probe.requests_per_s());
  const auto& pressures = lowest.worst.pressures();
  if (pressures.empty() || pressures[0].waiting_share() > kAlone) {
    return absl::StrCat("no rate meets the limits, down to ", rate);
  }
  return absl::StrFormat(
      "no rate meets the limits: requests that are alone miss them. At %s almost none waits for "
      "another, and the slowest first token takes %s",
      rate, Span(report.latency().ttft().max_ms() / 1e3));
}

class CapacitySearch {
 public:
  CapacitySearch(const CapacityOptions& options, PointRunner* runner, DecodedTraces* traces,
                 ContentHashes* hashes)
      : options_(options),
        asked_(options.asked),
        runner_(runner),
        traces_(traces),
        hashes_(hashes) {}

  absl::StatusOr<pb::CapacityReport> Run();

 private:
  struct Wanted {
    double speedup;
    int64_t replicas;
    bool is_spread = false;  // arrivals at one time, over the time to the next ones
  };

  absl::Status Check(const ReplayConfig& config);
  absl::Status ReadRate(const ReplayConfig& config, pb::CapacityReport* report);
  absl::StatusOr<std::vector<Probed>> ProbeAll(const pb::CapacityReport::Candidate& candidate,
                                               const std::vector<Wanted>& wanted);
  void SetCost(const pb::CapacityReport::Candidate& candidate,
               const ::kvblocks::report::v1::Report& report,
               pb::CapacityReport::Probe* probe) const;
  absl::Status FindHighestRate(pb::CapacityReport::Candidate* candidate);
  absl::Status CloseInOnRate(Bisection* border, const std::map<double, Probed>& probed) const;
  absl::StatusOr<Probed> ProbeTarget(const pb::CapacityReport::Candidate& candidate,
                                     int64_t replicas);
  absl::Status FindReplicas(pb::CapacityReport::Candidate* candidate);
  void ChooseCheapest(pb::CapacityReport* report) const;

  const CapacityOptions& options_;
  ReplayConfig asked_;  // with a router for several replicas
  PointRunner* runner_;
  DecodedTraces* traces_;
  ContentHashes* hashes_;
  int64_t fleet_ = 1;      // replicas whose highest rate is looked for
  bool is_split_ = false;  // into prefill and decode: those asked for, together, count as one
  double trace_rate_ = 0;
  double arrival_seconds_ = 0;
  int64_t num_conversations_ = 0;
  bool has_followers_ = false;  // requests that wait for others
  int64_t num_arrivals_ = 0;    // of requests that wait for none
  int64_t num_arrival_times_ = 0;
};

absl::Status CapacitySearch::Check(const ReplayConfig& config) {
  if (options_.asked.has_speedup()) {
    return absl::InvalidArgumentError("--speedup: the search sets it; leave it out");
  }
  if (config.concurrency() > 0) {
    return absl::InvalidArgumentError(
        "--concurrency: a closed loop has no rate to raise, expected 0; sweep over --concurrency "
        "instead");
  }
  if (config.time() == "fixed") {
    return absl::InvalidArgumentError(
        "--time: got fixed: with steps of one length no latency means anything; expected another "
        "clock");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto has_limits, HasLimits(config.slo(), options_.goodput));
  if (!has_limits) {
    return absl::InvalidArgumentError(
        config.slo().empty()
            ? "--slo: none given, expected limits with percentiles, like ttft:2s@p99,tpot:50ms@p95"
            : "--slo: no limit has a percentile, expected one, like ttft:2s@p99, or "
              "--goodput=SHARE of requests that meet all limits");
  }
  const bool is_fleet =
      config.replicas() > 1 || !config.replica().empty() || AsksForScaling(config);
  if (is_fleet && options_.target_rate > 0) {
    return InvalidArgument(config.replica().empty()
                               ? absl::StrCat("--replicas: got ", config.replicas())
                               : absl::StrCat("--replica: got \"", config.replica(), "\""),
                           ", expected none with --rate, which finds how many");
  }
  if (!config.replica().empty() &&
      !(options_.devices.empty() && options_.tensor_parallels.empty())) {
    return InvalidArgument(
        "--replica: got \"", config.replica(),
        "\", expected none with --devices and --tensor-parallels, which try alike ones");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto kinds, ReplicaKinds(config));
  is_split_ = IsSplit(config);
  if (is_split_) return absl::OkStatus();
  fleet_ = 0;
  for (const ReplicaKind& kind : kinds) fleet_ += kind.count;
  asked_.set_router(RouterOf(config));
  // Whatever their number will be.
  KVBLOCKS_ASSIGN_OR_RETURN(auto two, EffectiveConfig(asked_, {}));
  two.set_replicas(std::max<int64_t>(fleet_, 2));
  return MakeFleetOptions(two).status();
}

absl::Status CapacitySearch::ReadRate(const ReplayConfig& config, pb::CapacityReport* report) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto trace, traces_->Get(config));
  const DecodedTrace& decoded = *trace;
  arrival_seconds_ = decoded.arrival_seconds();
  num_conversations_ = decoded.num_conversations;
  if (decoded.requests.size() < 2 || arrival_seconds_ <= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the trace has ", Plural(static_cast<int64_t>(decoded.requests.size()), "request"),
        " at one time: there is no rate to raise"));
  }
  trace_rate_ = static_cast<double>(decoded.requests.size() - 1) / arrival_seconds_;
  report->set_trace_rate(trace_rate_);
  int64_t last_arrival = -1;
  for (const TraceRequest& request : decoded.requests) {
    if (!request.waits_for.empty()) {
      has_followers_ = true;
      continue;
    }
    ++num_arrivals_;
    num_arrival_times_ += request.arrival_ns != last_arrival;
    last_arrival = request.arrival_ns;
  }
  if (has_followers_) {
    report->add_notes(
        "some requests wait for others, and no speed-up changes their think times: rates are those "
        "at "
        "which requests arrived in the replay; a longer trace reaches higher ones");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Probed>> CapacitySearch::ProbeAll(
    const pb::CapacityReport::Candidate& candidate, const std::vector<Wanted>& wanted) {
  std::vector<PlannedPoint> points;
  for (const Wanted& one : wanted) {
    std::vector<pb::Setting> settings = {
        MakeSetting("device", candidate.device()),
        MakeSetting("tensor_parallel", absl::StrCat(candidate.tensor_parallel())),
        MakeSetting("speedup", SpeedupText(one.speedup))};
    if (one.is_spread) settings.push_back(MakeSetting("spread", "true"));
    if (is_split_) {
      for (const auto& [field, count] :
           {std::pair("prefill_replicas", asked_.prefill_replicas()),
            std::pair("decode_replicas", asked_.decode_replicas())}) {
        settings.push_back(MakeSetting(field, absl::StrCat(one.replicas * count)));
      }
    } else if (one.replicas > 1) {
      settings.push_back(MakeSetting("replicas", absl::StrCat(one.replicas)));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(auto point, PlanPoint(asked_, settings, hashes_));
    points.push_back(std::move(point));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto results, runner_->Run(points));
  std::vector<Probed> probed;
  for (size_t i = 0; i < wanted.size(); ++i) {
    Probed& one = probed.emplace_back(JudgeLimits(results[i], options_.goodput));
    one.probe.set_speedup(SpeedupText(wanted[i].speedup));
    one.probe.set_requests_per_s(has_followers_ && one.arrivals_per_s > 0
                                     ? one.arrivals_per_s
                                     : trace_rate_ * wanted[i].speedup);
    one.probe.set_replicas(wanted[i].replicas);
    if (one.probe.problem().empty()) SetCost(candidate, results[i].report(), &one.probe);
  }
  return probed;
}

void CapacitySearch::SetCost(const pb::CapacityReport::Candidate& candidate,
                             const ::kvblocks::report::v1::Report& report,
                             pb::CapacityReport::Probe* probe) const {
  probe->set_devices(std::max<int64_t>(report.setup().devices(), 1));
  if (candidate.price_per_hour() == 0) return;
  const auto cost = CostOf(report, {.devices = {{candidate.device(), candidate.price_per_hour()}},
                                    .tiers = options_.tier_prices});
  if (!cost.ok()) return probe->set_problem(std::string(cost.status().message()));
  probe->set_cost_per_hour(cost->total());
  const int64_t together =
      is_split_ ? asked_.prefill_replicas() + asked_.decode_replicas() : 1;
  const double of_one = cost->replicas / static_cast<double>(probe->replicas() * together);
  probe->set_spare_cost_per_hour(cost->total() + (is_split_ ? 2 : 1) * of_one);
  probe->set_cost_per_1m_tokens(CostPer1mTokens(report, cost->total()).value_or(0));
}

absl::Status CapacitySearch::FindHighestRate(pb::CapacityReport::Candidate* candidate) {
  candidate->set_is_monotone(true);
  std::map<double, Probed> probed;  // by speed-up
  const auto probe = [&](const std::vector<double>& speedups) -> absl::StatusOr<std::vector<bool>> {
    std::vector<Wanted> wanted;
    for (const double speedup : speedups) wanted.push_back({speedup, fleet_});
    KVBLOCKS_ASSIGN_OR_RETURN(auto results, ProbeAll(*candidate, wanted));
    std::vector<bool> is_met;
    for (size_t i = 0; i < speedups.size(); ++i) {
      Probed& one = results[i];
      if (!one.probe.problem().empty()) {
        candidate->set_problem(one.probe.problem());
        return absl::CancelledError(one.probe.problem());
      }
      is_met.push_back(one.probe.met());
      probed[speedups[i]] = std::move(one);
    }
    return is_met;
  };
  Bisection border({.tolerance = options_.tolerance}, probe);
  if (absl::Status status = CloseInOnRate(&border, probed); !status.ok()) {
    return candidate->problem().empty() ? status : absl::OkStatus();
  }
  const Probed &at_low = probed[border.low()], &at_high = probed[border.high()];
  candidate->set_is_monotone(border.is_monotone());
  candidate->set_highest_rate(at_low.probe.requests_per_s());
  candidate->set_failing_rate(at_high.probe.requests_per_s());
  if (border.low() > 0) *candidate->mutable_at_highest() = at_low.probe;
  if (border.high() > 0) {
    *candidate->mutable_at_failing() = at_high.probe;
    candidate->set_binding(absl::StrCat(DescribeMissedLimits(at_high.probe, options_.goodput), ". ",
                                        DescribeBottleneck(at_high)));
  }
  // Recorders that look every few seconds give many requests one time.
  if (border.high() > 0 && num_arrivals_ > 2 * num_arrival_times_) {
    KVBLOCKS_ASSIGN_OR_RETURN(
        const auto spread,
        ProbeAll(*candidate, {{.speedup = border.high(), .replicas = fleet_, .is_spread = true}}));
    candidate->set_met_if_spread(spread.front().probe.met());
  }
  if (border.low() == 0) {
    candidate->set_problem(WhyNone(at_high));
  }
  return absl::OkStatus();
}

// From the rate as recorded up, or down, until one is met and one is not.
absl::Status CapacitySearch::CloseInOnRate(Bisection* border,
                                           const std::map<double, Probed>& probed) const {
  for (double speedup = 1; border->high() == 0 && speedup <= kMostSpeedup; speedup *= 4) {
    KVBLOCKS_RETURN_IF_ERROR(border->Try({speedup, 2 * speedup}));
  }
  // At a slower rate requests do not meet each other, and the clock ends after 106 days.
  const double least = std::max(kLeastSpeedup, arrival_seconds_ / kLongestRun);
  for (double speedup = 0.25; border->low() == 0 && speedup >= least; speedup /= 4) {
    const double before = WorstUse(probed.at(border->high()).probe);
    KVBLOCKS_RETURN_IF_ERROR(border->Try({speedup, 2 * speedup}));
    // Requests that come one by one are as fast as they get.
    if (border->low() == 0 && WorstUse(probed.at(border->high()).probe) == before) break;
  }
  KVBLOCKS_RETURN_IF_ERROR(border->CloseIn());
  return border->LookBeyond(0, std::numeric_limits<double>::infinity());
}

absl::StatusOr<Probed> CapacitySearch::ProbeTarget(
    const pb::CapacityReport::Candidate& candidate, int64_t replicas) {
  constexpr double kClose = 0.99, kLeastStep = 1.1;
  double speedup = FourDigits(options_.target_rate / trace_rate_);
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto probed, ProbeAll(candidate, {{speedup, replicas}}));
    Probed& one = probed.front();
    const double rate = one.probe.requests_per_s();
    // What misses at less than the rate misses at the rate.
    if (!has_followers_ || !one.probe.met() || rate >= kClose * options_.target_rate) {
      return std::move(one);
    }
    speedup = FourDigits(speedup * std::max(kLeastStep, options_.target_rate / rate));
    if (speedup > kMostSpeedup) {
      one.probe.set_problem(
          absl::StrFormat("the think times of this trace keep it below %.4g requests/s, asked for "
                          "are %.4g; a longer "
                          "trace is needed",
                          rate, options_.target_rate));
      return std::move(one);
    }
  }
}

absl::Status CapacitySearch::FindReplicas(pb::CapacityReport::Candidate* candidate) {
  auto replicas =
      static_cast<int64_t>(std::ceil(options_.target_rate / candidate->highest_rate() - 1e-9));
  replicas = std::max<int64_t>(replicas, 1);
  int direction = 0;
  for (int tries = 0; tries < kMostReplicaProbes; ++tries) {
    if (replicas > num_conversations_) {
      candidate->set_problem(absl::StrCat("more replicas than the trace has conversations (",
                                          num_conversations_, "); a longer trace is needed"));
      return absl::OkStatus();
    }
    KVBLOCKS_ASSIGN_OR_RETURN(const Probed one, ProbeTarget(*candidate, replicas));
    if (!one.probe.problem().empty()) {
      candidate->set_problem(one.probe.problem());
      return absl::OkStatus();
    }
    if (one.probe.met()) {
      *candidate->mutable_at_target() = one.probe;
      candidate->set_replicas(replicas);
      if (direction > 0 || replicas == 1) break;
      direction = -1;
      --replicas;
    } else {
      *candidate->mutable_one_less() = one.probe;
      if (direction < 0) break;
      direction = 1;
      ++replicas;
    }
  }
  if (candidate->replicas() == 0) {
    candidate->set_problem(
        absl::StrCat("no number of replicas up to ", replicas, " meets the rate"));
    return absl::OkStatus();
  }
  candidate->set_devices(candidate->at_target().devices());
  candidate->set_cost_per_hour(candidate->at_target().cost_per_hour());
  return absl::OkStatus();
}

// By money where every candidate has a price, else by devices.
void CapacitySearch::ChooseCheapest(pb::CapacityReport* report) const {
  const bool by_price = std::all_of(report->candidates().begin(), report->candidates().end(),
                                    [](const pb::CapacityReport::Candidate& candidate) {
                                      return candidate.price_per_hour() > 0;
                                    });
  pb::CapacityReport::Candidate* best = nullptr;
  double best_cost = 0;
  for (pb::CapacityReport::Candidate& candidate : *report->mutable_candidates()) {
    if (!candidate.problem().empty()) continue;
    const auto price = [&](const pb::CapacityReport::Probe& probe) {
      return by_price ? probe.cost_per_hour() : static_cast<double>(probe.devices());
    };
    const double cost = options_.target_rate > 0
                            ? price(candidate.at_target())
                            : price(candidate.at_highest()) / candidate.highest_rate();
    if (best != nullptr && cost >= best_cost) continue;
    best = &candidate;
    best_cost = cost;
  }
  if (best != nullptr) best->set_is_cheapest(true);
}

absl::StatusOr<pb::CapacityReport> CapacitySearch::Run() {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, EffectiveConfig(options_.asked, {}));
  KVBLOCKS_RETURN_IF_ERROR(Check(config));
  pb::CapacityReport report;
  report.set_schema_version(1);
  report.set_slo(config.slo());
  report.set_goodput(options_.goodput);
  report.set_target_rate(options_.target_rate);
  report.set_tolerance(options_.tolerance);
  if (is_split_) {
    report.set_prefill_replicas(config.prefill_replicas());
    report.set_decode_replicas(config.decode_replicas());
  } else if (options_.target_rate > 0 || fleet_ > 1) {
    report.set_router(RouterOf(config));
  }
  if (fleet_ > 1) report.set_fleet(fleet_);
  KVBLOCKS_RETURN_IF_ERROR(ReadRate(config, &report));
  PricedDevices devices = options_.devices;
  if (devices.empty()) devices.push_back({config.device(), 0});
  std::vector<int64_t> tensor_parallels = options_.tensor_parallels;
  if (tensor_parallels.empty()) tensor_parallels.push_back(config.tensor_parallel());
  for (const auto& [name, price] : devices) {
    for (const int64_t tensor_parallel : tensor_parallels) {
      pb::CapacityReport::Candidate* candidate = report.add_candidates();
      candidate->set_device(name);
      candidate->set_tensor_parallel(tensor_parallel);
      candidate->set_price_per_hour(price);
      candidate->set_replica_devices(tensor_parallel * config.pipeline_parallel() *
                                     config.data_parallel());
      KVBLOCKS_RETURN_IF_ERROR(FindHighestRate(candidate));
      if (options_.target_rate == 0 || !candidate->problem().empty()) continue;
      KVBLOCKS_RETURN_IF_ERROR(FindReplicas(candidate));
    }
  }
  ChooseCheapest(&report);
  report.set_workload(absl::StrFormat(
      "%s: %s, %.4g requests/s as recorded",
      config.trace().empty() ? "example" : config.trace().substr(config.trace().rfind('/') + 1),
      Plural(static_cast<int64_t>(std::llround(trace_rate_ * arrival_seconds_)) + 1, "request"),
      trace_rate_));
  AddCapacityNotes(arrival_seconds_, num_arrivals_, num_arrival_times_, &report);
  return report;
}

}  // namespace

absl::StatusOr<pb::CapacityReport> FindCapacity(const CapacityOptions& options, PointRunner* runner,
                                                DecodedTraces* traces, ContentHashes* hashes) {
  return CapacitySearch(options, runner, traces, hashes).Run();
}

}  // namespace kvblocks::sim
