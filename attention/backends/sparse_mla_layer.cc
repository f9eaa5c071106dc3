#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "attention/backends/layer_params.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kWorkAlignment = 256;

// Calls place(member, type, extents) for every tensor of the work.
template <typename Work, typename Place>
void VisitWork(const LayerConfig& layer, const SparseWorkBounds& bounds, Work& work, Place place) {
  const SparseConfig& sparse = layer.sparse;
  const int64_t tokens = bounds.max_tokens;
  if (sparse.compress_ratio > 0) {
    place(work.window_slots, DType::kI32, {tokens, bounds.sink_rows + layer.window});
    place(work.window_lens, DType::kI32, {tokens});
  }
  if (sparse.compresses() && sparse.topk == 0) {
    place(work.all_slots, DType::kI32, {tokens, bounds.max_seq_len / sparse.compress_ratio});
    place(work.all_lens, DType::kI32, {tokens});
  }
  if (sparse.topk > 0) {
    place(work.chosen_slots, DType::kI32, {tokens, sparse.topk});
    place(work.chosen_lens, DType::kI32, {tokens});
  }
  if (sparse.compresses()) {
    place(work.rows, bounds.row_dtype, {tokens, layer.latent_rank + layer.rotary_dim});
    if (sparse.topk > 0) place(work.index_rows, bounds.row_dtype, {tokens, sparse.index_dim});
  }
}

// The first rows, or the view itself where there are fewer: operations say what they lack.
template <typename View>
View FirstRows(const View& view, int64_t rows) {
  if (view.rank < 1 || view.extent[0] <= rows) return view;
  return *view.Slice(0, 0, rows);
}

// [T, X] as [T, 1, X].
template <typename View>
View OneEach(const View& view) {
  return *view.Unsqueeze(1);
}

// A row's latent and rotary columns as a write into a cache.
ConcatAndCacheMlaArgs WriteOf(const LayerConfig& layer, const ConstTensorView& rows,
                              const ConstTensorView& slots, const KvCacheView& cache) {
  ConcatAndCacheMlaArgs args;
  args.kv_c = *rows.Slice(1, 0, layer.latent_rank);
  args.k_pe = *rows.Slice(1, layer.latent_rank, layer.latent_rank + layer.rotary_dim);
  args.slot_mapping = slots;
  args.cache = cache;
  return args;
}

}  // namespace

int64_t SparseWorkBytes(const LayerConfig& layer, const SparseWorkBounds& bounds) {
  int64_t bytes = 0;
  SparseWork work;
  VisitWork(layer, bounds, work,
            [&](TensorView&, DType dtype, std::initializer_list<int64_t> extents) {
              int64_t size = ElementBytes(dtype);
              for (const int64_t extent : extents) size *= extent;
              bytes += RoundUp(size, kWorkAlignment);
            });
  return bytes;
}

absl::StatusOr<SparseWork> MakeSparseWork(const LayerConfig& layer, const SparseWorkBounds& bounds,
                                          const TensorView& memory) {
  const int64_t needed = SparseWorkBytes(layer, bounds);
  if (memory.dtype != DType::kU8 || memory.rank != 1 || !memory.contiguous()) {
    return RefusedBy(layer, "the memory to work in is ", memory.DebugString(), "; dense u8[n]");
  }
  if (memory.extent[0] < needed) {
    return ResourceExhausted("layer ", layer.name, " works in ", needed, " bytes; the memory has ",
                             memory.extent[0]);
  }
  SparseWork work;
  std::byte* at = memory.data;
  VisitWork(layer, bounds, work,
            [&](TensorView& view, DType dtype, std::initializer_list<int64_t> extents) {
              view = TensorView::Contiguous(at, dtype, extents);
              view.device = memory.device;
              at += RoundUp(view.num_elements() * ElementBytes(dtype), kWorkAlignment);
            });
  return work;
}

