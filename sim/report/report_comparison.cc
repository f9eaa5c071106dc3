#include "sim/report/report_comparison.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/report/metric_list.h"

namespace kvblocks::sim {

namespace {

constexpr std::string_view kAbsolute = "abs:";
constexpr std::string_view kNamedAbsolute = ":abs:";
constexpr size_t kMostText = 200;

absl::Status Wrong(const std::string& text) {
  return InvalidArgument(
      "--tolerance: got \"", text.substr(0, kMostText),
      "\", expected a share (0.01), a percentage (1%) or inf, after NAME: for one metric and "
      "NAME:abs: for absolute change");
}

unsigned __int128 Magnitude(__int128 value) {
  return static_cast<unsigned __int128>(value < 0 ? -value : value);
}

double AsDouble(const MetricNumber& number) {
  if (const double* real = std::get_if<double>(&number)) return *real;
  return static_cast<double>(std::get<__int128>(number));
}

// "causes" names every element of causes.
bool PartMatches(std::string_view pattern, std::string_view part) {
  if (pattern == part) return true;
  return part.size() > pattern.size() && part[pattern.size()] == '[' &&
         part.substr(0, pattern.size()) == pattern;
}

}  // namespace

std::vector<std::string> SplitMetricName(std::string_view name) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : name) {
    if (c == '[') ++depth;
    if (c == ']' && depth > 0) --depth;
    if (c == '.' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

absl::StatusOr<Tolerance> Tolerance::Parse(const std::string& text) {
  Tolerance out;
  out.text_ = text;
  std::string limit = text;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    out.name_ = text.substr(0, colon);
    limit = text.substr(colon + 1);
    const std::string_view named = std::string_view(text).substr(0, colon + 1);
    if (named == kAbsolute || named.ends_with(kNamedAbsolute)) {
      out.is_absolute_ = true;
      out.name_ = named == kAbsolute ? "" : text.substr(0, named.size() - kNamedAbsolute.size());
      if (out.name_.empty() && named != kAbsolute) return Wrong(text);
    }
    if (out.name_.empty() && !out.is_absolute_) return Wrong(text);
  }
  if (!out.name_.empty()) {
    out.parts_ = SplitMetricName(out.name_);
    if (std::ranges::count(out.parts_, "") > 0) return Wrong(text);
  }
  if (limit == "inf") {
    out.is_infinite_ = true;
    return out;
  }
  const bool is_percent = !out.is_absolute_ && limit.ends_with('%');
  if (is_percent) limit.pop_back();
  const auto value = ParseRational(limit);
  if (!value.ok()) return Wrong(text);
  out.limit_ = *value;
  if (is_percent) {
    int64_t denominator;
    if (__builtin_mul_overflow(out.limit_.denominator, int64_t{100}, &denominator) ||
        denominator > int64_t{1'000'000'000'000'000'000}) {
      return Wrong(text);
    }
    out.limit_.denominator = denominator;
  }
  return out;
}

bool Tolerance::Matches(const std::vector<std::string>& metric) const {
  return std::search(metric.begin(), metric.end(), parts_.begin(), parts_.end(),
                     [](const std::string& part, const std::string& pattern) {
                       return PartMatches(pattern, part);
                     }) != metric.end() ||
         parts_.empty();
}

bool Tolerance::Allows(const MetricNumber& a, const MetricNumber& b) const {
  if (is_infinite_) return true;
  const __int128* whole_a = std::get_if<__int128>(&a);
  const __int128* whole_b = std::get_if<__int128>(&b);
  if (whole_a != nullptr && whole_b != nullptr) {
    // At most 2^65 times 10^18: no overflow.
    const auto change = Magnitude(*whole_b - *whole_a);
    const auto limit =
        static_cast<unsigned __int128>(limit_.numerator) * (is_absolute_ ? 1 : Magnitude(*whole_a));
    return change * static_cast<unsigned __int128>(limit_.denominator) <= limit;
  }
  const double x = AsDouble(a), y = AsDouble(b);
  if (x == y || (std::isnan(x) && std::isnan(y))) return true;
  const double share =
      static_cast<double>(limit_.numerator) / static_cast<double>(limit_.denominator);
  // False for what is not a number.
  return std::isfinite(x) && std::isfinite(y) &&
         std::abs(y - x) <= share * (is_absolute_ ? 1.0 : std::abs(x));
}

absl::StatusOr<ToleranceSet> ToleranceSet::Parse(const std::vector<std::string>& texts) {
  ToleranceSet out;
  for (const std::string& text : texts) {
    KVBLOCKS_ASSIGN_OR_RETURN(out.tolerances_.emplace_back(), Tolerance::Parse(text));
  }
  return out;
}

const Tolerance* ToleranceSet::Find(std::string_view metric) const {
  if (tolerances_.empty()) return nullptr;
  const std::vector<std::string> parts = SplitMetricName(metric);
  const Tolerance* best = nullptr;
  for (const Tolerance& tolerance : tolerances_) {
    if (!tolerance.Matches(parts)) continue;
    if (best == nullptr || tolerance.num_parts() >= best->num_parts()) best = &tolerance;
  }
  return best;
}

namespace {

namespace pb = ::kvblocks::report::v1;

// Two metrics of one name; null if that report does not have it.
struct Pair {
  const Metric* a = nullptr;
  const Metric* b = nullptr;

  const Metric& any() const { return a != nullptr ? *a : *b; }
};

// In the order of `a`. An entry that only `b` has follows the entry that it follows in `b`.
std::vector<Pair> Align(const std::vector<Metric>& a, const std::vector<Metric>& b) {
  absl::flat_hash_map<std::string, size_t> index_in_a;
  for (size_t i = 0; i < a.size(); ++i) index_in_a[a[i].name] = i;
  // Those of `b` by the metric of `a` that they come after; 0 is before the first.
  std::vector<std::vector<const Metric*>> only_b(a.size() + 1);
  std::vector<const Metric*> in_b(a.size(), nullptr);
  size_t last = 0;
  for (const Metric& metric : b) {
    const auto found = index_in_a.find(metric.name);
    if (found == index_in_a.end()) {
      only_b[last].push_back(&metric);
    } else {
      in_b[found->second] = &metric;
      last = found->second + 1;
    }
  }
  std::vector<Pair> pairs;
  for (size_t i = 0; i <= a.size(); ++i) {
    if (i > 0) pairs.push_back({&a[i - 1], in_b[i - 1]});
    for (const Metric* metric : only_b[i]) pairs.push_back({nullptr, metric});
  }
  return pairs;
}

std::optional<MetricNumber> NumberOf(const Metric* metric) {
  if (metric == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<__int128>(&metric->value)) return MetricNumber(*whole);
  if (const auto* real = std::get_if<double>(&metric->value)) return MetricNumber(*real);
  return std::nullopt;
}

bool IsEqual(const Pair& pair) {
  if (pair.a == nullptr || pair.b == nullptr) return false;
  const auto* x = std::get_if<double>(&pair.a->value);
  const auto* y = std::get_if<double>(&pair.b->value);
  if (x != nullptr && y != nullptr && std::isnan(*x) && std::isnan(*y)) return true;
  return pair.a->value == pair.b->value;
}

bool IsAllowed(const Pair& pair, const Tolerance& tolerance) {
  const auto a = NumberOf(pair.a), b = NumberOf(pair.b);
  if (a && b) return tolerance.Allows(*a, *b);
  if (IsEqual(pair) || tolerance.AllowsAnything()) return true;
  if (pair.a == nullptr || pair.b == nullptr) return false;
  return !tolerance.AllowsNothing();
}

// By how much; 0 for equal ones, infinite for what only one has.
double Magnitude(const Pair& pair) {
  if (IsEqual(pair)) return 0;
  const auto a = NumberOf(pair.a), b = NumberOf(pair.b);
  if (!a || !b) return INFINITY;
  const double change = std::abs(AsDouble(*b) - AsDouble(*a));
  return std::isnan(change) ? INFINITY : change;
}

void FillValues(const Pair& pair, pb::MetricChange* out) {
  if (pair.a != nullptr) out->set_a(MetricText(*pair.a));
  if (pair.b != nullptr) out->set_b(MetricText(*pair.b));
  const auto a = NumberOf(pair.a), b = NumberOf(pair.b);
  if (!a || !b) return;
  const auto* whole_a = std::get_if<__int128>(&*a);
  const auto* whole_b = std::get_if<__int128>(&*b);
  double change, base;
  if (whole_a != nullptr && whole_b != nullptr) {
    out->set_change(ExactText(*whole_b - *whole_a));
    change = static_cast<double>(*whole_b - *whole_a);
    base = static_cast<double>(*whole_a);
  } else {
    base = AsDouble(*a);
    change = IsEqual(pair) ? 0 : AsDouble(*b) - base;
    out->set_change(ExactText(change));
  }
  const double relative = change == 0 ? 0 : change / std::abs(base);
  if (std::isfinite(relative)) out->set_relative(relative);
}

absl::Status CompareConfigurations(const pb::Report& a, const pb::Report& b, pb::Comparison* out) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto in_a, ListMetrics(a.config()));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto in_b, ListMetrics(b.config()));
  for (const Pair& pair : Align(in_a, in_b)) {
    if (IsEqual(pair)) continue;
    auto* difference = out->add_configuration();
    difference->set_name(pair.any().name);
    if (pair.a != nullptr) difference->set_a(MetricText(*pair.a));
    if (pair.b != nullptr) difference->set_b(MetricText(*pair.b));
  }
  return absl::OkStatus();
}

