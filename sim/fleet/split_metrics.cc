#include "sim/fleet/split_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/request_rows.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::fleet::v1;

void FillAs(const char* definition, Distribution& values, ::kvblocks::report::v1::Distribution* out) {
  FillDistribution(values, out);
  out->set_definition(definition);
}

}  // namespace

SplitMetrics::SplitMetrics(std::vector<Objective> objectives, SimTime client_rtt, RequestRowSink* rows)
    : rows_(rows), clients_(std::move(objectives), client_rtt) {}

void SplitMetrics::OnEnded(const SimRequest& request, const SplitLife& life, SimTime now) {
  clients_.OnArrival(request.arrival);
  clients_.OnEnd(now);
  if (life.load_end >= 0) {
    num_loaded_ += life.num_loaded_tokens;
    num_bytes_ += life.num_bytes;
    handover_.Add(life.load_start - life.prefill_end);
    transfer_.Add(life.load_end - life.load_start);
    link_queue_.Add(life.link_queue);
    prefill_hold_ += life.load_end - life.prefill_end;
    decode_hold_ += life.load_end - life.load_start;
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
  if (life.prefill_end >= 0) prefill_.Add(life.prefill_end - life.prefill_start);
  if (life.load_end >= 0) decode_.Add(now - life.load_end);
  num_outputs_ += request.num_outputs();
}

std::string SplitMetrics::RowColumns() {
  return "prefill_replica,decode_replica,prompt_ms,handover_ms,transfer_ms,loaded_tokens,transfer_bytes";
}

void SplitMetrics::WriteRow(const SimRequest& request, const SplitLife& life,
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

void SplitMetrics::Fill(const SplitOptions& options, const SplitResult& result,
                        pb::FleetReport* out) {
  out->set_schema_version(1);
  pb::SplitSetup* setup = out->mutable_split();
  setup->set_first_token(options.first_token == FirstToken::kPrefill ? "prefill" : "decode");
  setup->set_prefill_router(std::string(RouterName(options.prefill_router.kind)));
  setup->set_decode_router(std::string(RouterName(options.decode_router.kind)));
  setup->set_link_gb_per_s(static_cast<double>(options.link.bytes_per_second) / 1e9);
  setup->set_link_latency_ms(Seconds(options.link.latency) * 1e3);
  setup->set_link_sharing(options.link.sharing == LinkSharing::kFifo ? "fifo" : "equal");
  setup->set_link_scope(options.scope == LinkScope::kShared ? "shared" : "decode");
  setup->set_transfer(options.charges_hits ? "all" : "missing");
  setup->set_bytes_per_token(options.bytes_per_token);
  setup->set_local_tokens(options.max_local_tokens);

  pb::FleetTotals* totals = out->mutable_totals();
  totals->set_requests_arrived(result.num_arrived);
  totals->set_requests_finished(result.num_finished);
  totals->set_requests_rejected(result.num_rejected);
  totals->set_requests_aborted(result.num_aborted);
  totals->set_requests_skipped(result.num_skipped);
  totals->set_requests_local(result.num_local);
  totals->set_output_tokens(num_outputs_);
  clients_.Fill(out);

  pb::FleetLatency* latency = out->mutable_latency();
  latency->mutable_ttft()->set_definition("per request: arrival to first token");
  latency->mutable_tpot()->set_definition(
      "per request: first token to last / tokens behind the first");
  latency->mutable_e2e()->set_definition("per request: arrival to last token");
  latency->mutable_queueing()->set_definition("per request: arrival to the prompt's first step");
  FillAs("per request with a prefill replica: first step to the prompt's end", prefill_,
         latency->mutable_prefill());
  FillAs("per transfer: the prompt's end to blocks on the decode replica", handover_,
         latency->mutable_handover());
  FillAs("per transfer: its start to its end", transfer_, latency->mutable_transfer());
  FillAs("per request with a transfer: its end to the last token", decode_,
         latency->mutable_decode());

  const double duration = totals->duration_s();
  pb::Transfers* transfers = out->mutable_transfers();
  SimTime busy = 0;
  for (const LinkTotals& link : result.links) {
    transfers->set_count(transfers->count() + link.num_ended);
    transfers->set_peak_under_way(std::max(transfers->peak_under_way(), link.peak_under_way));
    busy += link.busy_time / static_cast<int64_t>(result.links.size());
  }
  transfers->set_loaded_tokens(num_loaded_);
  transfers->set_bytes(num_bytes_);
  FillAs("per transfer: its time beyond what it takes alone", link_queue_,
         transfers->mutable_queueing());
  if (duration > 0) transfers->set_busy_share(Seconds(busy) / duration);
  transfers->set_prefill_hold_s(Ratio(prefill_hold_, kSecond));
  transfers->set_decode_hold_s(Ratio(decode_hold_, kSecond));
  for (size_t r = 0; r < result.replicas.size(); ++r) {
    const SimulationResult& one = result.replicas[r];
    const bool is_prefill = r < options.num_prefill;
    pb::ReplicaRow* row = out->add_replicas();
    FillRow(one, row);
    row->set_role(is_prefill ? "prefill" : "decode");
    row->set_replica(static_cast<int32_t>(is_prefill ? r : r - options.num_prefill));
    row->set_hit_tokens(one.prefix_cache.hits + one.prefix_cache.preempted_hits);
    row->set_computed_tokens(one.scheduler.num_computed);
    if (duration > 0) row->set_busy_share(Seconds(one.busy_time) / duration);
    totals->set_preemptions(totals->preemptions() + row->preemptions());
  }
}

}  // namespace kvblocks::sim
