#include "sim/fleet/fleet_metrics.h"

#include <algorithm>
#include <string>

#include "google/protobuf/message.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/result_file.h"
#include "sim/report/workload_section.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

double InMillionths(int64_t value) { return static_cast<double>(value) / kMillion; }

// The most to the mean; 1 where there is nothing.
template <typename Value>
double MostToMean(size_t count, Value value) {
  __int128 sum = 0, most = 0;
  for (size_t r = 0; r < count; ++r) {
    const __int128 one = value(r);
    sum += one;
    most = std::max(most, one);
  }
  return sum == 0 ? 1.0 : Ratio(most * static_cast<__int128>(count), sum);
}

int64_t NumAborted(const SimulationResult& result) {
  return result.num_aborted_time + result.num_aborted_queue + result.num_aborted_session;
}

// How ranks that step together spent their time.
void FillRankGroups(const FleetOptions& options, const FleetResult& result, pb::Report* out) {
  for (const RankGroup& ranks : options.ranks) {
    pb::RankGroup* group = out->add_rank_groups();
    group->set_first(ranks.first);
    group->set_ranks(ranks.count);
    group->set_lockstep(ranks.is_lockstep);
    if (!ranks.is_lockstep) continue;
    __int128 own = 0, lost = 0, dummy = 0;
    for (int32_t i = 0; i < ranks.count; ++i) {
      const LockstepTotals& totals = result.lockstep[static_cast<size_t>(ranks.first + i)];
      own += totals.own_time;
      lost += totals.lost_time;
      dummy += totals.dummy_time;
      pb::Replica* row = out->mutable_replicas(ranks.first + i);
      const __int128 passes = __int128{totals.own_time} + totals.lost_time + totals.dummy_time;
      row->set_steps(totals.num_steps);
      row->set_dummy_steps(totals.num_dummies);
      row->set_lost_share(Ratio(totals.lost_time, passes));
      row->set_dummy_share(Ratio(totals.dummy_time, passes));
    }
    const LockstepTotals& first = result.lockstep[static_cast<size_t>(ranks.first)];
    group->set_passes(first.num_steps + first.num_dummies);
    group->set_passes_s(Seconds(first.own_time + first.lost_time + first.dummy_time));
    group->set_own_share(Ratio(own, own + lost + dummy));
    group->set_lost_share(Ratio(lost, own + lost + dummy));
    group->set_dummy_share(Ratio(dummy, own + lost + dummy));
    group->set_idle_passes(first.num_idle);
    group->set_idle_s(Seconds(first.idle_time));
  }
}

void FillScaling(const FleetOptions& options, const FleetResult& result,
                 pb::Scaling* out) {
  const ScalingResult& scaling = result.scaling;
  __int128 on_time = 0;
  for (const SimTime time : scaling.on_time) on_time += time;
  out->set_replica_s(Ratio(on_time, kSecond));
  out->set_mean_on(Ratio(on_time, result.end_time));
  out->set_most_live(scaling.most_live);
  out->set_starts(scaling.num_starts);
  out->set_restarts(scaling.num_restarts);
  out->set_stops(scaling.num_stops);
  out->set_crashes(scaling.num_crashes);
  out->set_refused(scaling.num_refused);
  out->set_requests_lost(scaling.num_lost);
  out->set_requests_retried(scaling.num_retried);
  out->set_requests_failed(scaling.num_failed);
  out->set_lost_tokens(scaling.num_lost_tokens);
  out->set_requests_held(scaling.num_held);
  auto num_live =
      options.num_live > 0 ? options.num_live : static_cast<int32_t>(result.replicas.size());
  std::vector<bool> is_live(result.replicas.size());
  for (int32_t r = 0; r < num_live; ++r) is_live[static_cast<size_t>(r)] = true;
  for (const ScaleRecord& record : scaling.timeline) {
    const auto r = static_cast<size_t>(record.replica);
    const bool was_live = is_live[r];
    if (record.kind == ScaleRecord::Kind::kLive) is_live[r] = true;
    if (record.kind == ScaleRecord::Kind::kStop || record.kind == ScaleRecord::Kind::kCrash) {
      is_live[r] = false;
    }
    num_live += is_live[r] - was_live;
    auto* event = out->add_timeline();
    event->set_time_s(Seconds(record.time));
    event->set_replica(record.replica);
    event->set_kind(std::string(KindName(record.kind)));
    event->set_live(num_live);
  }
}

