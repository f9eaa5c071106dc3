#include "examples/engine/model_runner.h"

#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {

ModelRunner::ModelRunner(const Model& model, RunnerOptions options, AttentionPlace* place)
    : StepRunner(std::move(options)),
      model_(model),
      threads_(options_.threads),
      place_(place != nullptr ? *place : host_),
      masks_(place_.mask_options()) {
  host_.set_threads(&threads_);
  openblas_set_num_threads(threads_.num_threads());
}

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(
    const Model& model, const Plan& plan, const sim::SimulationConfig& config,
    RunnerOptions options, AttentionPlace* place) {
  KVBLOCKS_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<ModelRunner> runner(new ModelRunner(model, std::move(options), place));
  KVBLOCKS_RETURN_IF_ERROR(runner->TakeMemory(plan, runner->place_));
  KVBLOCKS_RETURN_IF_ERROR(runner->AddLayers());
  KVBLOCKS_RETURN_IF_ERROR(runner->AddSparseWork(config));
  KVBLOCKS_RETURN_IF_ERROR(runner->AddBlender());
  KVBLOCKS_ASSIGN_OR_RETURN(runner->builder_, runner->place_.backend().MakeMetadataBuilder(
                                                  runner->BuilderOptions(config)));
  KVBLOCKS_RETURN_IF_ERROR(runner->place_.UseBuilder(&*runner->builder_));
  return runner;
}

