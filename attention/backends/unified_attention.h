// UnifiedAttention: attention of a layer by its name, the one call that model code makes.
//
// A ForwardContext holds the layers with their caches, and the metadata of the step. A layer that
// shares the cache of another reads that one's. The layer calls the connector's hooks. Sparse layers
// have further caches, which AddLayer takes as well, and whose metadata is found by their names
// (SparseCacheNames); the lists of a step (BuildSparseLists) are the caller's to build.
// Writes `out` and the cache, never q, k or v: see kUnifiedAttentionMutates. Cost: a look-up per
// name. Thread-compatible.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_UNIFIED_ATTENTION_H_
#define KVBLOCKS_ATTENTION_BACKENDS_UNIFIED_ATTENTION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/layer_hooks.h"
#include "kvblocks/attention/backends/sparse_mla_layer.h"

namespace kvblocks::attention {

class ForwardContext {
 public:
  // Layer name -> metadata; layers of one KV group share it.
  using MetadataByLayer = absl::flat_hash_map<std::string, const CommonAttentionMetadata*>;
  // One for all layers (null: profiling), one per layer, or per model of a speculating engine, of
  // which element 0 is the base model's.
  using Metadata =
      std::variant<const CommonAttentionMetadata*, MetadataByLayer, std::vector<MetadataByLayer>>;

  // AlreadyExists if the name is taken. `sparse`, of sparse layers only: its work, caches and states;
  // the rest is a call's.
  absl::Status AddLayer(std::unique_ptr<AttentionImpl> layer, KvCacheView cache,
                        const SparseTensors& sparse = {});
  // Metadata must stay alive during calls.
  void SetMetadata(Metadata metadata) { metadata_ = std::move(metadata); }
  // Hooks must outlive the context; `has_connector_metadata` tells whether the step has any.
  void SetHooks(LayerHooks* hooks, bool has_connector_metadata) {
    hooks_ = has_connector_metadata ? hooks : nullptr;
  }

  struct Layer {
    const AttentionImpl* impl = nullptr;
    KvCacheView cache;
    const CommonAttentionMetadata* metadata = nullptr;
    SparseTensors sparse;  // of sparse layers, with the metadata of the further caches
  };
  // NotFound names the layer; FailedPrecondition where it shares the cache of one that shares.
  absl::StatusOr<Layer> Find(const std::string& name) const;
  LayerHooks* hooks() const { return hooks_; }

 private:
  struct Entry {
    std::unique_ptr<AttentionImpl> impl;
    KvCacheView cache;
    SparseTensors sparse;
  };
  absl::StatusOr<const CommonAttentionMetadata*> FindMetadata(const std::string& name) const;
  absl::Status FindSparseMetadata(const LayerConfig& layer, SparseTensors* sparse) const;

  absl::flat_hash_map<std::string, Entry> layers_;
  Metadata metadata_ = static_cast<const CommonAttentionMetadata*>(nullptr);
  LayerHooks* hooks_ = nullptr;
};

// What model code hands to a sparse layer besides q, k and v: SparseTensors has the shapes. What the
// layer has no use for is absent.
struct SparseInputs {
  ConstTensorView index_q = {}, index_weights = {}, index_k = {};
  ConstTensorView compress_kv = {}, compress_score = {};              // of the rows' compressor
  ConstTensorView index_compress_kv = {}, index_compress_score = {};  // of the indexer's
};

// `sparse`: of sparse layers, which need it; of others null.
absl::Status UnifiedAttention(const ExecContext& context, const ForwardContext& forward,
                              const std::string& layer_name, const ConstTensorView& q,
                              const ConstTensorView& k, const ConstTensorView& v,
                              const TensorView& out, float out_scale = 0,
                              const SparseInputs* sparse = nullptr);

// Shape and type of the output for graph compilers; does no work.
struct OutputShape {
  std::vector<int64_t> extents;
  DType dtype;
};
absl::StatusOr<OutputShape> InferOutput(const LayerConfig& layer,
                                        absl::Span<const int64_t> q_extents, DType q_dtype);

// The arguments that a call changes, as a graph compiler must be told.
inline constexpr std::array<const char*, 2> kUnifiedAttentionMutates = {"out", "cache"};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_UNIFIED_ATTENTION_H_