// Each number of the first to that of the second.
void AddNumbers(const google::protobuf::Message& from, google::protobuf::Message* to) {
  using google::protobuf::FieldDescriptor;
  const auto* type = from.GetDescriptor();
  const auto* get = from.GetReflection();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      get->SetInt64(to, field, get->GetInt64(*to, field) + get->GetInt64(from, field));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      get->SetDouble(to, field, get->GetDouble(*to, field) + get->GetDouble(from, field));
    }
  }
}

void AddRatio(const pb::Ratio& from, pb::Ratio* to) {
  to->set_numerator(to->numerator() + from.numerator());
  to->set_denominator(to->denominator() + from.denominator());
  to->set_value(Ratio(to->numerator(), to->denominator()));
}

// What the replicas' own reports add up to.
void SumReplicas(pb::Report* out) {
  const pb::Report& first = out->replicas(0).report();
  *out->mutable_workload() = first.workload();
  *out->mutable_setup() = first.setup();
  pb::Totals* totals = out->mutable_totals();
  pb::Preemption* preemption = out->mutable_preemption();
  const pb::Preemption* worst = &first.preemption();
  int64_t devices = 0;
  for (const pb::Replica& replica : out->replicas()) {
    const pb::Report& one = replica.report();
    devices += one.setup().devices();
    AddNumbers(one.totals(), totals);
    if (totals->first_rejection().empty()) {
      totals->set_first_rejection(one.totals().first_rejection());
    }
    AddNumbers(one.preemption(), preemption);
    if (one.preemption().worst_request_preemptions() > worst->worst_request_preemptions()) {
      worst = &one.preemption();
    }
  }
  out->mutable_setup()->set_devices(devices);
  preemption->set_worst_request(worst->worst_request());
  preemption->set_worst_request_preemptions(worst->worst_request_preemptions());
}

// Hits of first admissions, each at its replica; an infinite cache of them all is not known.
void SumHitRates(pb::Report* out) {
  pb::HitRates* all = out->mutable_whole_run();
  double ratios = 0;
  for (const pb::Replica& replica : out->replicas()) {
    const pb::HitRates& one = replica.report().whole_run();
    all->set_requests(all->requests() + one.requests());
    AddRatio(one.full_block_hit_rate(), all->mutable_full_block_hit_rate());
    AddRatio(one.request_hit_rate(), all->mutable_request_hit_rate());
    ratios += one.mean_of_ratios() * static_cast<double>(one.requests());
    all->set_window(one.window());
  }
  if (all->requests() > 0) all->set_mean_of_ratios(ratios / static_cast<double>(all->requests()));
}

// Means of steps over those of all replicas. REQUIRES: the duration.
void MeanSteps(pb::Report* out) {
  pb::Throughput* all = out->mutable_throughput();
  double busy = 0, requests = 0, tokens = 0, use = 0;
  for (const pb::Replica& replica : out->replicas()) {
    const pb::Throughput& one = replica.report().throughput();
    const auto steps = static_cast<double>(replica.report().totals().steps());
    busy += one.busy_share() * one.duration_s();
    requests += one.mean_batch_requests() * steps;
    tokens += one.mean_step_tokens() * steps;
    use += one.budget_use() * steps;
  }
  if (all->duration_s() > 0) {
    all->set_busy_share(busy / all->duration_s() / static_cast<double>(out->replicas_size()));
  }
  if (const auto steps = static_cast<double>(out->totals().steps()); steps > 0) {
    all->set_mean_batch_requests(requests / steps);
    all->set_mean_step_tokens(tokens / steps);
    all->set_budget_use(use / steps);
  }
}

void Sum(const DecisionSeries::Counts& counts, DecisionSeries::Counts* sum) {
  sum->routed += counts.routed;
  sum->oracle_more_tokens += counts.oracle_more_tokens;
  sum->missing_tokens += counts.missing_tokens;
  sum->unknown_tokens += counts.unknown_tokens;
}

}  // namespace

void DecisionSeries::Add(SimTime at, const Counts& counts) {
  while (at / tick_ >= static_cast<SimTime>(kMostPoints)) {
    tick_ *= 2;
    for (size_t i = 0; i < points_.size(); i += 2) {
      Counts merged = points_[i];
      if (i + 1 < points_.size()) Sum(points_[i + 1], &merged);
      points_[i / 2] = merged;
    }
    points_.resize((points_.size() + 1) / 2);
  }
  const auto index = static_cast<size_t>(at / tick_);
  if (index >= points_.size()) points_.resize(index + 1);
  Sum(counts, &points_[index]);
}

