// Attention backends: what each supports, and which one a layer gets.

#ifndef KVBLOCKS_ATTENTION_BACKEND_H_
#define KVBLOCKS_ATTENTION_BACKEND_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/device_types.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

// BackendConfig: what a layer wants of an attention backend, in a form that can be compared,
// hashed, printed and checked; and Reason: why a backend cannot.
//
// Members left at their defaults are not asked for and not printed. Cost: text only on demand.

namespace kvblocks::attention {

// The operations of AttentionOps.
enum class OpKind : uint8_t {
  kReshapeAndCache,
  kConcatAndCacheMla,
  kComputeKvScales,
  kPagedDecode,
  kPagedDecodePartial,
  kReduceSplits,
  kPagedPrefill,
  kVarlenSelfAttention,
  kCascade,
  kMlaDecode,
  kSparseMlaDecode,
  kSparseMlaPrefill,
  kMergeStates,
  kGatherCache,
  kSelectHkvd,
  kFuseKv,
  kRotateKeys,
  kIndexTopk,
  kCacheIndexKeys,
  kCompressTokens,
  kGatherRows,
  kQuantizeQueries,
  kScaleAndCache,
};
inline constexpr int kNumOpKinds = 23;
const char* Name(OpKind op);  // "decode", "prefill", "mla_decode", ...

enum class AttentionType : uint8_t {
  kDecoder,
  kEncoder,         // of an encoder-decoder model: bidirectional, no cache
  kEncoderOnly,     // bidirectional, no cache
  kEncoderDecoder,  // keys of the encoder, not causal
};
const char* Name(AttentionType type);  // "decoder", ...

// What of a batch can be captured into a graph and replayed.
enum class GraphLevel : uint8_t {
  kNever,
  kUniformSingleTokenDecode,  // one new token each
  kUniformBatch,              // the same number of new tokens each
  kAlways,
};
const char* Name(GraphLevel level);

// What a layer may need besides plain causal attention.
enum class Feature : uint8_t {
  kMla,
  kSparse,  // keys by lists of slots
  kSinks,
  kWindow,
  kChunk,
  kAlibi,
  kSoftCap,
  kBlockSparse,
  kExplicitMask,
  kNonCausal,
  kLse,
  kBatchInvariant,
  kKvConnector,
};
inline constexpr int kNumFeatures = 13;
const char* Name(Feature feature);  // "mla", "sinks", "soft_cap", ...

class FeatureSet {
 public:
  constexpr FeatureSet() = default;
  constexpr FeatureSet(std::initializer_list<Feature> features) {
    for (Feature feature : features) Add(feature);
  }
  static constexpr FeatureSet All() {
    FeatureSet all;
    all.bits_ = (1u << kNumFeatures) - 1;
    return all;
  }
  constexpr void Add(Feature feature) { bits_ |= 1u << static_cast<int>(feature); }
  constexpr void Remove(Feature feature) { bits_ &= ~(1u << static_cast<int>(feature)); }
  constexpr bool contains(Feature feature) const { return bits_ >> static_cast<int>(feature) & 1; }
  friend bool operator==(const FeatureSet&, const FeatureSet&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const FeatureSet& set) {
    return H::combine(std::move(h), set.bits_);
  }

 private:
  uint32_t bits_ = 0;
};

struct BackendConfig {
  OpKind op = OpKind::kPagedDecode;
  DType q_dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  std::optional<KvLayout> layout = {};  // absent: whichever the backend likes
  // What the cache's vectors are; of formats with scales cache_dtype is that of the codes, of
  // packed ones and of latent records kU8.
  KvRowFormat row_format = KvRowFormat::kElements;
  int64_t head_size = 128;
  int64_t value_head_size = 0;              // 0: as head_size
  int64_t num_heads = 0, num_kv_heads = 0;  // 0: any
  int64_t block_size = 16;
  AttentionType type = AttentionType::kDecoder;
  FeatureSet features = {};
  GraphLevel graph_level = GraphLevel::kNever;  // at least
  DeviceId device = {};
  int32_t compute_capability = 0;  // of a CUDA device: 10 * major + minor

