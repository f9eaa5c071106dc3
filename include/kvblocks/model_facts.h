// Facts of models: layers, caches and limits, from the catalogue or from config.json.

#ifndef KVBLOCKS_MODEL_FACTS_H_
#define KVBLOCKS_MODEL_FACTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_spec.h"

// EngineVersion: the release of vLLM whose rules apply where releases differ.
//
// In order, so that a rule that came with a release holds from it on.

namespace kvblocks {

enum class EngineVersion { kVllm025, kVllm033 };

// LayerCache: one named thing that a model layer wants stored, on one worker - what the catalogue
// lists and the planner takes.
//
// A model layer may own several (a DeepSeek-V4 layer owns up to five). The order in which caches
// are listed is their registration order, and every result of planning is a function of it.

struct LayerCache {
  std::string name;  // the same name on two workers is one cache that both of them hold a part of
  KvCacheSpec spec;
  bool is_draft = false;  // belongs to a speculative drafter
  int worker = 0;         // pipeline stage or tensor-parallel rank that holds it, from 0

  friend bool operator==(const LayerCache&, const LayerCache&) = default;
};

// Layer patterns: one letter per layer of a model, and the short way to write many of them.

// The letters of a layer pattern.
enum class LayerKind : char {
  kFull = 'F',
  kSliding = 'S',
  kChunked = 'C',
  kLatent = 'M',            // multi-head latent attention: one row per token for all heads
  kSparseLatent = 'N',      // the same, reading only the rows that an indexer selects
  kCompressedWindow = 'W',  // DeepSeek-V4: sliding window only
  kCompressed4 = '4',       // DeepSeek-V4: one row per 4 tokens, selected by an indexer; + window
  kCompressed128 = 'H',     // DeepSeek-V4: one row per 128 tokens; + window
  // DeepSeek-V4.1: rows that the layers behind read, too; + window. Their reach ends at the next.
  kSharedRows2 = '2',  // one row per 2 tokens, and the indexer that selects them
  kSharedRows1 = '1',  // one row per token, and the indexer
  kReader = 'R',       // window, and rows of the layer in front that has them, as selected before
  kSelector = 'I',     // the same, but it selects anew
  kLinear = 'L',       // linear attention or state space: a state of fixed size
};
inline constexpr std::string_view kLayerLetters = "FSCMNW4H21RIL";
// Compressed attention: all of them have a window, too.
inline constexpr std::string_view kCompressedLetters = "W4H21RI";
// Of them those that V4.1 added and that store or read shared rows.
inline constexpr std::string_view kSharedRowLetters = "21RI";

// A pattern with its repetitions written out: "(SSSSSF)*10 SS" and "F*32" are what they look like.
// Spaces separate ("(4H)*20 4"). InvalidArgument names the place.
absl::StatusOr<std::string> ExpandLayerPattern(std::string_view text);

// More layers than any model has; keeps a pattern's repetitions from filling the memory.
inline constexpr int64_t kMaxLayers = 10'000;

// Letters of `pattern` that are in `letters`.
int64_t CountLetters(std::string_view pattern, std::string_view letters);

// ModelFacts, DeviceFacts: what sizing a KV cache and estimating step times need to know about a
// model and about the device that it runs on.
//
// A model is described layer by layer: `layer_pattern` has one letter per layer (LayerKind), and
// the other fields say what a layer of each letter stores and computes. Everything else - which
// caches the layers want, bytes per token, weight bytes - follows from these.
//
// Plain data, filled by the catalogue or from a published configuration, free to be changed; ask
// Validate() before use. Functions here cost at most a walk over the pattern.

struct DeviceFacts {
  std::string name;
  std::vector<std::string> aliases = {};
  double bf16_tflops = 0;
  double memory_gb_per_s = 0;
  double memory_gb = 0;  // 10^9 bytes
  double link_gb_per_s = 0;  // to another device of its node, per direction
  int64_t devices_per_node = 8;
  double node_gb_per_s = 50;  // to devices of other nodes: 400 Gb/s
  double measured_memory_gb = 0;  // what the device reports; 0: not measured

