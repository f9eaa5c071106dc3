#include "sim/commands/model_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/status_macros.h"
#include "kvblocks/config_source.h"
#include "kvblocks/model_facts.h"
#include "sim/commands/option_table.h"
#include "sim/drafting.h"
#include "sim/simulation_config.h"
#include "specs/catalogue/pipeline_stages.h"

namespace kvblocks::sim {

namespace {

using ::kvblocks::config::v1::ReplayConfig;

// A name that --KIND gave and that the catalogue does not have; says where all names are.
template <typename T>
absl::StatusOr<T> OfName(absl::string_view kind, absl::StatusOr<T> found) {
  const std::string name(kind);
  found = OfOption(absl::StrCat("--", name), name, std::move(found));
  if (found.status().code() != absl::StatusCode::kNotFound) return found;
  return absl::NotFoundError(
      absl::StrCat(found.status().message(), " (kvsim plan --list-", name, "s prints all)"));
}

absl::StatusOr<ModelFacts> FindModel(const ReplayConfig& config, const Catalogue& catalogue) {
  const std::string& name = config.model();
  if (!absl::EndsWith(name, ".json")) return OfName("model", catalogue.FindModel(name));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto text, OfOption("--model", ReadConfigFile(name)));
  return OfOption("--model", "model", ModelFromHfConfig(text, name));
}

// NVFP4 has a byte of scale for 16 weights.
void SetWeights(std::string_view dtype, ModelFacts* model) {
  if (dtype == "auto" || dtype.empty()) return;
  model->bytes_per_param = dtype == "bf16" ? 2 : dtype == "fp8" ? 1 : 0.5625;
  if (model->experts) model->experts->bytes_per_param = model->bytes_per_param;
}

// The option behind the field that a message about layer caches begins with.
absl::Status OfLayerOption(const absl::Status& status) {
  struct {
    const char* field;
    const char* flag;
  } const options[] = {{"cache_dtype", "--kv-cache-dtype"},
                       {"block_size", "--block-size"},
                       {"tensor_parallel", "--tensor-parallel"},
                       {"pipeline_parallel", "--pipeline-parallel"}};
  for (const auto& option : options) {
    if (absl::StartsWith(status.message(), option.field)) {
      return OfOption(option.flag, option.field, status);
    }
  }
  return OfOption("--model", "model", status);
}

std::string DescribeMemory(const PoolMemory& memory, int64_t num_ranks) {
  const double ranks = static_cast<double>(memory.tensor_parallel);
  std::string text = absl::StrFormat(
      "%s: %.4g GB%s x %g - weights %.1f GB", memory.device.name, memory.device.usable_gb(),
      memory.device.measured_memory_gb > 0 ? "" : " (nominal)", memory.utilization,
      WeightGbPerDevice(memory));
  if (memory.draft_weights_gb > 0) {
    absl::StrAppendFormat(&text, " - drafter %.1f GB", memory.draft_weights_gb / ranks);
  }
  absl::StrAppendFormat(&text, " - activations %.3g GB - other %.3g GB", memory.activation_gb,
                        memory.graph_gb);
  const MeasuredReserves measured = MeasuredReservesOf(memory.model, num_ranks);
  if (memory.activation_gb == measured.activation_gb && memory.graph_gb == measured.other_gb) {
    absl::StrAppend(&text, " (", measured.source, ")");
  }
  return text;
}

// Devices that send each other something in every step.
int64_t NumLinkedRanks(const ReplayConfig& config, const ModelOnDevice& hardware) {
  return config.tensor_parallel() * config.pipeline_parallel() *
         (IsInLockstep(config, hardware.model) ? config.data_parallel() : 1);
}

absl::Status CheckDataParallel(const ReplayConfig& config, const ModelFacts& model) {
  if (config.expert_parallel() && !model.experts) {
    return BadOption("--expert-parallel", "true",
                     absl::StrCat("none: ", model.name, " has no experts"));
  }
  if (config.data_parallel() == 1) return absl::OkStatus();
  const std::string got = absl::StrCat(config.data_parallel());
  if (config.pipeline_parallel() > 1) {
    return BadOption(
        "--data-parallel", got,
        absl::StrCat("1 with --pipeline-parallel, which is ", config.pipeline_parallel(),
                     ": ranks with stages are not modelled; use --replicas"));
  }
  if (config.has_engine() && *ParseEngineVersion(config.engine()) < EngineVersion::kVllm033) {
    return BadOption("--data-parallel", got,
                     absl::StrCat("1 with --engine=", config.engine(),
                                  ": ranks step and are chosen as in vllm-0.33"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsInLockstep(const ReplayConfig& config, const ModelFacts& model) {
  return config.data_parallel() > 1 && model.experts.has_value();
}

absl::StatusOr<Catalogue> LoadCatalogue(const ReplayConfig& config) {
  Catalogue catalogue = Catalogue::BuiltIn();
  if (!config.catalogue().empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto text, ReadConfigFile(config.catalogue()));
    KVBLOCKS_RETURN_IF_ERROR(catalogue.Merge(text, config.catalogue()));
  }
  return catalogue;
}

absl::StatusOr<ModelOnDevice> FindModelOnDevice(const ReplayConfig& config) {
  if (config.tensor_parallel() % config.decode_context_parallel() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--decode-context-parallel: got ", config.decode_context_parallel(),
                     ", expected a divisor of --tensor-parallel, which is ",
                     config.tensor_parallel()));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto catalogue, LoadCatalogue(config));
  ModelOnDevice found;
  KVBLOCKS_ASSIGN_OR_RETURN(found.device, OfName("device", catalogue.FindDevice(config.device())));
  KVBLOCKS_ASSIGN_OR_RETURN(found.model, FindModel(config, catalogue));
  SetWeights(config.weight_dtype(), &found.model);
  if (config.devices_per_node() > 0) found.device.devices_per_node = config.devices_per_node();
  if (config.node_bandwidth() > 0) found.device.node_gb_per_s = config.node_bandwidth();
  KVBLOCKS_RETURN_IF_ERROR(CheckDataParallel(config, found.model));
  return found;
}

absl::StatusOr<std::vector<LayerCache>> LayerCachesOf(const ReplayConfig& config,
                                                      const ModelFacts& model) {
  LayerCacheOptions options{.cache_dtype = config.kv_cache_dtype(),
                            .tensor_parallel = config.tensor_parallel(),
                            .pipeline_parallel = config.pipeline_parallel()};
  // States for reuse lie where blocks end.
  if (config.prefix_caching()) options.mamba_cache_mode = MambaCacheMode::kAlign;
  if (config.block_size() > 0) options.block_size = config.block_size();
  KVBLOCKS_ASSIGN_OR_RETURN(const auto drafter, DrafterOf(config, model));
  options.num_draft_tokens = config.num_draft_tokens();
  if (!drafter.has_own_layers) options.num_draft_layers = drafter.num_draft_layers;
  auto specs = LayerCaches(model, options);
  if (!specs.ok()) return OfLayerOption(specs.status());
  if (!drafter.has_own_layers) return specs;
  options.num_draft_tokens = 0;
  options.pipeline_parallel = 1;
  KVBLOCKS_ASSIGN_OR_RETURN(
      auto drafts, OfOption("--draft-model", "model", LayerCaches(*drafter.model, options)));
  for (LayerCache& layer : drafts) {
    layer.name = absl::StrCat("draft.", layer.name);
    layer.is_draft = true;
    layer.worker = static_cast<int>(config.pipeline_parallel()) - 1;
    specs->push_back(std::move(layer));
  }
  return specs;
}

PoolMemory MemoryOf(const ReplayConfig& config, const ModelOnDevice& hardware, int64_t stage) {
  const int64_t num_stages = config.pipeline_parallel();
  PoolMemory memory = {.device = hardware.device,
                       .model = StageFacts(hardware.model, num_stages, stage),
                       .tensor_parallel = config.tensor_parallel(),
                       .data_parallel = config.data_parallel(),
                       .utilization = config.memory_utilization()};
  const MeasuredReserves measured =
      MeasuredReservesOf(hardware.model, NumLinkedRanks(config, hardware));
  memory.activation_gb =
      config.activation_gb() >= 0 ? config.activation_gb() : measured.activation_gb;
  memory.graph_gb = config.graph_gb() >= 0 ? config.graph_gb() : measured.other_gb;
  const auto drafter = DrafterOf(config, hardware.model);
  if (drafter.ok() && stage == num_stages - 1)
    memory.draft_weights_gb = drafter->weight_bytes / 1e9;
  return memory;
}

absl::StatusOr<std::vector<int64_t>> CacheBytes(const ReplayConfig& config,
                                                const ModelOnDevice& hardware) {
  const int64_t num_stages = config.pipeline_parallel();
  if (absl::Status status = CheckPipelineStages(hardware.model, num_stages); !status.ok()) {
    return OfLayerOption(status);
  }
  if (config.kv_memory() > 0) {
    return std::vector<int64_t>(static_cast<size_t>(num_stages),
                                static_cast<int64_t>(std::floor(config.kv_memory() * 1e9)));
  }
  std::vector<int64_t> of_stages;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto bytes,
                              CacheBytesInMemory(MemoryOf(config, hardware, stage)));
    of_stages.push_back(bytes);
  }
  return of_stages;
}

