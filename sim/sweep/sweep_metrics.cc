#include "sim/sweep/sweep_metrics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/model_facts.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/option_table.h"
#include "sim/report/human_table.h"
#include "sim/report/metric_list.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;
using ::kvblocks::report::v1::Report;

namespace {

using Value = std::optional<double>;

double NumDevices(const Report& report) {
  return static_cast<double>(std::max<int64_t>(report.setup().devices(), 1));
}

// A number of a report by the names of its fields; none of a section that it does not have.
Value NumberAt(const google::protobuf::Message& report, std::string_view path) {
  const google::protobuf::Message* at = &report;
  for (size_t dot; (dot = path.find('.')) != path.npos; path.remove_prefix(dot + 1)) {
    const auto* field = at->GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
    if (!at->GetReflection()->HasField(*at, field)) return std::nullopt;
    at = &at->GetReflection()->GetMessage(*at, field);
  }
  const auto* field = at->GetDescriptor()->FindFieldByName(std::string(path));
  return field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE
             ? at->GetReflection()->GetDouble(*at, field)
             : static_cast<double>(at->GetReflection()->GetInt64(*at, field));
}

// And no latency where all steps take the same time.
Value NumberOf(const Report& report, std::string_view path) {
  if (path.substr(0, path.find('.')) == "latency") {
    const std::string count(path.substr(0, path.rfind('.')));
    if (!report.setup().latency_is_meaningful()) return std::nullopt;
    if (NumberAt(report, count + ".count").value_or(0) == 0) return std::nullopt;
  }
  return NumberAt(report, path);
}

double ShareOf(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

using OfReport = std::function<Value(const Report&)>;

OfReport At(const char* path) {
  return [path](const Report& report) { return NumberOf(report, path); };
}
OfReport PerDevice(const char* path) {
  return [path](const Report& report) {
    Value number = NumberOf(report, path);
    if (number) *number /= NumDevices(report);
    return number;
  };
}

const std::vector<SweepMetric>& NamedMetrics() {
  static const auto* const metrics = new std::vector<SweepMetric>{
      {"hit-rate", true, 2, true, At("whole_run.token_hit_rate.value")},
      {"possible-hit-rate", true, 2, true, At("whole_run.possible_hit_rate.value")},
      {"ttft-mean", false, 1, false, At("latency.ttft.mean_ms")},
      {"ttft-p50", false, 1, false, At("latency.ttft.p50_ms")},
      {"ttft-p90", false, 1, false, At("latency.ttft.p90_ms")},
      {"ttft-p95", false, 1, false, At("latency.ttft.p95_ms")},
      {"ttft-p99", false, 1, false, At("latency.ttft.p99_ms")},
      {"tpot-mean", false, 1, false, At("latency.tpot.mean_ms")},
      {"tpot-p50", false, 1, false, At("latency.tpot.p50_ms")},
      {"tpot-p90", false, 1, false, At("latency.tpot.p90_ms")},
      {"tpot-p95", false, 1, false, At("latency.tpot.p95_ms")},
      {"tpot-p99", false, 1, false, At("latency.tpot.p99_ms")},
      {"e2e-mean", false, 1, false, At("latency.e2e.mean_ms")},
      {"e2e-p99", false, 1, false, At("latency.e2e.p99_ms")},
      {"requests-per-s", true, 3, false, At("throughput.requests_per_s")},
      {"output-tokens-per-s", true, 1, false, At("throughput.output_tokens_per_s")},
      {"output-tokens-per-s-per-device", true, 1, false,
       PerDevice("throughput.output_tokens_per_s")},
      {"goodput", true, 3, false, At("goodput.good_requests_per_s")},
      {"goodput-per-device", true, 3, false, PerDevice("goodput.good_requests_per_s")},
      {"good-share", true, 2, true, At("goodput.good_share")},
      {"preemptions", false, 0, false, At("preemption.preemptions")},
      {"recomputed-tokens", false, 0, false, At("totals.recomputed_tokens")},
      {"rejected", false, 0, false, At("totals.requests_rejected")},
      {"duration", false, 1, false, At("throughput.duration_s")},
      {"devices", false, 0, false, NumDevices},
      {"num-blocks", false, 0, false, At("setup.num_blocks")},
      // Of one device.
      {"pool-gib", false, 2, false,
       [](const Report& r) -> Value {
         const auto& setup = r.setup();
         const int64_t bytes =
             setup.num_blocks() * setup.block_bytes() + setup.num_chunks() * setup.chunk_bytes();
         return static_cast<double>(bytes) / 1073741824.0;
       }},
      // Of several replicas.
      {"replicas", false, 0, false,
       [](const Report& r) -> Value { return std::max(r.replicas_size(), 1); }},
      {"imbalance", false, 3, false, At("router.imbalance.prompt_tokens")},
      {"busy-imbalance", false, 3, false, At("router.imbalance.busy_time")},
      {"router-queueing-mean", false, 1, false, At("router.queueing.mean_ms")},
      {"router-rejected", false, 0, false, At("router.requests_rejected")},
      {"missed-hits", false, 2, true,
       [](const Report& r) -> Value {
         if (!r.router().has_decisions()) return std::nullopt;
         return ShareOf(r.router().decisions().oracle_more_tokens(),
                        r.whole_run().token_hit_rate().denominator());
       }},
      {"wrong-claims", false, 2, true,
       [](const Report& r) -> Value {
         const auto& d = r.router().decisions();
         if (!r.router().has_decisions()) return std::nullopt;
         return ShareOf(d.claims_too_high() + d.claims_too_low(), d.routed());
       }}};
  return *metrics;
}

constexpr const char* kCostPerHour = "cost-per-hour";
constexpr const char* kCost = "cost-per-1m-tokens";
constexpr double kHoursPerMonth = 730;
constexpr double kMostPrice = 1e9;  // so that sums stay numbers

SweepMetric CostMetric(std::string_view name, const Prices& prices) {
  const bool is_hourly = name == kCostPerHour;
  return {.name = std::string(name),
          .larger_is_better = false,
          .decimals = 4,
          .value = [prices, is_hourly](const Report& r) -> Value {
            const auto cost = CostOf(r, prices);
            if (!cost.ok()) return std::nullopt;
            return is_hourly ? cost->total() : CostPer1mTokens(r, cost->total());
          }};
}

// Adds what one engine costs; shared tiers once.
absl::Status AddCost(const Report& engine, const std::string& device, const Prices& prices,
                     HourlyCost* cost) {
  const auto price = prices.devices.find(device);
  if (price == prices.devices.end()) {
    return absl::InvalidArgumentError(absl::StrCat("device ", device, " has no price"));
  }
  cost->replicas += price->second * NumDevices(engine);
  if (prices.tiers.empty()) return absl::OkStatus();
  const bool is_first = cost->shared == 0;
  for (const auto& tier : engine.tiers().tiers()) {
    const auto gib_price = prices.tiers.find(tier.name());
    if (gib_price == prices.tiers.end() || tier.capacity_bytes() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tier ", tier.name(), gib_price == prices.tiers.end()
                                                 ? " has no price in --tier-prices"
                                                 : ": its size is in chunks, expected bytes"));
    }
    // Each device has its part.
    const double gib = static_cast<double>(tier.capacity_bytes()) / 1073741824.0;
    if (tier.is_shared() && !is_first) continue;
    (tier.is_shared() ? cost->shared : cost->replicas) +=
        gib_price->second * gib * NumDevices(engine);
  }
  return absl::OkStatus();
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

// Whether a report of this type can have a number of this name; what stands in brackets depends on
// the run.
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

absl::StatusOr<PricedDevices> ParseDevices(std::string_view text, const ReplayConfig& config) {
  PricedDevices devices;
  if (text.empty()) return devices;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto catalogue, LoadCatalogue(config));
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    const size_t colon = part.find(':');
    double price = 0;
    if (colon != std::string::npos && (!absl::SimpleAtod(part.substr(colon + 1), &price) ||
                                       !(price > 0) || price > kMostPrice)) {
      return absl::InvalidArgumentError(
          absl::StrCat("got \"", part,
                       "\", expected DEVICE or DEVICE:PRICE with the price of one device for an "
                       "hour, above 0 and at most 1e9, like h100:2.5"));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(const auto device, catalogue.FindDevice(part.substr(0, colon)));
    devices.push_back({device.name, price});
    if ((price > 0) == (devices.front().second > 0)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "got \"", std::string(text), "\", expected a price for every device or for none"));
  }
  return devices;
}

