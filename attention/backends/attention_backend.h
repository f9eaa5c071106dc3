// AttentionBackend: a set of kernels and what must be known to use it: the abstract factory of
// layers, metadata builders and cache shapes.
//
// Backends are immutable and may be shared by threads; they live as long as the process or the
// registry's owner. Everything but MakeImpl and MakeMetadataBuilder is O(1) or O(size of tables).

#ifndef KVBLOCKS_ATTENTION_BACKENDS_ATTENTION_BACKEND_H_
#define KVBLOCKS_ATTENTION_BACKENDS_ATTENTION_BACKEND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/backend_config.h"
#include "kvblocks/attention/backends/backend_support.h"
#include "kvblocks/attention/backends/layer_config.h"
#include "kvblocks/attention/backends/layer_hooks.h"
#include "kvblocks/attention/cache/kv_cache_layout.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/metadata/compressed_indices.h"
#include "kvblocks/attention/metadata/metadata_builder.h"
#include "kvblocks/attention/metadata/window_indices.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention {

struct SparseTensors;  // sparse_mla_layer.h

// The tensors of one call of a layer. q [T, H * D] or [T, H, D], k [T, Hkv * D] or [T, Hkv, D],
// likewise v and out; rows past the batch's tokens are padding. k and v may be absent where nothing
// is stored: cache sharing, and cross attention after its first step.
struct LayerTensors {
  ConstTensorView q = {}, k = {}, v = {};
  KvCacheView cache = {};
  TensorView out = {};
  float out_scale = 0;          // > 0: out is e4m3 or e5m2
  LayerHooks* hooks = nullptr;  // of the step's KV connector; null: it has nothing to do
  const SparseTensors* sparse = nullptr;  // of sparse layers, which need it
  TensorView lse = {};  // f32 [T, H] or absent: with out a state that MergeStates takes; no sinks
  TensorView q_codes = {};  // e4m3, shaped like q: for LayerConfig::quantize_queries
};

// A layer bound to a backend.
class AttentionImpl {
 public:
  virtual ~AttentionImpl() = default;
  virtual const LayerConfig& config() const = 0;
  // Waits for the layer's load, stores the step's keys and values, attends, and hands the layer's
  // blocks on to be saved. `metadata` null: a profiling run, which fills out with zeros and calls no
  // hook.
  virtual absl::Status Forward(const ExecContext& context, const LayerTensors& tensors,
                               const CommonAttentionMetadata* metadata) const = 0;
};

struct BackendFlags {
  // Operations over caches with heads take queries in e4m3.
  bool supports_quantized_query = false;
  bool wants_explicit_masks = false;
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  virtual const char* name() const = 0;
  virtual const AttentionOps& ops() const = 0;
  virtual const BackendSupport& support() const = 0;
  virtual BackendFlags flags() const { return {}; }
  // All reasons why a configuration cannot be done here; empty when it can.
  virtual std::vector<Reason> Check(const BackendConfig& config) const {
    return CheckSupport(support(), config);
  }

  virtual absl::StatusOr<std::unique_ptr<AttentionImpl>> MakeImpl(const LayerConfig& layer) const;
  virtual absl::StatusOr<AttentionMetadataBuilder> MakeMetadataBuilder(
      const MetadataBuilderOptions& options) const {
    return AttentionMetadataBuilder::Create(options);
  }

  virtual absl::StatusOr<std::vector<int64_t>> CacheShape(const KvCacheGeometry& geometry) const {
    return KvCacheShape(geometry);
  }
  virtual absl::StatusOr<std::vector<int>> CacheStrideOrder(const KvCacheGeometry& geometry,
                                                            bool include_layer_dim) const {
    return StrideOrder(geometry, include_layer_dim);
  }
  virtual absl::StatusOr<int> CacheBlockDim(const KvCacheGeometry& geometry) const {
    return BlockDim(geometry);
  }
  absl::StatusOr<int64_t> BytesPerCacheBlock(const KvCacheGeometry& geometry) const {
    return BytesPerBlock(geometry);
  }

  const BlockSizes& SupportedKernelBlockSizes() const { return support().block_sizes; }
  // The default if it can be had, else the nearest larger one that can, else the largest.
  virtual int64_t PreferredBlockSize(int64_t default_size) const;
  GraphLevel graph_level() const { return support().graph_level; }

  // How many units of the device work side by side: what UseCascade reckons with.
  virtual int32_t num_multiprocessors(const ExecContext& context) const;

  // Lists of slots, where the backend's tensors are.
  virtual absl::Status BuildList(const ExecContext& context, const WindowIndicesArgs& args) const;
  virtual absl::Status BuildList(const ExecContext& context,
                                 const DenseCompressedIndicesArgs& args) const;
  virtual absl::Status BuildList(const ExecContext& context, const TopkSlotsArgs& args) const;

  // Zeros into a tensor on the backend's device.
  virtual absl::Status FillZeros(const ExecContext& context, const TensorView& out) const;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_ATTENTION_BACKEND_H_
