#include "examples/engine/model_runner.h"

#include <cblas.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {

ModelRunner::ModelRunner(const Model& model, RunnerOptions options)
    : StepRunner(std::move(options)), model_(model), threads_(options_.threads) {
  context_.threads = &threads_;
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
  KVBLOCKS_RETURN_IF_ERROR(runner->AddBlender());
  KVBLOCKS_ASSIGN_OR_RETURN(runner->builder_, attention::CpuBackend().MakeMetadataBuilder(
                                                  runner->BuilderOptions(config)));
  return runner;
}

absl::Status ModelRunner::AddLayers() {
  size_t num_caches = 0;
  for (int64_t i = 0; i < model_.config().facts.num_layers(); ++i) {
    const attention::LayerConfig config = model_.AttentionOf(i);
    const LayerMemory* const memory = memory_->Find(config.name);
    if (memory == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("the plan has no cache ", config.name,
                                                     "; it must be one of the same model"));
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
    return absl::UnimplementedError(
        absl::StrCat(config.name,
                     ": the states of its compressors have blocks of other numbers; use the "
                     "slab layout"));
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
    layer.work_memory.resize(static_cast<size_t>(attention::SparseWorkBytes(own, bounds)));
    KVBLOCKS_ASSIGN_OR_RETURN(
        layer.sparse.work, attention::MakeSparseWork(
                               own, bounds, attention::ViewOf(absl::MakeSpan(layer.work_memory))));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<int64_t, attention::MaskRef>> ModelRunner::MasksOf(
    const sim::StepRecord& step) {
  std::map<int64_t, attention::MaskRef> masks;
  const auto asks = [&](const sim::ScheduledRecord& record) {
    const RequestAttention* const own = AttentionOf(*record.request);
    return own != nullptr && own->is_masked() ? own : nullptr;
  };
  if (std::none_of(step.scheduled.begin(), step.scheduled.end(), asks)) return masks;
  for (const Layer& layer : layers_) {
    const int64_t window = layer.impl->config().window;
    if (masks.contains(window)) continue;
    const attention::MaskRule others =
        attention::WindowRule(window > 0 ? window : attention::kUnlimitedTokens);
    std::vector<attention::MaskRule> rules(step.scheduled.size());
    std::vector<attention::MaskRows> rows;
    for (const int32_t index : builder_->permutation()) {
      const sim::ScheduledRecord& record = step.scheduled[static_cast<size_t>(index)];
      rows.push_back({.first_position = record.num_context,
                      .num_rows = record.num_tokens,
                      .num_keys = record.num_context + record.num_tokens});
      if (const RequestAttention* const own = asks(record)) {
        rules[rows.size() - 1] = own->Rule(record.request->num_prompt, window);
        rows.back().rule = &rules[rows.size() - 1];
      }
    }
    KVBLOCKS_ASSIGN_OR_RETURN(masks[window], masks_.Bits(others, rows));
  }
  return masks;
}

absl::Status ModelRunner::AddBlender() {
  if (std::none_of(options_.requests.begin(), options_.requests.end(), [](const auto& request) {
        return request.second.keep || !request.second.chunks.empty();
      })) {
    return absl::OkStatus();
  }
  std::vector<attention::BlendLayer> layers;
  for (const Layer& layer : layers_) layers.push_back({.cache = layer.cache});
  KVBLOCKS_ASSIGN_OR_RETURN(blender_,
                            Blender::Create(model_, std::move(layers), options_.blend_ratio));
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
    KVBLOCKS_RETURN_IF_ERROR(blender_->Keep(KnownTokens(*record.request, 0, prompt), context_,
                                            builder_->metadata(0), static_cast<int64_t>(b)));
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::Run(const sim::StepRecord& step) {
  KVBLOCKS_ASSIGN_OR_RETURN(const attention::BatchInput input, InputOf(step));
  KVBLOCKS_RETURN_IF_ERROR(builder_->Build(input));
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
    KVBLOCKS_ASSIGN_OR_RETURN(logits, blender_->Run(context_, builder_->metadata(0), sessions,
                                                    model_step, hooks_, &report));
    if (options_.on_blend) options_.on_blend(report);
  } else {
    KVBLOCKS_ASSIGN_OR_RETURN(logits,
                              model_.Forward(model_step, [&](int64_t index, const auto& tensors) {
                                return Attend(layers_[static_cast<size_t>(index)], tensors, masks);
                              }));
  }
  if (blender_) KVBLOCKS_RETURN_IF_ERROR(KeepChunks(step));
  Take(tokens, logits);
  return absl::OkStatus();
}

absl::Status ModelRunner::Attend(const Layer& layer, const attention::LayerTensors& tensors,
                                 const std::map<int64_t, attention::MaskRef>& masks) {
  attention::LayerTensors paged = tensors;
  paged.cache = layer.cache;
  paged.hooks = hooks_;
  attention::CommonAttentionMetadata metadata = builder_->metadata(layer.metadata);
  attention::SparseTensors sparse;
  if (tensors.sparse != nullptr) {
    const attention::LayerConfig& config = layer.impl->config();
    sparse = *tensors.sparse;
    sparse.work = layer.sparse.work;
    sparse.index_cache = layer.sparse.index_cache;
    if (config.sparse.compresses()) {
      sparse.compressed_cache = layer.sparse.compressed_cache;
      sparse.compressor.states = layer.sparse.compressor.states;
      sparse.index_compressor.states = layer.sparse.index_compressor.states;
      sparse.compressed = &builder_->metadata(layer.compressed);
      sparse.states = &builder_->metadata(layer.states);
    }
    KVBLOCKS_RETURN_IF_ERROR(attention::BuildSparseLists(attention::CpuBackend(), context_, config,
                                                         metadata, sparse.compressed, sparse.work));
    paged.sparse = &sparse;
  }
  if (!masks.empty()) metadata.custom_mask = masks.at(layer.impl->config().window);
  return layer.impl->Forward(context_, paged, &metadata);
}

}  // namespace kvblocks::engine
