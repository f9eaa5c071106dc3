// LayerCaches: what each layer of a model stores, as layer caches in order of registration.
//
// The bridge from a model's facts to planning: the layer caches of one worker, or of one per pipeline
// stage, layer by layer, and within a layer in the order window, main, indexer, compressor state,
// indexer's compressor state.
//
//   LayerCaches(*Catalogue::BuiltIn().FindModel("llama-3.1-8b"), {})   // 32 full caches
//
// Names are "model.layers.7.attn", and next to it ".indexer", ".swa", ".compressor_state",
// ".indexer_compressor_state" or ".linear_attn"; they never change for a given model.
//
// Pure; costs a spec per layer cache.

#ifndef KVBLOCKS_SPECS_CATALOGUE_LAYER_CACHES_H_
#define KVBLOCKS_SPECS_CATALOGUE_LAYER_CACHES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/specs/catalogue/model_facts.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/layer_cache.h"

namespace kvblocks {

struct LayerCacheOptions {
  // Tokens per block. Default: 64 for models with latent rows, else 16. DeepSeek-V4's blocks belong
  // to the model, so that a value is refused.
  std::optional<int64_t> block_size = std::nullopt;
  // As ParseCacheDtype takes it. Models with sparse latent or compressed rows have one fp8 format:
  // there, every string that starts with "fp8", except fp8_per_token_head, means fp8_ds_mla.
  std::string cache_dtype = "auto";
  std::optional<DataType> model_dtype = std::nullopt;  // what "auto" stores; default: the model's
  // Ranks divide the KV heads; where there are fewer heads than ranks each rank holds one. Latent
  // rows, indexers and compressed rows are on every rank.
  int64_t tensor_parallel = 1;
  // Stages that divide the layers (see PipelineStages): LayerCache::worker is the stage. Draft layers are
  // on the last one.
  int64_t pipeline_parallel = 1;
  // Of the states of linear layers.
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
  int64_t num_speculative_blocks = 0;
  int64_t num_checkpoint_blocks = 0;
  // Tokens that a drafter proposes per step. Rings have rows for them, the token before and the one
  // that is sure.
  int64_t num_draft_tokens = 0;
  // Layers of a draft model that predicts further tokens (MTP), registered after the model's own.
  int64_t num_draft_layers = 0;
};

// What the rows of `model` are stored as. Refused: formats that its layers do not have.
absl::StatusOr<CacheDtype> ResolveCacheDtype(const ModelFacts& model,
                                             const LayerCacheOptions& options);

// Messages name the field; nothing is returned unless every layer has its specs.
absl::StatusOr<std::vector<LayerCache>> LayerCaches(const ModelFacts& model,
                                                    const LayerCacheOptions& options);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_LAYER_CACHES_H_