  friend bool operator==(const BackendConfig&, const BackendConfig&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BackendConfig& c) {
    return H::combine(std::move(h), c.op, c.q_dtype, c.cache_dtype, c.layout, c.row_format,
                      c.head_size, c.value_head_size, c.num_heads, c.num_kv_heads, c.block_size,
                      c.type, c.features, c.graph_level, c.device.kind, c.device.ordinal,
                      c.compute_capability);
  }
};
// "{op=decode, q=bf16, kv=int8, D=72, BS=16, sinks, sm_90}".
std::string DebugString(const BackendConfig& config);

enum class ReasonKind : uint8_t {
  kDType,
  kCacheDType,
  kRowFormat,
  kHeadSize,
  kBlockSize,
  kLayout,
  kDevice,
  kOp,
  kFeature,
  kAlignment,
  kCombination,
};
struct Reason {
  ReasonKind kind;
  std::string text;  // "head size 72 not in {64, 128}"
};

// KvScaleState: the scales of one layer's quantised cache, computed once and then frozen.
//
// For models that bring no scales of their own: the first batch that has tokens decides, and codes
// already in the cache stay valid because scales never change afterwards. The buffers belong to the
// embedder and have fixed addresses, so captured graphs may read them. Profiling runs, whose inputs
// mean nothing, must not be passed in. Thread-compatible.

class KvScaleState {
 public:
  // Float32 buffers of one element, or [Hkv] for k and v; q_scale may be absent, and stays as it is
  // where queries come in codes.
  KvScaleState(TensorView q_scale, TensorView k_scale, TensorView v_scale)
      : q_scale_(q_scale), k_scale_(k_scale), v_scale_(v_scale) {}

  // The first call with tokens runs ComputeKvScales of `ops` on args.q, k, v and the divisors, with
  // this state's buffers as outputs; if it fails, the state stays as it was. Later calls do
  // nothing.
  absl::Status ComputeOnce(const AttentionOps& ops, const ExecContext& context,
                           ComputeKvScalesArgs args);

  // The same, and stores args.scales.k and v with these scales: ScaleAndCache.
  absl::Status ComputeAndStoreOnce(const AttentionOps& ops, const ExecContext& context,
                                   ScaleAndCacheArgs args);

  bool frozen() const { return frozen_; }
  // For the operations that read and write the cache. REQUIRES: frozen().
  KvScales scales() const { return {k_scale_, v_scale_, q_scale_}; }
  ConstTensorView q_scale() const { return q_scale_; }

 private:
  // Of a call to this state's buffers.
  void SetOutputs(ComputeKvScalesArgs& args) const;

  TensorView q_scale_, k_scale_, v_scale_;
  bool frozen_ = false;
};

// LayerConfig: what one attention layer of a model is, whatever the batch.

enum class CascadeChoice : uint8_t {
  kNever,
  kIfItPays,  // by UseCascade
  kAlways,
};

// A sparse layer has more caches than its own, which other groups may manage. Empty: it has none of
// these, or is not asked for by name.
struct SparseCacheNames {
  std::string compressed = {}, index = {};    // V4's compressed rows, the indexer's keys
  std::string states = {}, index_states = {};  // of the compressors of both
};

// MLA whose queries read lists of rows: those that an indexer chose among all (DeepSeek V3.2), or a
// window and rows that stand for several tokens each (V4).
struct SparseConfig {
  // V4: tokens per compressed row; 1: the window only. 0: V3.2, nothing is compressed.
  int64_t compress_ratio = 0;
  bool overlap = false;  // a row is made of 2 * compress_ratio tokens (V4's ratio 4)
  // Rows that an indexer chooses per query; 0: all compressed rows are read (V4's ratio 128).
  int64_t topk = 0;
  int64_t index_heads = 0, index_dim = 0;
  bool power_of_two_scales = true;  // of planar index rows
  // Of the compressors of rows and of the indexer's keys; see CompressTokensArgs.
  struct Compressor {
    ConstTensorView bias = {}, norm_weight = {};
  };
  Compressor compressor = {}, index_compressor = {};
  float norm_eps = 1e-6f;
  ConstTensorView cos_sin = {};

