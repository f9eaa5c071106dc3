#include "examples/engine/model_runner.h"

#include <cblas.h>

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {

ModelRunner::ModelRunner(const Model& model, RunnerOptions options)
    : StepRunner(std::move(options)), model_(model), threads_(options_.threads) {
  openblas_set_num_threads(threads_.num_threads());
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    const Model& model, const Plan& plan, const sim::SimulationConfig& config,
    RunnerOptions options) {
  KVBLOCKS_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model, std::move(options)));
  KVBLOCKS_ASSIGN_OR_RETURN(runner->memory_,
                            PlannedMemory::Create(plan, runner->MemoryOptions(plan)));
  KVBLOCKS_RETURN_IF_ERROR(runner->AddLayers());
  KVBLOCKS_RETURN_IF_ERROR(runner->AddSparseWork(config));
  KVBLOCKS_ASSIGN_OR_RETURN(runner->builder_, attention::CpuBackend().MakeMetadataBuilder(
                                                  runner->BuilderOptions(config)));
  return runner;
}

absl::Status ModelRunner::AddLayers() {
  size_t num_caches = 0;
  for (int64_t i = 0; i < model_.config().facts.num_layers(); ++i) {
    const attention::LayerConfig config = model_.AttentionOf(i);
    const LayerMemory* const memory = memory_->Find(config.name + ".attn");
    if (memory == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has no cache ", config.name,
                                                     ".attn; it must be one of the same model"));
    }
    Layer& layer = layers_.emplace_back();
    layer.cache = memory->cache;
    if (config.is_mla() && layer.cache.absent()) {
      KVBLOCKS_ASSIGN_OR_RETURN(layer.cache, memory->LatentCache(config.latent_rank));
    }
    // Without a cache it would attend to the step's own tokens alone.
    if (layer.cache.absent() || layer.cache.num_kv_heads() != config.num_kv_heads) {
      return absl::UnimplementedError(absl::StrCat(
          config.name, ": its cache has ", layer.cache.absent() ? 0 : layer.cache.num_kv_heads(),
          " heads that can be read, expected ", config.num_kv_heads,
          memory->opaque.empty() ? "; the engine has one rank" : ": ", memory->opaque));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(layer.impl, attention::CpuBackend().MakeImpl(config));
    layer.metadata = MetadataOf(*memory);
    ++num_caches;
    if (!config.sparse.enabled()) continue;
    const LayerMemory* const index = memory_->Find(config.name + ".indexer");
    // Slots that the indexer chooses are read in the layer's cache.
    if (index == nullptr || MetadataOf(*index) != layer.metadata) {
      return absl::UnimplementedError(absl::StrCat(
          config.name,
          ": its indexer's cache is not planned, or its blocks have other numbers than "
          "the layer's; use the uniform layout"));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(layer.index_cache, IndexCacheOf(*index, config.sparse.index_dim));
    ++num_caches;
  }
  if (num_caches != memory_->layers().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has ", memory_->layers().size(),
                                                   " caches, of which the model's layers read ",
                                                   num_caches));
  }
  return absl::OkStatus();
}

// Rows of values, or, as engines store them, of codes with a scale each behind those of the block.
absl::StatusOr<attention::IndexCacheView> ModelRunner::IndexCacheOf(const LayerMemory& layer,
                                                                    int64_t dim) {
  if (layer.rows.absent()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cache ", layer.name, " has no rows of one vector each"));
  }
  if (layer.rows.dtype != attention::DType::kU8) return attention::IndexCacheView(layer.rows);
  const int64_t rows = layer.rows.extent[1];
  KVBLOCKS_ASSIGN_OR_RETURN(const auto blocks,
                            layer.placed.pages.Slice(1, 0, attention::IndexBlockBytes(rows, dim)));
  return attention::IndexCacheView(blocks, rows);
}

absl::Status ModelRunner::AddSparseWork(const sim::SimulationConfig& config) {
  const attention::LayerConfig& layer = layers_.front().impl->config();
  if (!layer.sparse.enabled()) return absl::OkStatus();
  const attention::SparseWorkBounds bounds{.max_tokens = config.scheduler.max_num_batched_tokens,
                                           .max_seq_len = config.manager.max_model_len};
  work_memory_.resize(static_cast<size_t>(attention::SparseWorkBytes(layer, bounds)));
  KVBLOCKS_ASSIGN_OR_RETURN(
      work_,
      attention::MakeSparseWork(layer, bounds, attention::ViewOf(absl::MakeSpan(work_memory_))));
  return absl::OkStatus();
}

absl::Status ModelRunner::Run(const sim::StepRecord& step) {
  KVBLOCKS_ASSIGN_OR_RETURN(const attention::BatchInput input, InputOf(step));
  KVBLOCKS_RETURN_IF_ERROR(builder_->Build(input));
  const StepTokens tokens = TokensOf(step, builder_->permutation());
  attention::ExecContext context;
  context.threads = &threads_;
  const auto attend = [&](int64_t index, const attention::LayerTensors& tensors) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    attention::LayerTensors paged = tensors;
    paged.cache = layer.cache;
    attention::SparseTensors sparse;
    if (tensors.sparse != nullptr) {
      sparse = *tensors.sparse;
      sparse.index_cache = layer.index_cache;
      sparse.work = work_;
      paged.sparse = &sparse;
    }
    return layer.impl->Forward(context, paged, &builder_->metadata(layer.metadata));
  };
  KVBLOCKS_ASSIGN_OR_RETURN(
      const std::vector<float> logits,
      model_.Forward({.tokens = tokens.tokens, .positions = tokens.positions, .rows = tokens.rows},
                     attend));
  Take(tokens, logits);
  return absl::OkStatus();
}

}  // namespace kvblocks::engine
