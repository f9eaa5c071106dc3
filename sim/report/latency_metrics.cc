#include "sim/report/latency_metrics.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "sim/report/hit_rate_metrics.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {

void FillDistribution(Distribution& values, ::kvblocks::report::v1::Distribution* out) {
  out->set_count(values.count());
  out->set_mean_ms(Milliseconds(values.mean()));
  out->set_min_ms(Milliseconds(values.min()));
  out->set_p50_ms(Milliseconds(values.Percentile(5000)));
  out->set_p90_ms(Milliseconds(values.Percentile(9000)));
  out->set_p95_ms(Milliseconds(values.Percentile(9500)));
  out->set_p99_ms(Milliseconds(values.Percentile(9900)));
  out->set_max_ms(Milliseconds(values.max()));
  out->set_method(values.method());
  for (const int64_t value : values.Percentiles()) out->add_quantiles_ms(Milliseconds(value));
}

namespace {

void FillDefined(const char* definition, Distribution& values,
                 ::kvblocks::report::v1::Distribution* out) {
  FillDistribution(values, out);
  out->set_definition(definition);
}

}  // namespace

LatencyMetrics::LatencyMetrics(const Options& options, SharedFacts* facts)
    : options_(options),
      facts_(facts),
      queueing_(options.max_exact_runs),
      ttft_(options.max_exact_runs),
      prefill_(options.max_exact_runs),
      e2e_(options.max_exact_runs),
      tpot_(options.max_exact_runs),
      itl_(options.max_exact_runs),
      normalized_(options.max_exact_runs) {}

void LatencyMetrics::OnStepFinished(const StepRecord& step) {
  const SimTime now = step.end;
  // Most requests of a step had their last token from the step before; the gaps of the others are
  // counted after theirs, equal neighbours together.
  int64_t num_common = step.num_skipped;
  other_gaps_.clear();
  int64_t num_zero_gaps = 0;
  for (const OutputRecord& output : step.outputs) {
    if (output.request == nullptr) continue;
    RequestProgress& progress = facts_->requests[*output.request];
    progress.num_recomputed_tokens += output.num_recomputed;
    if (output.num_emitted == 0) continue;
    progress.num_outputs += output.num_emitted;
    num_zero_gaps += output.num_emitted - 1;
    if (progress.first_output == RequestProgress::kNever) {
      progress.first_output = now;
      if (options_.sink != nullptr) {
        options_.sink->OnFirstToken(*output.request, progress,
                                    now - output.request->arrival + options_.client_rtt, now);
      }
    } else if (progress.last_output == last_step_end_) {
      ++num_common;
    } else {
      other_gaps_.push_back(now - progress.last_output);
    }
    progress.last_output = now;
  }
  if (num_common > 0) AddGaps(now - last_step_end_, num_common, now);
  for (const SimTime gap : other_gaps_) AddGaps(gap, 1, now);
  if (num_zero_gaps > 0) AddGaps(0, num_zero_gaps, now);
  last_step_end_ = now;
}

void LatencyMetrics::AddGaps(SimTime gap, int64_t count, SimTime now) {
  itl_.Add(gap, count);
  if (options_.sink != nullptr) options_.sink->OnGaps(gap, count, now);
}

void LatencyMetrics::OnSkippedDecodes(const SimRequest& request, int64_t num_steps) {
  RequestProgress& progress = facts_->requests[request];
  progress.num_outputs += num_steps;
  progress.last_output = last_step_end_;
}

void LatencyMetrics::OnFinish(const SimRequest& request, SimTime) {
  if (!request.is_completed() || !facts_->latency) return;
  const RequestLatency& latency = *facts_->latency;
  queueing_.Add(latency.queueing);
  ttft_.Add(latency.ttft);
  prefill_.Add(latency.prefill);
  e2e_.Add(latency.e2e);
  if (latency.tpot) tpot_.Add(*latency.tpot);
  normalized_.Add(latency.normalized);
}

void LatencyMetrics::Fill(const ReplayEnd&, ::kvblocks::report::v1::Report* report) {
  ::kvblocks::report::v1::Latency* out = report->mutable_latency();
  FillDefined("per request: arrival to first scheduling", queueing_, out->mutable_queueing());
  FillDefined("per request: arrival to first token", ttft_, out->mutable_ttft());
  FillDefined("per request: first scheduling to first token", prefill_,
              out->mutable_prefill());
  FillDefined("per request: arrival to last token", e2e_, out->mutable_e2e());
  FillDefined("per request: mean gap between its tokens; inter-token latency as AIPerf has it",
              tpot_, out->mutable_tpot());
  FillDefined("per gap between two tokens; inter-token latency as servers have it", itl_,
              out->mutable_itl());
  FillDefined("per request: arrival to last token / tokens", normalized_,
              out->mutable_normalized());
  const double threshold = static_cast<double>(itl_.Percentile(5000)) * options_.stall_factor;
  const auto limit =
      static_cast<SimTime>(std::min(std::floor(threshold), static_cast<double>(kMaxSimTime / 2)));
  out->set_stall_threshold_ms(Milliseconds(limit));
  out->set_stalls(itl_.count() == 0 ? 0 : itl_.CountAbove(limit));
  report->mutable_setup()->set_quantile_method(out->itl().method());
}