std::optional<int64_t> LeastBesideModel(const ReplayConfig& config, const ModelOnDevice& hardware) {
  ReplayConfig left = config;
  left.set_kv_memory(0);
  const auto bytes = CacheBytes(left, hardware);
  if (!bytes.ok()) return std::nullopt;
  return *std::min_element(bytes->begin(), bytes->end());
}

std::string DescribeCacheBytes(const ReplayConfig& config, const ModelOnDevice& hardware) {
  if (config.kv_memory() > 0) return "given";
  const int64_t num_stages = config.pipeline_parallel();
  int64_t stage = 0;
  if (const auto bytes = CacheBytes(config, hardware); bytes.ok()) {
    stage = std::min_element(bytes->begin(), bytes->end()) - bytes->begin();
  }
  const std::string memory = DescribeMemory(MemoryOf(config, hardware, stage),
                                            NumLinkedRanks(config, hardware));
  return num_stages == 1 ? memory : absl::StrCat("stage ", stage, " of ", num_stages, ": ", memory);
}

std::string NodesNote(const ReplayConfig& config, const ModelOnDevice& hardware) {
  const DeviceFacts& device = hardware.device;
  const int64_t ranks = config.tensor_parallel() *
                        (IsInLockstep(config, hardware.model) ? config.data_parallel() : 1);
  if (ranks <= device.devices_per_node) return "";
  return absl::StrFormat(
      "%d devices exchange data in every layer and span %d nodes of %d, with %g GB/s of each "
      "device between them (--devices-per-node, --node-bandwidth)",
      ranks, (ranks + device.devices_per_node - 1) / device.devices_per_node,
      device.devices_per_node, device.node_gb_per_s);
}