absl::Status BuildSparseLists(const AttentionBackend& backend, const ExecContext& context,
                              const LayerConfig& layer, const CommonAttentionMetadata& window,
                              const CommonAttentionMetadata* compressed, const SparseWork& work) {
  const SparseConfig& sparse = layer.sparse;
  if (sparse.compress_ratio == 0) return absl::OkStatus();
  if (window.plans != nullptr && !window.plans->HasToList(layer, window, compressed, work)) {
    return absl::OkStatus();
  }
  WindowIndicesArgs windows;
  windows.window = layer.window;
  windows.sink_rows = window.sink_rows;
  windows.query_start_loc = window.query_start_loc;
  windows.seq_lens = window.seq_lens;
  windows.block_table = window.block_table;
  windows.block_size = window.block_size;
  windows.indices = work.window_slots, windows.lens = work.window_lens;
  absl::Status status = backend.BuildList(context, windows);
  if (!status.ok() || !sparse.compresses() || sparse.topk > 0) return status;
  if (compressed == nullptr) {
    return RefusedBy(layer, "no metadata of its compressed rows; a ratio of ",
                     sparse.compress_ratio, " needs it");
  }
  DenseCompressedIndicesArgs all;
  all.ratio = sparse.compress_ratio;
  all.query_start_loc = compressed->query_start_loc;
  all.positions = compressed->positions;
  all.indices = work.all_slots, all.lens = work.all_lens;
  status = backend.BuildList(context, all);
  if (!status.ok()) return status;
  TopkSlotsArgs slots;
  slots.query_start_loc = compressed->query_start_loc;
  slots.indices = work.all_slots;
  slots.block_table = compressed->block_table;
  slots.block_size = compressed->block_size;
  slots.slots = work.all_slots, slots.counts = work.all_lens;
  return backend.BuildList(context, slots);
}

absl::StatusOr<std::unique_ptr<AttentionImpl>> SparseMlaLayer::Create(
    const LayerConfig& config, const AttentionBackend* backend) {
  const auto refuse = [&](const auto&... text) { return RefusedBy(config, text...); };
  const SparseConfig& sparse = config.sparse;
  for (int64_t size :
       {config.num_heads, config.head_size, config.latent_rank, config.rotary_dim, sparse.topk,
        sparse.index_heads, sparse.index_dim, sparse.compress_ratio, config.window}) {
    if (size < 0 || size > int64_t{1} << 30) {
      return refuse("a number of a sparse layer is ", size, "; 0 to 2^30");
    }
  }
  if (config.num_heads < 1 || config.latent_rank < 1) {
    return refuse(config.num_heads, " heads and a latent rank of ", config.latent_rank,
                  "; at least 1 each");
  }
  if (sparse.compress_ratio == 0 && config.window != 0) {
    return refuse("window ", config.window, "; a sparse layer without compress_ratio has none");
  }
  if (sparse.compress_ratio > 0 && config.window < 1) {
    return refuse("window ", config.window, "; with compress_ratio at least 1");
  }
  if (sparse.topk > 0 && sparse.compress_ratio == 1) {
    return refuse("topk ", sparse.topk, " with compress_ratio 1; a window alone has no indexer");
  }
  if (sparse.topk > 0 && (sparse.index_heads < 1 || sparse.index_dim < 1)) {
    return refuse("an indexer of ", sparse.index_heads, " heads of ", sparse.index_dim,
                  "; at least 1 each");
  }
  if (sparse.overlap && !sparse.compresses()) {
    return refuse("overlap with compress_ratio ", sparse.compress_ratio, "; at least 2");
  }
  if (config.type != AttentionType::kDecoder || config.soft_cap != 0 || config.chunk != 0 ||
      !config.alibi_slopes.absent() || config.block_sparse.enabled() ||
      !config.shares_cache_of.empty() || config.scale_state != nullptr ||
      !config.scales.k.absent() || !config.scales.v.absent() || !config.scales.q.absent() ||
      config.quantize_queries || config.cascade != CascadeChoice::kNever || config.split_as_vllm) {
    return refuse("a sparse layer is a decoder's and has sinks, a scale and no other feature");
  }
  LayerConfig full = config;
  full.num_kv_heads = 1;
  const int64_t row = config.latent_rank + config.rotary_dim;
  if (sparse.compressed_row_format.has_value() && !sparse.compresses()) {
    return refuse("compressed_row_format with compress_ratio ", sparse.compress_ratio,
                  "; at least 2");
  }
  // V4's values are whole rows.
  if (full.value_head_size == 0) {
    full.value_head_size = sparse.compress_ratio > 0 ? row : config.latent_rank;
  }
  if (full.head_size == 0) full.head_size = row;
  for (const auto& format : {config.row_format, sparse.compressed_row_format}) {
    KVBLOCKS_RETURN_IF_ERROR(
        CheckDeclaredRows(full, backend->support(), format, row, full.value_head_size));
  }
  if (!(config.scale >= 0) || !std::isfinite(config.scale)) {
    return refuse("scale ", config.scale, "; finite and above 0, or 0 for head_size^-1/2");
  }
  if (full.scale == 0) full.scale = static_cast<float>(1 / std::sqrt(double(full.head_size)));
  return std::unique_ptr<AttentionImpl>(new SparseMlaLayer(full, backend));
}