  double usable_gb() const { return measured_memory_gb > 0 ? measured_memory_gb : memory_gb; }
  int64_t memory_bytes() const { return static_cast<int64_t>(memory_gb * 1e9); }
};

// Multi-head latent attention, letters M and N.
struct LatentFacts {
  int64_t kv_lora_rank = 0;
  int64_t q_lora_rank = 0;  // 0: queries are not compressed
  int64_t qk_rope_head_dim = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t v_head_dim = 0;

  int64_t row_elements() const { return kv_lora_rank + qk_rope_head_dim; }
  friend bool operator==(const LatentFacts&, const LatentFacts&) = default;
};

// The indexer of letters N, 4, 2, 1 and I: one row per stored row, heads that score it.
struct IndexerFacts {
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t top_k = 0;  // rows that a query reads
  int64_t row_bytes = 0;

  friend bool operator==(const IndexerFacts&, const IndexerFacts&) = default;
};

// head_dim one-byte values and an fp32 scale.
constexpr int64_t IndexerRowBytes(int64_t head_dim) { return head_dim + 4; }

// The running state from which letters 4 and H make their compressed rows.
struct CompressorStateFacts {
  int64_t block_size = 0;
  int64_t window = 0;            // tokens
  int64_t row_elements = 0;      // fp32
  int64_t indexer_elements = 0;  // fp32, of the indexer's own state; 0: none

  friend bool operator==(const CompressorStateFacts&, const CompressorStateFacts&) = default;
};

// The ring in which letter 2 collects the tokens of its next row.
struct CompressorRingFacts {
  int64_t rows = 0;          // at least; see LayerCacheOptions::num_draft_tokens
  int64_t row_elements = 0;  // fp32

  friend bool operator==(const CompressorRingFacts&, const CompressorRingFacts&) = default;
};

// Tokens per stored row of letters 4 and H.
inline constexpr int64_t kCompressRatio4 = 4;
inline constexpr int64_t kCompressRatio128 = 128;

// DeepSeek-V4's compressed attention, letters W, 4 and H, and V4.1's, letters 2, 1, R and I.
// head_size is the row's element count.
struct CompressedFacts {
  int64_t qk_rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t row_bytes_fp8_ds_mla = 0;
  int64_t main_block_size = 0;  // tokens, of letters 4 and H
  int64_t sliding_block_size = 0;
  CompressorStateFacts state4, state128;
  int64_t rows_per_block = 0;      // of letters 2 and 1
  CompressorRingFacts ring2 = {};  // of letter 2
  bool bounded_replay = false;     // windows are computed again after a hit instead of kept

  friend bool operator==(const CompressedFacts&, const CompressedFacts&) = default;
};

struct ExpertFacts {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;  // of one routed expert
  int64_t num_layers = 0;
  int64_t num_shared_experts = 0;
  int64_t shared_intermediate_size = 0;  // of all shared experts together
  double bytes_per_param = 2;            // of routed experts

  friend bool operator==(const ExpertFacts&, const ExpertFacts&) = default;
};

// One state tensor of letter L. Tensor-parallel ranks divide the first dimension.
struct StateFacts {
  std::string name;
  std::vector<int64_t> shape;
  DataType dtype = DataType::kBFloat16;

  friend bool operator==(const StateFacts&, const StateFacts&) = default;
};

// Bytes per token of the whole model as published or computed elsewhere. Not used to size anything:
// tests recompute them.
struct PublishedCacheFacts {
  std::optional<double> bf16_all_layers;
  std::optional<double> bf16_unbounded_layers;        // full, latent and compressed ones
  std::optional<double> fp8_ds_mla_unbounded_layers;  // the same in DeepSeek's row formats