int64_t MaxInFlightTokens(const ReplayConfig& config) {
  return config.max_num_batched_tokens() * (config.pipeline_parallel() + (config.async() ? 1 : 0));
}

DraftOptions DraftOptionsOf(const ReplayConfig& config) {
  return {.drafter = ParseDrafter(config.drafter()).value_or(Drafter::kNgram),
          .num_draft_tokens = config.num_draft_tokens(),
          .lookahead_hashes = config.lookahead_hashes()};
}

bool DropsLastHitBlock(const ReplayConfig& config) {
  SimulationConfig simulation;
  simulation.manager.enable_caching = config.prefix_caching();
  return ApplyEnginePreset(config.engine(), &simulation).ok() &&
         ApplyDrafts(DraftOptionsOf(config), &simulation).ok() && simulation.manager.use_eagle;
}

absl::Status ChooseLimits(const DeviceFacts& device, ReplayConfig* config) {
  const bool are_given = config->max_num_seqs() > 0 && config->max_num_batched_tokens() > 0;
  if (!are_given) {
    const SchedulerLimits limits = DefaultSchedulerLimits(
        {.device_memory_bytes = device.memory_bytes(),
         .device_name = device.name,
         .entry_point =
             config->entry_point() == "offline" ? EntryPoint::kOffline : EntryPoint::kServer,
         .version = *ParseEngineVersion(config->engine())});
    if (config->max_num_batched_tokens() == 0) {
      config->set_max_num_batched_tokens(limits.max_num_batched_tokens);
    }
    if (config->max_num_seqs() == 0) {
      config->set_max_num_seqs(std::min(limits.max_num_seqs, config->max_num_batched_tokens()));
    }
  }
  if (config->max_num_seqs() > config->max_num_batched_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-seqs: got ", config->max_num_seqs(),
                     ", expected at most --max-num-batched-tokens, which is ",
                     config->max_num_batched_tokens()));
  }
  return absl::OkStatus();
}