void DecisionSeries::Fill(pb::DecisionSeries* out) const {
  out->set_tick_s(Seconds(tick_));
  for (size_t i = 0; i < points_.size(); ++i) {
    auto* point = out->add_points();
    point->set_start_s(Seconds(tick_) * static_cast<double>(i));
    point->set_routed(points_[i].routed);
    point->set_oracle_more_tokens(points_[i].oracle_more_tokens);
    point->set_missing_tokens(points_[i].missing_tokens);
    point->set_unknown_tokens(points_[i].unknown_tokens);
  }
}

void ClientMetrics::OnArrival(const SimRequest& request) {
  if (request.resent >= 0) return;
  if (first_arrival_ < 0 || request.arrival < first_arrival_) first_arrival_ = request.arrival;
  last_arrival_ = std::max(last_arrival_, request.arrival);
  input_tokens_ += request.num_prompt;
  requested_output_ += request.max_output;
  encoder_tokens_ += request.spec.encoder_tokens.value_or(0);
}

RequestLatency ClientMetrics::Finish(const SimRequest& request, SimTime start, SimTime first_token,
                                     SimTime now) {
  RequestLatency latency;
  latency.queueing = start - request.arrival;
  latency.ttft = first_token - request.arrival + client_rtt_;
  latency.e2e = now - request.arrival + client_rtt_;
  if (request.num_outputs() > 1) latency.tpot = (now - first_token) / (request.num_outputs() - 1);
  return latency;
}

void ClientMetrics::Count(const RequestLatency& latency) {
  queueing_.Add(latency.queueing);
  ttft_.Add(latency.ttft);
  e2e_.Add(latency.e2e);
  if (latency.tpot) tpot_.Add(*latency.tpot);
  goodput_.OnFinish(latency);
}

void ClientMetrics::Fill(pb::Report* out) {
  const SimTime start = std::max<SimTime>(first_arrival_, 0);
  pb::Workload* workload = out->mutable_workload();
  workload->set_input_tokens(input_tokens_);
  workload->set_requested_output_tokens(requested_output_);
  workload->set_encoder_tokens(encoder_tokens_);
  workload->set_first_arrival_s(Seconds(start));
  workload->set_last_arrival_s(Seconds(last_arrival_));
  const pb::Totals& totals = out->totals();
  const double duration = Seconds(std::max<SimTime>(last_end_ - start, 0));
  pb::Throughput* throughput = out->mutable_throughput();
  throughput->set_duration_s(duration);
  if (duration > 0) {
    throughput->set_requests_per_s(static_cast<double>(totals.requests_finished()) / duration);
    throughput->set_input_tokens_per_s(static_cast<double>(finished_input_) / duration);
    throughput->set_computed_tokens_per_s(static_cast<double>(totals.computed_tokens()) / duration);
    throughput->set_output_tokens_per_s(static_cast<double>(totals.output_tokens()) / duration);
  }
  throughput->set_start_s(Seconds(start));
  throughput->set_end_s(Seconds(std::max(start, last_end_)));
  throughput->set_window("all");
  MeanSteps(out);
  pb::Latency* latency = out->mutable_latency();
  FillDistribution(queueing_, latency->mutable_queueing());
  FillDistribution(ttft_, latency->mutable_ttft());
  FillDistribution(e2e_, latency->mutable_e2e());
  FillDistribution(tpot_, latency->mutable_tpot());
  if (has_objectives_) goodput_.Fill(duration, out->mutable_goodput());
}

void FleetMetrics::FillRow(const SimulationResult& result, pb::Replica* row) {
  row->set_requests_finished(result.num_finished);
  row->set_requests_rejected(result.num_rejected);
  row->set_requests_aborted(NumAborted(result));
  row->set_output_tokens(result.scheduler.num_output_tokens);
  row->set_preemptions(result.scheduler.num_preemptions);
}

class FleetMetrics::OfReplica final : public EngineObserver {
 public:
  explicit OfReplica(FleetMetrics* fleet) : fleet_(fleet) {}

