// What requests that are handed over waited for, phase by phase.

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "sim/fleet/fleet_metrics.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

void FillAs(const char* definition, Distribution& values,
            pb::Distribution* out) {
  FillDistribution(values, out);
  out->set_definition(definition);
}

}  // namespace

void FleetMetrics::OnEnded(const SimRequest& request, const HandoverLife& life, SimTime now) {
  clients_.OnArrival(request);
  clients_.OnEnd(request, now);
  if (life.load_end >= 0) {
    phases_.num_loaded += life.num_loaded_tokens;
    phases_.num_bytes += life.num_bytes;
    phases_.handover.Add(life.load_start - life.prefill_end);
    phases_.transfer.Add(life.load_end - life.load_start);
    phases_.link_queue.Add(life.link_queue);
    phases_.prefill_hold += life.load_end - life.prefill_end;
    phases_.decode_hold += life.load_end - life.load_start;
  }
  if (!request.is_completed() || life.first_token < 0) {
    WriteRow(request, life, std::nullopt, now);
    clients_.OnFailure();
    return;
  }
  RequestLatency latency = clients_.Finish(request, life.prefill_start, life.first_token, now);
  latency.prefill = life.first_token - life.prefill_start;
  WriteRow(request, life, latency, now);
  clients_.Count(latency);
  if (life.prefill_end >= 0) phases_.prefill.Add(life.prefill_end - life.prefill_start);
  if (life.load_end >= 0) phases_.decode.Add(now - life.load_end);
  phases_.num_outputs += request.num_outputs();
}

std::string FleetMetrics::HandoverColumns() {
  return "prefill_replica,decode_replica,prompt_ms,handover_ms,transfer_ms,loaded_tokens,transfer_"
         "bytes";
}

void FleetMetrics::WriteRow(const SimRequest& request, const HandoverLife& life,
                            const std::optional<RequestLatency>& latency, SimTime now) {
  if (rows_ == nullptr) return;
  const auto replica = [](int32_t r) { return r < 0 ? std::string() : absl::StrCat(r); };
  const auto between = [](SimTime from, SimTime to) {
    constexpr int kPicosecondsPerMillisecondExponent = 9;
    return from < 0 || to < 0 ? std::string()
                              : FormatScaledDecimal(to - from, kPicosecondsPerMillisecondExponent);
  };
  RequestProgress progress;
  if (life.prefill_start >= 0) progress.first_scheduled = life.prefill_start;
  rows_->OnRow({.request = &request,
                .progress = &progress,
                .latency = latency,
                .end = now,
                .knows_hits = false,
                .further = absl::StrCat(
                    replica(life.prefill_replica), ",", replica(life.decode_replica), ",",
                    between(life.prefill_start, life.prefill_end), ",",
                    between(life.prefill_end, life.load_start), ",",
                    between(life.load_start, life.load_end), ",", life.num_loaded_tokens, ",",
                    life.num_bytes)});
}

void FleetMetrics::FillHandover(const HandoverOptions& handover,
                                const RouterOptions& prefill_router, const FleetResult& result,
                                pb::Report* out) {
  pb::Handover* setup = out->mutable_handover();
  setup->set_first_token(handover.first_token == FirstToken::kPrefill ? "prefill" : "decode");
  setup->set_prefill_router(std::string(RouterName(prefill_router.kind)));
  setup->set_decode_router(std::string(RouterName(handover.decode_router.kind)));
  setup->set_link_gb_per_s(static_cast<double>(handover.link.bytes_per_second) / 1e9);
  setup->set_link_latency_ms(Seconds(handover.link.latency) * 1e3);
  setup->set_link_sharing(handover.link.sharing == LinkSharing::kFifo ? "fifo" : "equal");
  setup->set_link_scope(handover.scope == LinkScope::kShared ? "shared" : "decode");
  setup->set_transferred(handover.charges_hits ? "all" : "missing");
  for (const GroupTransfer& group : handover.groups) {
    const int64_t bytes = group.block_bytes / group.block_size;
    if (group.is_window) {
      setup->set_window_bytes_per_token(setup->window_bytes_per_token() + bytes);
    } else {
      setup->set_bytes_per_token(setup->bytes_per_token() + bytes);
    }
  }
  setup->set_local_tokens(handover.max_local_tokens);

  const HandoverResult& handed = result.handover;
  out->mutable_workload()->set_requests_arrived(handed.num_arrived);
  pb::Totals* totals = out->mutable_totals();
  totals->set_requests_finished(handed.num_finished);
  totals->set_requests_rejected(handed.num_rejected);
  totals->set_requests_aborted(handed.num_aborted);
  setup->set_requests_local(handed.num_local);
  totals->set_output_tokens(phases_.num_outputs);
  clients_.Fill(out);

  pb::Latency* latency = out->mutable_latency();
  latency->mutable_ttft()->set_definition("per request: arrival to first token");
  latency->mutable_tpot()->set_definition(
      "per request: first token to last / tokens behind the first");
  latency->mutable_e2e()->set_definition("per request: arrival to last token");
  latency->mutable_queueing()->set_definition("per request: arrival to the prompt's first step");
  FillAs("per request with a prefill replica: first step to the prompt's end", phases_.prefill,
         setup->mutable_prefill());
  FillAs("per transfer: the prompt's end to blocks on the decode replica", phases_.handover,
         setup->mutable_handover());
  FillAs("per transfer: its start to its end", phases_.transfer, setup->mutable_transfer());
  FillAs("per request with a transfer: its end to the last token", phases_.decode,
         setup->mutable_decode());

  const double duration = out->throughput().duration_s();
  pb::Transfers* transfers = setup->mutable_transfers();
  SimTime busy = 0;
  for (const LinkTotals& link : handed.links) {
    transfers->set_count(transfers->count() + link.num_ended);
    transfers->set_peak_under_way(std::max(transfers->peak_under_way(), link.peak_under_way));
    busy += link.busy_time / static_cast<int64_t>(handed.links.size());
  }
  transfers->set_loaded_tokens(phases_.num_loaded);
  transfers->set_bytes(phases_.num_bytes);
  FillAs("per transfer: its time beyond what it takes alone", phases_.link_queue,
         transfers->mutable_queueing());
  if (duration > 0) transfers->set_busy_share(Seconds(busy) / duration);
  transfers->set_prefill_hold_s(Ratio(phases_.prefill_hold, kSecond));
  transfers->set_decode_hold_s(Ratio(phases_.decode_hold, kSecond));
  for (size_t r = 0; r < result.replicas.size(); ++r) {
    const SimulationResult& one = result.replicas[r];
    const bool is_prefill = r < handover.num_prefill;
    pb::Replica* row = out->mutable_replicas(static_cast<int>(r));
    FillRow(one, row);
    row->set_role(is_prefill ? "prefill" : "decode");
    row->set_hit_tokens(one.prefix_cache.hits + one.prefix_cache.preempted_hits);
    row->set_computed_tokens(one.scheduler.num_computed);
    if (duration > 0) row->set_busy_share(Seconds(one.busy_time) / duration);
  }
}

}  // namespace kvblocks::sim