PlanPolicy PolicyOf(const ReplayConfig& config) {
  return config.plan() == "exact" ? PlanPolicy::kExact : PlanPolicy::kUpstream;
}

PlanOptions MakePlanOptions(const ReplayConfig& config, PlanPolicy policy,
                            std::vector<int64_t> bytes) {
  PlanOptions options{.policy = policy,
                      .version = *ParseEngineVersion(config.engine()),
                      .hybrid = config.hybrid(),
                      .limits = {.max_model_len = config.max_model_len(),
                                 .max_in_flight_tokens = MaxInFlightTokens(config),
                                 .decode_context_parallel = config.decode_context_parallel()},
                      .available_bytes = std::move(bytes),
                      .hashes_needed = config.prefix_caching(),
                      .use_eagle = DropsLastHitBlock(config),
                      .typical_len = config.typical_len()};
  for (PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    if (options.policy == PlanPolicy::kExact && config.layout() == LayoutName(layout)) {
      options.layout = layout;
    }
  }
  if (config.num_blocks() > 0) options.num_blocks_override = config.num_blocks();
  return options;
}

std::optional<int64_t> MatchUnitOf(const ReplayConfig& config,
                                   const std::vector<LayerCache>& caches) {
  if (!config.partial_hits()) return std::nullopt;
  if (config.match_unit() > 0) return config.match_unit();
  int64_t unit = 0;
  for (const LayerCache& cache : caches) {
    if (cache.spec.kind() == KvCacheSpecKind::kMamba || !cache.spec.is_prefix_cacheable()) continue;
    unit = std::gcd(unit, cache.spec.block_size());
  }
  return unit > 0 ? std::optional<int64_t>(unit) : std::nullopt;
}

absl::Status ToStatus(const std::vector<PlanError>& errors) {
  std::string text;
  for (const PlanError& error : errors) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", PlanErrorName(error.code), ": ",
                    error.message);
  }
  return absl::InvalidArgumentError(text);
}

