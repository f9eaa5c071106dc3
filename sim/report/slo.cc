#include "kvblocks/sim/report/slo.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvblocks/sim/report/hit_groups.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
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
