#include "kvblocks/sim/cost/whole_steps.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/cost/attention_counts.h"
#include "kvblocks/sim/cost/table_rows.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kBase = "base";

// How far between knots `first` and the next: 0 below, above 1 only behind the last knot.
double PartOf(const std::vector<int64_t>& knots, size_t first, int64_t count) {
  const double x = static_cast<double>(count - knots[first]) /
                   static_cast<double>(knots[first + 1] - knots[first]);
  return std::clamp(x, 0.0, first + 2 == knots.size() ? x : 1.0);
}

std::vector<int64_t> KnotsOf(const std::vector<MeasuredStep>& steps, size_t part) {
  int64_t low = INT64_MAX, high = 0;
  for (const MeasuredStep& step : steps) {
    low = std::min(low, step.counts[part]);
    high = std::max(high, step.counts[part]);
  }
  std::vector<int64_t> knots = {low};
  // The 20 largest powers of two will do.
  for (int64_t power = std::max<int64_t>(1, high >> 19); power < high; power *= 2) {
    if (power > low) knots.push_back(power);
  }
  if (high > low) knots.push_back(high);
  return knots;
}

// The least squares of `rows` x increments = 1 over increments that are not negative, by coordinate
// descent on the normal equations. A trace of ridge settles what the rows leave open.
std::vector<double> NonNegativeFit(const std::vector<std::vector<double>>& rows) {
  constexpr int kMaxSweeps = 20'000;
  constexpr double kRidge = 1e-9, kEnough = 1e-10;
  const size_t n = rows[0].size();
  std::vector<std::vector<double>> normal(n, std::vector<double>(n));
  std::vector<double> target(n);
  for (const std::vector<double>& row : rows) {
    for (size_t i = 0; i < n; ++i) {
      if (row[i] == 0) continue;
      target[i] += row[i];
      for (size_t j = 0; j < n; ++j) normal[i][j] += row[i] * row[j];
    }
  }
  std::vector<double> fit(n);
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double largest = 0;
    for (size_t i = 0; i < n; ++i) {
      const double weight = normal[i][i] * (1 + kRidge);
      if (weight == 0) continue;
      double rest = target[i];
      for (size_t j = 0; j < n; ++j) rest -= j == i ? 0 : normal[i][j] * fit[j];
      const double value = std::max(0.0, rest / weight);
      // By what it changes of all relative errors together.
      largest = std::max(largest, std::abs(value - fit[i]) * std::sqrt(weight));
      fit[i] = value;
    }
    if (largest < kEnough) break;
  }
  return fit;
}

class WholeStepClock final : public StepTimeModel {
 public:
  WholeStepClock(WholeStepTable table, const std::string& source, const StepTableOptions& options)
      : table_(std::move(table)),
        file_(source),
        per_step_(options.fixed_time + options.time_per_layer * options.num_layers),
        per_sequence_(options.time_per_sequence),
        source_(options.calibration.empty()
                    ? "measured steps"
                    : absl::StrCat("measured steps, calibrated: ", options.calibration)) {}

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override {
    int64_t num_sequences = decodes.num_sequences, num_tokens = decodes.num_sequences;
    Wide context = decodes.sum_context;
    for (const SequenceWork& sequence : work) {
      ++num_sequences;
      num_tokens += sequence.num_new;
      context += sequence.num_context;
    }
    bool outside = false;
    const SimTime measured = table_.At(
        {num_tokens, static_cast<int64_t>(std::min<Wide>(context, INT64_MAX)), num_sequences},
        &outside);
    if (outside) num_outside_.fetch_add(1, std::memory_order_relaxed);
    const Wide total = Wide{measured} + per_step_ + Wide{per_sequence_} * num_sequences;
    if (total > kMaxSimTime) {
      return absl::OutOfRangeError(absl::StrCat("a step of ", num_tokens,
                                                " tokens takes longer than the clock's 106 days"));
    }
    return static_cast<SimTime>(std::max<Wide>(total, 1));
  }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return source_; }
  std::vector<TimePart> parts() const override {
    std::vector<TimePart> parts = {{"whole steps", file_}};
    if (per_step_ > 0 || per_sequence_ > 0) {
      parts.push_back({"on top", absl::StrCat(FormatDuration(per_step_), " per step and ",
                                              FormatDuration(per_sequence_),
                                              " per sequence, constants")});
    }
    return parts;
  }
  int64_t num_outside() const override { return num_outside_.load(std::memory_order_relaxed); }

 private:
  const WholeStepTable table_;
  const std::string file_;
  const SimTime per_step_, per_sequence_;
  const std::string source_;
  mutable std::atomic<int64_t> num_outside_ = 0;
};

}  // namespace

