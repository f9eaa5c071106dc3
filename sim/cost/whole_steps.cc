#include "kvblocks/sim/cost/whole_steps.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/cost/attention_counts.h"
#include "kvblocks/sim/cost/non_negative_fit.h"
#include "kvblocks/sim/cost/table_rows.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kBase = "base";

// Of one part: powers of two with measured steps right below them, between the least count and the
// largest one. What lies between two knots is thus told by at least one step, and the last part, which
// goes on behind what was measured, is not a short one.
std::vector<int64_t> KnotsOf(const std::vector<MeasuredStep>& steps, size_t part) {
  constexpr int kMaxDoublings = 19;  // below them it is one straight line
  std::vector<int64_t> counts;
  for (const MeasuredStep& step : steps) counts.push_back(step.counts[part]);
  std::sort(counts.begin(), counts.end());
  const int64_t low = counts.front(), high = counts.back();
  std::vector<int64_t> knots = {low};
  const auto first = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(high, 1)));
  for (auto power = std::max<int64_t>(1, static_cast<int64_t>(first >> kMaxDoublings));
       power < high - high / 4; power *= 2) {
    const auto step = std::upper_bound(counts.begin(), counts.end(), knots.back());
    if (power > low && *step <= power) knots.push_back(power);
  }
  if (high > low) knots.push_back(high);
  return knots;
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
          absl::StrCat(file, ":", row.line, ": got time_us 0, expected the time of a step"));
    }
    steps.push_back({.counts = {row.counts[0], row.counts[1], row.counts[2]}, .time = row.time});
  }
  return steps;
}

WholeStepTable FitWholeSteps(const std::vector<MeasuredStep>& steps) {
  constexpr double kUnit = 1e6;  // picoseconds; keeps the equations well scaled
  std::array<std::vector<int64_t>, 3> knots;
  for (size_t part = 0; part < knots.size(); ++part) knots[part] = KnotsOf(steps, part);
  size_t num_unknowns = 1;
  for (const auto& of_part : knots) num_unknowns += of_part.size() - 1;
  NonNegativeFit equations(num_unknowns);
  std::vector<double> row;
  for (const MeasuredStep& step : steps) {
    // Divided by the time: relative errors count.
    const double scale = kUnit / static_cast<double>(step.time);
    row.assign(1, scale);
    for (size_t part = 0; part < knots.size(); ++part) {
      for (size_t k = 0; k + 1 < knots[part].size(); ++k) {
        const int64_t from = knots[part][k], to = knots[part][k + 1];
        const int64_t count = std::clamp(step.counts[part], from, to);
        row.push_back(scale * static_cast<double>(count - from) / static_cast<double>(to - from));
      }
    }
    equations.Add(row, 1);
  }
  const std::vector<double> fit = equations.Solve();
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
          file, ":", row.line, ": got part ", row.name, ", expected base, tokens, context or sequences"));
    }
    auto& knots = table.parts[static_cast<size_t>(part - WholeStepTable::kParts.begin())];
    if (!knots.empty() && (row.counts[0] <= knots.back().first || row.time < knots.back().second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", row.line, ": got ", row.name, " at ", row.counts[0],
                       ", expected counts that grow and times that do not fall"));
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
