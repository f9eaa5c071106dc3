#include "kvblocks/sim/cost/step_tables.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/cost/attention_counts.h"
#include "kvblocks/sim/cost/recorded_steps.h"
#include "kvblocks/sim/cost/table_rows.h"
#include "kvblocks/sim/cost/whole_steps.h"

namespace kvblocks::sim {
namespace {

SimTime Between(int64_t x0, SimTime y0, int64_t x1, SimTime y1, int64_t x) {
  return y0 + static_cast<SimTime>(Wide{y1 - y0} * (x - x0) / (x1 - x0));
}

// Times over one count.
class TimeLine {
 public:
  void Add(int64_t count, SimTime time) { points_[count] = time; }
  bool empty() const { return points_.empty(); }
  SimTime At(int64_t count, bool* outside) const;
  // For fast look-ups; after the last Add.
  void Close() { sorted_.assign(points_.begin(), points_.end()); }

 private:
  std::map<int64_t, SimTime> points_;
  std::vector<std::pair<int64_t, SimTime>> sorted_;
};

SimTime TimeLine::At(int64_t count, bool* outside) const {
  if (count <= sorted_.front().first) return sorted_.front().second;
  auto above = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair{count, SimTime{0}});
  if (above == sorted_.end()) {
    *outside = true;
    if (sorted_.size() == 1) return sorted_.front().second;
    --above;
  }
  const auto below = above - 1;
  return std::max<SimTime>(
      0, Between(below->first, below->second, above->first, above->second, count));
}

// The four coordinates of an attention step.
using Coordinates = std::array<int64_t, 4>;

class AttentionGrid {
 public:
  void Add(const Coordinates& at, SimTime time) { times_[at] = time; }
  void Close();
  // OutOfRange names a corner that was not measured.
  absl::StatusOr<SimTime> At(const Coordinates& at, bool* outside) const;

 private:
  absl::StatusOr<SimTime> Along(size_t axis, Coordinates corner, const Coordinates& at,
                                bool* outside) const;

  absl::flat_hash_map<Coordinates, SimTime> times_;
  std::array<std::vector<int64_t>, 4> axes_;
};

void AttentionGrid::Close() {
  for (size_t i = 0; i < axes_.size(); ++i) {
    for (const auto& [at, time] : times_) axes_[i].push_back(at[i]);
    std::sort(axes_[i].begin(), axes_[i].end());
    axes_[i].erase(std::unique(axes_[i].begin(), axes_[i].end()), axes_[i].end());
  }
}

absl::StatusOr<SimTime> AttentionGrid::Along(size_t axis, Coordinates corner, const Coordinates& at,
                                             bool* outside) const {
  if (axis == axes_.size()) {
    const auto it = times_.find(corner);
    if (it != times_.end()) return it->second;
    return absl::OutOfRangeError(absl::StrCat(
        "step tables: attention was not measured at prefill_chunk ", corner[0], ", kv_prefill ",
        corner[1], ", n_decode ", corner[2], ", kv_decode ", corner[3]));
  }
  // Without prompts or decodes there is no context of theirs.
  const bool is_context = axis % 2 == 1;
  if (is_context && corner[axis - 1] == 0) {
    corner[axis] = 0;
    return Along(axis + 1, corner, at, outside);
  }
  const std::vector<int64_t>& values = axes_[axis];
  // Decodes have a context: the first measured one holds below it.
  const int64_t least = axis == 3 ? 1 : 0;
  const auto first = std::lower_bound(values.begin(), values.end(), least);
  if (first == values.end()) {
    return absl::OutOfRangeError("step tables: attention has no rows with decodes");
  }
  const int64_t x = std::max(at[axis], *first);
  auto above = std::lower_bound(first, values.end(), x);
  if (above != values.end() && *above == x) {
    corner[axis] = x;
    return Along(axis + 1, corner, at, outside);
  }
  if (above == values.end()) {
    *outside = true;
    --above;
    if (above == first) {
      corner[axis] = *above;
      return Along(axis + 1, corner, at, outside);
    }
  }
  const auto below = above - 1;
  corner[axis] = *below;
  const auto low = Along(axis + 1, corner, at, outside);
  if (!low.ok()) return low;
  corner[axis] = *above;
  const auto high = Along(axis + 1, corner, at, outside);
  if (!high.ok()) return high;
  return Between(*below, *low, *above, *high, x);
}

absl::StatusOr<SimTime> AttentionGrid::At(const Coordinates& at, bool* outside) const {
  if (at[0] == 0 && at[2] == 0) return 0;
  const auto time = Along(0, {}, at, outside);
  if (!time.ok()) return time;
  return std::max<SimTime>(0, *time);
}

class StepTables final : public StepTimeModel {
 public:
  StepTables(TimeLine per_layer, TimeLine once, TimeLine per_sample, TimeLine allreduce,
             AttentionGrid attention, const std::string& folder, const StepTableOptions& options)
      : options_(options),
        folder_(folder),
        source_(options.calibration.empty()
                    ? "step tables, uncalibrated"
                    : absl::StrCat("step tables, calibrated: ", options.calibration)),
        per_layer_(std::move(per_layer)),
        once_(std::move(once)),
        per_sample_(std::move(per_sample)),
        allreduce_(std::move(allreduce)),
        attention_(std::move(attention)) {}

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override;
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return source_; }
  std::vector<TimePart> parts() const override {
    return {{"layers", absl::StrCat("profile ", folder_)},
            {"between kernels",
             absl::StrCat(FormatDuration(options_.fixed_time +
                                         options_.time_per_layer * options_.num_layers),
                          " per step and ", FormatDuration(options_.time_per_sequence),
                          " per sequence, constants")}};
  }
  int64_t num_outside() const override { return num_outside_.load(std::memory_order_relaxed); }

