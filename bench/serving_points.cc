#include "bench/serving_points.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "sim/report/metrics.h"
#include "sim/simulation.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  auto source = OpenByteSource(path);
  if (!source.ok()) return source.status();
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const auto size = (*source)->Read(buffer, sizeof(buffer));
    if (!size.ok()) return size.status();
    if (*size == 0) return text;
    text.append(buffer, *size);
  }
}

std::vector<std::string> SplitCsv(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

// Requests of a closed loop, drawn from the point's lengths.
class ClosedLoop final : public TraceReader {
 public:
  explicit ClosedLoop(const ServingPoint& point) : point_(point) {
    info_.format = "serving point";
    info_.name = point.id;
  }
  absl::StatusOr<bool> Next(TraceRequest& out) override {
    if (row_ == 10 * point_.concurrency) return false;
    out = TraceRequest();
    out.row = row_++;
    out.id = absl::StrCat(out.row);
    out.input_length = Draw(point_.input_tokens);
    out.output_length = Draw(point_.output_tokens);
    return true;
  }
  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return {}; }
  absl::Status Restart() override { return absl::UnimplementedError("closed loop"); }
  const TraceReaderCounters& counters() const override { return counters_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  int64_t Draw(int64_t nominal) {
    // Sweeps of equal lengths are drawn likewise, from a narrow range: requests that march in step
    // would meet all their prompts at once.
    const bool is_exact = point_.campaign != "inferencex";
    const auto low = static_cast<int64_t>(static_cast<double>(nominal) * (is_exact ? 0.95 : 0.8));
    const int64_t high = is_exact ? nominal + (nominal - low) : nominal;
    const auto range = static_cast<uint64_t>(high - low + 1);
    return std::max<int64_t>(1, low + static_cast<int64_t>(random_() % range));
  }

  const ServingPoint& point_;
  std::mt19937_64 random_{20261122};
  int64_t row_ = 0;
  TraceInfo info_;
  TraceReaderCounters counters_;
  std::vector<std::string> warnings_;
};

absl::StatusOr<LayerTimesOptions> LayersOf(const ServingPoint& point, const ServingRecipe& recipe) {
  auto device = Catalogue::BuiltIn().FindDevice(point.device);
  if (!device.ok()) return device.status();
  auto model = FindPointModel(point.model);
  if (!model.ok()) return model.status();
  LayerTimesOptions layers;
  // gpt-oss is published with 4-bit experts; no other form of it was measured.
  const bool is_gpt_oss = model->family == "gpt_oss";
  if (point.precision == "fp8" && !is_gpt_oss) {
    model->bytes_per_param = 1;
    if (model->experts) model->experts->bytes_per_param = 1;
  } else if (point.precision == "fp4" && !is_gpt_oss) {
    // The published NVFP4 models of these families leave attention and shared experts in 16 bits.
    const bool is_experts_only = model->family == "kimi_k2" || model->family == "minimax_m2";
    model->bytes_per_param = is_experts_only ? 2 : 0.5625;
    if (model->experts) model->experts->bytes_per_param = 0.5625;
    layers.gemm_dtype = is_experts_only ? "bfloat16" : "nvfp4";
    layers.expert_dtype = "nvfp4";
  } else if (point.precision == "int4") {
    layers.expert_dtype = "int4_wo";
  }
  layers.roofline.device = *std::move(device);
  layers.roofline.model = *std::move(model);
  layers.roofline.tensor_parallel = point.tensor_parallel;
  layers.roofline.data_parallel = point.data_parallel;
  layers.expert_tensor_parallel = point.expert_tensor_parallel;
  layers.expert_parallel = point.expert_parallel;
  if (!recipe.expert_dtype.empty()) layers.expert_dtype = recipe.expert_dtype;
  layers.kv_dtype = recipe.kv_dtype;
  layers.fuses_allreduce = recipe.fuses_allreduce;
  if (recipe.kv_dtype == "fp8") layers.roofline.kv_bytes_per_element = 1;
  if (recipe.has_whole_experts) {
    layers.expert_parallel = std::max(layers.expert_tensor_parallel, layers.expert_parallel);
    layers.expert_tensor_parallel = 1;
  }
  return layers;
}

// vLLM schedules a step while the one before it runs, by default since 0.14. A version that is not
// known counts as a later one.
bool SchedulesAhead(const ServingPoint& point) { return MinorVersionOf(point).value_or(14) >= 14; }

}  // namespace