  bool NeedsEveryRecord() const override { return false; }
  void OnArrival(const SimRequest& request, SimTime) override {
    TimesOf(request) = Times();
    fleet_->clients_.OnArrival(request);
  }
  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    Times& times = TimesOf(*record.request);
    if (times.admitted >= 0) return;
    times.admitted = now;
    num_queried += record.num_queried_tokens;
  }
  void OnStepFinished(const StepRecord& step) override {
    for (const OutputRecord& output : step.outputs) {
      if (output.num_emitted == 0 || output.request == nullptr) continue;
      if (output.request->num_outputs() == output.num_emitted) {
        TimesOf(*output.request).first_token = step.end;
      }
    }
  }
  void OnRejection(const SimRequest&, SimTime) override { fleet_->clients_.OnFailure(); }
  void OnFinish(const SimRequest& request, SimTime now) override {
    fleet_->clients_.OnEnd(request, now);
    if (!request.is_completed()) return fleet_->clients_.OnFailure();
    const Times& times = TimesOf(request);
    // With --zero-output=prefill nothing comes out.
    if (times.first_token < 0) return;
    fleet_->clients_.Count(
        fleet_->clients_.Finish(request, times.admitted, times.first_token, now));
  }

  int64_t num_sent = 0, num_prompt = 0, num_queried = 0, num_hit = 0, oracle_more = 0;

 private:
  struct Times {
    SimTime admitted = -1;
    SimTime first_token = -1;
  };

  Times& TimesOf(const SimRequest& request) {
    const auto slot = static_cast<size_t>(request.slot);
    if (slot >= times_.size()) times_.resize(slot + 1);
    return times_[slot];
  }

  FleetMetrics* const fleet_;
  std::vector<Times> times_;  // of live requests, by slot
};

FleetMetrics::FleetMetrics(size_t num_replicas, std::vector<Objective> objectives,
                           SimTime client_rtt, RequestRowSink* rows)
    : clients_(std::move(objectives), client_rtt), rows_(rows) {
  for (size_t r = 0; r < num_replicas; ++r) {
    replicas_.push_back(std::make_unique<OfReplica>(this));
  }
}

FleetMetrics::~FleetMetrics() = default;

EngineObserver* FleetMetrics::of_replica(size_t replica) { return replicas_[replica].get(); }

int64_t FleetMetrics::num_queried_tokens() const {
  int64_t sum = 0;
  for (const auto& replica : replicas_) sum += replica->num_queried;
  return sum;
}

void FleetMetrics::OnRouted(const RoutingRecord& record, SimTime now) {
  OfReplica& replica = *replicas_[static_cast<size_t>(record.replica)];
  ++replica.num_sent;
  replica.num_prompt += record.request.num_prompt;
  decisions_.set_routed(decisions_.routed() + 1);
  if (record.waited > 0) {
    router_queueing_.Add(record.waited);
    ++num_queued_;
  }
  int64_t more = 0;
  if (!record.held_tokens.empty()) {
    more = *std::max_element(record.held_tokens.begin(), record.held_tokens.end()) -
           record.held_tokens[static_cast<size_t>(record.replica)];
  }
  series_.Add(now, {.routed = 1, .oracle_more_tokens = more});
  if (more == 0) return;
  replica.oracle_more += more;
  decisions_.set_another_held_more(decisions_.another_held_more() + 1);
  decisions_.set_oracle_more_tokens(decisions_.oracle_more_tokens() + more);
}

void FleetMetrics::OnEndedAtRouter(const SimRequest& request, SimTime now) {
  clients_.OnArrival(request);
  clients_.OnEnd(request, now);
  clients_.OnFailure();
  if (rows_ == nullptr) return;
  const RequestProgress progress;
  rows_->OnRow({.request = &request, .progress = &progress, .latency = {}, .end = now});
}

void FleetMetrics::OnFound(const SimRequest&, int32_t replica, int64_t routed_claim,
                           int64_t num_hit_tokens, SimTime now) {
  replicas_[static_cast<size_t>(replica)]->num_hit += num_hit_tokens;
  sum_hit_ += num_hit_tokens;
  decisions_.set_found_tokens(decisions_.found_tokens() + num_hit_tokens);
  if (routed_claim < 0) return;
  decisions_.set_claimed_tokens(decisions_.claimed_tokens() + routed_claim);
  if (routed_claim > num_hit_tokens) {
    decisions_.set_claims_too_high(decisions_.claims_too_high() + 1);
    decisions_.set_missing_tokens(decisions_.missing_tokens() + routed_claim - num_hit_tokens);
    series_.Add(now, {.missing_tokens = routed_claim - num_hit_tokens});
  } else if (routed_claim < num_hit_tokens) {
    decisions_.set_claims_too_low(decisions_.claims_too_low() + 1);
    decisions_.set_unknown_tokens(decisions_.unknown_tokens() + num_hit_tokens - routed_claim);
    series_.Add(now, {.unknown_tokens = num_hit_tokens - routed_claim});
  }
}

