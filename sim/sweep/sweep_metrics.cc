#include "kvblocks/sim/sweep/sweep_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/metric_list.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/specs/catalogue/catalogue.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;
using ::kvblocks::fleet::v1::FleetReport;
using ::kvblocks::report::v1::Report;

namespace {

using Value = std::optional<double>;

double NumDevices(const Report& report) {
  return static_cast<double>(std::max<int64_t>(report.setup().devices(), 1));
}

// No latency where all steps take the same time.
Value Latency(const Report& report, const ::kvblocks::report::v1::Distribution& distribution,
              double value) {
  if (!report.setup().latency_is_meaningful() || distribution.count() == 0) return std::nullopt;
  return value;
}

struct Named {
  const char* name;
  bool larger_is_better;
  int decimals;
  bool is_percent;
  Value (*value)(const Report&);
  Value (*of_fleet)(const FleetReport&) = nullptr;
};

Value None(const Report&) { return std::nullopt; }
Value NoneOfFleet(const FleetReport&) { return std::nullopt; }

double ShareOf(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

#define KVBLOCKS_LATENCY(NAME, FIELD, FIGURE)                                    \
  {                                                                              \
    NAME, false, 1, false, [](const Report& r) -> Value {                        \
      return Latency(r, r.latency().FIELD(), r.latency().FIELD().FIGURE##_ms()); \
    }                                                                            \
  }

constexpr Named kNamed[] = {
    {"hit-rate", true, 2, true,
     [](const Report& r) -> Value {
       if (!r.has_whole_run()) return std::nullopt;  // of prefill and decode replicas
       return r.whole_run().token_hit_rate().value();
     }},
    {"possible-hit-rate", true, 2, true,
     [](const Report& r) -> Value { return r.whole_run().possible_hit_rate().value(); },
     NoneOfFleet},
    KVBLOCKS_LATENCY("ttft-mean", ttft, mean),
    KVBLOCKS_LATENCY("ttft-p50", ttft, p50),
    KVBLOCKS_LATENCY("ttft-p90", ttft, p90),
    KVBLOCKS_LATENCY("ttft-p95", ttft, p95),
    KVBLOCKS_LATENCY("ttft-p99", ttft, p99),
    KVBLOCKS_LATENCY("tpot-mean", tpot, mean),
    KVBLOCKS_LATENCY("tpot-p50", tpot, p50),
    KVBLOCKS_LATENCY("tpot-p90", tpot, p90),
    KVBLOCKS_LATENCY("tpot-p95", tpot, p95),
    KVBLOCKS_LATENCY("tpot-p99", tpot, p99),
    KVBLOCKS_LATENCY("e2e-mean", e2e, mean),
    KVBLOCKS_LATENCY("e2e-p99", e2e, p99),
    {"requests-per-s", true, 3, false,
     [](const Report& r) -> Value { return r.throughput().requests_per_s(); }},
    {"output-tokens-per-s", true, 1, false,
     [](const Report& r) -> Value { return r.throughput().output_tokens_per_s(); }},
    {"output-tokens-per-s-per-device", true, 1, false,
     [](const Report& r) -> Value { return r.throughput().output_tokens_per_s() / NumDevices(r); }},
    {"goodput", true, 3, false,
     [](const Report& r) -> Value {
       if (!r.has_goodput()) return std::nullopt;
       return r.goodput().good_requests_per_s();
     }},
    {"goodput-per-device", true, 3, false,
     [](const Report& r) -> Value {
       if (!r.has_goodput()) return std::nullopt;
       return r.goodput().good_requests_per_s() / NumDevices(r);
     }},
    {"good-share", true, 2, true,
     [](const Report& r) -> Value {
       if (!r.has_goodput()) return std::nullopt;
       return r.goodput().good_share();
     }},
    {"preemptions", false, 0, false,
     [](const Report& r) -> Value { return static_cast<double>(r.preemption().preemptions()); }},
    {"recomputed-tokens", false, 0, false,
     [](const Report& r) -> Value { return static_cast<double>(r.totals().recomputed_tokens()); }},
    {"rejected", false, 0, false,
     [](const Report& r) -> Value { return static_cast<double>(r.totals().requests_rejected()); }},
    {"duration", false, 1, false,
     [](const Report& r) -> Value { return r.throughput().duration_s(); }},
    {"devices", false, 0, false, [](const Report& r) -> Value { return NumDevices(r); }},
    {"num-blocks", false, 0, false,
     [](const Report& r) -> Value { return static_cast<double>(r.setup().num_blocks()); }},
    // Of one device.
    {"pool-gib", false, 2, false,
     [](const Report& r) -> Value {
       const auto& setup = r.setup();
       const int64_t bytes =
           setup.num_blocks() * setup.block_bytes() + setup.num_chunks() * setup.chunk_bytes();
       return static_cast<double>(bytes) / 1073741824.0;
     }},
    // Of several replicas.
    {"replicas", false, 0, false, [](const Report&) -> Value { return 1; },
     [](const FleetReport& f) -> Value { return f.replicas_size(); }},
    {"imbalance", false, 3, false, None,
     [](const FleetReport& f) -> Value {
       if (!f.has_imbalance()) return std::nullopt;
       return f.imbalance().prompt_tokens();
     }},
    {"busy-imbalance", false, 3, false, None,
     [](const FleetReport& f) -> Value {
       if (!f.has_imbalance()) return std::nullopt;
       return f.imbalance().busy_time();
     }},
    {"router-queueing-mean", false, 1, false, None,
     [](const FleetReport& f) -> Value { return f.latency().router_queueing().mean_ms(); }},
    {"router-rejected", false, 0, false, None,
     [](const FleetReport& f) -> Value {
       return static_cast<double>(f.totals().requests_rejected_by_router());
     }},
    {"missed-hits", false, 2, true, None,
     [](const FleetReport& f) -> Value {
       if (!f.has_decisions()) return std::nullopt;
       return ShareOf(f.decisions().oracle_more_tokens(), f.hit_rate().denominator());
     }},
    {"wrong-claims", false, 2, true, None,
     [](const FleetReport& f) -> Value {
       const auto& d = f.decisions();
       if (!f.has_decisions()) return std::nullopt;
       return ShareOf(d.claims_too_high() + d.claims_too_low(), d.routed());
     }},
};

#undef KVBLOCKS_LATENCY

constexpr const char* kCost = "cost-per-1m-tokens";

SweepMetric CostMetric(const DevicePrices& prices) {
  return {.name = kCost,
          .larger_is_better = false,
          .decimals = 4,
          .value = [prices](const Report& r) -> Value {
            const auto price = prices.find(r.config().device());
            const auto tokens = static_cast<double>(r.totals().output_tokens());
            if (price == prices.end() || tokens == 0) return std::nullopt;
            const double hours = r.throughput().duration_s() / 3600;
            return price->second * NumDevices(r) * hours / (tokens / 1e6);
          }};
}

// A number of the report, by the names of its fields.
Value FieldValue(const google::protobuf::Message& report, const std::string& name) {
  const auto metrics = ListMetrics(report, {"config"});
  if (!metrics.ok()) return std::nullopt;
  for (const Metric& metric : *metrics) {
    if (metric.name != name) continue;
    if (const auto* whole = std::get_if<__int128>(&metric.value)) {
      return static_cast<double>(*whole);
    }
    if (const auto* real = std::get_if<double>(&metric.value)) return *real;
    return std::nullopt;
  }
  return std::nullopt;
}

// Whether a report of this type can have a number of this name; what stands in brackets depends on the
// run.
bool IsReportField(const google::protobuf::Descriptor* type, const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string field_name = parts[i].substr(0, parts[i].find('['));
    const auto* field = type->FindFieldByName(field_name);
    if (field == nullptr || field_name == "config") return false;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      type = field->message_type();
      continue;
    }
    return i + 1 == parts.size() &&
           field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING;
  }
  return false;
}

bool IsAtLeastAsGood(const SweepMetric& metric, double a, double b) {
  return metric.larger_is_better ? a >= b : a <= b;
}

}  // namespace