absl::StatusOr<std::map<std::string, double>> ParseTierPrices(std::string_view text) {
  std::map<std::string, double> prices;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(std::string(text), ',', absl::SkipEmpty()))) {
    const size_t colon = part.find(':');
    std::string number = colon == std::string::npos ? "" : part.substr(colon + 1);
    double hours = 1, price = 0;
    if (absl::EndsWith(number, "/month")) {
      number.resize(number.size() - std::strlen("/month"));
      hours = kHoursPerMonth;
    }
    if (colon == 0 || !absl::SimpleAtod(number, &price) || !(price > 0) || price > kMostPrice ||
        !prices.emplace(part.substr(0, colon), price / hours).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "got \"", part,
          "\", expected TIER:PRICE or TIER:PRICE/month with the price of a GiB for an hour or a "
          "month, above 0 and at most 1e9, once for each tier, like host:0.004"));
    }
  }
  return prices;
}

absl::StatusOr<Prices> ParsePrices(std::string_view text, std::string_view tiers,
                                   const ReplayConfig& config) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto devices, OfOption("--prices", ParseDevices(text, config)));
  Prices prices;
  KVBLOCKS_ASSIGN_OR_RETURN(prices.tiers, OfOption("--tier-prices", ParseTierPrices(tiers)));
  if (devices.empty() && !prices.tiers.empty()) {
    return absl::InvalidArgumentError("--tier-prices: needs prices of devices, too");
  }
  for (const auto& [name, price] : devices) {
    if (price == 0) {
      return BadOption("--prices", text, "DEVICE:PRICE,..., like h100:2.5,h200:3.5");
    }
    if (!prices.devices.emplace(name, price).second) {
      return BadOption("--prices", text, absl::StrCat("one price of ", name));
    }
  }
  return prices;
}