class MetricComparison {
 public:
  MetricComparison(const ReportComparisonOptions& options, pb::Comparison* out)
      : options_(options), out_(out) {}

  void Add(const Pair& pair) {
    const bool is_equal = IsEqual(pair);
    const Tolerance* tolerance = ToleranceOf(pair.any());
    const bool is_exceeded = tolerance != nullptr && !IsAllowed(pair, *tolerance);
    out_->set_metrics(out_->metrics() + 1);
    if (!is_equal) out_->set_metrics_changed(out_->metrics_changed() + 1);
    if (tolerance != nullptr) out_->set_metrics_judged(out_->metrics_judged() + 1);
    if (is_exceeded) out_->set_metrics_exceeded(out_->metrics_exceeded() + 1);
    if (!pair.any().list.empty() && !options_.all) {
      AddToList(pair, tolerance, is_equal, is_exceeded);
      return;
    }
    if (is_equal && !options_.all) return;
    auto* change = out_->add_changes();
    change->set_name(pair.any().name);
    FillValues(pair, change);
    if (tolerance != nullptr) change->set_tolerance(tolerance->text());
    change->set_exceeded(is_exceeded);
  }

  void Finish() {
    auto* changes = out_->mutable_changes();
    changes->erase(std::remove_if(changes->begin(), changes->end(),
                                  [](const pb::MetricChange& change) {
                                    return change.elements() > 0 && change.elements_changed() == 0;
                                  }),
                   changes->end());
  }