  bool enabled() const { return compress_ratio > 0 || topk > 0; }
  bool compresses() const { return compress_ratio > 1; }
  int64_t parts() const { return overlap ? 2 : 1; }

  // As LayerConfig::row_format, of the compressed rows: V4.1's are of 4 bits where its window has
  // 8.
  std::optional<KvRowFormat> compressed_row_format = {};
  // The layer's other caches as metadata and KV connectors know them, see SparseCacheNames.
  SparseCacheNames names = {};
};

struct LayerConfig {
  std::string name = {};
  AttentionType type = AttentionType::kDecoder;
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t head_size = 0;
  int64_t value_head_size = 0;  // 0: as head_size; MLA: as latent_rank
  float scale = 0;              // 0: head_size^-1/2
  float soft_cap = 0;
  int64_t window = 0;  // in tokens, the query included; 0: none
  int64_t chunk = 0;   // chunked local attention; 0: none
  ConstTensorView alibi_slopes = {}, sinks = {};
  BlockSparse block_sparse = {};
  SplitPolicy split = {};
  // Decodes in one pass or in partitions of 512 tokens, as vLLM's rule (SelectDecodeVersion) says,
  // instead of by `split`: the same sums in the same order as there.
  bool split_as_vllm = false;

  // MLA: q is absorbed, [T, H, latent_rank + rotary_dim]; k is kv_c [T, latent_rank] and v k_pe
  // [T, rotary_dim]; out [T, H, value_head_size], the value columns of the cache (latent_rank but
  // for kMlaFp8_584, whose values are the whole row). head_size is that of the uncompressed heads
  // and gives the default scale. 0: no MLA.
  int64_t latent_rank = 0, rotary_dim = 0;

  // If enabled, an MLA layer of backends/sparse_mla_layer.h. V4's latent_rank and rotary_dim (448
  // and 64 of kMlaFp8_584; the whole row and 0 of plain rows) make up its rows, whose
  // value_head_size is all of them; `window` is required there.
  SparseConfig sparse = {};

  // What the vectors of its cache are. Set: made only if the backend has it and the head sizes fit,
  // and caches of another format are refused. Absent: whatever a call's cache says.
  std::optional<KvRowFormat> row_format = {};

  // The layer whose cache this one reads; it then stores nothing itself. Empty: its own.
  std::string shares_cache_of = {};

  // Of a quantised cache: fixed, or computed from the first batch if scale_state is not null.
  KvScales scales = {};
  KvScaleState* scale_state = nullptr;
  ComputeKvScalesArgs scale_divisors = {};  // only its divisors are read
  // Over an e4m3 cache, and where the backend takes them, queries become e4m3 codes of scales.q, or
  // of the state's, one element, in LayerTensors::q_codes. Queries that come in codes have that
  // scale, too.
  bool quantize_queries = false;

  // Batches whose metadata has a common prefix are computed as a cascade, if the layer's features
  // allow.
  CascadeChoice cascade = CascadeChoice::kNever;