namespace {

// One layer of the target, with its head; empty where a layer's shape depends on other layers.
std::optional<ModelFacts> OneLayerOf(const ModelFacts& target, bool dense) {
  char letter = 0;
  for (const char candidate : {'F', 'M', 'S', 'N'}) {
    if (letter == 0 && target.layer_pattern.find(candidate) != std::string::npos) {
      letter = candidate;
    }
  }
  if (letter == 0) return std::nullopt;
  ModelFacts layer = target;
  layer.name = absl::StrCat(target.name, " drafter");
  layer.layer_pattern = std::string(1, letter);
  layer.num_kv_shared_layers = 0;
  layer.states.clear();
  layer.compressed.reset();
  layer.chunk = 0;
  if (letter != 'S') layer.window = 0;
  if (letter != 'M' && letter != 'N') layer.latent.reset();
  if (letter != 'N') layer.indexer.reset();
  if (layer.experts) {
    const int64_t used = layer.experts->experts_per_token * layer.experts->intermediate_size +
                         layer.experts->shared_intermediate_size;
    if (dense) {
      layer.experts.reset();
      if (layer.intermediate_size == 0) layer.intermediate_size = used;
    } else {
      layer.experts->num_layers = 1;
    }
  }
  const ParamCount params = CountParams(layer, {});
  layer.params_b = params.total_b;
  layer.active_params_b = params.active_b;
  layer.rounded_params = false;
  if (!Validate(layer).ok()) return std::nullopt;
  return layer;
}

absl::StatusOr<DrafterSetup> NamedDrafter(const ReplayConfig& config) {
  DrafterSetup drafter;
  drafter.description = "a draft model without --draft-model";
  if (config.draft_model().empty()) return drafter;
  ReplayConfig named = config;
  named.set_model(config.draft_model());
  KVBLOCKS_ASSIGN_OR_RETURN(auto found, OfOption("--draft-model", FindModelOnDevice(named)));
  drafter.description = absl::StrCat("draft model ", found.model.name);
  drafter.num_draft_layers = found.model.num_layers();
  drafter.has_own_layers = true;
  drafter.weight_bytes = found.model.weight_bytes();
  drafter.model = std::move(found.model);
  return drafter;
}

}  // namespace

absl::StatusOr<DrafterSetup> DrafterOf(const ReplayConfig& config, const ModelFacts& target) {
  const Drafter kind = ParseDrafter(config.drafter()).value_or(Drafter::kNgram);
  const bool is_model = kind == Drafter::kDraftModel || kind == Drafter::kParallelDraftModel;
  if (!config.draft_model().empty() && !is_model) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--draft-model: got ", config.draft_model(), " with --drafter=", config.drafter(),
        ", expected draft_model or parallel_draft_model"));
  }
  DrafterSetup drafter;
  const int64_t num_drafts = config.num_draft_tokens();
  if (num_drafts == 0 || kind == Drafter::kNgram) return drafter;
  if (is_model) {
    KVBLOCKS_ASSIGN_OR_RETURN(drafter, NamedDrafter(config));
  } else if (kind == Drafter::kDFlash || kind == Drafter::kDSpark) {
    drafter.description =
        absl::StrCat(std::string(DrafterName(kind)), ", whose layers are not known");
  } else {
    const bool is_eagle = kind == Drafter::kEagle || kind == Drafter::kParallelEagle;
    drafter.model = OneLayerOf(target, is_eagle);
    drafter.num_draft_layers = kind == Drafter::kMtpModules ? num_drafts : 1;
    drafter.description = drafter.model
                              ? absl::StrCat("one ", is_eagle ? "dense " : "", "layer and head")
                              : absl::StrCat("a layer of ", target.name);
    if (drafter.model) {
      const ModelFacts& layer = *drafter.model;
      drafter.weight_bytes = static_cast<double>(drafter.num_draft_layers) *
                             std::max(0.0, layer.weight_bytes() - layer.embedding_params_b() * 1e9 *
                                                                      layer.bytes_per_param);
    }
  }
  const bool one_pass = kind == Drafter::kParallelEagle || kind == Drafter::kParallelDraftModel ||
                        kind == Drafter::kDFlash || kind == Drafter::kDSpark;
  drafter.num_passes = one_pass ? 1 : num_drafts;
  return drafter;
}

}  // namespace kvblocks::sim