 private:
  struct List {
    int change = 0;  // its index in out_->changes
    double largest = -1;
  };

  // Elements of a list have the tolerance of the list: looked up once.
  const Tolerance* ToleranceOf(const Metric& metric) {
    if (options_.tolerances.all().empty()) return nullptr;
    if (metric.list.empty()) return options_.tolerances.Find(metric.name);
    const auto [it, inserted] = list_tolerances_.try_emplace(metric.list, nullptr);
    if (inserted) it->second = options_.tolerances.Find(metric.list);
    return it->second;
  }

  void AddToList(const Pair& pair, const Tolerance* tolerance, bool is_equal, bool is_exceeded) {
    const Metric& metric = pair.any();
    const auto [it, inserted] = lists_.try_emplace(metric.list);
    List& list = it->second;
    if (inserted) {
      list.change = out_->changes_size();
      out_->add_changes()->set_name(metric.list);
    }
    pb::MetricChange* change = out_->mutable_changes(list.change);
    change->set_elements(change->elements() + 1);
    if (!is_equal) change->set_elements_changed(change->elements_changed() + 1);
    if (tolerance != nullptr) change->set_tolerance(tolerance->text());
    const double magnitude = Magnitude(pair);
    // An entry that exceeds its tolerance represents the list before one that does not.
    const bool is_worse =
        is_exceeded != change->exceeded() ? is_exceeded : magnitude > list.largest;
    if (!is_worse) return;
    list.largest = magnitude;
    change->clear_a();
    change->clear_b();
    change->clear_change();
    change->clear_relative();
    FillValues(pair, change);
    change->set_element(metric.element);
    change->set_exceeded(is_exceeded);
  }

  const ReportComparisonOptions& options_;
  pb::Comparison* const out_;
  absl::flat_hash_map<std::string, List> lists_;
  absl::flat_hash_map<std::string, const Tolerance*> list_tolerances_;
};

// A metric whose name has all words of another one, in whatever order; empty if none has.
std::string Similar(const std::string& name, const std::vector<Pair>& pairs) {
  const auto words = [](const std::string& text) {
    const std::vector<std::string> all = absl::StrSplit(text, absl::ByAnyChar("._[]"));
    return std::set<std::string>(all.begin(), all.end());
  };
  const std::set<std::string> wanted = words(name);
  for (const Pair& pair : pairs) {
    const std::set<std::string> has = words(pair.any().name);
    if (std::includes(has.begin(), has.end(), wanted.begin(), wanted.end())) {
      return pair.any().name;
    }
  }
  return "";
}

absl::Status CheckNames(const ToleranceSet& tolerances, const std::vector<Pair>& pairs) {
  for (const Tolerance& tolerance : tolerances.all()) {
    if (tolerance.name().empty()) continue;
    const bool is_used = std::ranges::any_of(pairs, [&](const Pair& pair) {
      const Metric& metric = pair.any();
      return tolerance.Matches(SplitMetricName(metric.list.empty() ? metric.name : metric.list));
    });
    if (is_used) continue;
    const std::string similar = Similar(tolerance.name(), pairs);
    return InvalidArgument(
        "--tolerance: got \"", tolerance.text(),
        "\", expected a name, or parts of it, that kvsim compare --all lists, such as ",
        similar.empty() ? "whole_run.token_hit_rate or latency.ttft" : similar);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CompareReports(const pb::Report& a, const pb::Report& b,
                            const ReportComparisonOptions& options, pb::Comparison* out) {
  KVBLOCKS_RETURN_IF_ERROR(CompareConfigurations(a, b, out));
  const std::vector<std::string> skip = {"schema_version", "config"};
  KVBLOCKS_ASSIGN_OR_RETURN(const auto in_a, ListMetrics(a, skip));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto in_b, ListMetrics(b, skip));
  const std::vector<Pair> pairs = Align(in_a, in_b);
  KVBLOCKS_RETURN_IF_ERROR(CheckNames(options.tolerances, pairs));
  MetricComparison comparison(options, out);
  for (const Pair& pair : pairs) comparison.Add(pair);
  comparison.Finish();
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