SimTime WholeStepTable::At(const StepCounts& counts, bool* outside) const {
  Wide total = base;
  for (size_t part = 0; part < parts.size(); ++part) {
    const auto& knots = parts[part];
    const int64_t count = counts[part];
    if (knots.empty()) continue;
    if (count > knots.back().first) *outside = true;
    if (count <= knots.front().first || knots.size() == 1) {
      total += knots.front().second;
      continue;
    }
    auto above = std::lower_bound(knots.begin(), knots.end(), std::pair{count, SimTime{0}});
    if (above == knots.end()) --above;
    const auto below = above - 1;
    total += below->second + Wide{above->second - below->second} * (count - below->first) /
                                 (above->first - below->first);
  }
  return static_cast<SimTime>(std::min<Wide>(total, kMaxSimTime));
}

absl::StatusOr<std::vector<MeasuredStep>> ParseMeasuredSteps(const std::string& text,
                                                             const std::string& file) {
  const auto rows = ReadTableRows(text, file, "", {"tokens", "context", "sequences"});
  if (!rows.ok()) return rows.status();
  std::vector<MeasuredStep> steps;
  for (const TableRow& row : *rows) {
    if (row.time == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": a step of ", row.counts[0],
                       " tokens took 0 us, expected the time of a step that was measured"));
    }
    steps.push_back({.counts = {row.counts[0], row.counts[1], row.counts[2]}, .time = row.time});
  }
  return steps;
}

WholeStepTable FitWholeSteps(const std::vector<MeasuredStep>& steps) {
  constexpr double kUnit = 1e6;  // picoseconds; keeps the equations well scaled
  std::array<std::vector<int64_t>, 3> knots;
  for (size_t part = 0; part < knots.size(); ++part) knots[part] = KnotsOf(steps, part);
  std::vector<std::vector<double>> rows;
  for (const MeasuredStep& step : steps) {
    // Divided by the time: relative errors count.
    const double scale = kUnit / static_cast<double>(step.time);
    std::vector<double>& row = rows.emplace_back();
    row.push_back(scale);
    for (size_t part = 0; part < knots.size(); ++part) {
      for (size_t k = 0; k + 1 < knots[part].size(); ++k) {
        row.push_back(scale * PartOf(knots[part], k, step.counts[part]));
      }
    }
  }
  const std::vector<double> fit = NonNegativeFit(rows);
  WholeStepTable table;
  size_t next = 0;
  table.base = std::llround(fit[next++] * kUnit);
  for (size_t part = 0; part < knots.size(); ++part) {
    double sum = 0;
    for (size_t k = 0; k < knots[part].size(); ++k) {
      if (k > 0) sum += fit[next++];
      table.parts[part].emplace_back(knots[part][k], std::llround(sum * kUnit));
    }
  }
  return table;
}

std::string FormatWholeSteps(const WholeStepTable& table) {
  const auto us = [](SimTime time) {
    return absl::StrFormat("%d.%06d", time / kMicrosecond, time % kMicrosecond);
  };
  std::string text = absl::StrCat("part,count,time_us\n", kBase, ",0,", us(table.base), "\n");
  for (size_t part = 0; part < table.parts.size(); ++part) {
    for (const auto& [count, time] : table.parts[part]) {
      absl::StrAppend(&text, WholeStepTable::kParts[part], ",", count, ",", us(time), "\n");
    }
  }
  return text;
}

absl::StatusOr<WholeStepTable> ParseWholeSteps(const std::string& text, const std::string& file) {
  const auto rows = ReadTableRows(text, file, "part", {"count"});
  if (!rows.ok()) return rows.status();
  WholeStepTable table;
  for (const TableRow& row : *rows) {
    if (row.name == kBase) {
      table.base = row.time;
      continue;
    }
    const auto part =
        std::find(WholeStepTable::kParts.begin(), WholeStepTable::kParts.end(), row.name);
    if (part == WholeStepTable::kParts.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          file, ": got part ", row.name, ", expected base, tokens, context or sequences"));
    }
    auto& knots = table.parts[static_cast<size_t>(part - WholeStepTable::kParts.begin())];
    if (!knots.empty() && (row.counts[0] <= knots.back().first || row.time < knots.back().second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": ", row.name, " at ", row.counts[0],
                       ": expected counts that grow and times that do not fall"));
    }
    knots.emplace_back(row.counts[0], row.time);
  }
  return table;
}

std::unique_ptr<StepTimeModel> MakeWholeStepClock(WholeStepTable table, const std::string& source,
                                                  const StepTableOptions& options) {
  return std::make_unique<WholeStepClock>(std::move(table), source, options);
}

}  // namespace kvblocks::sim
