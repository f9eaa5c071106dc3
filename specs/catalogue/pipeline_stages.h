// PipelineStages: which layers of a model each stage of a pipeline has, and what is left of the model's
// facts there (SM-28).
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
#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks {

// The first layer of each stage, then the number of layers. Layers that are left over go to the stages
// before the last one, from the back. REQUIRES: 1 <= num_stages <= num_layers.
std::vector<int64_t> PipelineStages(int64_t num_layers, int64_t num_stages);

// InvalidArgument, beginning with "pipeline_parallel", where the model cannot be divided so: more stages
// than layers, or layers that read what another layer stores.
absl::Status CheckPipelineStages(const ModelFacts& model, int64_t num_stages);

// The model as one stage has it. The first one has the table of embeddings, the last one the output head;
// layers with experts are taken to be the last ones, and layers apart from their experts to be of one
// size. With one stage: the model. REQUIRES: what CheckPipelineStages accepts.
ModelFacts StageFacts(const ModelFacts& model, int64_t num_stages, int64_t stage);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_PIPELINE_STAGES_H_
