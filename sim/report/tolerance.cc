#include "kvblocks/sim/report/tolerance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

constexpr std::string_view kAbsolute = "abs:";
constexpr std::string_view kNamedAbsolute = ":abs:";
constexpr size_t kMostText = 200;

absl::Status Wrong(const std::string& text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--tolerance: got \"", text.substr(0, kMostText),
      "\", expected a share (0.01), a percentage (1%) or inf, after NAME: for one metric and "
      "NAME:abs: for absolute change"));
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
    if (std::count(out.parts_.begin(), out.parts_.end(), "") > 0) return Wrong(text);
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
    auto tolerance = Tolerance::Parse(text);
    if (!tolerance.ok()) return tolerance.status();
    out.tolerances_.push_back(*std::move(tolerance));
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

}  // namespace kvblocks::sim