  bool is_mla() const { return latent_rank > 0; }
  int64_t output_head_size() const {
    if (value_head_size != 0) return value_head_size;
    return is_mla() ? latent_rank : head_size;
  }
};

// LayerHooks: what a KV connector hangs around the attention of each layer.
//
// Called by layers, per layer and step: WaitForLayer before the first access to the layer's cache,
// SaveLayer after its stores and attention are done or enqueued, and only if they succeeded. Sparse
// layers have several caches (SparseCacheNames): each is waited for by its name before the first
// access to any, and saved, index keys and states of compressors by SaveBlocks, with the metadata
// of its own group. None is called without batch metadata (profiling) or without connector
// metadata. A wait that fails ends the layer with its status before anything runs, a save that
// fails before the next.

class LayerHooks {
 public:
  virtual ~LayerHooks() = default;
  // Orders later work on the context's stream behind the load of the layer's blocks. May block the
  // host only outside of graph capture.
  virtual absl::Status WaitForLayer(const std::string& layer, const ExecContext& context) = 0;
  virtual absl::Status SaveLayer(const std::string& layer, const ConstKvCacheView& cache,
                                 const CommonAttentionMetadata& metadata,
                                 const ExecContext& context) = 0;
  // Of caches that are no keys and values: [block numbers, ...].
  virtual absl::Status SaveBlocks(const std::string& cache, const ConstTensorView& /*blocks*/,
                                  const CommonAttentionMetadata& /*metadata*/,
                                  const ExecContext& /*context*/) {
    return absl::UnimplementedError(
        absl::StrCat("SaveBlocks: these hooks do not save ", cache,
                     ", whose blocks are index keys or states; override SaveBlocks"));
  }
};

// BackendSupport: what a backend can do, as a table; and the check of a configuration against it.
//
// One table per backend says what is built, and Check reads the same table as the launch does, so
// that the two cannot disagree. Cost: O(size of the table).

// Block sizes of a kernel: these, or all multiples of a number.
struct BlockSizes {
  std::vector<int64_t> exact = {};
  int64_t multiple_of = 0;  // 0: only the exact ones

  bool contains(int64_t block_size) const;
};

struct BackendSupport {
  std::vector<OpKind> ops = {};
  std::vector<DType> q_dtypes = {}, cache_dtypes = {};
  std::vector<KvLayout> layouts = {};
  std::vector<KvRowFormat> row_formats = {KvRowFormat::kElements};
  // (D, Dv) of what is built; empty: any.
  std::vector<std::pair<int64_t, int64_t>> head_sizes = {};
  int64_t most_head_size = INT64_MAX;  // of D and of Dv
  BlockSizes block_sizes = {};
  std::vector<AttentionType> types = {};
  FeatureSet features = {};
  // Pairs of features that are not built together.
  std::vector<std::pair<Feature, Feature>> exclusive = {};
  GraphLevel graph_level = GraphLevel::kNever;
  bool on_cuda = false;
  int32_t least_compute_capability = 0;
  int32_t end_compute_capability = INT32_MAX;  // below it
};

// The reasons against the row format of a configuration: that it is not built, or does not go with
// the cache's type, layout or head sizes. Layers that declare a format are refused for them, too.
std::vector<Reason> CheckRowFormat(const BackendSupport& support, const BackendConfig& config);

// All reasons against a configuration, in the order of the members; none if it can be done.
std::vector<Reason> CheckSupport(const BackendSupport& support, const BackendConfig& config);

// AttentionBackend: a set of kernels and what must be known to use it: the abstract factory of
// layers, metadata builders and cache shapes.
//
// Backends are immutable and may be shared by threads; they live as long as the process or the
// registry's owner. Everything but MakeImpl and MakeMetadataBuilder is O(1) or O(size of tables).

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
  // blocks on to be saved. `metadata` null: a profiling run, which fills out with zeros and calls
  // no hook.
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

  // Plans of decodes that layers of a step can share (StepPlans): the bytes of one, 0 where calls
  // like this make none before their kernels; and one made in plan->memory.
  virtual int64_t DecodePlanBytes(const ExecContext& /*context*/,
                                  const PagedDecodeArgs& /*args*/) const {
    return 0;
  }
  virtual absl::Status PlanDecode(const ExecContext& context, const PagedDecodeArgs& args,
                                  DeviceDecodePlan* plan) const;