  friend bool operator==(const PublishedCacheFacts&, const PublishedCacheFacts&) = default;
};

struct ModelFacts {
  std::string name;
  std::string hf_id;
  std::vector<std::string> aliases;  // models of the same shapes
  std::string family;
  std::string layer_pattern;  // written out, one letter per layer
  int64_t window = 0;         // of letter S and compressed ones: tokens, the query included
  int64_t chunk = 0;          // of letter C
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of dense layers; 0: there are none, or unknown
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;  // 0 where only `latent` says it
  // Letter F where it differs from letter S; 0: the same.
  int64_t num_global_kv_heads = 0;
  int64_t global_head_size = 0;
  // The last layers that read the cache of an earlier layer and store nothing.
  int64_t num_kv_shared_layers = 0;
  DataType dtype = DataType::kBFloat16;  // what it computes in, and what a cache holds by default
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // 0: unknown
  bool tied_embeddings = false;
  bool sink_bias = false;  // a learned logit per head; needs no cache
  std::optional<LatentFacts> latent;
  std::optional<IndexerFacts> indexer;
  std::optional<CompressedFacts> compressed;
  std::optional<ExpertFacts> experts;
  std::vector<StateFacts> states;  // of one layer of letter L

  double params_b = 0;         // 10^9, embeddings included
  double active_params_b = 0;  // per token, embeddings included
  // Counts rounded by the publisher that the shapes do not give exactly.
  bool rounded_params = false;
  double bytes_per_param = 2;

  PublishedCacheFacts published_cache;
  std::string notes;

  int64_t num_layers() const { return static_cast<int64_t>(layer_pattern.size()); }
  // Layers whose letter is in `letters`, those without a cache of their own included.
  int64_t CountLayers(std::string_view letters) const {
    return CountLetters(layer_pattern, letters);
  }
  bool has(LayerKind kind) const {
    return layer_pattern.find(static_cast<char>(kind)) != std::string::npos;
  }
  // Of letter F.
  int64_t full_kv_heads() const { return num_global_kv_heads ? num_global_kv_heads : num_kv_heads; }
  int64_t full_head_size() const { return global_head_size ? global_head_size : head_size; }

  double embedding_params_b() const;
  double routed_params_b() const;
  double weight_bytes() const;

  friend bool operator==(const ModelFacts&, const ModelFacts&) = default;
};

// InvalidArgument names the entry, the field, the value and the limit.
absl::Status Validate(const DeviceFacts& device);
absl::Status Validate(const ModelFacts& model);

// LayerCaches: what each layer of a model stores, as layer caches in order of registration.
//
// The bridge from a model's facts to planning: the layer caches of one worker, or of one per
// pipeline stage, layer by layer, and within a layer in the order window, main, indexer, compressor
// state, indexer's compressor state.
//
//   LayerCaches(*Catalogue::BuiltIn().FindModel("llama-3.1-8b"), {})   // 32 full caches
//
// Names are "model.layers.7.attn", and next to it ".indexer", ".swa", ".compressor_state",
// ".indexer_compressor_state" or ".linear_attn"; they never change for a given model.
//
// Pure; costs a spec per layer cache.

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
  // Stages that divide the layers (see PipelineStages): LayerCache::worker is the stage. Draft
  // layers are on the last one.
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

// Catalogue: facts about common models and devices, by name.
//
// A catalogue is part of the binary. A file in the same form (protobuf text, catalogue.proto) adds
// to it or replaces entries by name; every field of a found entry may be changed before it is used.
//
//   const auto model = Catalogue::BuiltIn().FindModel("gemma-3-27b");
//
// Every entry passes Validate(). Look-ups walk a map of a few dozen names.

class Catalogue {
 public:
  Catalogue() = default;

  static const Catalogue& BuiltIn();

  // Adds the entries of a text, replacing those of the same name. `source` names it in messages. On
  // an error nothing changes.
  absl::Status Merge(std::string_view text, std::string_view source);

  // By name, alias or id at Hugging Face, or by the first words of exactly one ("h200" for
  // "h200-sxm"). Case, organisation and words like "-Instruct" do not count. NotFound names the
  // nearest three, or those that begin so.
  absl::StatusOr<DeviceFacts> FindDevice(std::string_view name) const;
  absl::StatusOr<ModelFacts> FindModel(std::string_view name) const;