absl::StatusOr<ModelFacts> FindPointModel(const std::string& spelling) {
  static constexpr absl::string_view kFormats[] = {"-NVFP4", "-MXFP4", "-FP4",
                                                   "-FP8",   "-INT4",  "-BF16"};
  absl::string_view name = spelling;
  for (const absl::string_view format : kFormats) {
    if (absl::EndsWithIgnoreCase(name, format)) name.remove_suffix(format.size());
  }
  return Catalogue::BuiltIn().FindModel(std::string(name));
}

absl::StatusOr<std::vector<ServingPoint>> ReadServingPoints(const std::string& path,
                                                            int64_t* num_left_out) {
  const auto text = ReadAll(path);
  if (!text.ok()) return text.status();
  std::vector<ServingPoint> points;
  std::map<std::string, size_t> columns;
  int64_t line_number = 0;
  for (const absl::string_view text_line : absl::StrSplit(*text, '\n')) {
    ++line_number;
    const std::string line(text_line);
    if (line.empty()) continue;
    const std::vector<std::string> cells = SplitCsv(line);
    if (columns.empty()) {
      for (size_t i = 0; i < cells.size(); ++i) columns[cells[i]] = i;
      for (const char* needed :
           {"id", "model", "gpu", "mode", "isl_tokens", "osl_tokens", "concurrency", "tp",
            "attention_dp", "moe_tp", "moe_ep", "flags", "precision", "campaign", "engine_version",
            "pp", "ttft_ms", "tpot_ms", "batch_per_dp_rank"}) {
        if (columns.contains(needed)) continue;
        return absl::InvalidArgumentError(absl::StrCat(path, ": no column ", needed));
      }
      continue;
    }
    const auto cell = [&](const char* name) -> std::string {
      const size_t i = columns.at(name);
      return i < cells.size() ? cells[i] : "";
    };
    const auto count = [&](const char* name, int64_t fallback) {
      int64_t value;
      return absl::SimpleAtoi(cell(name), &value) ? value : fallback;
    };
    ServingPoint point{
        .id = cell("id"),
        .engine_version = cell("engine_version"),
        .model = cell("model"),
        .device = cell("gpu"),
        .precision = cell("precision"),
        .campaign = cell("campaign"),
        .flags = cell("flags"),
        .measured_date = columns.contains("measured_date") ? cell("measured_date") : "",
        .input_tokens = count("isl_tokens", 0),
        .output_tokens = count("osl_tokens", 0),
        .concurrency = count("concurrency", count("batch_per_dp_rank", 0)),
        .tensor_parallel = count("tp", 1),
        .data_parallel = count("attention_dp", 1),
        .expert_tensor_parallel = count("moe_tp", 0),
        .expert_parallel = count("moe_ep", 0)};
    const bool is_single_pool = cell("mode") == "agg" && count("pp", 1) == 1;
    if (!is_single_pool || !absl::SimpleAtod(cell("ttft_ms"), &point.ttft_ms) ||
        !absl::SimpleAtod(cell("tpot_ms"), &point.tpot_ms) || point.concurrency < 1 ||
        point.input_tokens < 1 || point.output_tokens < 2 ||
        point.flags.find("queue_limited") != std::string::npos ||
        point.flags.find("implausible_rate") != std::string::npos ||
        point.model.find("Llama-3.1-8B") != std::string::npos) {
      ++*num_left_out;
      continue;
    }
    if (point.data_parallel > 1 && point.flags.find("dp_encoding") != std::string::npos) {
      // d ranks of one device each, experts spread over them.
      point.tensor_parallel = 1;
      point.expert_tensor_parallel = 1;
      point.expert_parallel = point.data_parallel;
    }
    points.push_back(std::move(point));
  }
  return points;
}

absl::StatusOr<const KernelTables*> PointPredictor::TablesOf(const std::string& device) {
  auto it = tables_.find(device);
  if (it == tables_.end()) {
    auto tables = LoadKernelTables(tables_path_, device);
    if (!tables.ok()) return tables.status();
    it = tables_.emplace(device, *std::move(tables)).first;
  }
  return &it->second;
}