namespace {

constexpr struct {
  const char* name;
  SloMetric metric;
} kMetrics[] = {{"ttft", SloMetric::kTtft},
                {"tpot", SloMetric::kTpot},
                {"e2e", SloMetric::kE2e},
                {"queueing", SloMetric::kQueueing}};

const char* NameOf(SloMetric metric) {
  for (const auto& m : kMetrics) {
    if (m.metric == metric) return m.name;
  }
  return "unknown";
}

absl::Status Bad(const std::string& part, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("slo \"", part, "\": ", what,
                   "; expected METRIC:LIMIT[:PERCENTILE], like ttft:2s:p99 or tpot:50ms"));
}

std::optional<SimTime> ValueOf(SloMetric metric, const RequestLatency& latency) {
  switch (metric) {
    case SloMetric::kTtft:
      return latency.ttft;
    case SloMetric::kTpot:
      return latency.tpot;
    case SloMetric::kE2e:
      return latency.e2e;
    case SloMetric::kQueueing:
      return latency.queueing;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<Objective>> ParseObjectives(std::string_view text) {
  std::vector<Objective> objectives;
  if (text.empty()) return objectives;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& part : parts) {
    // ttft:2s@p99 is another way to write ttft:2s:p99.
    const std::vector<std::string> fields = absl::StrSplit(part, absl::ByAnyChar(":@"));
    if (fields.size() < 2 || fields.size() > 3) return Bad(part, "has no limit or too many parts");
    Objective objective;
    bool is_known = false;
    for (const auto& m : kMetrics) {
      if (fields[0] != m.name) continue;
      objective.metric = m.metric;
      is_known = true;
    }
    if (!is_known) {
      return Bad(part, absl::StrCat("unknown metric \"", fields[0],
                                    "\", expected ttft, tpot, e2e or queueing"));
    }
    const auto limit = ParseDuration(fields[1]);
    if (!limit.ok()) return Bad(part, std::string(limit.status().message()));
    if (*limit <= 0) return Bad(part, "the limit is 0, expected more");
    objective.limit = *limit;
    if (fields.size() == 3) {
      const std::string& p = fields[2];
      const auto hundredths = ParseScaledDecimal(p.empty() ? p : p.substr(1), 2);
      if (p.empty() || p[0] != 'p' || !hundredths.ok() || *hundredths < 1 || *hundredths > 10000) {
        return Bad(part, absl::StrCat("percentile is \"", p, "\", expected p0.01 to p100"));
      }
      objective.percentile = *hundredths;
    }
    objectives.push_back(objective);
  }
  return objectives;
}

GoodputMetrics::GoodputMetrics(std::vector<Objective> objectives)
    : objectives_(std::move(objectives)),
      good_of_(objectives_.size(), 0),
      values_(objectives_.size()) {}

void GoodputMetrics::OnFinish(const RequestLatency& latency) {
  ++total_;
  bool is_good = true;
  for (size_t i = 0; i < objectives_.size(); ++i) {
    const std::optional<SimTime> value = ValueOf(objectives_[i].metric, latency);
    const bool meets = !value || *value <= objectives_[i].limit;
    good_of_[i] += meets;
    is_good = is_good && meets;
    if (objectives_[i].percentile > 0 && value) values_[i].Add(*value);
  }
  good_ += is_good;
}

void GoodputMetrics::Fill(double duration_s, ::kvblocks::report::v1::Goodput* out) {
  bool met = true;
  for (size_t i = 0; i < objectives_.size(); ++i) {
    auto* o = out->add_objectives();
    o->set_metric(NameOf(objectives_[i].metric));
    o->set_limit_ms(Milliseconds(objectives_[i].limit));
    o->set_requests_good(good_of_[i]);
    o->set_met(true);
    if (objectives_[i].percentile > 0) {
      o->set_percentile(static_cast<double>(objectives_[i].percentile) / 100.0);
      const SimTime observed = values_[i].Percentile(objectives_[i].percentile);
      o->set_observed_ms(Milliseconds(observed));
      o->set_met(observed <= objectives_[i].limit);
    }
    met = met && o->met();
  }
  out->set_requests_good(good_);
  out->set_requests_total(total_);
  out->set_good_share(total_ == 0 ? 0.0 : static_cast<double>(good_) / static_cast<double>(total_));
  out->set_good_requests_per_s(duration_s > 0 ? static_cast<double>(good_) / duration_s : 0.0);
  out->set_met(met);
}

GoodputMetrics& GoodputSection::OfClass(const std::string& name) {
  const auto it = classes_.find(name);
  if (it != classes_.end()) return it->second;
  const bool is_full = classes_.size() >= HitGroups::kMaxNames;
  return classes_.try_emplace(is_full ? "(others)" : name, objectives_).first->second;
}

void GoodputSection::OnFinish(const SimRequest& request, SimTime) {
  if (objectives_.empty() || (request.is_completed() && !facts_->latency)) return;
  for (GoodputMetrics* goodput : {&all_, &OfClass(request.spec.slo_class)}) {
    if (request.is_completed()) {
      goodput->OnFinish(*facts_->latency);
    } else {
      goodput->OnFailure();
    }
  }
}

void GoodputSection::Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) {
  if (objectives_.empty()) return;
  const double duration = Seconds(end.last_event - end.first_event);
  all_.Fill(duration, out->mutable_goodput());
  // One class without a name: the trace has none.
  if (classes_.size() == 1 && classes_.begin()->first.empty()) return;
  for (auto& [name, goodput] : classes_) {
    auto* entry = out->mutable_goodput()->add_classes();
    goodput.Fill(duration, entry);
    entry->set_slo_class(name);
  }
}

}  // namespace kvblocks::sim