  const std::map<std::string, DeviceFacts, std::less<>>& devices() const { return devices_; }
  const std::map<std::string, ModelFacts, std::less<>>& models() const { return models_; }

 private:
  std::map<std::string, DeviceFacts, std::less<>> devices_;
  std::map<std::string, ModelFacts, std::less<>> models_;
};

// ModelFromHfConfig: a model's facts from the config.json that is published with its weights.
//
//   ModelFromHfConfig(text, "config.json")   // facts as the catalogue would have them
//
// Knows the architectures of the catalogue; another one is refused with the list of those known.
// What a configuration leaves out has the default of the architecture's published reference code;
// what it contradicts itself about is refused. The number of parameters is counted from the shapes,
// without biases, norms and anything beside the text model: an estimate, within 3 % of the
// published counts for the catalogue's models.
//
// The text may come from anywhere: size and depth are limited, and every number is checked before
// it is used. Messages read "SOURCE: FIELD: got VALUE, expected WHAT".

// `source_name` becomes the model's name. A result passes Validate().
absl::StatusOr<ModelFacts> ModelFromHfConfig(std::string_view json_text,
                                             std::string_view source_name);

// DefaultSchedulerLimits: the scheduler's limits of a server that was given none (V-79).
//
// vLLM takes them from the device, since larger devices want larger steps:
//
//   const auto device = Catalogue::BuiltIn().FindDevice("h200");
//   DefaultSchedulerLimits({.device_memory_bytes = device->memory_bytes(),
//                           .device_name = device->name});  // 8192 tokens, 1024 requests
//
// What a user gives replaces the default of that field only.

enum class EntryPoint {
  kServer,   // the OpenAI-compatible server
  kOffline,  // the Python class for batches of prompts
};

struct ServerDevice {
  int64_t device_memory_bytes = 0;    // of one device; 0 if unknown, which counts as small
  std::string_view device_name = "";  // as the driver or the catalogue calls it, in any case
  EntryPoint entry_point = EntryPoint::kServer;
  bool throughput_mode = false;  // performance mode "throughput" doubles both defaults
  EngineVersion version = EngineVersion::kVllm033;
};

struct SchedulerLimits {
  int64_t max_num_batched_tokens = 0;  // tokens per step
  int64_t max_num_seqs = 0;            // requests that run at once

  friend bool operator==(const SchedulerLimits&, const SchedulerLimits&) = default;
};

SchedulerLimits DefaultSchedulerLimits(const ServerDevice& server);

// CacheBytesInMemory: how much of a device's memory the weights and the reserves leave for the
// cache.
//
//   CacheBytesInMemory({.device = *catalogue.FindDevice("h200"), .model = *model})
//
// Only the engine knows what activations take: measured values of one version and device stand
// in, or the caller's.

struct PoolMemory {
  DeviceFacts device;
  ModelFacts model;
  int64_t tensor_parallel = 1;
  // Such groups of ranks, each with all of the weights but for the experts, which all of them
  // divide.
  int64_t data_parallel = 1;
  double utilization = 0.9;  // share of the device memory that may be used
  // Memory that is neither weights nor cache. Estimates, unless those of MeasuredReservesOf are
  // set.
  double activation_gb = 2.0;
  double graph_gb = 1.0;
  double draft_weights_gb = 0;  // of a drafter, over all ranks
};

// What vLLM 0.19 was seen to use beside weights and cache, by architecture and ranks, on H100: peak
// of its profiling run, and what other libraries hold. Graphs are captured when the pool has its
// size, from what the utilization leaves free.
struct MeasuredReserves {
  double activation_gb = 0;
  double other_gb = 0;
  std::string source;
};
MeasuredReserves MeasuredReservesOf(const ModelFacts& model, int64_t num_ranks);

// What the model's weights take on one device.
double WeightGbPerDevice(const PoolMemory& memory);

// On one device. InvalidArgument for bad fields; ResourceExhausted, with the sums, if nothing is
// left.
absl::StatusOr<int64_t> CacheBytesInMemory(const PoolMemory& memory);

}  // namespace kvblocks

#endif  // KVBLOCKS_MODEL_FACTS_H_
