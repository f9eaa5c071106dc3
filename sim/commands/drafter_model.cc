#include "kvblocks/sim/commands/drafter_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/drafting.h"
#include "kvblocks/specs/catalogue/pipeline_stages.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

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
  auto found = FindModelOnDevice(named);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat("--draft-model: ", found.status().message()));
  }
  drafter.description = absl::StrCat("draft model ", found->model.name);
  drafter.num_draft_layers = found->model.num_layers();
  drafter.has_own_layers = true;
  drafter.weight_bytes = found->model.weight_bytes();
  drafter.model = std::move(found->model);
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
    auto named = NamedDrafter(config);
    if (!named.ok()) return named.status();
    drafter = *std::move(named);
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
