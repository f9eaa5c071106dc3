// SparseMlaLayer: MLA over lists of rows: DeepSeek V3.2 and V4, made by MakeImpl from a LayerConfig
// whose `sparse` is enabled.
//
//   V3.2  an indexer with a cache of its own, in the blocks of the latent cache, chooses `topk` rows.
//   V4    a window cache (LayerTensors::cache, the metadata given to Forward) is read whole, and by
//         compress_ratio: 1 nothing else; with an indexer (ratio 4) the compressed rows that it
//         chooses; without (ratio 128) all that are complete. Sinks are those of the config.
//
// Forward, in order: the step's rows into the cache; states of the tokens, and the rows that they
// complete, into the compressed caches; the indexer's choice; attention. What a step needs of earlier
// ones lies in the caches and the states, so chunks may end anywhere, prefixes may be found computed,
// and decodes are chunks of one. All operations are checked before the first runs.
//
// A KV connector's hooks are called for each of the layer's caches by SparseCacheNames (layer_hooks.h);
// with hooks all that it has must be named. Caches may have latent records as rows, the window and the
// compressed rows of different formats: V4.1's kMlaV41 and kMlaV41Fp4, V3.2's kMlaNvfp4.
//
// Queries are rotated by who calls, as keys are; V4's output is to be turned back there, too.
// Masks, quantised outputs, and what else other layers can and this one cannot is refused. Thread-compatible; nothing is allocated per step.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_SPARSE_MLA_LAYER_H_
#define KVBLOCKS_ATTENTION_BACKENDS_SPARSE_MLA_LAYER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/layer_config.h"
#include "kvblocks/attention/cache/index_cache.h"

namespace kvblocks::attention {

// Memory that sparse layers work in, on the tensors' device; one for all layers of a stream. The lists
// are the same for all layers of a step that agree in what they are made from.
struct SparseWork {
  TensorView window_slots, window_lens;  // V4: i32 [T, window], [T]
  TensorView all_slots, all_lens;        // V4 without indexer: i32 [T, rows], [T]
  TensorView chosen_slots, chosen_lens;  // with one: i32 [T, topk], [T]
  TensorView rows, index_rows;           // V4: [T, D], [T, Di]: compressed, on their way to a cache
};
// What is needed for at most so many tokens of requests of at most so many. `rows` are of the type
// given: what rounds them before they are quantised.
struct SparseWorkBounds {
  int64_t max_tokens = 0, max_seq_len = 0;
  DType row_dtype = DType::kF32;
  int64_t sink_rows = 0;  // of the window's group: lists begin with them
};
int64_t SparseWorkBytes(const LayerConfig& layer, const SparseWorkBounds& bounds);
// `memory`: u8, aligned to 16 bytes, at least SparseWorkBytes. ResourceExhausted if it is less.
absl::StatusOr<SparseWork> MakeSparseWork(const LayerConfig& layer, const SparseWorkBounds& bounds,
                                          const TensorView& memory);

// One compressor's share of a step: projections [T, C * D] and states.
struct CompressorTensors {
  ConstTensorView kv, score;
  TensorView states;  // f32 [NB, BS, 2 * C * D]
};

// What a sparse layer takes besides LayerTensors. Rows past the batch's tokens are padding.
struct SparseTensors {
  SparseWork work;
  // The indexer. index_k: V3.2; of V4 the compressor makes the keys.
  ConstTensorView index_q, index_weights;  // [T, Hi, Di], f32 [T, Hi]
  ConstTensorView index_k;                 // [T, Di]
  IndexCacheView index_cache;
  // V4's compressed rows: the group's metadata has tables in blocks of rows and slots of rows.
  KvCacheView compressed_cache;
  const CommonAttentionMetadata* compressed = nullptr;
  CompressorTensors compressor, index_compressor;
  const CommonAttentionMetadata* states = nullptr;  // of the group of both states
};

// Fills the lists of a step, once for all layers alike: those of windows and of all compressed rows.
// `window` and `compressed` (with positions) are the metadata of their groups, the latter null for
// layers with a window only. Nothing to do for V3.2.
absl::Status BuildSparseLists(const AttentionBackend& backend, const ExecContext& context,
                              const LayerConfig& layer, const CommonAttentionMetadata& window,
                              const CommonAttentionMetadata* compressed, const SparseWork& work);

class SparseMlaLayer : public AttentionImpl {
 public:
  // `backend` must outlive the layer.
  static absl::StatusOr<std::unique_ptr<AttentionImpl>> Create(const LayerConfig& config,
                                                               const AttentionBackend* backend);

  const LayerConfig& config() const override { return config_; }
  absl::Status Forward(const ExecContext& context, const LayerTensors& tensors,
                       const CommonAttentionMetadata* metadata) const override;

 private:
  SparseMlaLayer(const LayerConfig& config, const AttentionBackend* backend)
      : config_(config), backend_(backend) {}
  absl::Status CheckCall(const LayerTensors& tensors,
                         const CommonAttentionMetadata& metadata) const;
  absl::Status Attend(const ExecContext& context, const LayerTensors& tensors,
                      const CommonAttentionMetadata& metadata) const;
  absl::Status Wait(const ExecContext& context, LayerHooks& hooks) const;
  absl::Status Save(const ExecContext& context, const LayerTensors& tensors,
                    const CommonAttentionMetadata& metadata) const;

  LayerConfig config_;
  const AttentionBackend* backend_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_SPARSE_MLA_LAYER_H_
