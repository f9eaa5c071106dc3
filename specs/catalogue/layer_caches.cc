#include "kvblocks/model_facts.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "checks/field_error.h"
#include "specs/catalogue/pipeline_stages.h"
#include "specs/row_codec.h"

namespace kvblocks {
namespace {

constexpr int64_t kDefaultBlockSize = 16;
constexpr int64_t kDefaultLatentBlockSize = 64;  // what sparse MLA kernels and indexers read
constexpr int64_t kMaxRanks = 1024;
constexpr int64_t kMaxDraftTokens = 1024;
// What page alignment makes of compressed rows: fp8 rows are written in steps of 576 bytes with
// their scales behind the last row, plain ones in whole sectors.
constexpr int64_t kFp8DsMlaAlignment = 576;
constexpr int64_t kPlainAlignment = 512;
// The one latent row that fp8_ds_mla is defined for.
constexpr int64_t kFp8DsMlaRowElements = 576;

// The KV heads of one rank.
absl::StatusOr<int64_t> HeadsOnRank(int64_t num_kv_heads, int64_t ranks) {
  if (num_kv_heads % ranks == 0) return num_kv_heads / ranks;
  if (ranks % num_kv_heads == 0) return 1;
  return FieldError("tensor_parallel", std::to_string(ranks),
                    "a divisor or a multiple of the " + std::to_string(num_kv_heads) + " KV heads");
}

class LayerCacheList {
 public:
  LayerCacheList(const ModelFacts& model, const LayerCacheOptions& options, CacheDtype format,
                 int64_t block_size)
      : model_(model), options_(options), format_(format), block_size_(block_size) {}

  // The caches of layer `index`.
  absl::Status AddLayer(int64_t index, LayerKind kind, bool is_draft);

  // That holds the layers added from now on.
  void set_worker(int worker) { worker_ = worker; }

  std::vector<LayerCache> Take() { return std::move(caches_); }

 private:
  absl::Status Add(const char* name, const absl::StatusOr<KvCacheSpec>& spec) {
    const std::string full = prefix_ + name;
    if (!spec.ok()) return WithFieldPrefix(spec.status(), full);
    caches_.push_back({.name = full, .spec = *spec, .is_draft = is_draft_, .worker = worker_});
    return absl::OkStatus();
  }
  absl::Status AddAttention(LayerKind kind);
  absl::Status AddLatent(LayerKind kind);
  absl::Status AddIndexer(KvCacheSpecOptions options);
  absl::Status AddCompressed(LayerKind kind);
  absl::Status AddCompressedWindow();
  absl::Status AddCompressedRows(int64_t block_size, int64_t ratio, bool has_indexer);
  absl::Status AddSharedRows(LayerKind kind);
  absl::Status AddCompressorStates(LayerKind kind);
  absl::Status AddState(const char* name, const CompressorStateFacts& state, int64_t elements);
  absl::Status AddLinear();

  bool fp8_rows() const { return format_.mode == QuantMode::kFp8DsMla; }
  int64_t alignment() const { return fp8_rows() ? kFp8DsMlaAlignment : kPlainAlignment; }

