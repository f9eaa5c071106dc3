// How well step times predict measured serving: each point of a file of serving points is replayed,
// and the errors are printed per model and device.
//
//   bazel run -c opt //bench:silicon -- [--clock=tables|roofline|roofline+78us]
//       [--CONSTANT=VALUE]... [--only=TEXT] [--rows=FILE.csv] FILE.csv.gz
//
// Columns: points; mean / median / 90th percentile of the absolute error of TPOT in per cent, and
// the median of predicted / measured; the same for TTFT.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/serving_points.h"
#include "sim/commands/progress_line.h"

namespace kvblocks::sim {
namespace {

class Errors {
 public:
  void Add(double predicted, double measured) {
    ratios_.push_back(predicted / measured);
    errors_.push_back(100 * std::abs(predicted / measured - 1));
  }
  std::string Text() const {
    if (errors_.empty()) return "-";
    double sum = 0;
    for (const double error : errors_) sum += error;
    return absl::StrFormat("%5.1f / %4.1f / %4.1f  %.2f", sum / static_cast<double>(errors_.size()),
                           Quantile(errors_, 0.5), Quantile(errors_, 0.9), Quantile(ratios_, 0.5));
  }

 private:
  static double Quantile(std::vector<double> values, double q) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
  }
  std::vector<double> ratios_, errors_;
};

struct Group {
  int64_t num_points = 0;
  Errors tpot, ttft;
};

struct Arguments {
  PointOptions options;
  std::string file, tables, rows, only;
};

bool ParseConstant(std::string_view name, double value, PointOptions* options) {
  TableClockOptions& constants = options->constants;
  const std::pair<std::string_view, SimTime*> times[] = {
      {"layer_overhead_us", &constants.layer_overhead},
      {"block_layer_overhead_us", &constants.block_layer_overhead},
      {"rank_overhead_us", &constants.rank_overhead},
      {"mixed_layer_overhead_us", &constants.mixed_layer_overhead},
      {"sequence_overhead_us", &constants.sequence_overhead}};
  const std::pair<std::string_view, double*> numbers[] = {
      {"prefill_factor", &constants.prefill_factor},
      {"expert_prefill_factor", &constants.expert_prefill_factor},
      {"client_latency_ms", &options->client_latency_ms},
      {"client_latency_ms_per_1k_tokens", &options->client_latency_ms_per_1k_tokens}};
  const auto time = static_cast<SimTime>(std::llround(value * 1e6));
  for (const auto& [known, to] : times) {
    if (name == known) return *to = time, true;
  }
  for (const auto& [known, to] : numbers) {
    if (name == known) return *to = value, true;
  }
  if (name == "sequence_overhead_in_turn_us") {
    options->sequence_overhead_in_turn = time;
  } else if (name == "max_num_batched_tokens") {
    options->max_num_batched_tokens = static_cast<int64_t>(value);
  } else {
    return false;
  }
  return true;
}

bool Parse(int argc, char** argv, Arguments* out) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (!absl::StartsWith(argument, "--") || equals == std::string::npos) {
      if (absl::StartsWith(argument, "--") || !out->file.empty()) return false;
      out->file = argument;
      continue;
    }
    const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
    double number;
    if (name == "--kernel-tables") {
      out->tables = std::string(value);
    } else if (name == "--rows") {
      out->rows = std::string(value);
    } else if (name == "--only") {
      out->only = std::string(value);
    } else if (name == "--clock" && value == "tables") {
      out->options.clock = PointClock::kTables;
    } else if (name == "--clock" && value == "roofline") {
      out->options.clock = PointClock::kRoofline;
    } else if (name == "--clock" && value == "roofline+78us") {
      out->options.clock = PointClock::kRooflineWithOverhead;
    } else if (!absl::SimpleAtod(value, &number) ||
               !ParseConstant(name.substr(2), number, &out->options)) {
      return false;
    }
  }
  return !out->file.empty();
}