absl::Status ModelRunner::AddLayers() {
  size_t num_caches = 0;
  for (int64_t i = 0; i < model_.config().facts.num_layers(); ++i) {
    attention::LayerConfig config = model_.AttentionOf(i);
    for (attention::ConstTensorView* kept :
         {&config.sinks, &config.sparse.cos_sin, &config.sparse.compressor.bias,
          &config.sparse.compressor.norm_weight, &config.sparse.index_compressor.bias,
          &config.sparse.index_compressor.norm_weight}) {
      KVBLOCKS_RETURN_IF_ERROR(place_.Keep(*kept));
    }
    Layer& layer = layers_.emplace_back();
    KVBLOCKS_ASSIGN_OR_RETURN(layer.cache, CacheOf(config, &layer.metadata));
    KVBLOCKS_ASSIGN_OR_RETURN(layer.impl, place_.backend().MakeImpl(config));
    ++num_caches;
    if (config.sparse.enabled()) {
      KVBLOCKS_RETURN_IF_ERROR(AddSparseCaches(config, layer, &num_caches));
    }
  }
  if (num_caches != memory_->layers().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has ", memory_->layers().size(),
                                                   " caches, of which the model's layers read ",
                                                   num_caches));
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::AddSparseCaches(const attention::LayerConfig& config, Layer& layer,
                                          size_t* num_caches) {
  const attention::SparseConfig& sparse = config.sparse;
  absl::Status status;
  const auto find = [&](const std::string& name) {
    const LayerMemory* const memory = memory_->Find(name);
    if (memory == nullptr) {
      status.Update(absl::InvalidArgumentError(absl::StrCat("the plan has no cache ", name)));
    }
    ++*num_caches;
    return memory;
  };
  int rows = layer.metadata;  // of those that an indexer chooses among
  if (sparse.compresses()) {
    const LayerMemory* const compressed = find(sparse.names.compressed);
    const LayerMemory* const states = find(sparse.names.states);
    KVBLOCKS_RETURN_IF_ERROR(status);
    KVBLOCKS_ASSIGN_OR_RETURN(layer.sparse.compressed_cache,
                              compressed->LatentCache(config.latent_rank));
    rows = layer.compressed = MetadataOf(*compressed);
    layer.states = MetadataOf(*states);
    layer.sparse.compressor.states = states->rows;
  }
  if (sparse.topk == 0) return absl::OkStatus();
  const LayerMemory* const index = find(sparse.names.index);
  // Slots that the indexer chooses are read in the rows' cache.
  if (index == nullptr || MetadataOf(*index) != rows) {
    return absl::UnimplementedError(
        absl::StrCat(config.name,
                     ": its indexer's cache is not planned, or its blocks have other numbers than "
                     "the layer's; use another layout"));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(layer.sparse.index_cache, IndexCacheOf(*index, sparse.index_dim));
  if (!sparse.compresses()) return absl::OkStatus();
  const LayerMemory* const states = find(sparse.names.index_states);
  KVBLOCKS_RETURN_IF_ERROR(status);
  if (MetadataOf(*states) != layer.states) {
    return absl::UnimplementedError(absl::StrCat(
        config.name,
        ": the states of its compressors have blocks of other numbers; use the slab layout"));
  }
  layer.sparse.index_compressor.states = states->rows;
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
  const attention::SparseWorkBounds bounds{.max_tokens = config.scheduler.max_num_batched_tokens,
                                           .max_seq_len = config.manager.max_model_len};
  for (Layer& layer : layers_) {
    const attention::LayerConfig& own = layer.impl->config();
    if (!own.sparse.enabled()) continue;
    KVBLOCKS_ASSIGN_OR_RETURN(
        const attention::TensorView memory,
        place_.AllocateBytes("lists of rows", attention::SparseWorkBytes(own, bounds),
                             &layer.work_memory));
    KVBLOCKS_ASSIGN_OR_RETURN(layer.sparse.work, attention::MakeSparseWork(own, bounds, memory));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<int64_t, attention::MaskRef>> ModelRunner::MasksOf(
    const sim::StepRecord& step) {
  std::map<int64_t, attention::MaskRef> masks;
  if (!IsMasked(step)) return masks;
  for (const Layer& layer : layers_) {
    const int64_t window = layer.impl->config().window;
    if (masks.contains(window)) continue;
    KVBLOCKS_ASSIGN_OR_RETURN(masks[window], MaskOf(step, builder_->permutation(), window, masks_));
  }
  return masks;
}

absl::Status ModelRunner::AddBlender() {
  if (std::none_of(options_.requests.begin(), options_.requests.end(),
                   [](const auto& one) { return one.second.blends(); })) {
    return absl::OkStatus();
  }
  std::vector<attention::BlendLayer> layers;
  std::vector<attention::LayerConfig> configs;
  for (const Layer& layer : layers_) {
    layers.push_back({.cache = layer.cache});
    configs.push_back(layer.impl->config());
  }
  KVBLOCKS_ASSIGN_OR_RETURN(blender_, Blender::Create(model_, std::move(layers), std::move(configs),
                                                      options_.blend_ratio, &place_));
  if (groups_.size() == 1) return absl::OkStatus();
  return absl::UnimplementedError("chunks: the plan has several KV groups; blends have one");
}

absl::StatusOr<std::vector<std::optional<attention::BlendSession>>> ModelRunner::SessionsOf(
    const sim::StepRecord& step) const {
  std::vector<std::optional<attention::BlendSession>> sessions;
  for (const int32_t index : builder_->permutation()) {
    auto& session = sessions.emplace_back();
    const sim::ScheduledRecord& record = step.scheduled[static_cast<size_t>(index)];
    const RequestAttention* const asks = AttentionOf(*record.request);
    if (asks == nullptr || asks->chunks.empty() || record.is_chunk || !record.is_prefill) continue;
    KVBLOCKS_ASSIGN_OR_RETURN(
        session,
        blender_->SessionOf(KnownTokens(*record.request, 0, record.num_context + record.num_tokens),
                            asks->chunks, record.num_context));
  }
  return sessions;
}

absl::Status ModelRunner::KeepChunks(const sim::StepRecord& step) {
  for (size_t b = 0; b < step.scheduled.size(); ++b) {
    const auto index = static_cast<size_t>(builder_->permutation()[b]);
    const sim::ScheduledRecord& record = step.scheduled[index];
    const RequestAttention* const asks = AttentionOf(*record.request);
    const int64_t prompt = record.request->num_prompt;
    // Where the prompt ends.
    if (asks == nullptr || !asks->keep || record.num_context >= prompt ||
        record.num_context + record.num_tokens < prompt) {
      continue;
    }
    KVBLOCKS_RETURN_IF_ERROR(
        blender_->Keep(KnownTokens(*record.request, 0, prompt), static_cast<int64_t>(b)));
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::Run(const sim::StepRecord& step) {
  KVBLOCKS_ASSIGN_OR_RETURN(const attention::BatchInput input, InputOf(step));
  KVBLOCKS_RETURN_IF_ERROR(builder_->Build(input));
  KVBLOCKS_RETURN_IF_ERROR(place_.Upload());
  const StepTokens tokens = TokensOf(step, builder_->permutation());
  const Model::Step model_step{
      .tokens = tokens.tokens, .positions = tokens.positions, .rows = tokens.rows};
  KVBLOCKS_ASSIGN_OR_RETURN(const auto masks, MasksOf(step));
  std::vector<const attention::BlendSession*> sessions;
  // Steps with a mask compute all rows.
  std::vector<std::optional<attention::BlendSession>> own_sessions;
  if (blender_ && masks.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(own_sessions, SessionsOf(step));
    for (const auto& session : own_sessions) sessions.push_back(session ? &*session : nullptr);
  }
  std::vector<float> logits;
  if (std::any_of(sessions.begin(), sessions.end(), [](const auto* one) { return one; })) {
    std::vector<attention::BlendLayerReport> report;
    KVBLOCKS_ASSIGN_OR_RETURN(logits, blender_->Run(sessions, model_step, hooks_, &report));
    if (options_.on_blend) options_.on_blend(report);
  } else {
    KVBLOCKS_ASSIGN_OR_RETURN(logits,
                              model_.Forward(model_step, [&](int64_t index, const auto& tensors) {
                                return Attend(layers_[static_cast<size_t>(index)], tensors, masks);
                              }));
  }
  if (blender_) KVBLOCKS_RETURN_IF_ERROR(KeepChunks(step));
  KVBLOCKS_RETURN_IF_ERROR(place_.CheckFlags());
  Take(tokens, logits);
  return absl::OkStatus();
}

absl::Status ModelRunner::Attend(const Layer& layer, const attention::LayerTensors& tensors,
                                 const std::map<int64_t, attention::MaskRef>& masks) {
  const attention::LayerConfig& config = layer.impl->config();
  attention::LayerTensors paged = tensors;
  attention::SparseTensors sparse;
  if (tensors.sparse != nullptr) sparse = *tensors.sparse;
  place_.BeginCall();
  for (attention::ConstTensorView* rows :
       {&paged.q, &paged.k, &paged.v, &sparse.index_q, &sparse.index_k, &sparse.index_weights,
        &sparse.compressor.kv, &sparse.compressor.score, &sparse.index_compressor.kv,
        &sparse.index_compressor.score}) {
    KVBLOCKS_RETURN_IF_ERROR(place_.Bring(*rows));
  }
  KVBLOCKS_RETURN_IF_ERROR(place_.Reserve(paged.out));
  paged.cache = layer.cache;
  paged.hooks = hooks_;
  attention::CommonAttentionMetadata metadata = place_.metadata(layer.metadata), compressed, states;
  if (tensors.sparse != nullptr) {
    sparse.work = layer.sparse.work;
    sparse.index_cache = layer.sparse.index_cache;
    if (config.sparse.compresses()) {
      compressed = place_.metadata(layer.compressed);
      states = place_.metadata(layer.states);
      sparse.compressed_cache = layer.sparse.compressed_cache;
      sparse.compressor.states = layer.sparse.compressor.states;
      sparse.index_compressor.states = layer.sparse.index_compressor.states;
      sparse.compressed = &compressed;
      sparse.states = &states;
    }
    KVBLOCKS_RETURN_IF_ERROR(attention::BuildSparseLists(place_.backend(), place_.context(), config,
                                                         metadata, sparse.compressed, sparse.work));
    paged.sparse = &sparse;
  }
  if (!masks.empty()) metadata.custom_mask = masks.at(config.window);
  KVBLOCKS_RETURN_IF_ERROR(layer.impl->Forward(place_.context(), paged, &metadata));
  return place_.Copy(tensors.out, paged.out);
}

}  // namespace kvblocks::engine
