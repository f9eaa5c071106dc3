#include "specs/catalogue/pipeline_stages.h"

#include <algorithm>
#include <string>

#include "checks/field_error.h"

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
    return FieldError(
        "pipeline_parallel", got,
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
  // What is said of the head and of embeddings follows from the vocabulary: only the last stage has
  // one. The table of the first one is memory, and no work.
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

namespace {

double Double(int64_t value) { return static_cast<double>(value); }

// Projections of queries, keys, values and the output.
double Attention(const ModelFacts& m, int64_t kv_heads, int64_t head_size, bool gated) {
  const double queries = Double(m.num_heads) * Double(head_size);
  const double keys_values = 2.0 * Double(kv_heads) * Double(head_size);
  return Double(m.hidden_size) * ((gated ? 3 : 2) * queries + keys_values);
}

double Queries(const ModelFacts& m, int64_t rank, double width) {
  if (rank == 0) return Double(m.hidden_size) * width;
  return Double(rank) * (Double(m.hidden_size) + width);
}

double Indexer(const ModelFacts& m, int64_t q_rank) {
  const double width = Double(m.indexer->num_heads) * Double(m.indexer->head_dim);
  return Double(q_rank == 0 ? m.hidden_size : q_rank) * width +
         Double(m.hidden_size) * Double(m.indexer->num_heads);
}

double Latent(const ModelFacts& m) {
  const LatentFacts& l = *m.latent;
  const double heads = Double(m.num_heads);
  return Queries(m, l.q_lora_rank, heads * Double(l.qk_nope_head_dim + l.qk_rope_head_dim)) +
         Double(m.hidden_size) * Double(l.row_elements()) +
         Double(l.kv_lora_rank) * heads * Double(l.qk_nope_head_dim + l.v_head_dim) +
         heads * Double(l.v_head_dim) * Double(m.hidden_size);
}

double Compressed(const ModelFacts& m) {
  const CompressedFacts& c = *m.compressed;
  const double width = Double(m.num_heads) * Double(m.head_size);
  return Queries(m, c.q_lora_rank, width) + Double(m.hidden_size) * Double(m.head_size) +
         width * Double(c.o_lora_rank) +
         Double(c.o_groups) * Double(c.o_lora_rank) * Double(m.hidden_size);
}

// Keys that an indexer makes of stored rows.
double IndexKeys(const ModelFacts& m) { return Double(m.head_size) * Double(m.indexer->head_dim); }

// A compressor projects each token to one row of its state.
double Compressor(const ModelFacts& m, const CompressorStateFacts& state) {
  return Double(m.hidden_size) * Double(state.row_elements + state.indexer_elements);
}

// As gated delta nets have it: the first state holds channels of queries, keys and values, the
// second one matrix per value head.
double Linear(const ModelFacts& m) {
  if (m.states.size() != 2 || m.states[1].shape.size() != 3) return 0;
  const double channels = Double(m.states[0].shape[0]);
  const double values = Double(m.states[1].shape[0]) * Double(m.states[1].shape[2]);
  const double gates = 2.0 * Double(m.states[1].shape[0]);
  return Double(m.hidden_size) * (channels + 2 * values + gates);
}

double OfLetter(const ModelFacts& m, const ParamShape& shape, char letter) {
  switch (static_cast<LayerKind>(letter)) {
    case LayerKind::kFull:
      return Attention(m, m.full_kv_heads(), m.full_head_size(), shape.gated_attention);
    case LayerKind::kSliding:
    case LayerKind::kChunked:
      return Attention(m, m.num_kv_heads, m.head_size, false);
    case LayerKind::kLatent:
      return Latent(m);
    case LayerKind::kSparseLatent:
      return Latent(m) + Indexer(m, m.latent->q_lora_rank) +
             Double(m.hidden_size) * Double(m.indexer->head_dim);
    case LayerKind::kCompressedWindow:
      return Compressed(m);
    case LayerKind::kCompressed4:
      return Compressed(m) + Compressor(m, m.compressed->state4) +
             Indexer(m, m.compressed->q_lora_rank);
    case LayerKind::kCompressed128:
      return Compressed(m) + Compressor(m, m.compressed->state128);
    case LayerKind::kSharedRows2:
      return Compressed(m) + Double(m.hidden_size) * Double(m.compressed->ring2.row_elements) +
             Indexer(m, m.compressed->q_lora_rank) + IndexKeys(m);
    case LayerKind::kSharedRows1:
      return Compressed(m) + Double(m.hidden_size) * Double(m.head_size) +
             Indexer(m, m.compressed->q_lora_rank) + IndexKeys(m);
    case LayerKind::kReader:
      return Compressed(m);
    case LayerKind::kSelector:
      return Compressed(m) + Indexer(m, m.compressed->q_lora_rank);
    case LayerKind::kLinear:
      return Linear(m);
  }
  return 0;
}

}  // namespace

ParamCount CountParams(const ModelFacts& m, const ParamShape& shape) {
  const double hidden = Double(m.hidden_size);
  double params = m.embedding_params_b() * 1e9;
  for (const char letter : kLayerLetters) {
    const double layers = Double(m.CountLayers({&letter, 1}));
    if (layers > 0) params += layers * OfLetter(m, shape, letter);
  }
  const int64_t expert_layers = m.experts ? m.experts->num_layers : 0;
  const int64_t dense_layers =
      shape.dense_beside_experts ? m.num_layers() : m.num_layers() - expert_layers;
  params += 3 * Double(dense_layers) * hidden * Double(m.intermediate_size);
  params += shape.table_params;
  double idle = shape.table_params;
  if (m.experts) {
    const ExpertFacts& e = *m.experts;
    params += Double(expert_layers) * hidden *
              (3 * Double(e.shared_intermediate_size) + Double(e.num_experts));
    const double routed = m.routed_params_b() * 1e9;
    params += routed;
    idle += routed * (1 - Double(e.experts_per_token) / Double(e.num_experts));
  }
  return {params / 1e9, (params - idle) / 1e9};
}

}  // namespace kvblocks