 private:
  const StepTableOptions options_;
  const std::string folder_, source_;
  const TimeLine per_layer_, once_, per_sample_, allreduce_;
  const AttentionGrid attention_;
  mutable std::atomic<int64_t> num_outside_ = 0;
};

absl::StatusOr<SimTime> StepTables::StepTime(absl::Span<const SequenceWork> work,
                                             const Decodes& decodes) const {
  int64_t num_tokens = decodes.num_sequences, num_samples = decodes.num_sequences;
  Coordinates at = {0, 0, decodes.num_sequences, 0};
  Wide sum_context = decodes.sum_context;
  for (const SequenceWork& sequence : work) {
    num_tokens += sequence.num_new;
    num_samples += sequence.num_sampled;
    if (sequence.num_sampled == sequence.num_new) {
      ++at[2];
      sum_context += sequence.num_context;
    } else {
      at[0] += sequence.num_new;
      at[1] = std::max(at[1], sequence.num_context);
    }
  }
  if (at[2] > 0) at[3] = static_cast<int64_t>(sum_context / at[2]);
  bool outside = false;
  const auto attention = attention_.At(at, &outside);
  if (!attention.ok()) return attention.status();
  Wide layer = Wide{per_layer_.At(num_tokens, &outside)} + *attention + options_.time_per_layer;
  if (options_.num_ranks > 1 && !allreduce_.empty()) {
    layer += 2 * Wide{allreduce_.At(num_tokens * options_.hidden_size * 2, &outside)};
  }
  Wide total = layer * options_.num_layers + options_.fixed_time +
               Wide{options_.time_per_sequence} *
                   (static_cast<int64_t>(work.size()) + decodes.num_sequences);
  if (!once_.empty()) total += once_.At(num_tokens, &outside);
  if (num_samples > 0 && !per_sample_.empty()) total += per_sample_.At(num_samples, &outside);
  if (outside) num_outside_.fetch_add(1, std::memory_order_relaxed);
  if (total > kMaxSimTime) {
    return absl::OutOfRangeError(
        absl::StrCat("a step of ", num_tokens, " tokens takes longer than the clock's 106 days"));
  }
  return static_cast<SimTime>(std::max<Wide>(total, 1));
}

