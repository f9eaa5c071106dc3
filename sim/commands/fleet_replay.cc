#include "sim/commands/fleet_replay.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_notes.h"
#include "sim/report/metrics.h"
#include "sim/report/tier_section.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

// Says of one replica's rows whose they are.
class FleetReplay::Rows final : public RequestRowSink {
 public:
  Rows(int32_t replica, CsvRequestSink* out) : replica_(replica), out_(out) {}
  void OnRow(const RequestRow& row) override {
    RequestRow of_replica = row;
    of_replica.replica = replica_;
    out_->OnRow(of_replica);
  }

 private:
  const int32_t replica_;
  CsvRequestSink* const out_;
};

// Rows of requests that ended at the router.
class FleetReplay::RouterRows final : public FleetObserver {
 public:
  explicit RouterRows(CsvRequestSink* out) : out_(out) {}
  void OnEndedAtRouter(const SimRequest& request, SimTime now) override {
    const RequestProgress progress;
    out_->OnRow({.request = &request, .progress = &progress, .latency = {}, .end = now});
  }

 private:
  CsvRequestSink* const out_;
};

FleetReplay::FleetReplay(const ReplayConfig& config) : config_(config) {}
FleetReplay::~FleetReplay() = default;

absl::StatusOr<std::unique_ptr<FleetReplay>> FleetReplay::Create(const ReplayConfig& config) {
  std::unique_ptr<FleetReplay> fleet(new FleetReplay(config));
  const auto options = MakeFleetOptions(config);
  if (!options.ok()) return options.status();
  fleet->options_ = *options;
  auto kinds = ReplicaKinds(config);
  if (!kinds.ok()) return kinds.status();
  for (ReplicaKind& kind : *kinds) {
    auto setup = MakeReplaySetup(kind.config, SeveralRanks::kTaken);
    if (!setup.ok()) {
      if (kind.options.empty()) return setup.status();
      return absl::Status(setup.status().code(), absl::StrCat("--replica, ", kind.options, ": ",
                                                              setup.status().message()));
    }
    const int64_t num_ranks = kind.config.data_parallel();
    for (int64_t i = 0; i < kind.count && num_ranks > 1; ++i) {
      const int64_t first = static_cast<int64_t>(fleet->kind_of_.size()) + i * num_ranks;
      fleet->options_.ranks.push_back({.first = static_cast<int32_t>(first),
                                       .count = static_cast<int32_t>(num_ranks),
                                       .is_lockstep = setup->is_lockstep});
    }
    const auto count = static_cast<size_t>(kind.count * num_ranks);
    fleet->kind_of_.insert(fleet->kind_of_.end(), count, fleet->kinds_.size());
    fleet->kinds_.push_back({std::move(kind), *std::move(setup)});
  }
  if (IsSplit(config)) {
    if (config.prefill_replicas() == 0 || config.decode_replicas() == 0) {
      return absl::InvalidArgumentError(config.prefill_replicas() == 0
                                            ? "--decode-replicas needs --prefill-replicas (got 0)"
                                            : "--prefill-replicas needs --decode-replicas (got 0)");
    }
    if (config.replicas() > 1 || !config.replica().empty() || config.data_parallel() > 1 ||
        AsksForScaling(config)) {
      return absl::InvalidArgumentError(
          "--prefill-replicas and --decode-replicas: set next to --replicas, --replica, "
          "--data-parallel, --scale or --scale-rule, expected one or the other");
    }
    auto split = MakeSplitOptions(fleet->setup());
    if (!split.ok()) return split.status();
    fleet->split_ = *std::move(split);
  }
  if (absl::Status status = fleet->CheckRanks(); !status.ok()) return status;
  // Those that start later are made beforehand, like the last of the others.
  fleet->options_.num_live = static_cast<int32_t>(fleet->kind_of_.size());
  const auto needed = Scaler::NumReplicas(fleet->options_.scaling, fleet->options_.num_live);
  if (!needed.ok()) return InOptionWords(needed.status());
  fleet->kind_of_.resize(static_cast<size_t>(*needed), fleet->kind_of_.back());
  fleet->num_replicas_ = fleet->kind_of_.size();
  if (absl::Status status = fleet->CheckSharedTiers(); !status.ok()) return status;
  return fleet;
}

