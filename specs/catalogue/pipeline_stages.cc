#include "kvblocks/specs/catalogue/pipeline_stages.h"

#include <algorithm>
#include <string>

#include "kvblocks/checks/field_error.h"

namespace kvblocks {

std::vector<int64_t> PipelineStages(int64_t num_layers, int64_t num_stages) {
  std::vector<int64_t> first = {0};
  const int64_t rest = num_layers % num_stages;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const bool takes_one_more = stage < num_stages - 1 && stage >= num_stages - 1 - rest;
    first.push_back(first.back() + num_layers / num_stages + (takes_one_more ? 1 : 0));
  }
  return first;
}

absl::Status CheckPipelineStages(const ModelFacts& model, int64_t num_stages) {
  const std::string got = std::to_string(num_stages);
  if (num_stages < 1 || num_stages > model.num_layers()) {
    return FieldError("pipeline_parallel", got,
                      "1 to " + std::to_string(model.num_layers()) + ", the layers of " + model.name);
  }
  if (num_stages > 1 &&
      (model.num_kv_shared_layers > 0 || model.CountLayers(kSharedRowLetters) > 0)) {
    return FieldError("pipeline_parallel", got, "1 for " + model.name,
                      "some of its layers read what another layer stores");
  }
  return absl::OkStatus();
}

ModelFacts StageFacts(const ModelFacts& model, int64_t num_stages, int64_t stage) {
  if (num_stages == 1) return model;
  const std::vector<int64_t> first = PipelineStages(model.num_layers(), num_stages);
  const int64_t begin = first[static_cast<size_t>(stage)];
  const int64_t end = first[static_cast<size_t>(stage) + 1];
  ModelFacts part = model;
  part.layer_pattern = model.layer_pattern.substr(static_cast<size_t>(begin),
                                                  static_cast<size_t>(end - begin));
  // The parts that only some layers need.
  if (part.CountLayers("MN") == 0) part.latent.reset();
  if (part.CountLayers("N421I") == 0) part.indexer.reset();
  if (part.CountLayers(kCompressedLetters) == 0) part.compressed.reset();
  if (part.CountLayers("L") == 0) part.states.clear();

  const double layers = static_cast<double>(end - begin) / static_cast<double>(model.num_layers());
  const double table = static_cast<double>(model.hidden_size) *
                       static_cast<double>(model.vocab_size) / 1e9;
  const double routed = model.routed_params_b();
  double active_routed = 0, stage_active_routed = 0;
  if (model.experts) {
    const ExpertFacts& experts = *model.experts;
    const int64_t first_expert_layer = model.num_layers() - experts.num_layers;
    part.experts->num_layers = end - std::min(end, std::max(begin, first_expert_layer));
    active_routed = routed * static_cast<double>(experts.experts_per_token) /
                    static_cast<double>(experts.num_experts);
    stage_active_routed = active_routed * static_cast<double>(part.experts->num_layers) /
                          static_cast<double>(experts.num_layers);
  }
  const double stage_routed = part.routed_params_b();
  if (part.experts && part.experts->num_layers == 0) part.experts.reset();
  // Publishers round their counts.
  const auto without = [&](double all, double of_experts) {
    return std::max(all - model.embedding_params_b() - of_experts, 1e-6) * layers;
  };
  part.params_b = without(model.params_b, routed) + stage_routed;
  part.active_params_b = std::min(
      without(model.active_params_b, active_routed) + stage_active_routed, part.params_b);
  // What is said of the head and of embeddings follows from the vocabulary: only the last stage has one.
  // The table of the first one is memory, and no work.
  part.tied_embeddings = true;
  if (stage == 0) part.params_b += table;
  if (stage == num_stages - 1) {
    part.params_b += table;
    part.active_params_b += table;
  } else {
    part.vocab_size = 1;
    part.active_params_b = std::max(part.active_params_b, part.embedding_params_b());
    part.params_b = std::max(part.params_b, part.active_params_b);
  }
  return part;
}

}  // namespace kvblocks
