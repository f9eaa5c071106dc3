#include "kvblocks/specs/catalogue/param_count.h"

#include <algorithm>

namespace kvblocks {
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