absl::Status FleetReplay::CheckRanks() {
  if (kind_of_.size() > Fleet::kMostReplicas) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-parallel: got ", kind_of_.size(), " ranks in all, expected at most ",
                     Fleet::kMostReplicas));
  }
  if (options_.ranks.empty()) {
    if (options_.router.kind != RouterKind::kDataParallel) return absl::OkStatus();
    return BadOption("--router", config_.router(),
                     "another one, or --data-parallel beside it, between whose ranks it chooses");
  }
  // The engine's own balancer, unless a router is to choose the rank.
  if (config_.router().empty()) options_.router.kind = RouterKind::kDataParallel;
  if (!options_.scaling.is_used()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--data-parallel: set next to --scale or --scale-rule, expected one or the other: ranks of a "
      "replica start and stop together, which is not modelled");
}

// Who shares a tier must have the same tiers, with chunks of the same bytes.
absl::Status FleetReplay::CheckSharedTiers() const {
  const bool shares = SharesTiers();
  const ReplaySetup& first = kinds_.front().setup;
  for (const Kind& kind : kinds_) {
    const ReplaySetup& own = kind.setup;
    const bool is_alike = own.config.tier() == first.config.tier() && own.tiers && first.tiers &&
                          own.tiers->group_block_bytes == first.tiers->group_block_bytes;
    if (!shares || is_alike) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--tier: got \"", own.config.tier(), "\" for replicas with ", kind.asked.options, ", and \"",
        first.config.tier(), "\" for the first: a shared tier takes the same tiers, and blocks of the "
        "same bytes, for all replicas"));
  }
  return absl::OkStatus();
}

bool FleetReplay::SharesTiers() const {
  return std::any_of(kinds_.begin(), kinds_.end(), [](const Kind& kind) {
    return kind.setup.tiers && kind.setup.tiers->tiers.back().is_shared;
  });
}

absl::Status FleetReplay::AddTiersTo(size_t replica, ReplicaSetup* setup) {
  const ReplaySetup& own = kinds_[kind_of_[replica]].setup;
  const TierConnector* with = replica == 0 ? nullptr : tiers_.front().get();
  auto made = MakeTiers(own, static_cast<int64_t>(replica), with);
  if (!made.ok()) return made.status();
  tiers_.push_back(*std::move(made));
  if (tiers_.back() == nullptr) return absl::OkStatus();
  setup->observers.insert(setup->observers.begin(), tiers_.back().get());
  setup->connector = tiers_.back().get();
  return absl::OkStatus();
}

absl::Status FleetReplay::Run(TraceReader* reader, const Listeners& listeners) {
  const std::vector<Objective>& objectives = setup().metrics.objectives;
  const SimTime client_rtt = setup().metrics.latency.client_rtt;
  if (split_) {
    split_metrics_ = std::make_unique<SplitMetrics>(objectives, client_rtt, listeners.rows);
  } else {
    metrics_ = std::make_unique<FleetMetrics>(num_replicas_, objectives, client_rtt);
  }
  std::vector<ReplicaSetup> replicas;
  for (size_t r = 0; r < num_replicas_; ++r) {
    const ReplaySetup& own = kinds_[kind_of_[r]].setup;
    ReplayMetricsOptions measured = own.metrics;
    if (listeners.rows != nullptr && !split_) {
      rows_.push_back(std::make_unique<Rows>(static_cast<int32_t>(r), listeners.rows));
      measured.rows = rows_.back().get();
    }
    std::vector<EngineObserver*> exports;
    if (listeners.exports != nullptr) listeners.exports->Attach(r, own, &measured, &exports);
    of_replicas_.push_back(std::make_unique<ReplayMetrics>(measured));
    ReplicaSetup& replica = replicas.emplace_back();
    replica = {ConfigFor(own, *reader),
               own.step_time.get(),
               {of_replicas_.back().get()}};
    if (metrics_ != nullptr) replica.observers.push_back(metrics_->of_replica(r));
    replica.observers.insert(replica.observers.end(), exports.begin(), exports.end());
    if (absl::Status status = AddTiersTo(r, &replica); !status.ok()) return status;
    if (listeners.events == nullptr) continue;
    replica.config.manager.enable_events = true;
    replica.observers.push_back(listeners.events->of_replica(r));
  }
  return RunReplicas(reader, listeners, std::move(replicas));
}

