// CountParams: the parameters of a model, estimated from its shapes.
//
// Counted: embeddings, attention projections, indexers and compressors, dense and expert
// feed-forward parts with their routers. Left out: biases, norms, the parts of a layer that draft
// models or other modalities add. For the published models it is within 3 % of the published total.

#ifndef KVBLOCKS_SPECS_CATALOGUE_PARAM_COUNT_H_
#define KVBLOCKS_SPECS_CATALOGUE_PARAM_COUNT_H_

#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks {

// What the facts do not say, because no cache depends on it.
struct ParamShape {
  bool gated_attention = false;       // letter F: queries come with a gate as wide as they are
  bool dense_beside_experts = false;  // layers with experts have a dense part, too
  double table_params = 0;            // of tables of which a token reads next to nothing
};

struct ParamCount {
  double total_b = 0;
  double active_b = 0;  // per token, embeddings included
};

ParamCount CountParams(const ModelFacts& model, const ParamShape& shape);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_PARAM_COUNT_H_