  const ModelFacts& model_;
  const LayerCacheOptions& options_;
  const CacheDtype format_;
  const int64_t block_size_;
  // Of the layer being added.
  std::string prefix_;
  bool is_draft_ = false;
  int worker_ = 0;
  std::vector<LayerCache> caches_;
};

absl::Status LayerCacheList::AddLayer(int64_t index, LayerKind kind, bool is_draft) {
  prefix_ = "model.layers." + std::to_string(index) + '.';
  is_draft_ = is_draft;
  switch (kind) {
    case LayerKind::kFull:
    case LayerKind::kSliding:
    case LayerKind::kChunked:
      return AddAttention(kind);
    case LayerKind::kLatent:
    case LayerKind::kSparseLatent:
      return AddLatent(kind);
    case LayerKind::kCompressedWindow:
    case LayerKind::kCompressed4:
    case LayerKind::kCompressed128:
      return AddCompressed(kind);
    case LayerKind::kSharedRows2:
    case LayerKind::kSharedRows1:
    case LayerKind::kReader:
    case LayerKind::kSelector:
      return AddSharedRows(kind);
    case LayerKind::kLinear:
      return AddLinear();
  }
  return absl::OkStatus();
}

absl::Status LayerCacheList::AddAttention(LayerKind kind) {
  const bool full = kind == LayerKind::kFull;
  const auto heads =
      HeadsOnRank(full ? model_.full_kv_heads() : model_.num_kv_heads, options_.tensor_parallel);
  if (!heads.ok()) return heads.status();
  KvCacheSpecOptions options{.block_size = block_size_,
                             .num_kv_heads = *heads,
                             .head_size = full ? model_.full_head_size() : model_.head_size,
                             .dtype = format_.storage,
                             .quant_mode = format_.mode};
  if (full) return Add("attn", FullAttentionSpec::Create(options));
  if (kind == LayerKind::kSliding) {
    options.sliding_window = model_.window;
    return Add("attn", SlidingWindowSpec::Create(options));
  }
  options.attention_chunk_size = model_.chunk;
  return Add("attn", ChunkedLocalAttentionSpec::Create(options));
}

absl::Status LayerCacheList::AddLatent(LayerKind kind) {
  const bool sparse = kind == LayerKind::kSparseLatent;
  KvCacheSpecOptions options{
      .block_size = block_size_,
      .head_size = model_.latent->row_elements(),
      .dtype = format_.storage,
      .quant_mode = format_.mode,
      .model_version = sparse ? ModelVersion::kDeepseekV32 : ModelVersion::kNone,
      .is_draft = is_draft_};
  absl::Status status = Add("attn", MlaAttentionSpec::Create(options));
  if (!status.ok() || !sparse) return status;
  options.model_version = ModelVersion::kNone;
  return AddIndexer(options);
}

// Of rows with these options.
absl::Status LayerCacheList::AddIndexer(KvCacheSpecOptions options) {
  options.head_size = model_.indexer->row_bytes;
  options.dtype = DataType::kUint8;
  options.quant_mode = QuantMode::kNone;
  return Add("indexer", MlaAttentionSpec::Create(options));
}

absl::Status LayerCacheList::AddCompressedWindow() {
  const CompressedFacts& c = *model_.compressed;
  return Add("swa", SlidingWindowMlaSpec::Create({.block_size = c.sliding_block_size,
                                                  .head_size = model_.head_size,
                                                  .sliding_window = model_.window,
                                                  .dtype = format_.storage,
                                                  .quant_mode = format_.mode,
                                                  .alignment = alignment(),
                                                  .model_version = ModelVersion::kDeepseekV4,
                                                  .bounded_replay = c.bounded_replay}));
}

absl::Status LayerCacheList::AddCompressedRows(int64_t block_size, int64_t ratio,
                                               bool has_indexer) {
  const KvCacheSpecOptions options{.block_size = block_size,
                                   .head_size = model_.head_size,
                                   .dtype = format_.storage,
                                   .quant_mode = format_.mode,
                                   .alignment = alignment(),
                                   .compress_ratio = ratio,
                                   .model_version = ModelVersion::kDeepseekV4,
                                   .is_draft = is_draft_};
  absl::Status status = Add("attn", MlaAttentionSpec::Create(options));
  return status.ok() && has_indexer ? AddIndexer(options) : status;
}

absl::Status LayerCacheList::AddCompressed(LayerKind kind) {
  absl::Status status = AddCompressedWindow();
  if (!status.ok() || kind == LayerKind::kCompressedWindow) return status;
  const bool ratio4 = kind == LayerKind::kCompressed4;
  status = AddCompressedRows(model_.compressed->main_block_size,
                             ratio4 ? kCompressRatio4 : kCompressRatio128, ratio4);
  return status.ok() ? AddCompressorStates(kind) : status;
}

// Readers have the rows of another layer.
absl::Status LayerCacheList::AddSharedRows(LayerKind kind) {
  const CompressedFacts& c = *model_.compressed;
  absl::Status status = AddCompressedWindow();
  if (!status.ok() || kind == LayerKind::kReader || kind == LayerKind::kSelector) return status;
  const bool ratio2 = kind == LayerKind::kSharedRows2;
  const int64_t ratio = ratio2 ? 2 : 1;
  status = AddCompressedRows(c.rows_per_block * ratio, ratio, /*has_indexer=*/true);
  if (!status.ok() || !ratio2) return status;
  const auto rows = std::bit_ceil(static_cast<uint64_t>(options_.num_draft_tokens + 2));
  return Add("compressor_state",
             RingSpec::Create({.block_size = std::max(c.ring2.rows, static_cast<int64_t>(rows)),
                               .head_size = c.ring2.row_elements,
                               .dtype = DataType::kFloat32}));
}

absl::Status LayerCacheList::AddCompressorStates(LayerKind kind) {
  const CompressedFacts& c = *model_.compressed;
  const CompressorStateFacts& state = kind == LayerKind::kCompressed4 ? c.state4 : c.state128;
  absl::Status status = AddState("compressor_state", state, state.row_elements);
  if (!status.ok() || state.indexer_elements == 0) return status;
  return AddState("indexer_compressor_state", state, state.indexer_elements);
}

absl::Status LayerCacheList::AddState(const char* name, const CompressorStateFacts& state,
                                      int64_t elements) {
  SlidingWindowMlaSpec::Options options{.block_size = state.block_size,
                                        .head_size = elements,
                                        .sliding_window = state.window,
                                        .dtype = DataType::kFloat32,
                                        .model_version = ModelVersion::kDeepseekV4};
  // Beside plain rows the states are left as they are.
  if (fp8_rows()) options.alignment = alignment();
  return Add(name, SlidingWindowMlaSpec::Create(options));
}

absl::Status LayerCacheList::AddLinear() {
  MambaSpec::Options options{.block_size = block_size_,
                             .cache_mode = options_.mamba_cache_mode,
                             .num_speculative_blocks = options_.num_speculative_blocks,
                             .num_checkpoint_blocks = options_.num_checkpoint_blocks};
  for (const StateFacts& state : model_.states) {
    MambaState part{.shape = state.shape, .dtype = state.dtype};
    if (part.shape[0] % options_.tensor_parallel != 0) {
      return FieldError(
          "tensor_parallel", std::to_string(options_.tensor_parallel),
          "a divisor of the " + std::to_string(part.shape[0]) + " rows of state " + state.name);
    }
    part.shape[0] /= options_.tensor_parallel;
    options.states.push_back(std::move(part));
  }
  return Add("linear_attn", MambaSpec::Create(options));
}

// A layer that predicts further tokens attends like the model's unbounded layers; beside
// compressed ones it keeps a window only.
LayerKind DraftKind(const ModelFacts& model) {
  if (model.compressed) return LayerKind::kCompressedWindow;
  for (const LayerKind kind : {LayerKind::kSparseLatent, LayerKind::kLatent, LayerKind::kFull}) {
    if (model.has(kind)) return kind;
  }
  return static_cast<LayerKind>(model.layer_pattern.back());
}

}  // namespace

absl::StatusOr<CacheDtype> ResolveCacheDtype(const ModelFacts& model,
                                             const LayerCacheOptions& options) {
  auto format = ParseCacheDtype(options.cache_dtype, options.model_dtype.value_or(model.dtype));
  if (!format.ok()) return format.status();
  const bool one_fp8_format = model.CountLayers("N") + model.CountLayers(kCompressedLetters) > 0;
  if (one_fp8_format && format->mode == QuantMode::kFp8PerTensor) {
    format = CacheDtype{DataType::kUint8, QuantMode::kFp8DsMla};
  }
  const std::string got = '"' + options.cache_dtype + '"';
  if (one_fp8_format && format->mode != QuantMode::kNone && !IsDsMla(format->mode)) {
    return FieldError("cache_dtype", got, "auto, a data type, fp8, fp8_ds_mla or nvfp4_ds_mla",
                      "sparse and compressed rows have no other format");
  }
  if (!IsDsMla(format->mode)) return format;
  if (format->mode == QuantMode::kNvfp4DsMla && model.compressed) {
    return FieldError("cache_dtype", got, "auto, a data type, fp8 or fp8_ds_mla",
                      "the compressed rows of " + model.name + " are planned in no other format");
  }
  if (model.CountLayers("MN") + model.CountLayers(kCompressedLetters) == 0) {
    return FieldError("cache_dtype", got, "another format", "no layer stores latent rows");
  }
  if (model.latent && model.latent->row_elements() != kFp8DsMlaRowElements) {
    return FieldError("mla", std::to_string(model.latent->row_elements()) + " elements per row",
                      std::to_string(kFp8DsMlaRowElements) + " for " + got);
  }
  const RowCodec& codec = CodecOf(RowFormat::kFp8DsMlaV4);
  const int64_t row_bytes = codec.fixed_row_bytes + codec.footer_bytes_per_row;
  if (model.compressed && model.compressed->row_bytes_fp8_ds_mla != row_bytes) {
    return FieldError("compressed_attention.row_bytes_fp8_ds_mla",
                      std::to_string(model.compressed->row_bytes_fp8_ds_mla),
                      std::to_string(row_bytes) + " for " + got);
  }
  return format;
}

absl::StatusOr<std::vector<LayerCache>> LayerCaches(const ModelFacts& model,
                                                    const LayerCacheOptions& options) {
  if (absl::Status status = Validate(model); !status.ok()) return status;
  if (options.tensor_parallel < 1 || options.tensor_parallel > kMaxRanks) {
    return FieldError("tensor_parallel", std::to_string(options.tensor_parallel),
                      "1 to " + std::to_string(kMaxRanks));
  }
  if (options.num_draft_layers < 0 || options.num_draft_layers > kMaxLayers) {
    return FieldError("num_draft_layers", std::to_string(options.num_draft_layers),
                      "0 to " + std::to_string(kMaxLayers));
  }
  if (options.num_draft_tokens < 0 || options.num_draft_tokens > kMaxDraftTokens) {
    return FieldError("num_draft_tokens", std::to_string(options.num_draft_tokens),
                      "0 to " + std::to_string(kMaxDraftTokens));
  }
  if (absl::Status status = CheckPositive("block_size", options.block_size); !status.ok()) {
    return status;
  }
  if (options.block_size && model.compressed) {
    return FieldError("block_size", std::to_string(*options.block_size),
                      "no value next to " + model.name,
                      "the blocks of compressed attention belong to the model");
  }
  const auto format = ResolveCacheDtype(model, options);
  if (!format.ok()) return format.status();
  LayerCacheList list(
      model, options, *format,
      options.block_size.value_or(model.latent ? kDefaultLatentBlockSize : kDefaultBlockSize));
  if (absl::Status status = CheckPipelineStages(model, options.pipeline_parallel); !status.ok()) {
    return status;
  }
  const auto stages = PipelineStages(model.num_layers(), options.pipeline_parallel);
  const int64_t own = model.num_layers() - model.num_kv_shared_layers;
  int stage = 0;
  for (int64_t i = 0; i < own; ++i) {
    if (i >= stages[static_cast<size_t>(stage) + 1]) list.set_worker(++stage);
    const auto kind = static_cast<LayerKind>(model.layer_pattern[static_cast<size_t>(i)]);
    if (absl::Status status = list.AddLayer(i, kind, false); !status.ok()) return status;
  }
  for (int64_t i = 0; i < options.num_draft_layers; ++i) {
    list.set_worker(static_cast<int>(options.pipeline_parallel) - 1);
    absl::Status status = list.AddLayer(model.num_layers() + i, DraftKind(model), true);
    if (!status.ok()) return status;
  }
  return list.Take();
}

}  // namespace kvblocks