// The sum of lines over what any of them was measured at.
TimeLine SumOf(std::map<std::string, TimeLine>& lines, const std::vector<int64_t>& counts) {
  TimeLine sum;
  for (auto& [name, line] : lines) line.Close();
  for (const int64_t count : counts) {
    SimTime time = 0;
    bool outside = false;
    for (const auto& [name, line] : lines) time += line.At(count, &outside);
    if (!lines.empty()) sum.Add(count, time);
  }
  sum.Close();
  return sum;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepTimeModel>> ParseStepTables(const StepTableTexts& texts,
                                                               const std::string& source,
                                                               const StepTableOptions& options) {
  const auto dense = ReadTableRows(texts.dense, source + "/dense.csv", "layer", {"tokens"});
  if (!dense.ok()) return dense.status();
  std::map<std::string, TimeLine> per_layer, once;
  std::vector<int64_t> tokens;
  for (const TableRow& row : *dense) {
    const bool is_once = row.name == "embedding" || row.name == "final_layernorm";
    (is_once ? once : per_layer)[row.name].Add(row.counts[0], row.time);
    tokens.push_back(row.counts[0]);
  }
  if (per_layer.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(source, "/dense.csv: no layers"));
  }
  const auto sequences =
      ReadTableRows(texts.per_sequence, source + "/per_sequence.csv", "layer", {"sequences"});
  if (!sequences.ok()) return sequences.status();
  std::map<std::string, TimeLine> per_sample;
  std::vector<int64_t> samples;
  for (const TableRow& row : *sequences) {
    per_sample[row.name].Add(row.counts[0], row.time);
    samples.push_back(row.counts[0]);
  }
  const auto attention =
      ReadTableRows(texts.attention, source + "/attention.csv", "",
                    {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"});
  if (!attention.ok()) return attention.status();
  AttentionGrid grid;
  for (const TableRow& row : *attention) {
    grid.Add({row.counts[0], row.counts[1], row.counts[2], row.counts[3]}, row.time);
  }
  grid.Close();
  TimeLine allreduce;
  if (!texts.allreduce.empty()) {
    const auto rows = ReadTableRows(texts.allreduce, source + "/allreduce.csv", "", {"bytes", "ranks"});
    if (!rows.ok()) return rows.status();
    for (const TableRow& row : *rows) {
      if (row.counts[1] == options.num_ranks) allreduce.Add(row.counts[0], row.time);
    }
    allreduce.Close();
  }
  return std::unique_ptr<StepTimeModel>(std::make_unique<StepTables>(
      SumOf(per_layer, tokens), SumOf(once, tokens), SumOf(per_sample, samples),
      std::move(allreduce), std::move(grid), source, options));
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> LoadStepTables(const std::string& path,
                                                              const StepTableOptions& options) {
  const auto of_option = [](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("--step-tables: ", status.message()));
  };
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    const auto text = ReadTextFile(path);
    if (!text.ok()) return of_option(text.status());
    auto table = ParseWholeSteps(*text, path);
    if (!table.ok()) return of_option(table.status());
    return MakeWholeStepClock(*std::move(table), path, options);
  }
  StepTableTexts texts;
  struct {
    const char* name;
    std::string* out;
    bool is_optional;
  } const files[] = {{"dense", &texts.dense, false},
                     {"attention", &texts.attention, false},
                     {"per_sequence", &texts.per_sequence, false},
                     {"allreduce", &texts.allreduce, true}};
  for (const auto& file : files) {
    auto text = ReadTextFile(absl::StrCat(path, "/", file.name, ".csv"));
    if (absl::IsNotFound(text.status())) {
      text = ReadTextFile(absl::StrCat(path, "/", file.name, ".csv.gz"));
    }
    if (file.is_optional && absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return of_option(text.status());
    *file.out = *std::move(text);
  }
  auto model = ParseStepTables(texts, path, options);
  if (!model.ok()) return of_option(model.status());
  return model;
}

}  // namespace kvblocks::sim
