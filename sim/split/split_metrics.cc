#include "kvblocks/sim/split/split_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/latency_metrics.h"
#include "kvblocks/sim/report/request_rows.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::split::v1;

constexpr int kMostRows = 16;

double InSeconds(__int128 time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

void FillAs(const char* definition, Distribution& values, ::kvblocks::report::v1::Distribution* out) {
  FillDistribution(values, out);
  out->set_definition(definition);
}

void AddRow(size_t replica, const SimulationResult& result, double duration_s,
            pb::SplitReplicaRow* row) {
  row->set_replica(static_cast<int32_t>(replica));
  row->set_requests_finished(result.num_finished);
  row->set_requests_aborted(result.num_aborted_time + result.num_aborted_queue +
                            result.num_aborted_session);
  row->set_prompt_tokens_hit(result.prefix_cache.hits + result.prefix_cache.preempted_hits);
  row->set_computed_tokens(result.scheduler.num_computed);
  row->set_output_tokens(result.scheduler.num_output_tokens);
  row->set_preemptions(result.scheduler.num_preemptions);
  if (duration_s > 0) row->set_busy_share(InSeconds(result.busy_time) / duration_s);
}

}  // namespace

SplitMetrics::SplitMetrics(std::vector<Objective> objectives, SimTime client_rtt)
    : has_objectives_(!objectives.empty()),
      client_rtt_(client_rtt),
      goodput_(std::move(objectives)) {}

void SplitMetrics::OnEnded(const SimRequest& request, const SplitLife& life, SimTime now) {
  if (first_arrival_ < 0 || request.arrival < first_arrival_) first_arrival_ = request.arrival;
  last_end_ = std::max(last_end_, now);
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
    goodput_.OnFailure();
    return;
  }
  RequestLatency latency;
  latency.queueing = life.prefill_start - request.arrival;
  latency.ttft = life.first_token - request.arrival + client_rtt_;
  latency.e2e = now - request.arrival + client_rtt_;
  queueing_.Add(latency.queueing);
  ttft_.Add(latency.ttft);
  e2e_.Add(latency.e2e);
  if (request.num_outputs() > 1) {
    latency.tpot = (now - life.first_token) / (request.num_outputs() - 1);
    tpot_.Add(*latency.tpot);
  }
  latency.prefill = life.first_token - life.prefill_start;
  WriteRow(request, life, latency, now);
  goodput_.OnFinish(latency);
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
                        pb::SplitReport* out) {
  out->set_schema_version(1);
  pb::SplitSetup* setup = out->mutable_setup();
  setup->set_first_token(options.first_token == FirstToken::kPrefill ? "prefill" : "decode");
  setup->set_prefill_router(std::string(RouterName(options.prefill_router.kind)));
  setup->set_decode_router(std::string(RouterName(options.decode_router.kind)));
  setup->set_link_gb_per_s(static_cast<double>(options.link.bytes_per_second) / 1e9);
  setup->set_link_latency_ms(InSeconds(options.link.latency) * 1e3);
  setup->set_link_sharing(options.link.sharing == LinkSharing::kFifo ? "fifo" : "equal");
  setup->set_link_scope(options.scope == LinkScope::kShared ? "shared" : "decode");
  setup->set_transfer(options.charges_hits ? "all" : "missing");
  setup->set_bytes_per_token(options.bytes_per_token);
  setup->set_local_tokens(options.max_local_tokens);

  const SimTime duration = first_arrival_ < 0 ? 0 : last_end_ - first_arrival_;
  const double duration_s = InSeconds(duration);
  pb::SplitTotals* totals = out->mutable_totals();
  totals->set_requests_arrived(result.num_arrived);
  totals->set_requests_finished(result.num_finished);
  totals->set_requests_rejected(result.num_rejected);
  totals->set_requests_aborted(result.num_aborted);
  totals->set_requests_skipped(result.num_skipped);
  totals->set_requests_local(result.num_local);
  totals->set_output_tokens(num_outputs_);
  totals->set_duration_s(duration_s);
  if (duration > 0) {
    totals->set_requests_per_s(static_cast<double>(result.num_finished) / duration_s);
    totals->set_output_tokens_per_s(static_cast<double>(num_outputs_) / duration_s);
  }

  pb::SplitLatency* latency = out->mutable_latency();
  FillAs("per request: arrival to first token", ttft_, latency->mutable_ttft());
  FillAs("per request: first token to last / tokens behind the first", tpot_,
         latency->mutable_tpot());
  FillAs("per request: arrival to last token", e2e_, latency->mutable_e2e());
  FillAs("per request: arrival to the prompt's first step", queueing_, latency->mutable_queueing());
  FillAs("per request with a prefill replica: first step to the prompt's end", prefill_,
         latency->mutable_prefill());
  FillAs("per transfer: the prompt's end to blocks on the decode replica", handover_,
         latency->mutable_handover());
  FillAs("per transfer: its start to its end", transfer_, latency->mutable_transfer());
  FillAs("per request with a transfer: its end to the last token", decode_,
         latency->mutable_decode());
  if (has_objectives_) goodput_.Fill(duration_s, out->mutable_goodput());

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
  if (duration > 0) transfers->set_busy_share(InSeconds(busy) / duration_s);
  transfers->set_prefill_hold_s(InSeconds(prefill_hold_));
  transfers->set_decode_hold_s(InSeconds(decode_hold_));
  for (size_t r = 0; r < result.prefill.size(); ++r) {
    AddRow(r, result.prefill[r], duration_s, out->add_prefill());
  }
  for (size_t r = 0; r < result.decode.size(); ++r) {
    AddRow(r, result.decode[r], duration_s, out->add_decode());
  }
}