int Run(const Arguments& arguments) {
  int64_t num_left_out = 0;
  const auto points = ReadServingPoints(arguments.file, &num_left_out);
  if (!points.ok()) {
    std::fprintf(stderr, "silicon: %s\n", points.status().ToString().c_str());
    return 2;
  }
  PointPredictor predictor(arguments.tables.empty() ? FindKernelTablesFile() : arguments.tables,
                           arguments.options);
  std::ofstream rows;
  if (!arguments.rows.empty()) {
    rows.open(arguments.rows);
    rows << "id,model,gpu,engine_version,precision,tp,dp,isl,osl,concurrency,campaign,tpot_ms,"
            "predicted_tpot_ms,ttft_ms,predicted_ttft_ms,steps,outside\n";
  }
  std::map<std::string, Group> groups;
  Group all, dense, experts, latent;
  ProgressLine progress(/*quiet=*/false);
  int64_t num_seen = 0, num_unknown = 0;
  std::set<std::string> unknown;
  for (const ServingPoint& point : *points) {
    progress.UpdateCount(num_seen++, static_cast<int64_t>(points->size()), "points");
    if (!absl::StrContains(absl::StrCat(point.model, " ", point.device, " ", point.id),
                           arguments.only))
      continue;
    const auto prediction = predictor.Predict(point);
    if (absl::IsNotFound(prediction.status())) {
      // A model or device that is not known: named once.
      ++num_unknown;
      if (unknown.insert(std::string(prediction.status().message())).second) {
        std::fprintf(stderr, "silicon: %s and others left out: %s\n", point.id.c_str(),
                     prediction.status().ToString().c_str());
      }
      continue;
    }
    if (!prediction.ok()) {
      std::fprintf(stderr, "silicon: %s: %s\n", point.id.c_str(),
                   prediction.status().ToString().c_str());
      return 2;
    }
    const ModelFacts model = *FindPointModel(point.model);
    Group* const kind = !model.experts ? &dense : model.latent ? &latent : &experts;
    for (Group* group : {&groups[absl::StrCat(model.name, ", ", point.device)], kind, &all}) {
      ++group->num_points;
      group->tpot.Add(prediction->tpot_ms, point.tpot_ms);
      if (point.campaign == "inferencex") group->ttft.Add(prediction->ttft_ms, point.ttft_ms);
    }
    if (rows.is_open()) {
      rows << absl::StrFormat("%s,%s,%s,%s,%s,%d,%d,%d,%d,%d,%s,%g,%g,%g,%g,%d,%d\n", point.id,
                              point.model, point.device, point.engine_version, point.precision,
                              point.tensor_parallel, point.data_parallel, point.input_tokens,
                              point.output_tokens, point.concurrency, point.campaign, point.tpot_ms,
                              prediction->tpot_ms, point.ttft_ms, prediction->ttft_ms,
                              prediction->num_steps, prediction->num_outside);
    }
  }
  progress.Clear();
  std::printf("%-30s %6s   %-28s %-28s\n", "", "points", "TPOT: mean/median/p90, ratio",
              "TTFT: mean/median/p90, ratio");
  const auto print = [](const std::string& name, const Group& group) {
    std::printf("%-30s %6d   %-28s %-28s\n", name.c_str(), static_cast<int>(group.num_points),
                group.tpot.Text().c_str(), group.ttft.Text().c_str());
  };
  for (const auto& [name, group] : groups) print(name, group);
  print("dense", dense);
  print("experts", experts);
  print("experts, latent attention", latent);
  print("all", all);
  std::printf("%d rows left out\n", static_cast<int>(num_left_out + num_unknown));
  return 0;
}

}  // namespace
}  // namespace kvblocks::sim

int main(int argc, char** argv) {
  kvblocks::sim::Arguments arguments;
  if (!kvblocks::sim::Parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "usage: silicon [--clock=tables|roofline|roofline+78us] [--CONSTANT=VALUE]... "
                 "[--kernel-tables=FILE] [--only=TEXT] [--rows=FILE] FILE\n");
    return 2;
  }
  return kvblocks::sim::Run(arguments);
}
