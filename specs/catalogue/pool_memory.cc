#include "kvblocks/model_facts.h"

#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace kvblocks {
namespace {

constexpr double kGbPerGib = 1.073741824;

struct ActivationRow {
  const char* family;
  double gib;
};

// llm-d-planner 0.3.3, Copyright 2025 The authors of Planner, Apache-2.0:
// vllm_memory_constants.json and its accuracy report for vLLM 0.19.0 on H100 80 GB; modified:
// layout, families as the catalogue names them. GiB per device.
constexpr ActivationRow kActivations[] = {
    {"llama", 1.89},     {"llama4", 3.19},    {"qwen2", 2.25},       {"qwen3", 2.21},
    {"mistral3", 2.1},   {"deepseek_v2", 1.93}, {"granite", 0.85},   {"mixtral", 1.21},
    {"phi3", 1.52},      {"qwen2_moe", 2.47}, {"qwen3_moe", 2.68},   {"gemma", 3.63},
    {"gemma2", 3.65},    {"gemma3", 3.94},    {"gpt_oss", 2.87},
};
constexpr double kDenseActivation = 2.0;
constexpr double kExpertActivation = 2.5;
// NCCL's buffers with more than one rank.
constexpr double kOtherAlone = 0.27;
constexpr double kOtherRanks = 2.1;

}  // namespace

MeasuredReserves MeasuredReservesOf(const ModelFacts& model, int64_t num_ranks) {
  MeasuredReserves reserves{
      .activation_gb = (model.experts ? kExpertActivation : kDenseActivation) * kGbPerGib,
      .other_gb = (num_ranks > 1 ? kOtherRanks : kOtherAlone) * kGbPerGib,
      .source =
          absl::StrCat("vLLM 0.19 on H100, ", model.experts ? "any with experts" : "any dense")};
  for (const ActivationRow& row : kActivations) {
    if (model.family != row.family) continue;
    reserves.activation_gb = row.gib * kGbPerGib;
    reserves.source = absl::StrCat("vLLM 0.19 on H100, ", row.family);
  }
  return reserves;
}

double WeightGbPerDevice(const PoolMemory& memory) {
  const ModelFacts& model = memory.model;
  const double all = model.weight_bytes() / 1e9;
  const auto ranks = static_cast<double>(memory.tensor_parallel);
  if (memory.data_parallel == 1 || !model.experts) return all / ranks;
  const double routed = model.routed_params_b() * model.experts->bytes_per_param;
  return (all - routed + routed / static_cast<double>(memory.data_parallel)) / ranks;
}

absl::StatusOr<int64_t> CacheBytesInMemory(const PoolMemory& memory) {
  if (absl::Status status = Validate(memory.device); !status.ok()) return status;
  if (absl::Status status = Validate(memory.model); !status.ok()) return status;
  if (memory.tensor_parallel < 1 || memory.tensor_parallel > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.tensor_parallel is ", memory.tensor_parallel, ", expected 1 to 1024"));
  }
  if (memory.data_parallel < 1 || memory.data_parallel > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.data_parallel is ", memory.data_parallel, ", expected 1 to 1024"));
  }
  struct {
    absl::string_view field;
    double value, low, high;
  } const fields[] = {
      {"pool.utilization", memory.utilization, 0.01, 1.0},
      {"pool.activation_gb", memory.activation_gb, 0.0, memory.device.memory_gb},
      {"pool.graph_gb", memory.graph_gb, 0.0, memory.device.memory_gb},
  };
  for (const auto& f : fields) {
    if (f.value >= f.low && f.value <= f.high) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(f.field, " is ", f.value, ", expected ", f.low, " to ", f.high));
  }
  const double weights_gb =
      WeightGbPerDevice(memory) +
      memory.draft_weights_gb / static_cast<double>(memory.tensor_parallel);
  const double left_gb = memory.device.usable_gb() * memory.utilization - weights_gb -
                         memory.activation_gb - memory.graph_gb;
  if (!(left_gb > 0)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for the KV cache: ", memory.device.usable_gb(), " GB of ", memory.device.name,
        " x utilization ", memory.utilization, " - weights ", weights_gb, " GB - activations ",
        memory.activation_gb, " GB - graphs ", memory.graph_gb, " GB leaves ", left_gb,
        " GB; use more tensor parallel ranks, a larger device or a higher utilization"));
  }
  // Devices have less than 2^53 bytes.
  return static_cast<int64_t>(std::floor(left_gb * 1e9));
}

namespace {

constexpr int64_t kGib = int64_t{1} << 30;

// Devices that have the memory of a large one but lose throughput with large steps.
bool IsSlowForItsMemory(std::string_view device_name) {
  const std::string name = absl::AsciiStrToLower(std::string(device_name));
  return name.find("a100") != std::string::npos || name.find("gb10") != std::string::npos;
}

SchedulerLimits OfDevice(const ServerDevice& server) {
  const bool offline = server.entry_point == EntryPoint::kOffline;
  // 0.25 knows two sizes of devices.
  if (server.version == EngineVersion::kVllm033 && server.device_memory_bytes >= 160 * kGib) {
    return {16384, 1024};
  }
  if (server.device_memory_bytes >= 70 * kGib && !IsSlowForItsMemory(server.device_name)) {
    return {offline ? 16384 : 8192, 1024};
  }
  return {offline ? 8192 : 2048, 256};
}

}  // namespace

SchedulerLimits DefaultSchedulerLimits(const ServerDevice& server) {
  SchedulerLimits limits = OfDevice(server);
  if (server.throughput_mode) {
    limits.max_num_batched_tokens *= 2;
    limits.max_num_seqs *= 2;
  }
  return limits;
}

}  // namespace kvblocks