template <typename AnyFleet>
absl::Status FleetReplay::RunShown(AnyFleet& fleet, ProgressLine* progress) {
  if (progress != nullptr && progress->is_shown()) {
    fleet.set_progress([this, progress](const SimulationProgress& p) {
      progress->Update(p, metrics_ == nullptr ? 0 : metrics_->num_hit_tokens(),
                       metrics_ == nullptr ? 0 : metrics_->num_queried_tokens());
      return true;
    });
  }
  if (absl::Status status = fleet.Run(); !status.ok()) return status;
  if (progress != nullptr) progress->Clear();
  return absl::OkStatus();
}

absl::Status FleetReplay::RunReplicas(TraceReader* reader, const Listeners& listeners,
                                      std::vector<ReplicaSetup> replicas) {
  SimulationResult all;  // of all together: nothing ran if no replica ran anything
  if (split_) {
    const auto fleet =
        SplitFleet::Create(*split_, std::move(replicas), reader, split_metrics_.get());
    if (!fleet.ok()) return InOptionWords(fleet.status());
    if (absl::Status status = RunShown(**fleet, listeners.progress); !status.ok()) return status;
    split_result_ = (*fleet)->result();
    result_.replicas = split_result_.replicas;
    all.num_arrived = split_result_.num_arrived;
    all.num_rejected = split_result_.num_rejected;
  } else {
    std::vector<FleetObserver*> observers = listeners.observers;
    observers.push_back(metrics_.get());
    if (listeners.rows != nullptr) {
      router_rows_ = std::make_unique<RouterRows>(listeners.rows);
      observers.push_back(router_rows_.get());
    }
    const auto fleet = Fleet::Create(options_, std::move(replicas), reader, std::move(observers));
    if (!fleet.ok()) return InOptionWords(fleet.status());
    for (size_t r = 0; r < num_replicas_; ++r) {
      if (tiers_[r] == nullptr) continue;
      if (absl::Status status = tiers_[r]->Attach((*fleet)->replica(r).manager()); !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--tier: ", status.message()));
      }
    }
    if (absl::Status status = RunShown(**fleet, listeners.progress); !status.ok()) return status;
    result_ = (*fleet)->result();
    for (const auto& tiers : tiers_) {
      if (tiers == nullptr || !config_.check_invariants()) continue;
      if (absl::Status status = tiers->CheckInvariants(); !status.ok()) return status;
    }
  }
  for (const SimulationResult& one : result_.replicas) {
    if (!split_) {
      all.num_arrived += one.num_arrived;
      all.num_rejected += one.num_rejected;
    }
    all.scheduler.num_too_big += one.scheduler.num_too_big;
    all.scheduler.num_blocks_for_too_big =
        std::max(all.scheduler.num_blocks_for_too_big, one.scheduler.num_blocks_for_too_big);
  }
  return CheckSomethingRan(all, config_, setup());
}

std::vector<std::string> FleetReplay::Names() const {
  std::vector<std::string> names;
  for (size_t r = 0; r < num_replicas_; ++r) {
    const bool is_decode = split_ && r >= split_->num_prefill;
    names.push_back(absl::StrCat(is_decode ? "decode " : split_ ? "prefill " : "",
                                 is_decode ? r - split_->num_prefill : r));
  }
  return names;
}

void FleetReplay::FillKinds(::kvblocks::fleet::v1::FleetReport* report) const {
  int64_t first = 0;
  for (const Kind& kind : kinds_) {
    auto* out = report->add_kinds();
    out->set_first(static_cast<int32_t>(first));
    out->set_count(kind.asked.count * kind.asked.config.data_parallel());
    out->set_options(kind.asked.options);
    out->set_model(kind.setup.model);
    out->set_device(kind.setup.device);
    out->set_tensor_parallel(kind.setup.config.tensor_parallel());
    out->set_num_blocks(kind.setup.simulation.kv_cache.num_blocks);
    first += out->count();
  }
}