absl::StatusOr<HourlyCost> CostOf(const Report& report, const Prices& prices) {
  HourlyCost cost;
  if (report.replicas_size() == 0) {
    KVBLOCKS_RETURN_IF_ERROR(AddCost(report, report.config().device(), prices, &cost));
  }
  for (const auto& replica : report.replicas()) {
    const Report& engine = replica.report();
    const auto& config = engine.has_config() ? engine.config() : report.config();
    KVBLOCKS_RETURN_IF_ERROR(AddCost(engine, config.device(), prices, &cost));
  }
  return cost;
}

Value CostPer1mTokens(const Report& report, double cost_per_hour) {
  const auto tokens = static_cast<double>(report.totals().output_tokens());
  if (tokens == 0) return std::nullopt;
  return cost_per_hour * (report.throughput().duration_s() / 3600) / (tokens / 1e6);
}

std::vector<std::string> SweepMetricNames() {
  std::vector<std::string> names;
  for (const SweepMetric& metric : NamedMetrics()) names.push_back(metric.name);
  names.push_back(kCost);
  names.push_back(kCostPerHour);
  return names;
}

absl::StatusOr<SweepMetric> FindSweepMetric(std::string_view name, const Prices& prices) {
  for (const SweepMetric& metric : NamedMetrics()) {
    if (name == metric.name) return metric;
  }
  for (const char* cost : {kCost, kCostPerHour}) {
    if (name != cost) continue;
    if (prices.devices.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("got ", cost, ", which needs --prices=DEVICE:PRICE,..."));
    }
    return CostMetric(cost, prices);
  }
  const std::string_view kind = name.substr(0, 4);
  if (kind == "min:" || kind == "max:") {
    const std::string field(name.substr(4));
    if (IsReportField(Report::descriptor(), field)) {
      return SweepMetric{
          .name = field,
          .larger_is_better = kind == "max:",
          .decimals = 4,
          .value = [field](const Report& report) { return FieldValue(report, field); }};
    }
  }
  const std::string suggestion = SuggestName(name, SweepMetricNames());
  return absl::InvalidArgumentError(absl::StrCat(
      "got \"", std::string(name), "\", expected one of ", absl::StrJoin(SweepMetricNames(), ", "),
      ", or min: or max: with a number of a report (max:throughput.budget_use)",
      suggestion.empty() ? "" : "; ", suggestion));
}

absl::StatusOr<std::vector<SweepMetric>> FindSweepMetrics(std::string_view names,
                                                          const Prices& prices) {
  std::vector<SweepMetric> metrics;
  const std::vector<std::string> parts = absl::StrSplit(std::string(names), ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto metric, FindSweepMetric(part, prices));
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

std::optional<double> ValueOf(const SweepMetric& metric, const pb::PointResult& result) {
  if (!result.has_report()) return std::nullopt;
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
