#include "kvblocks/attention_layer.h"

#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

absl::Status ForwardContext::AddLayer(std::unique_ptr<AttentionImpl> layer, KvCacheView cache,
                                      const SparseTensors& sparse) {
  if (layer == nullptr) return InvalidArgument("AddLayer: a null layer");
  const std::string name = layer->config().name;
  if (layers_.contains(name)) {
    return absl::AlreadyExistsError(absl::StrCat("AddLayer: there is a layer ", name));
  }
  layers_.emplace(name, Entry{std::move(layer), cache, sparse});
  return absl::OkStatus();
}

absl::StatusOr<const CommonAttentionMetadata*> ForwardContext::FindMetadata(
    const std::string& name) const {
  if (const auto* one = std::get_if<const CommonAttentionMetadata*>(&metadata_)) return *one;
  const MetadataByLayer* by_layer = std::get_if<MetadataByLayer>(&metadata_);
  if (const auto* list = std::get_if<std::vector<MetadataByLayer>>(&metadata_)) {
    if (list->empty()) {
      return NotFound(
          "UnifiedAttention: the list of metadata is empty; element 0 is "
          "the base model's");
    }
    by_layer = &list->front();
  }
  const auto found = by_layer->find(name);
  if (found == by_layer->end()) {
    return NotFound("UnifiedAttention: no metadata for layer ", name, "; give its group's");
  }
  return found->second;
}

absl::Status ForwardContext::FindSparseMetadata(const LayerConfig& layer,
                                                SparseTensors* sparse) const {
  if (!layer.sparse.compresses()) return absl::OkStatus();
  if (const auto* one = std::get_if<const CommonAttentionMetadata*>(&metadata_)) {
    if (*one == nullptr) return absl::OkStatus();  // profiling
    return FailedPrecondition("UnifiedAttention: layer ", layer.name,
                              " has caches of several groups, and one metadata is set for all; set "
                              "it by the names of caches");
  }
  const SparseCacheNames& names = layer.sparse.names;
  for (const auto& [field, name, metadata] :
       {std::tuple("compressed", &names.compressed, &sparse->compressed),
        std::tuple("states", &names.states, &sparse->states)}) {
    if (name->empty()) {
      return FailedPrecondition("UnifiedAttention: layer ", layer.name, " has no sparse.names.",
                                field, ", by which metadata is found; make it with the name");
    }
    KVBLOCKS_ASSIGN_OR_RETURN(auto found, FindMetadata(*name));
    *metadata = found;
  }
  return absl::OkStatus();
}

absl::StatusOr<ForwardContext::Layer> ForwardContext::Find(const std::string& name) const {
  const auto found = layers_.find(name);
  if (found == layers_.end()) {
    return NotFound("UnifiedAttention: no layer ", name, " among ", layers_.size());
  }
  Layer layer;
  layer.impl = found->second.impl.get();
  layer.cache = found->second.cache;
  if (const std::string& target = layer.impl->config().shares_cache_of; !target.empty()) {
    const auto owner = layers_.find(target);
    if (owner == layers_.end()) {
      return NotFound("UnifiedAttention: layer ", name, " shares the cache of ", target,
                      ", which is not a layer");
    }
    if (const std::string& further = owner->second.impl->config().shares_cache_of;
        !further.empty()) {
      return FailedPrecondition("UnifiedAttention: layer ", name, " shares the cache of ", target,
                                ", which shares that of ", further, "; name the layer that stores");
    }
    layer.cache = owner->second.cache;
  }
  auto metadata = FindMetadata(name);
  if (!metadata.ok()) return metadata.status();
  layer.metadata = *metadata;
  layer.sparse = found->second.sparse;
  KVBLOCKS_RETURN_IF_ERROR(FindSparseMetadata(layer.impl->config(), &layer.sparse));
  return layer;
}

absl::Status UnifiedAttention(const ExecContext& context, const ForwardContext& forward,
                              const std::string& layer_name, const ConstTensorView& q,
                              const ConstTensorView& k, const ConstTensorView& v,
                              const TensorView& out, float out_scale,
                              const SparseInputs* sparse) {
  auto layer = forward.Find(layer_name);
  if (!layer.ok()) return layer.status();
  LayerTensors tensors = {q, k, v, layer->cache, out, out_scale, forward.hooks()};
  const bool is_sparse = layer->impl->config().sparse.enabled();
  if (is_sparse != (sparse != nullptr)) {
    return InvalidArgument("UnifiedAttention: layer ", layer_name, is_sparse ? " is" : " is not",
                           " sparse; give SparseInputs to sparse layers and to no other");
  }
  if (is_sparse) {
    SparseTensors& all = layer->sparse;
    all.index_q = sparse->index_q, all.index_weights = sparse->index_weights;
    all.index_k = sparse->index_k;
    all.compressor.kv = sparse->compress_kv, all.compressor.score = sparse->compress_score;
    all.index_compressor.kv = sparse->index_compress_kv;
    all.index_compressor.score = sparse->index_compress_score;
    tensors.sparse = &all;
  }
  return layer->impl->Forward(context, tensors, layer->metadata);
}

absl::StatusOr<OutputShape> InferOutput(const LayerConfig& layer,
                                        absl::Span<const int64_t> q_extents, DType q_dtype) {
  const int64_t dim = layer.output_head_size();
  const int64_t query_dim = layer.is_mla() ? layer.latent_rank + layer.rotary_dim : layer.head_size;
  const int64_t heads = layer.num_heads;
  if (q_extents.size() == 2 && q_extents[1] == heads * query_dim) {
    return OutputShape{{q_extents[0], heads * dim}, q_dtype};
  }
  if (q_extents.size() == 3 && q_extents[1] == heads && q_extents[2] == query_dim) {
    return OutputShape{{q_extents[0], heads, dim}, q_dtype};
  }
  return InvalidArgument("InferOutput: q of layer ", layer.name, " is [",
                         absl::StrJoin(q_extents, ", "), "]; [T, ", heads, " * ", query_dim,
                         "] or [T, ", heads, ", ", query_dim, "]");
}

}  // namespace kvblocks::attention