  // Zeros into a tensor on the backend's device.
  virtual absl::Status FillZeros(const ExecContext& context, const TensorView& out) const;
};

// BackendRegistry: the backends that there are, by name and in order of preference.
//
// Names are unique. The registry does not own backends, which usually live as long as the process.
// Thread-safe; registration is rare, look-up copies no backend. Cost: O(number of backends).

// Lower is asked first; equal ones in order of registration.
inline constexpr int kCudaHopperPriority = 0;
inline constexpr int kCudaPortablePriority = 10;
inline constexpr int kCpuPriority = 20;
inline constexpr int kCpuReferencePriority = 30;

class BackendRegistry {
 public:
  BackendRegistry() = default;
  BackendRegistry(const BackendRegistry&) = delete;
  BackendRegistry& operator=(const BackendRegistry&) = delete;

  // AlreadyExists if the name is taken. `backend` must outlive the registry.
  absl::Status Register(const AttentionBackend* backend, int priority);
  // NotFound, listing the names that there are.
  absl::StatusOr<const AttentionBackend*> Find(const std::string& name) const;
  // By priority.
  std::vector<const AttentionBackend*> backends() const;
  // Grows with every registration: decisions made before may be out of date.
  int64_t generation() const;

 private:
  struct Entry {
    int priority;
    const AttentionBackend* backend;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // by priority; guarded by mutex_
};

// The process's registry, for registration at static time:
//   static const BackendRegistration registration(&backend, kCpuPriority);
BackendRegistry& GlobalBackendRegistry();

class BackendRegistration {
 public:
  BackendRegistration(const AttentionBackend* backend, int priority)
      : status_(GlobalBackendRegistry().Register(backend, priority)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// Which backend serves a configuration: the first by priority that has no reason against it.
//
// If there is none, the NotFound names the configuration once and every backend with all its
// reasons:
//   no backend for {op=decode, q=bf16, kv=int8, D=72, BS=16, sm_90}: CUDA_HOPPER: [head size 72 not
//   in {64, 128}]; CPU_REFERENCE: [tensors are on cuda:0]
// A forced backend is the only one asked, and the text is the same for that one.

// `forced`: the name of the only backend to ask; empty: all. Cost: O(backends * tables).
absl::StatusOr<const AttentionBackend*> SelectBackend(const BackendRegistry& registry,
                                                      const BackendConfig& config,
                                                      const std::string& forced = "");

// SelectBackend that remembers decisions, refusals included, until a backend is registered.
// Thread-safe. Cost of a known configuration: one look-up.
class BackendSelector {
 public:
  // `registry` must outlive this.
  explicit BackendSelector(const BackendRegistry* registry) : registry_(registry) {}

  absl::StatusOr<const AttentionBackend*> Select(const BackendConfig& config,
                                                 const std::string& forced = "");
  int64_t num_decisions() const;

 private:
  using Key = std::pair<BackendConfig, std::string>;
  const BackendRegistry* registry_;
  mutable std::mutex mutex_;
  int64_t generation_ = -1;  // guarded by mutex_
  absl::flat_hash_map<Key, absl::StatusOr<const AttentionBackend*>> decisions_;  // likewise
};

// The backends of the host: CPU (SIMD instructions and threads) and CPU_REFERENCE (float64).
//
// Both write and gather the cache, and blend, by the same code; float64 tensors are for the latter.
// RegisterCpuBackends adds them to a registry; DefaultBackendRegistry has them, and whatever
// registered itself statically.

const AttentionBackend& CpuBackend();
const AttentionBackend& CpuReferenceBackend();

absl::Status RegisterCpuBackends(BackendRegistry& registry);

// The global registry, with the host's backends.
BackendRegistry& DefaultBackendRegistry();

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKEND_H_