absl::StatusOr<PointPrediction> PointPredictor::Predict(const ServingPoint& point) {
  const auto model = FindPointModel(point.model);
  if (!model.ok()) return model.status();
  const ServingRecipe recipe = RecipeOf(point, model->family);
  auto layers = LayersOf(point, recipe);
  if (!layers.ok()) return layers.status();
  const int64_t max_num_batched_tokens = options_.max_num_batched_tokens > 0
                                             ? options_.max_num_batched_tokens
                                             : recipe.max_num_batched_tokens;
  // One replica sees its share of the requests.
  ServingPoint replica = point;
  replica.concurrency = std::max<int64_t>(1, point.concurrency / point.data_parallel);
  const int64_t longest = 2 * (point.input_tokens + point.output_tokens) + 64;

  absl::StatusOr<std::unique_ptr<StepTimeModel>> clock;
  if (options_.clock == PointClock::kTables) {
    const auto tables = TablesOf(layers->roofline.device.name);
    if (!tables.ok()) return tables.status();
    TableClockOptions options = options_.constants;
    options.layers = *layers;
    if (!SchedulesAhead(point)) options.sequence_overhead = options_.sequence_overhead_in_turn;
    options.max_num_tokens = max_num_batched_tokens;
    options.max_num_seqs = replica.concurrency;
    options.max_sequence_len = longest;
    clock = MakeTableClock(**tables, options);
  } else {
    RooflineOptions options = layers->roofline;
    options.tensor_parallel = point.tensor_parallel * point.data_parallel;
    if (options_.clock == PointClock::kRooflineWithOverhead) {
      options.fixed_time += 78 * kMicrosecond * options.model.num_layers();
    }
    clock = MakeRoofline(options);
  }
  if (!clock.ok()) return clock.status();

  SimulationConfig config;
  if (absl::Status status = ApplyEnginePreset("vllm-0.25", &config); !status.ok()) return status;
  config.scheduler.async = SchedulesAhead(point);
  // Any number of blocks that is enough: admission by memory is not what is judged.
  constexpr int64_t kBlockSize = 64;
  const int64_t num_blocks = (longest / kBlockSize + 2) * (replica.concurrency + 1) + 1;
  config.kv_cache = {
      .num_blocks = num_blocks,
      .groups = {{.spec = FullAttentionSpec::Create(
                              {.block_size = kBlockSize, .num_kv_heads = 1, .head_size = 64})
                              .value()}}};
  config.manager.max_model_len = longest;
  config.manager.enable_caching = false;
  config.scheduler.max_num_batched_tokens = max_num_batched_tokens;
  config.scheduler.max_num_seqs =
      std::min({replica.concurrency, recipe.max_num_seqs, max_num_batched_tokens});
  config.concurrency = replica.concurrency;
  config.start_delay = static_cast<SimTime>(options_.client_latency_ms * kMillisecond);
  // The campaign's client starts all at once; of sweeps it is not known, and nobody would march.
  if (point.campaign != "inferencex") {
    config.start_jitter = point.output_tokens * 10 * kMillisecond;
  }
  config.check_invariants = false;

  ClosedLoop reader(replica);
  ReplayMetrics metrics({});
  auto simulation = Simulation::Create(config, &reader, clock->get(), {&metrics});
  if (!simulation.ok()) return simulation.status();
  if (absl::Status status = (*simulation)->Run(); !status.ok()) return status;
  ::kvblocks::report::v1::Report report;
  metrics.Fill((*simulation)->result(), &report);
  const double mean_input = 0.9 * static_cast<double>(point.input_tokens);
  return PointPrediction{.ttft_ms = report.latency().ttft().mean_ms() + options_.client_latency_ms +
                                    options_.client_latency_ms_per_1k_tokens * mean_input / 1000,
                         .tpot_ms = report.latency().tpot().mean_ms(),
                         .num_steps = (*simulation)->result().scheduler.num_steps,
                         .num_outside = (*simulation)->result().step_tally.num_outside};
}

}  // namespace kvblocks::sim