absl::StatusOr<DevicePrices> ParsePrices(std::string_view text, const ReplayConfig& config) {
  DevicePrices prices;
  if (text.empty()) return prices;
  const auto catalogue = LoadCatalogue(config);
  if (!catalogue.ok()) return catalogue.status();
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ',');
  for (const std::string& part : parts) {
    const size_t colon = part.rfind(':');
    double price = 0;
    if (colon == std::string::npos || !absl::SimpleAtod(part.substr(colon + 1), &price) ||
        !(price > 0) || !std::isfinite(price)) {
      return absl::InvalidArgumentError(
          absl::StrCat("got \"", part,
                       "\", expected DEVICE:PRICE,... with the price of one device "
                       "for an hour, above 0, like h100:2.5,h200:3.5"));
    }
    const auto device = catalogue->FindDevice(part.substr(0, colon));
    if (!device.ok()) return device.status();
    if (!prices.emplace(device->name, price).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("got \"", part, "\": ", device->name, " has a price already"));
    }
  }
  return prices;
}

std::vector<std::string> SweepMetricNames() {
  std::vector<std::string> names;
  for (const Named& named : kNamed) names.push_back(named.name);
  names.push_back(kCost);
  return names;
}

absl::StatusOr<SweepMetric> FindSweepMetric(std::string_view name, const DevicePrices& prices) {
  for (const Named& named : kNamed) {
    if (name != named.name) continue;
    return SweepMetric{named.name, named.larger_is_better, named.decimals, named.is_percent,
                       named.value, named.of_fleet};
  }
  if (name == kCost) {
    if (prices.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("got ", kCost, ", which needs --prices=DEVICE:PRICE,..."));
    }
    return CostMetric(prices);
  }
  const std::string_view kind = name.substr(0, 4);
  if (kind == "min:" || kind == "max:") {
    const std::string field(name.substr(4));
    if (IsReportField(Report::descriptor(), field) ||
        IsReportField(FleetReport::descriptor(), field)) {
      return SweepMetric{
          .name = field,
          .larger_is_better = kind == "max:",
          .decimals = 4,
          .value = [field](const Report& report) { return FieldValue(report, field); },
          .of_fleet = [field](const FleetReport& report) { return FieldValue(report, field); }};
    }
  }
  const std::string suggestion = SuggestName(name, SweepMetricNames());
  return absl::InvalidArgumentError(absl::StrCat(
      "got \"", std::string(name), "\", expected one of ", absl::StrJoin(SweepMetricNames(), ", "),
      ", or min: or max: with a number of a report (max:throughput.budget_use)",
      suggestion.empty() ? "" : "; ", suggestion));
}

