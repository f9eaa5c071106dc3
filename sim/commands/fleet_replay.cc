#include "sim/commands/fleet_replay.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_notes.h"
#include "sim/report/metrics.h"
#include "sim/report/tier_section.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

// Removals from the cache that are remembered for a RequestLife: so many times the pool, within
// limits that keep the memory small (96 bytes each).
constexpr int64_t kHistoryPools = 4;
constexpr int64_t kMinHistory = 1 << 16;
constexpr int64_t kMaxHistory = 1 << 21;

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

FleetReplay::FleetReplay(const ReplayConfig& config)
    : config_(config), is_fleet_(IsFleet(config)) {}
FleetReplay::~FleetReplay() = default;

absl::StatusOr<std::unique_ptr<FleetReplay>> FleetReplay::Create(const ReplayConfig& config) {
  std::unique_ptr<FleetReplay> replay(new FleetReplay(config));
  if (replay->is_fleet_) {
    KVBLOCKS_ASSIGN_OR_RETURN(replay->options_, MakeFleetOptions(config));
  }
  KVBLOCKS_RETURN_IF_ERROR(replay->MakeKinds());
  if (replay->is_fleet_) KVBLOCKS_RETURN_IF_ERROR(replay->MakeFleet());
  return replay;
}

absl::Status FleetReplay::MakeKinds() {
  KVBLOCKS_ASSIGN_OR_RETURN(auto kinds, ReplicaKinds(config_));
  for (ReplicaKind& kind : kinds) {
    auto setup = MakeReplaySetup(kind.config, SeveralRanks::kTaken);
    if (!setup.ok()) {
      if (kind.options.empty()) return setup.status();
      return absl::Status(setup.status().code(), absl::StrCat("--replica, ", kind.options, ": ",
                                                              setup.status().message()));
    }
    const int64_t num_ranks = kind.config.data_parallel();
    for (int64_t i = 0; i < kind.count && num_ranks > 1; ++i) {
      const int64_t first = static_cast<int64_t>(kind_of_.size()) + i * num_ranks;
      options_.ranks.push_back({.first = static_cast<int32_t>(first),
                                .count = static_cast<int32_t>(num_ranks),
                                .is_lockstep = setup->is_lockstep});
    }
    const auto count = static_cast<size_t>(kind.count * num_ranks);
    kind_of_.insert(kind_of_.end(), count, kinds_.size());
    kinds_.push_back({std::move(kind), *std::move(setup)});
  }
  return absl::OkStatus();
}

absl::Status FleetReplay::MakeFleet() {
  std::optional<FleetOptions> of_roles;
  if (IsSplit(config_)) {
    if (config_.prefill_replicas() == 0 || config_.decode_replicas() == 0) {
      return absl::InvalidArgumentError(config_.prefill_replicas() == 0
                                            ? "--decode-replicas needs --prefill-replicas (got 0)"
                                            : "--prefill-replicas needs --decode-replicas (got 0)");
    }
    if (config_.replicas() > 1 || !config_.replica().empty() || config_.data_parallel() > 1 ||
        AsksForScaling(config_)) {
      return absl::InvalidArgumentError(
          "--prefill-replicas and --decode-replicas: set next to --replicas, --replica, "
          "--data-parallel, --scale or --scale-rule, expected one or the other");
    }
    KVBLOCKS_ASSIGN_OR_RETURN(of_roles, MakeHandoverOptions(setup()));
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckRanks());
  if (of_roles) options_ = *std::move(of_roles);
  // Those that start later are made beforehand, like the last of the others.
  options_.num_live = static_cast<int32_t>(kind_of_.size());
  const auto needed = Scaler::NumReplicas(options_.scaling, options_.num_live);
  if (!needed.ok()) return InOptionWords(needed.status());
  kind_of_.resize(static_cast<size_t>(*needed), kind_of_.back());
  return CheckSharedTiers();
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

// Replicas that share a tier must have the same tiers, with chunks of the same bytes.
absl::Status FleetReplay::CheckSharedTiers() const {
  const bool shares = std::any_of(kinds_.begin(), kinds_.end(), [](const Kind& kind) {
    return kind.setup.tiers && kind.setup.tiers->tiers.back().is_shared;
  });
  const ReplaySetup& first = kinds_.front().setup;
  for (const Kind& kind : kinds_) {
    const ReplaySetup& own = kind.setup;
    const bool is_alike = own.config.tier() == first.config.tier() && own.tiers && first.tiers &&
                          own.tiers->group_block_bytes == first.tiers->group_block_bytes;
    if (!shares || is_alike) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--tier: got \"", own.config.tier(), "\" for replicas with ",
                     kind.asked.options, ", and \"", first.config.tier(),
                     "\" for the first: a shared tier takes the same tiers, and blocks of the "
                     "same bytes, for all replicas"));
  }
  return absl::OkStatus();
}

