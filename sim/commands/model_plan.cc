#include "kvblocks/sim/commands/model_plan.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/trace/byte_source.h"
#include "kvblocks/specs/catalogue/hf_config.h"
#include "kvblocks/specs/catalogue/layer_caches.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

constexpr int kZstdWindowLog = 27;
constexpr size_t kMaxFileBytes = size_t{64} << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  auto source = OpenByteSource(path, kZstdWindowLog);
  if (!source.ok()) return source.status();
  std::string text;
  std::string chunk(1 << 16, '\0');
  while (true) {
    const auto n = (*source)->Read(chunk.data(), chunk.size());
    if (!n.ok()) return n.status();
    if (*n == 0) return text;
    text.append(chunk, 0, static_cast<size_t>(*n));
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": error: longer than ", kMaxFileBytes, " bytes"));
    }
  }
}

absl::StatusOr<ModelFacts> FindModel(const ReplayConfig& config, const Catalogue& catalogue) {
  if (!absl::EndsWith(config.model(), ".json")) return catalogue.FindModel(config.model());
  const auto text = ReadFile(config.model());
  if (!text.ok()) return text.status();
  return ModelFromHfConfig(*text, config.model());
}

absl::Status Named(absl::string_view flag, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

// The option behind the field that a message about layer caches begins with.
absl::string_view FlagOf(const absl::Status& status) {
  if (absl::StartsWith(status.message(), "cache_dtype")) return "--kv-cache-dtype";
  if (absl::StartsWith(status.message(), "block_size")) return "--block-size";
  if (absl::StartsWith(status.message(), "tensor_parallel")) return "--tensor-parallel";
  return "--model";
}

}  // namespace

absl::StatusOr<Catalogue> LoadCatalogue(const ReplayConfig& config) {
  Catalogue catalogue = Catalogue::BuiltIn();
  if (!config.catalogue().empty()) {
    const auto text = ReadFile(config.catalogue());
    if (!text.ok()) return text.status();
    if (absl::Status status = catalogue.Merge(*text, config.catalogue()); !status.ok()) {
      return status;
    }
  }
  return catalogue;
}

absl::StatusOr<ModelOnDevice> FindModelOnDevice(const ReplayConfig& config) {
  const auto catalogue = LoadCatalogue(config);
  if (!catalogue.ok()) return catalogue.status();
  auto device = catalogue->FindDevice(config.device());
  if (!device.ok()) return Named("--device", device.status());
  auto model = FindModel(config, *catalogue);
  if (!model.ok()) return Named("--model", model.status());
  return ModelOnDevice{.model = *std::move(model), .device = *std::move(device)};
}

absl::StatusOr<std::vector<LayerCache>> LayerCachesOf(const ReplayConfig& config,
                                                      const ModelFacts& model) {
  LayerCacheOptions options{.cache_dtype = config.kv_cache_dtype(),
                            .tensor_parallel = config.tensor_parallel()};
  // States for reuse lie where blocks end.
  if (config.prefix_caching()) options.mamba_cache_mode = MambaCacheMode::kAlign;
  if (config.block_size() > 0) options.block_size = config.block_size();
  auto specs = LayerCaches(model, options);
  if (!specs.ok()) return Named(FlagOf(specs.status()), specs.status());
  return specs;
}

PoolMemory MemoryOf(const ReplayConfig& config, const ModelOnDevice& hardware) {
  return {.device = hardware.device,
          .model = hardware.model,
          .tensor_parallel = config.tensor_parallel(),
          .utilization = config.memory_utilization(),
          .activation_gb = config.activation_gb(),
          .graph_gb = config.graph_gb()};
}

std::string DescribeMemory(const PoolMemory& memory) {
  return absl::StrFormat(
      "%s: %g GB x %g - weights %.1f GB - activations %g GB - graphs %g GB", memory.device.name,
      memory.device.memory_gb, memory.utilization,
      memory.model.weight_bytes() / 1e9 / static_cast<double>(memory.tensor_parallel),
      memory.activation_gb, memory.graph_gb);
}

int64_t MaxInFlightTokens(const ReplayConfig& config) {
  return config.max_num_batched_tokens() * (config.async() ? 2 : 1);
}

PlanPolicy PolicyOf(const ReplayConfig& config) {
  return config.plan() == "exact" ? PlanPolicy::kExact : PlanPolicy::kUpstream;
}

PlanOptions MakePlanOptions(const ReplayConfig& config, PlanPolicy policy, int64_t bytes) {
  PlanOptions options{.policy = policy,
                      .hybrid = config.hybrid(),
                      .limits = {.max_model_len = config.max_model_len(),
                                 .max_in_flight_tokens = MaxInFlightTokens(config)},
                      .available_bytes = {bytes},
                      .hashes_needed = config.prefix_caching(),
                      .use_eagle = config.eagle(),
                      .typical_len = config.typical_len()};
  for (PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    if (options.policy == PlanPolicy::kExact && config.layout() == LayoutName(layout)) {
      options.layout = layout;
    }
  }
  if (config.num_blocks() > 0) options.num_blocks_override = config.num_blocks();
  return options;
}

absl::Status ToStatus(const std::vector<PlanError>& errors) {
  std::string text;
  for (const PlanError& error : errors) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", PlanErrorName(error.code), ": ",
                    error.message);
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace kvblocks::sim
