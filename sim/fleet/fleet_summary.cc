#include "kvblocks/sim/fleet/fleet_summary.h"

#include <algorithm>

namespace kvblocks::sim {

using ::kvblocks::report::v1::Report;

namespace {

void SumWorkloads(const ::kvblocks::fleet::v1::FleetReport& fleet,
                  ::kvblocks::report::v1::Workload* sum) {
  *sum = fleet.reports(0).workload();
  sum->set_requests_arrived(0);
  sum->set_requests_skipped(fleet.totals().requests_skipped());
  sum->set_input_tokens(0);
  sum->set_requested_output_tokens(0);
  sum->set_encoder_tokens(0);
  for (const Report& one : fleet.reports()) {
    const auto& workload = one.workload();
    if (workload.requests_arrived() == 0) continue;
    const bool is_first = sum->requests_arrived() == 0;
    sum->set_first_arrival_s(is_first ? workload.first_arrival_s()
                                      : std::min(sum->first_arrival_s(), workload.first_arrival_s()));
    sum->set_last_arrival_s(is_first ? workload.last_arrival_s()
                                     : std::max(sum->last_arrival_s(), workload.last_arrival_s()));
    sum->set_requests_arrived(sum->requests_arrived() + workload.requests_arrived());
    sum->set_input_tokens(sum->input_tokens() + workload.input_tokens());
    sum->set_requested_output_tokens(sum->requested_output_tokens() +
                                     workload.requested_output_tokens());
    sum->set_encoder_tokens(sum->encoder_tokens() + workload.encoder_tokens());
  }
}

}  // namespace

Report FleetSummary(const ::kvblocks::fleet::v1::FleetReport& fleet) {
  Report out;
  out.set_schema_version(1);
  out.set_outcome(fleet.outcome());
  *out.mutable_config() = fleet.config();
  *out.mutable_notes() = fleet.notes();
  if (fleet.reports_size() == 0) return out;
  SumWorkloads(fleet, out.mutable_workload());
  *out.mutable_setup() = fleet.reports(0).setup();
  int64_t devices = 0, recomputed = 0, encoder = 0;
  for (const Report& one : fleet.reports()) {
    devices += one.setup().devices();
    recomputed += one.totals().recomputed_tokens();
    encoder += one.totals().encoder_tokens();
  }
  out.mutable_setup()->set_devices(devices);
  const auto& totals = fleet.totals();
  out.mutable_totals()->set_requests_finished(totals.requests_finished());
  out.mutable_totals()->set_requests_rejected(totals.requests_rejected());
  out.mutable_totals()->set_requests_aborted(totals.requests_aborted());
  out.mutable_totals()->set_output_tokens(totals.output_tokens());
  out.mutable_totals()->set_recomputed_tokens(recomputed);
  out.mutable_totals()->set_encoder_tokens(encoder);
  out.mutable_throughput()->set_duration_s(totals.duration_s());
  out.mutable_throughput()->set_requests_per_s(totals.requests_per_s());
  out.mutable_throughput()->set_output_tokens_per_s(totals.output_tokens_per_s());
  out.mutable_preemption()->set_preemptions(totals.preemptions());
  *out.mutable_latency()->mutable_queueing() = fleet.latency().queueing();
  *out.mutable_latency()->mutable_ttft() = fleet.latency().ttft();
  *out.mutable_latency()->mutable_tpot() = fleet.latency().tpot();
  *out.mutable_latency()->mutable_e2e() = fleet.latency().e2e();
  *out.mutable_whole_run()->mutable_token_hit_rate() = fleet.hit_rate();
  if (fleet.has_goodput()) *out.mutable_goodput() = fleet.goodput();
  return out;
}

}  // namespace kvblocks::sim