// Makes what measures and writes of a replica, and its tiers.
absl::StatusOr<ReplicaSetup> FleetReplay::Attach(size_t r, const TraceReader& reader,
                                                 const Listeners& listeners) {
  const ReplaySetup& own = kinds_[kind_of_[r]].setup;
  ReplayMetricsOptions measured = own.metrics;
  measured.rows = listeners.rows;
  if (options_.handover) measured.rows = nullptr;
  if (is_fleet_ && measured.rows != nullptr) {
    rows_.push_back(std::make_unique<Rows>(static_cast<int32_t>(r), listeners.rows));
    measured.rows = rows_.back().get();
  }
  measured.admissions = listeners.life != nullptr ? listeners.life : listeners.misses;
  std::vector<EngineObserver*> exports;
  if (listeners.exports != nullptr) listeners.exports->Attach(r, own, &measured, &exports);
  of_replicas_.push_back(std::make_unique<ReplayMetrics>(measured));
  ReplicaSetup replica = {ConfigFor(own, reader), own.step_time.get(), {of_replicas_.back().get()}};
  std::vector<EngineObserver*>& observers = replica.observers;
  if (is_fleet_ && !options_.handover) observers.push_back(metrics_->of_replica(r));
  observers.insert(observers.end(), listeners.of_the_only.begin(), listeners.of_the_only.end());
  observers.insert(observers.end(), exports.begin(), exports.end());
  KVBLOCKS_ASSIGN_OR_RETURN(auto tiers, MakeTiers(own, static_cast<int64_t>(r),
                                                  r == 0 ? nullptr : tiers_.front().get()));
  tiers_.push_back(std::move(tiers));
  replica.connector = tiers_.back().get();
  // First, so that the others can ask it what it found.
  if (tiers_.back() != nullptr) observers.insert(observers.begin(), tiers_.back().get());
  if (listeners.life != nullptr) {
    listeners.life->set_tiers(tiers_.back().get());
    observers.push_back(listeners.life);
    replica.config.manager.lookup_history_blocks =
        std::clamp(kHistoryPools * replica.config.kv_cache.num_blocks, kMinHistory, kMaxHistory);
  }
  if (listeners.events == nullptr) return replica;
  replica.config.manager.enable_events = true;
  observers.push_back(listeners.events->of_replica(r));
  return replica;
}

absl::Status FleetReplay::Run(TraceReader* reader, const Listeners& listeners) {
  KVBLOCKS_RETURN_IF_ERROR(is_fleet_ ? RunFleet(reader, listeners) : RunOne(reader, listeners));
  return CheckEnd();
}

template <typename AnyRun>
absl::Status FleetReplay::RunShown(AnyRun& run, ProgressLine* progress) {
  if (progress != nullptr && progress->is_shown()) {
    run.set_progress([this, progress](const SimulationProgress& p) {
      const ReplayMetrics& only = *of_replicas_.front();
      progress->Update(p, is_fleet_ ? metrics_->num_hit_tokens() : only.num_hit_tokens(),
                       is_fleet_ ? metrics_->num_queried_tokens() : only.num_queried_tokens());
      return true;
    });
  }
  KVBLOCKS_RETURN_IF_ERROR(run.Run());
  if (progress != nullptr) progress->Clear();
  return absl::OkStatus();
}

absl::Status FleetReplay::RunOne(TraceReader* reader, const Listeners& listeners) {
  KVBLOCKS_ASSIGN_OR_RETURN(const ReplicaSetup replica, Attach(0, *reader, listeners));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto simulation,
                            MakeSimulation(replica, reader, tiers_.front().get()));
  KVBLOCKS_RETURN_IF_ERROR(RunShown(*simulation, listeners.progress));
  result_.replicas = {simulation->result()};
  return absl::OkStatus();
}

