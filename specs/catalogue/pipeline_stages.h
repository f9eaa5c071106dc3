// PipelineStages: which layers of a model each stage of a pipeline has, and what is left of the
// model's facts there (SM-28).
//
//   PipelineStages(32, 3)           // {0, 11, 22, 32}: as the engine divides them
//   StageFacts(model, 3, 0)         // layers 0 to 10 and the table of embeddings
//
// Pure.

#ifndef KVBLOCKS_SPECS_CATALOGUE_PIPELINE_STAGES_H_
#define KVBLOCKS_SPECS_CATALOGUE_PIPELINE_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/model_facts.h"

namespace kvblocks {

// The first layer of each stage, then the number of layers. Layers that are left over go to the
// stages before the last one, from the back. REQUIRES: 1 <= num_stages <= num_layers.
std::vector<int64_t> PipelineStages(int64_t num_layers, int64_t num_stages);

// InvalidArgument, beginning with "pipeline_parallel", where the model cannot be divided so: more
// stages than layers, or layers that read what another layer stores.
absl::Status CheckPipelineStages(const ModelFacts& model, int64_t num_stages);

// The model as one stage has it. The first one has the table of embeddings, the last one the output
// head; layers with experts are taken to be the last ones, and layers without their experts to be
// of one size. With one stage: the model. REQUIRES: what CheckPipelineStages accepts.
ModelFacts StageFacts(const ModelFacts& model, int64_t num_stages, int64_t stage);

// CountParams: the parameters of a model, estimated from its shapes.
//
// Counted: embeddings, attention projections, indexers and compressors, dense and expert
// feed-forward parts with their routers. Left out: biases, norms, the parts of a layer that draft
// models or other modalities add. For the published models it is within 3 % of the published total.

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

#endif  // KVBLOCKS_SPECS_CATALOGUE_PIPELINE_STAGES_H_