absl::Status SparseMlaLayer::CheckCall(const LayerTensors& tensors,
                                       const CommonAttentionMetadata& metadata) const {
  const SparseConfig& sparse = config_.sparse;
  if (tensors.sparse == nullptr) {
    return RefusedBy(config_, "sparse is null; a sparse layer needs it");
  }
  const SparseTensors& more = *tensors.sparse;
  if (tensors.out_scale > 0) {
    return Unimplemented("layer ", config_.name,
                         ": a quantised output with sparse MLA; leave "
                         "out_scale at 0 and quantise out afterwards");
  }
  if (!metadata.causal || metadata.chunk != 0 || !metadata.attn_mask.null() ||
      !metadata.swa_mask.null() || !metadata.custom_mask.null()) {
    return RefusedBy(config_, "masks, chunks or batches without causality; sparse MLA has none");
  }
  if (metadata.context_parallel.enabled() || !tensors.lse.absent()) {
    return RefusedBy(config_, "a rank of ", metadata.context_parallel.num_ranks,
                     " or lse; sparse MLA has one rank and returns no states");
  }
  if (metadata.sink_rows > 0 && sparse.compress_ratio == 0) {
    return RefusedBy(config_, "the batch has ", metadata.sink_rows,
                     " sink rows; only layers with a window list them");
  }
  if (tensors.cache.absent() || metadata.block_table.absent()) {
    return RefusedBy(config_, "no cache or block table; sparse MLA reads its rows there");
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckCacheRows(config_, "the cache", config_.row_format, tensors.cache));
  KVBLOCKS_RETURN_IF_ERROR(CheckCacheRows(config_, "compressed_cache", sparse.compressed_row_format,
                                          more.compressed_cache));
  const int64_t tokens = metadata.num_actual_tokens;
  struct Rows {
    const char* name;
    ConstTensorView view;
    int rank;
  };
  const auto check_rows = [&](std::initializer_list<Rows> all) {
    for (const auto& [name, view, rank] : all) {
      if (view.rank == rank && view.extent[0] >= tokens) continue;
      return RefusedBy(config_, name, " is ", view.DebugString(), "; ", rank, " dimensions and ",
                       tokens, " rows or more");
    }
    return absl::OkStatus();
  };
  const int64_t row = config_.latent_rank + config_.rotary_dim;
  if (tensors.q.rank != 3 || tensors.out.rank != 3) {
    return RefusedBy(config_, "q is ", tensors.q.DebugString(), " and out ",
                     tensors.out.DebugString(), "; [T, H, ", row, "] and [T, H, ",
                     config_.value_head_size, "]");
  }
  const SparseWork& work = more.work;
  KVBLOCKS_RETURN_IF_ERROR(check_rows({{"q", tensors.q, 3},
                                       {"out", tensors.out, 3},
                                       {"k", tensors.k, 2},
                                       {"slot_mapping", metadata.slot_mapping, 1}}));
  if (config_.rotary_dim > 0) KVBLOCKS_RETURN_IF_ERROR(check_rows({{"v", tensors.v, 2}}));
  if (sparse.compress_ratio > 0) {
    KVBLOCKS_RETURN_IF_ERROR(check_rows(
        {{"work.window_slots", work.window_slots, 2}, {"work.window_lens", work.window_lens, 1}}));
  }
  if (sparse.topk > 0) {
    KVBLOCKS_RETURN_IF_ERROR(check_rows({{"index_q", more.index_q, 3},
                                         {"index_weights", more.index_weights, 2},
                                         {"work.chosen_slots", work.chosen_slots, 2},
                                         {"work.chosen_lens", work.chosen_lens, 1}}));
    if (more.index_cache.absent()) return RefusedBy(config_, "no index_cache");
    if (!sparse.compresses()) return check_rows({{"index_k", more.index_k, 2}});
  }
  if (!sparse.compresses()) return absl::OkStatus();
  if (more.compressed == nullptr || more.states == nullptr || more.compressed_cache.absent()) {
    return RefusedBy(config_, "compressed rows or states without cache or metadata; a ratio of ",
                     sparse.compress_ratio, " needs them");
  }
  for (const CommonAttentionMetadata* group : {more.compressed, more.states}) {
    if (group->num_actual_tokens != tokens || group->num_reqs != metadata.num_reqs) {
      return RefusedBy(config_, "groups of one step have ", group->num_actual_tokens, " and ",
                       tokens, " tokens");
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(
      check_rows({{"compressed->slot_mapping", more.compressed->slot_mapping, 1},
                  {"states->slot_mapping", more.states->slot_mapping, 1},
                  {"compressor.kv", more.compressor.kv, 2},
                  {"compressor.score", more.compressor.score, 2},
                  {"work.rows", work.rows, 2}}));
  if (work.rows.extent[1] != row) {
    return RefusedBy(config_, "work.rows is ", work.rows.DebugString(), "; rows of ", row);
  }
  if (sparse.topk > 0) {
    return check_rows({{"compressor.kv", more.index_compressor.kv, 2},
                       {"compressor.score", more.index_compressor.score, 2},
                       {"work.rows", work.index_rows, 2}});
  }
  return check_rows({{"work.all_slots", work.all_slots, 2}, {"work.all_lens", work.all_lens, 1}});
}

absl::Status SparseMlaLayer::Forward(const ExecContext& context, const LayerTensors& tensors,
                                     const CommonAttentionMetadata* metadata) const {
  if (metadata == nullptr) return backend_->FillZeros(context, tensors.out);
  if (tensors.hooks == nullptr) return Attend(context, tensors, *metadata);
  absl::Status status = Wait(context, *tensors.hooks);
  if (status.ok()) status = Attend(context, tensors, *metadata);
  if (status.ok()) status = Save(context, tensors, *metadata);
  return status;
}

absl::Status SparseMlaLayer::Wait(const ExecContext& context, LayerHooks& hooks) const {
  const SparseConfig& sparse = config_.sparse;
  struct Cache {
    bool is_there;
    const char* field;
    const std::string& name;
  };
  const Cache caches[] = {
      {sparse.compresses(), "compressed", sparse.names.compressed},
      {sparse.topk > 0, "index", sparse.names.index},
      {sparse.compresses(), "states", sparse.names.states},
      {sparse.compresses() && sparse.topk > 0, "index_states", sparse.names.index_states}};
  for (const Cache& cache : caches) {
    if (cache.is_there && cache.name.empty()) {
      return RefusedBy(config_, "sparse.names.", cache.field,
                       " is empty; a KV connector's hooks need the names of all caches");
    }
  }
  absl::Status status = hooks.WaitForLayer(config_.name, context);
  for (const Cache& cache : caches) {
    if (status.ok() && cache.is_there) status = hooks.WaitForLayer(cache.name, context);
  }
  return status;
}

absl::Status SparseMlaLayer::Save(const ExecContext& context, const LayerTensors& tensors,
                                  const CommonAttentionMetadata& metadata) const {
  const SparseConfig& sparse = config_.sparse;
  const SparseTensors& more = *tensors.sparse;
  LayerHooks& hooks = *tensors.hooks;
  absl::Status status = hooks.SaveLayer(config_.name, tensors.cache, metadata, context);
  if (status.ok() && sparse.compresses()) {
    status =
        hooks.SaveLayer(sparse.names.compressed, more.compressed_cache, *more.compressed, context);
  }
  if (status.ok() && sparse.topk > 0) {
    status = hooks.SaveBlocks(sparse.names.index, more.index_cache.rows,
                              sparse.compresses() ? *more.compressed : metadata, context);
  }
  if (status.ok() && sparse.compresses()) {
    status = hooks.SaveBlocks(sparse.names.states, more.compressor.states, *more.states, context);
  }
  if (status.ok() && sparse.compresses() && sparse.topk > 0) {
    status = hooks.SaveBlocks(sparse.names.index_states, more.index_compressor.states, *more.states,
                              context);
  }
  return status;
}

absl::Status SparseMlaLayer::Attend(const ExecContext& context, const LayerTensors& tensors,
                                    const CommonAttentionMetadata& metadata) const {
  KVBLOCKS_RETURN_IF_ERROR(CheckCall(tensors, metadata));
  const SparseConfig& sparse = config_.sparse;
  const SparseTensors& more = *tensors.sparse;
  const SparseWork& work = more.work;
  if (metadata.plans != nullptr) {
    KVBLOCKS_RETURN_IF_ERROR(
        BuildSparseLists(*backend_, context, config_, metadata, more.compressed, work));
  }
  const int64_t tokens = metadata.num_actual_tokens;
  const TensorView padding = *tensors.out.Slice(0, tokens, tensors.out.extent[0]);

  // The step's rows.
  std::optional<ConcatAndCacheMlaArgs> write(std::in_place);
  write->kv_c = FirstRows(tensors.k, tokens);
  write->k_pe = config_.rotary_dim > 0
                    ? FirstRows(tensors.v, tokens)
                    : *write->kv_c.Slice(1, write->kv_c.extent[1], write->kv_c.extent[1]);
  write->slot_mapping = FirstRows(metadata.slot_mapping, tokens);
  write->cache = tensors.cache;

  // The rows that they complete.
  std::optional<CompressTokensArgs> compress, compress_index;
  std::optional<ConcatAndCacheMlaArgs> write_compressed;
  const auto compress_of = [&](const CompressorTensors& from,
                               const SparseConfig::Compressor& weights, const TensorView& to) {
    CompressTokensArgs args;
    args.kv = FirstRows(from.kv, tokens), args.score = FirstRows(from.score, tokens);
    args.bias = weights.bias;
    args.states = from.states;
    args.slot_mapping = FirstRows(more.states->slot_mapping, tokens);
    args.query_start_loc = more.states->query_start_loc;
    args.seq_lens = more.states->seq_lens;
    args.block_table = more.states->block_table;
    args.ratio = sparse.compress_ratio, args.overlap = sparse.overlap;
    args.norm_weight = weights.norm_weight, args.norm_eps = sparse.norm_eps;
    args.cos_sin = sparse.cos_sin;
    args.out = FirstRows(to, tokens);
    return args;
  };
  if (sparse.compresses()) {
    compress = compress_of(more.compressor, sparse.compressor, work.rows);
    write_compressed =
        WriteOf(config_, compress->out, FirstRows(more.compressed->slot_mapping, tokens),
                more.compressed_cache);
  }

  // The indexer's keys and choice.
  std::optional<CacheIndexKeysArgs> write_index;
  std::optional<IndexTopkArgs> choose;
  const CommonAttentionMetadata& indexed = sparse.compresses() ? *more.compressed : metadata;
  if (sparse.topk > 0) {
    write_index.emplace();
    if (sparse.compresses()) {
      compress_index = compress_of(more.index_compressor, sparse.index_compressor, work.index_rows);
      write_index->k = compress_index->out;
    } else {
      write_index->k = FirstRows(more.index_k, tokens);
    }
    write_index->slot_mapping = FirstRows(indexed.slot_mapping, tokens);
    write_index->cache = more.index_cache;
    write_index->power_of_two_scales = sparse.power_of_two_scales;
    choose.emplace();
    choose->q = FirstRows(more.index_q, tokens);
    choose->weights = FirstRows(more.index_weights, tokens);
    choose->cache = more.index_cache;
    choose->query_start_loc = indexed.query_start_loc;
    choose->seq_lens = indexed.seq_lens;
    choose->block_table = indexed.block_table;
    choose->max_seq_len = indexed.max_seq_len;
    choose->ratio = std::max<int64_t>(sparse.compress_ratio, 1);
    choose->indices = FirstRows(work.chosen_slots, tokens);
    choose->lens = FirstRows(work.chosen_lens, tokens);
  }

  std::optional<SparseMlaDecodeArgs> attend(std::in_place);
  attend->q = OneEach(FirstRows(tensors.q, tokens));
  attend->scale = config_.scale;
  attend->sinks = config_.sinks;
  attend->out = OneEach(FirstRows(tensors.out, tokens));
  // The lengths of chosen lists are not there yet where the host checks them; -1 ends them as well.
  const auto chosen = [&](const KvCacheView& cache) {
    return SparseKeys{cache, OneEach(choose->indices), {}};
  };
  if (sparse.compress_ratio == 0) {
    attend->main = chosen(tensors.cache);
  } else {
    attend->main = {tensors.cache, OneEach(FirstRows(work.window_slots, tokens)),
                    FirstRows(work.window_lens, tokens)};
    if (sparse.topk > 0) {
      attend->extra = chosen(more.compressed_cache);
    } else if (sparse.compresses()) {
      attend->extra = {more.compressed_cache, OneEach(FirstRows(work.all_slots, tokens)),
                       FirstRows(work.all_lens, tokens)};
    }
  }

  KVBLOCKS_RETURN_IF_ERROR(CheckAndRun(backend_->ops(), context, write, compress, write_compressed,
                                       compress_index, write_index, choose, attend));
  if (padding.empty()) return absl::OkStatus();
  return backend_->FillZeros(context, padding);
}

}  // namespace kvblocks::attention
