// Layers: cache writes and attention of one layer in one call.

#ifndef KVBLOCKS_ATTENTION_LAYER_H_
#define KVBLOCKS_ATTENTION_LAYER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/kv_cache_view.h"

// AttentionLayer: one attention layer over the operations of any backend.
//
// Forward, in order: the KV connector's wait; scales of a quantised cache from the first batch, if
// asked for; the step's keys and values into the cache; decode rows and prefill rows from the cache
// to out; the KV connector's save. Stores come before every read of the step. Arguments of all
// operations are checked before the first runs, so that a refused call changes nothing (but a
// frozen scale, which is settled first).
//
// Masks of the metadata reach the operations, whatever the backend; where they cannot, the call is
// refused. A custom mask says all that a query sees: it replaces causality and the layer's window,
// so for a group with a window it must hide what has left the cache. Templates narrow them.
//
// Metadata of a rank of context parallelism: with a cache the layer attends to the context that the
// rank had before the step, without one to the step's own keys. out and lse of both are states that
// MergeStates merges with those of the other ranks (metadata/context_parallel.h).
//
// Without cache or block table it is self-attention over the new keys alone, and nothing is stored;
// without metadata (profiling) out is zeros. Output rows of padding are zeros.
//
// Cost: the operations, their checks included, which read O(R + T) lengths and slots; no
// allocation of its own.
// Thread-compatible: layers with a KvScaleState are used by one thread at a time.

namespace kvblocks::attention {

class AttentionLayer : public AttentionImpl {
 public:
  // `backend` must outlive the layer.
  static absl::StatusOr<std::unique_ptr<AttentionImpl>> Create(const LayerConfig& config,
                                                               const AttentionBackend* backend);

  const LayerConfig& config() const override { return config_; }
  absl::Status Forward(const ExecContext& context, const LayerTensors& tensors,
                       const CommonAttentionMetadata* metadata) const override;

 private:
  struct Call;

  AttentionLayer(const LayerConfig& config, const AttentionBackend* backend)
      : config_(config), backend_(backend) {}
  absl::StatusOr<Call> MakeCall(const LayerTensors& tensors,
                                const CommonAttentionMetadata* metadata) const;
  absl::Status Attend(const ExecContext& context, const LayerTensors& tensors,
                      const CommonAttentionMetadata& metadata) const;
  absl::Status SelfAttention(const ExecContext& context, const Call& call) const;
  absl::Status MlaSelfAttention(const ExecContext& context, const Call& call) const;
  absl::Status DenseAttention(const ExecContext& context, Call& call) const;
  absl::Status MlaAttention(const ExecContext& context, Call& call) const;
  absl::Status SettleScales(const ExecContext& context, Call& call) const;
  bool QuantizesQueries(const LayerTensors& tensors) const;
  absl::Status ZeroPadding(const ExecContext& context, const Call& call) const;

  LayerConfig config_;
  const AttentionBackend* backend_;
};

// SparseMlaLayer: MLA over lists of rows: DeepSeek V3.2 and V4, made by MakeImpl from a LayerConfig
// whose `sparse` is enabled.
//
//   V3.2  an indexer with a cache of its own, in the blocks of the latent cache, chooses `topk`
//         rows.
//   V4    a window cache (LayerTensors::cache, the metadata given to Forward) is read whole, and by
//         compress_ratio: 1 nothing else; with an indexer (ratio 4) the compressed rows that it
//         chooses; without (ratio 128) all that are complete. Sinks are those of the config.
//
// Forward, in order: the step's rows into the cache; states of the tokens, and the rows that they
// complete, into the compressed caches; the indexer's choice; attention. What a step needs of
// earlier ones lies in the caches and the states, so chunks may end anywhere, prefixes may be found
// computed, and decodes are chunks of one. All operations are checked before the first runs.
//
// A KV connector's hooks are called for each of the layer's caches by SparseCacheNames
// (layer_hooks.h); with hooks all that it has must be named. Caches may have latent records as
// rows, the window and the compressed rows of different formats: V4.1's kMlaV41 and kMlaV41Fp4,
// V3.2's kMlaNvfp4.
//
// The caller rotates queries, as it does keys, and rotates V4's output back.
// Masks, quantised outputs, and what else other layers can and this one cannot is refused.
// Thread-compatible; nothing is allocated per step.

// Memory that sparse layers work in, on the tensors' device; one for all layers of a stream. The
// lists are the same for all layers of a step that agree in what they are made from.
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

// Fills the lists of a step, once for all layers alike: those of windows and of all compressed
// rows. `window` and `compressed` (with positions) are the metadata of their groups, the latter
// null for layers with a window only. Nothing to do for V3.2; where `window` has plans, layers do
// it themselves, and what one did is not done again.
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

// StepPlans: what the layers of one step make once and share: plans of decodes in device memory,
// and the lists of sparse layers (rule AT-65).
//
// The first layer that needs a plan makes it; others of the same shape over the same lengths take
// it. A layer that comes again begins anew: so a step that is captured into a graph plans inside of
// the graph, even if it ran before. Results are those of layers that plan for themselves, to the
// bit. Good for one stream at a time; DeviceMetadata has one for its steps.
//
// `memory`, u8 and aligned to 16 bytes, is where backends that plan on the device put plans; those
// that do not fit are not shared. Cost: O(shapes + layers) per layer; allocates for new ones only.

class StepPlans {
 public:
  explicit StepPlans(TensorView memory = {});
  ~StepPlans();

  // Lengths are others than before: nothing made so far is taken again.
  void BeginStep();

  // The plan for a call of `layer`, made on the context's stream if there is none yet; null where
  // the backend makes none or memory is used up.
  absl::StatusOr<const DeviceDecodePlan*> ForDecode(const AttentionBackend& backend,
                                                    const ExecContext& context, const void* layer,
                                                    const PagedDecodeArgs& args);
  // Whether `layer` has to fill the lists of its work, because none of its type has. Layers of
  // several types may work in the same memory.
  bool HasToList(const LayerConfig& layer, const CommonAttentionMetadata& window,
                 const CommonAttentionMetadata* compressed, const SparseWork& work);

  // So far, to see that they are shared.
  int64_t num_decode_plans() const;
  int64_t num_lists() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// UnifiedAttention: attention of a layer by its name, the one call that model code makes.
//
// A ForwardContext holds the layers with their caches, and the metadata of the step. A layer that
// shares the cache of another reads that one's. The layer calls the connector's hooks. Sparse
// layers have further caches, which AddLayer takes as well, and whose metadata is found by their
// names (SparseCacheNames); the lists of a step (BuildSparseLists) are the caller's to build,
// unless the metadata has plans. Writes `out` and the cache, never q, k or v: see
// kUnifiedAttentionMutates. Cost: a look-up per name. Thread-compatible.

class ForwardContext {
 public:
  // Layer name -> metadata; layers of one KV group share it.
  using MetadataByLayer = absl::flat_hash_map<std::string, const CommonAttentionMetadata*>;
  // One for all layers (null: profiling), one per layer, or per model of a speculating engine, of
  // which element 0 is the base model's.
  using Metadata =
      std::variant<const CommonAttentionMetadata*, MetadataByLayer, std::vector<MetadataByLayer>>;

  // AlreadyExists if the name is taken. `sparse`, of sparse layers only: its work, caches and
  // states; the rest is a call's.
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

// What model code hands to a sparse layer besides q, k and v: SparseTensors has the shapes. What
// the layer has no use for is absent.
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

// The arguments that a call changes, which a graph compiler must know.
inline constexpr std::array<const char*, 2> kUnifiedAttentionMutates = {"out", "cache"};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_LAYER_H_