absl::Status FleetReplay::RunFleet(TraceReader* reader, const Listeners& listeners) {
  metrics_ = std::make_unique<FleetMetrics>(kind_of_.size(), setup().metrics.objectives,
                                            setup().metrics.latency.client_rtt, listeners.rows);
  std::vector<ReplicaSetup> replicas;
  for (size_t r = 0; r < kind_of_.size(); ++r) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto replica, Attach(r, *reader, listeners));
    replicas.push_back(std::move(replica));
  }
  std::vector<FleetObserver*> observers = listeners.observers;
  observers.push_back(metrics_.get());
  const auto fleet = Fleet::Create(options_, std::move(replicas), reader, std::move(observers));
  if (!fleet.ok()) return InOptionWords(fleet.status());
  for (size_t r = 0; r < tiers_.size(); ++r) {
    if (tiers_[r] == nullptr) continue;
    KVBLOCKS_RETURN_IF_ERROR(AttachTiers((*fleet)->replica(r).manager(), tiers_[r].get()));
  }
  KVBLOCKS_RETURN_IF_ERROR(RunShown(**fleet, listeners.progress));
  result_ = (*fleet)->result();
  return absl::OkStatus();
}

// Nothing ran if no replica ran anything.
absl::Status FleetReplay::CheckEnd() const {
  for (const auto& tiers : tiers_) {
    if (tiers == nullptr || !config_.check_invariants()) continue;
    KVBLOCKS_RETURN_IF_ERROR(tiers->CheckInvariants());
  }
  SimulationResult all;
  for (const SimulationResult& one : result_.replicas) {
    all.num_arrived += one.num_arrived;
    all.num_rejected += one.num_rejected;
    all.scheduler.num_too_big += one.scheduler.num_too_big;
    all.scheduler.num_blocks_for_too_big =
        std::max(all.scheduler.num_blocks_for_too_big, one.scheduler.num_blocks_for_too_big);
  }
  if (options_.handover) {  // of which a replica has but a part
    all.num_arrived = result_.handover.num_arrived;
    all.num_rejected = result_.handover.num_rejected;
  }
  return CheckSomethingRan(all, config_, setup());
}

std::vector<std::string> FleetReplay::Names() const {
  std::vector<std::string> names;
  for (size_t r = 0; r < kind_of_.size(); ++r) {
    const size_t num_prefill = options_.handover ? options_.handover->num_prefill : 0;
    const bool is_decode = options_.handover && r >= num_prefill;
    names.push_back(absl::StrCat(is_decode ? "decode " : options_.handover ? "prefill " : "",
                                 is_decode ? r - num_prefill : r));
  }
  return names;
}

void FleetReplay::FillKinds(::kvblocks::report::v1::Report* report) const {
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

void FleetReplay::FillOne(size_t r, const TraceReader& reader,
                          ::kvblocks::report::v1::Report* report) {
  of_replicas_[r]->Fill(result_.replicas[r], report);
  if (tiers_[r] != nullptr) FillTiers(*tiers_[r], report->mutable_tiers());
  const Kind& kind = kinds_[kind_of_[r]];
  DescribeReplay(kind.asked.config, kind.setup, reader, report);
}

void FleetReplay::Fill(const TraceReader& reader, ::kvblocks::report::v1::Report* report) {
  if (!is_fleet_) {
    FillOne(0, reader, report);
    return NoteStepsOutside(report);
  }
  report->set_outcome("complete");
  const bool is_alike = kinds_.size() == 1 && kinds_[0].asked.options.empty();
  if (!is_alike) FillKinds(report);
  const std::vector<std::string> names = Names();
  for (size_t r = 0; r < result_.replicas.size(); ++r) {
    auto* replica = report->add_replicas();
    replica->set_name(names[r]);
    auto* one = replica->mutable_report();
    FillOne(r, reader, one);
    if (r == 0) *report->mutable_config() = is_alike ? one->config() : config_;
    if (is_alike) one->clear_config();
    // One that got nothing has nothing to say of the trace.
    if (r > 0 && result_.replicas[r].num_arrived == 0) continue;
    // What holds for one replica and what holds for the trace; said once.
    for (const std::string& note : one->notes()) {
      if (std::find(report->notes().begin(), report->notes().end(), note) ==
          report->notes().end()) {
        report->add_notes(note);
      }
    }
  }
  metrics_->Fill(options_, result_, report);
  NoteStepsOutside(report);
  std::vector<const TierConnector*> tiers;
  for (const auto& one : tiers_) {
    if (one != nullptr) tiers.push_back(one.get());
  }
  if (!tiers.empty()) FillTiers(tiers, report->mutable_tiers());
}

}  // namespace kvblocks::sim