// --- For people ---

namespace {

std::string Latencies(const ::kvblocks::report::v1::Distribution& d) {
  return d.count() == 0 ? "none" : LatencyText(d);
}

void AddRows(const char* kind, const google::protobuf::RepeatedPtrField<pb::SplitReplicaRow>& rows,
             TextPage& page) {
  const std::vector<size_t> widths = {10, 14, 15, 13, 8, 9};
  page.Cells(kind, {"requests", "tokens hit", "tokens computed", "output tokens", "busy", "preempted"},
             widths);
  for (int r = 0; r < std::min(rows.size(), kMostRows); ++r) {
    const pb::SplitReplicaRow& row = rows[r];
    page.Cells(absl::StrCat("  ", row.replica()),
               {WithThousands(row.requests_finished()), WithThousands(row.prompt_tokens_hit()),
                WithThousands(row.computed_tokens()), WithThousands(row.output_tokens()),
                Percent(row.busy_share()), WithThousands(row.preemptions())},
               widths);
  }
  if (rows.size() > kMostRows) {
    page.Line("", absl::StrCat("and ", rows.size() - kMostRows, " more; see --json"));
  }
}

}  // namespace

std::string FormatSplit(const pb::SplitReport& report, bool color) {
  TextPage page(color);
  const pb::SplitSetup& setup = report.setup();
  const pb::SplitTotals& totals = report.totals();
  const pb::SplitLatency& latency = report.latency();
  const pb::Transfers& transfers = report.transfers();
  page.Text("replicas", absl::StrCat(Plural(report.prefill_size(), "prefill replica"), " (",
                                     setup.prefill_router(), "), ",
                                     Plural(report.decode_size(), "decode replica"), " (",
                                     setup.decode_router(), "); the first token is the ",
                                     setup.first_token(), "'s"));
  page.Text("link",
            absl::StrFormat("%g GB/s, latency %g ms, %s, %s; %s bytes per token of what the decode "
                            "replica %s",
                            setup.link_gb_per_s(), setup.link_latency_ms(),
                            setup.link_scope() == "shared" ? "one for all"
                                                           : "one into each decode replica",
                            setup.link_sharing() == "fifo" ? "one transfer after the other"
                                                           : "in equal parts",
                            WithThousands(setup.bytes_per_token()),
                            setup.transfer() == "all" ? "needs, also if it is there" : "lacks"));
  std::string requests = absl::StrCat(WithThousands(totals.requests_arrived()), " arrived, ",
                                      WithThousands(totals.requests_finished()), " finished");
  for (const auto& [count, what] : {std::pair(totals.requests_rejected(), " rejected"),
                                    std::pair(totals.requests_aborted(), " aborted"),
                                    std::pair(totals.requests_skipped(), " left out"),
                                    std::pair(totals.requests_local(), " computed where they decode")}) {
    if (count > 0) absl::StrAppend(&requests, ", ", WithThousands(count), what);
  }
  page.Text("requests", absl::StrCat("in ", Span(totals.duration_s()), ": ", requests, "; ",
                                     absl::StrFormat("%.4g requests/s, %.4g output tokens/s",
                                                     totals.requests_per_s(),
                                                     totals.output_tokens_per_s())));
  page.Blank();
  page.Line("TTFT", Latencies(latency.ttft()));
  page.Line("TPOT", Latencies(latency.tpot()));
  page.Line("E2E", Latencies(latency.e2e()));
  page.Blank();
  page.Line("queueing", Latencies(latency.queueing()));
  page.Line("prefill", Latencies(latency.prefill()));
  page.Line("hand-over", Latencies(latency.handover()));
  page.Line("transfer", Latencies(latency.transfer()));
  page.Line("decode", Latencies(latency.decode()));
  page.Text("transfers",
            absl::StrCat(WithThousands(transfers.count()), " of ",
                         WithThousands(transfers.loaded_tokens()), " tokens, ",
                         absl::StrFormat("%.4g GB", static_cast<double>(transfers.bytes()) / 1e9),
                         "; link busy ", Percent(transfers.busy_share()), ", at most ",
                         WithThousands(transfers.peak_under_way()), " at once, queueing mean ",
                         Span(transfers.queueing().mean_ms() / 1e3)));
  page.Text("holds", absl::StrCat("blocks without work, time x requests: ",
                                  Span(transfers.prefill_hold_s()), " on prefill replicas, ",
                                  Span(transfers.decode_hold_s()), " on decode replicas"));
  if (report.has_goodput()) {
    page.Text("goodput", absl::StrFormat("%s of requests meet every limit of --slo%s",
                                         Percent(report.goodput().good_share()),
                                         report.goodput().met() ? "" : "; a percentile is missed"));
  }
  page.Blank();
  AddRows("prefill", report.prefill(), page);
  AddRows("decode", report.decode(), page);
  return page.Take();
}

}  // namespace kvblocks::sim