void FleetReplay::Fill(const TraceReader& reader, ::kvblocks::fleet::v1::FleetReport* report) {
  report->set_outcome("complete");
  if (split_) {
    split_metrics_->Fill(*split_, split_result_, report);
  } else {
    metrics_->Fill(options_, result_, report);
  }
  if (!config_.replica().empty()) FillKinds(report);
  std::vector<const TierConnector*> tiers;
  for (const auto& one : tiers_) {
    if (one != nullptr) tiers.push_back(one.get());
  }
  if (!tiers.empty()) FillTiers(tiers, report->mutable_tiers());
  for (size_t r = 0; r < result_.replicas.size(); ++r) {
    auto* one = report->add_reports();
    of_replicas_[r]->Fill(result_.replicas[r], one);
    if (tiers_[r] != nullptr) FillTiers(*tiers_[r], one->mutable_tiers());
    const Kind& kind = kinds_[kind_of_[r]];
    DescribeReplay(kind.asked.config, kind.setup, reader, one);
    if (config_.replica().empty()) {
      if (r == 0) *report->mutable_config() = one->config();
      one->clear_config();
    } else if (r == 0) {
      *report->mutable_config() = config_;
    }
    // One that got nothing has nothing to say of the trace.
    if (r > 0 && result_.replicas[r].num_arrived == 0) continue;
    // What holds for one replica and what holds for the trace; said once.
    for (const std::string& note : one->notes()) {
      if (std::find(report->notes().begin(), report->notes().end(), note) == report->notes().end()) {
        report->add_notes(note);
      }
    }
  }
}

namespace {

// Keeps one decision.
class RoutingLife final : public FleetObserver {
 public:
  RoutingLife(const RequestSelector& selector, ::kvblocks::fleet::v1::RoutingExplanation* out)
      : selector_(selector), out_(out) {
    out_->set_found_tokens(-1);
  }

  void OnRouted(const RoutingRecord& record, SimTime now) override {
    if (is_found_ || !selector_.Matches(record.request.spec)) return;
    is_found_ = true;
    row_ = record.request.spec.row;
    out_->set_request(record.request.spec.id);
    out_->set_sent_s(Seconds(now));
    out_->set_chosen(record.replica);
    out_->set_waited_s(Seconds(record.waited));
    for (size_t r = 0; r < record.loads.size(); ++r) {
      auto* candidate = out_->add_candidates();
      candidate->set_replica(static_cast<int32_t>(r));
      candidate->set_is_full(!record.has_room.empty() && record.has_room[r] == 0);
      candidate->set_requests(record.loads[r].num_requests);
      candidate->set_tokens(record.loads[r].num_tokens);
      candidate->set_waiting_prompt_tokens(record.loads[r].num_waiting_tokens);
      candidate->set_claimed_tokens(record.claimed_tokens.empty() ? -1 : record.claimed_tokens[r]);
      candidate->set_held_tokens(record.held_tokens.empty() ? 0 : record.held_tokens[r]);
      if (!record.scores.empty()) {
        candidate->set_score(static_cast<double>(record.scores[r]) / kMillion);
      }
    }
  }
  void OnEndedAtRouter(const SimRequest& request, SimTime now) override {
    if (is_found_ || !selector_.Matches(request.spec)) return;
    is_found_ = true;
    out_->set_request(request.spec.id);
    out_->set_chosen(-1);
    out_->set_sent_s(Seconds(now));
    out_->set_refused(request.finish_reason == FinishReason::kRejected
                          ? request.finish_text
                          : "it gave up in the router's queue");
  }
  void OnFound(const SimRequest& request, int32_t, int64_t, int64_t num_hit_tokens,
               SimTime) override {
    if (is_found_ && request.spec.row == row_) out_->set_found_tokens(num_hit_tokens);
  }
  bool is_found() const { return is_found_; }

 private:
  const RequestSelector& selector_;
  ::kvblocks::fleet::v1::RoutingExplanation* const out_;
  bool is_found_ = false;
  int64_t row_ = -1;
};

}  // namespace

absl::Status ExplainRouting(const ReplayConfig& config, const RequestSelector& selector, bool quiet,
                            ::kvblocks::fleet::v1::RoutingExplanation* out) {
  if (IsSplit(config)) {
    return absl::InvalidArgumentError(
        "--prefill-replicas and --decode-replicas: kvsim explain has no words for requests that "
        "are handed over; leave them out");
  }
  const auto fleet = FleetReplay::Create(config);
  if (!fleet.ok()) return fleet.status();
  const auto reader = OpenReplayTrace(config, (*fleet)->setup().reader);
  if (!reader.ok()) return reader.status();
  RoutingLife life(selector, out);
  ProgressLine progress(quiet);
  absl::Status status =
      (*fleet)->Run(reader->get(), {.observers = {&life}, .progress = &progress});
  if (!status.ok()) return status;
  PrintWarnings(**reader);
  out->set_router(std::string(RouterName((*fleet)->options().router.kind)));
  if (life.is_found()) return absl::OkStatus();
  return absl::NotFoundError(
      "--request: no such request was sent to a replica; it needs an id of the trace, row:N or "
      "line:N");
}

}  // namespace kvblocks::sim