void FleetMetrics::Fill(const FleetOptions& options, const FleetResult& result,
                        pb::Report* out) {
  out->set_schema_version(kReportSchemaVersion);
  SumReplicas(out);
  StepTally tally;
  for (const SimulationResult& one : result.replicas) tally += one.step_tally;
  FillTally(tally, out->mutable_setup());
  out->mutable_workload()->set_requests_skipped(result.num_skipped);
  out->mutable_totals()->set_peak_live_requests(result.peak_live_requests);
  if (options.handover) return FillHandover(*options.handover, options.router, result, out);
  pb::Router* router = out->mutable_router();
  router->set_router(std::string(RouterName(options.router.kind)));
  router->set_seed(options.router.seed);
  router->set_hit_weight(InMillionths(options.router.hit_weight));
  router->set_load_weight(InMillionths(options.router.load_weight));
  router->set_queue_weight(InMillionths(options.router.queue_weight));
  router->set_temperature(InMillionths(options.router.temperature));
  router->set_session_factor(InMillionths(options.router.session_factor));
  router->set_tree_blocks(options.router.tree_blocks);
  router->set_router_delay_ms(Milliseconds(options.router_delay));
  router->set_event_delay_ms(Milliseconds(options.event_delay));
  router->set_event_loss(InMillionths(options.event_loss));
  router->set_queue_requests(options.queue.max_requests);
  router->set_queue_tokens(options.queue.max_tokens);
  const bool has_limit = options.queue.max_waiting < RouterQueueOptions().max_waiting;
  router->set_queue_limit(has_limit ? options.queue.max_waiting : -1);
  router->set_queue_by_priority(options.queue.by_priority);

  router->set_requests_rejected(result.num_rejected);
  router->set_requests_aborted(result.num_aborted);
  router->set_requests_queued(num_queued_);
  router->set_most_queued(result.most_waiting);
  router->set_event_batches(result.num_event_batches);
  router->set_lost_batches(result.num_lost_batches);
  // Sent twice, they arrived once.
  int64_t num_arrived = result.num_rejected + result.num_aborted - result.scaling.num_retried;
  int64_t num_aborted = result.num_aborted + result.scaling.num_failed;
  for (size_t r = 0; r < result.replicas.size(); ++r) {
    const SimulationResult& one = result.replicas[r];
    const OfReplica& seen = *replicas_[r];
    num_arrived += one.num_arrived;
    num_aborted += NumAborted(one);
    pb::Replica* row = out->mutable_replicas(static_cast<int>(r));
    row->set_requests_sent(seen.num_sent);
    FillRow(one, row);
    row->set_prompt_tokens(seen.num_prompt);
    row->set_hit_tokens(seen.num_hit);
    row->set_queried_tokens(seen.num_queried);
    row->set_hit_rate(Ratio(seen.num_hit, seen.num_queried));
    row->set_busy_share(Ratio(one.busy_time, result.scaling.on_time[r]));
    row->set_oracle_more_tokens(seen.oracle_more);
    row->set_requests_lost(one.num_lost);
    row->set_on_s(Seconds(result.scaling.on_time[r]));
  }
  FillRankGroups(options, result, out);
  out->mutable_workload()->set_requests_arrived(num_arrived);
  pb::Totals* totals = out->mutable_totals();
  totals->set_requests_rejected(totals->requests_rejected() + result.num_rejected);
  totals->set_requests_aborted(num_aborted);
  if (options.scaling.is_used()) FillScaling(options, result, out->mutable_scaling());
  clients_.Fill(out);
  FillDistribution(router_queueing_, router->mutable_queueing());
  SumHitRates(out);
  pb::Ratio* hit_rate = out->mutable_whole_run()->mutable_token_hit_rate();
  hit_rate->set_numerator(sum_hit_);
  hit_rate->set_denominator(num_queried_tokens());
  hit_rate->set_value(Ratio(sum_hit_, num_queried_tokens()));

  const size_t count = result.replicas.size();
  pb::Imbalance* imbalance = router->mutable_imbalance();
  imbalance->set_requests(MostToMean(count, [&](size_t r) { return replicas_[r]->num_sent; }));
  imbalance->set_prompt_tokens(
      MostToMean(count, [&](size_t r) { return replicas_[r]->num_prompt; }));
  imbalance->set_output_tokens(MostToMean(
      count, [&](size_t r) { return result.replicas[r].scheduler.num_output_tokens; }));
  imbalance->set_busy_time(
      MostToMean(count, [&](size_t r) { return result.replicas[r].busy_time; }));
  *router->mutable_decisions() = decisions_;
  series_.Fill(router->mutable_decision_series());
}

}  // namespace kvblocks::sim