absl::StatusOr<std::vector<SweepMetric>> FindSweepMetrics(std::string_view names,
                                                          const DevicePrices& prices) {
  std::vector<SweepMetric> metrics;
  const std::vector<std::string> parts = absl::StrSplit(std::string(names), ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    auto metric = FindSweepMetric(part, prices);
    if (!metric.ok()) return metric.status();
    metrics.push_back(*std::move(metric));
  }
  return metrics;
}

std::optional<double> ValueOf(const SweepMetric& metric, const pb::PointResult& result) {
  if (!result.has_report()) return std::nullopt;
  if (result.has_fleet() && metric.of_fleet != nullptr) return metric.of_fleet(result.fleet());
  return metric.value(result.report());
}

std::string MetricText(const SweepMetric& metric, double value) {
  if (metric.is_percent) return absl::StrFormat("%.*f %%", metric.decimals, 100 * value);
  if (metric.decimals == 0 && std::abs(value) < 9e15) {
    return WithThousands(static_cast<int64_t>(value));
  }
  return GroupThousands(absl::StrFormat("%.*f", metric.decimals, value));
}

std::vector<bool> ParetoFront(const std::vector<pb::PointResult>& results,
                              const std::vector<SweepMetric>& metrics,
                              const std::vector<bool>& is_candidate) {
  std::vector<bool> on_front(results.size(), false);
  if (metrics.empty()) return on_front;
  std::vector<std::vector<double>> values(results.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!is_candidate[i]) continue;
    for (const SweepMetric& metric : metrics) {
      const auto value = ValueOf(metric, results[i]);
      if (!value) break;
      values[i].push_back(*value);
    }
    if (values[i].size() == metrics.size()) order.push_back(i);
  }
  // Behind the best of the first metric nobody beats who came before.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    for (size_t m = 0; m < metrics.size(); ++m) {
      if (values[a][m] == values[b][m]) continue;
      return metrics[m].larger_is_better == (values[a][m] > values[b][m]);
    }
    return a < b;
  });
  std::vector<size_t> front;
  for (const size_t candidate : order) {
    const bool is_beaten = std::any_of(front.begin(), front.end(), [&](size_t other) {
      for (size_t m = 0; m < metrics.size(); ++m) {
        if (!IsAtLeastAsGood(metrics[m], values[other][m], values[candidate][m])) return false;
      }
      return values[other] != values[candidate];
    });
    if (is_beaten) continue;
    front.push_back(candidate);
    on_front[candidate] = true;
  }
  return on_front;
}

}  // namespace kvblocks::sim
