#include "kvblocks/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/backends/layer_params.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

bool IsBidirectional(AttentionType type) {
  return type == AttentionType::kEncoder || type == AttentionType::kEncoderOnly;
}

// [T, H, D] from that or [T, H * D].
template <typename View>
absl::StatusOr<View> AsHeads(const LayerConfig& layer, const char* name, const View& view,
                             int64_t heads, int64_t dim) {
  const bool flat = view.rank == 2 && view.extent[1] == heads * dim;
  const bool split = view.rank == 3 && view.extent[1] == heads && view.extent[2] == dim;
  if (!flat && !split) {
    return RefusedBy(layer, name, " is ", view.DebugString(), "; [T, ", heads, " * ", dim,
                     "] or [T, ", heads, ", ", dim, "]");
  }
  return split ? view : view.SplitLast(dim);
}

template <typename View>
absl::StatusOr<View> FirstRows(const LayerConfig& layer, const char* name, const View& view,
                               int64_t rows) {
  if (view.rank < 1 || view.extent[0] < rows) {
    return RefusedBy(layer, name, " is ", view.DebugString(), "; the batch has ", rows, " tokens");
  }
  return view.Slice(0, 0, rows);
}

// The first `rows` rows as [rows, heads, dim].
template <typename View>
absl::StatusOr<View> TakeRows(const LayerConfig& layer, const char* name, const View& view,
                              int64_t heads, int64_t dim, int64_t rows) {
  KVBLOCKS_ASSIGN_OR_RETURN(const View shaped, AsHeads(layer, name, view, heads, dim));
  return FirstRows(layer, name, shaped, rows);
}

template <typename View>
View Rows(const View& view, int64_t begin, int64_t end) {
  return *view.Slice(0, begin, end);
}

int64_t Difference(absl::Span<const int32_t> starts, int64_t i) {
  return int64_t{starts[i + 1]} - starts[i];
}

absl::Status QuantizedMlaOutput(const LayerConfig& layer) {
  return Unimplemented("layer ", layer.name, ": MLA with a quantised output");
}

// Requests at the head of the batch that have one new token each; 0 if the counts do not say that
// all others are prefills, which then all are.
int64_t SingleTokenRows(const CommonAttentionMetadata& metadata) {
  int64_t n = 0;
  while (n < metadata.num_decodes && Difference(metadata.host_query_start_loc, n) == 1) ++n;
  const bool none_left = metadata.num_prefills > 0 || n == metadata.num_actual_tokens;
  return n == metadata.num_decode_tokens && none_left ? n : 0;
}

}  // namespace

// One Forward: the tensors cut to the batch's tokens and shaped [T, heads, dim].
struct AttentionLayer::Call {
  const CommonAttentionMetadata* metadata = nullptr;
  ConstTensorView q, k, v;  // k and v absent: nothing new to store
  TensorView q_codes;       // absent: none is wanted
  ConstTensorView slots;
  KvCacheView cache;
  TensorView out, lse;  // of the tokens; lse may be absent
  TensorView padding;  // rows of out behind them
  bool has_cache = false;
  float out_scale = 0;
  KvScales scales;
  // If given, scales are still to be made of these, by the operation that stores k and v.
  std::optional<ComputeKvScalesArgs> makes_scales;

  // Of what attends.
  KvScales UsedScales() const {
    KvScales used;
    if (cache.takes_scale()) used = scales;
    used.q = IsQuantizedCode(q.dtype) ? scales.q : ConstTensorView();
    return used;
  }
};

absl::StatusOr<std::unique_ptr<AttentionImpl>> AttentionLayer::Create(
    const LayerConfig& config, const AttentionBackend* backend) {
  const auto refuse = [&](const auto&... text) { return RefusedBy(config, text...); };
  if (config.num_heads < 1 || config.head_size < 1 || config.value_head_size < 0) {
    return refuse(config.num_heads, " heads of size ", config.head_size, "; at least 1 each");
  }
  for (int64_t size : {config.num_heads, config.head_size, config.value_head_size,
                       config.latent_rank, config.rotary_dim}) {
    // Keeps products of heads and sizes within int64.
    if (size < 0 || size > int64_t{1} << 30) {
      return refuse("a number of heads or values is ", size, "; 0 to 2^30");
    }
  }
  const int64_t kv_heads = config.is_mla() ? 1 : config.num_kv_heads;
  if (kv_heads < 1 || config.num_heads % kv_heads != 0) {
    return refuse(config.num_heads, " heads, no multiple of ", kv_heads, " KV heads");
  }
  if (config.window < 0 || config.chunk < 0) {
    return refuse("window ", config.window, " and chunk ", config.chunk, "; at least 0");
  }
  if (!(config.scale >= 0) || !std::isfinite(config.scale)) {
    return refuse("scale ", config.scale, "; finite and above 0, or 0 for head_size^-1/2");
  }
  if (config.is_mla() && (config.quantize_queries || !config.scales.q.absent())) {
    return refuse(
        "quantised queries with MLA, whose operations take none; clear quantize_queries and "
        "scales.q");
  }
  if (config.is_mla() && config.type != AttentionType::kDecoder) {
    return refuse("MLA of type ", Name(config.type), "; decoders only");
  }
  LayerConfig full = config;
  full.num_kv_heads = kv_heads;
  full.value_head_size = config.output_head_size();
  const int64_t key_dim = config.is_mla() ? config.latent_rank + config.rotary_dim
                                          : config.head_size;
  KVBLOCKS_RETURN_IF_ERROR(CheckDeclaredRows(full, backend->support(), config.row_format, key_dim,
                                             full.value_head_size));
  if (full.scale == 0) full.scale = static_cast<float>(1 / std::sqrt(double(full.head_size)));
  return std::unique_ptr<AttentionImpl>(new AttentionLayer(full, backend));
}

absl::StatusOr<AttentionLayer::Call> AttentionLayer::MakeCall(
    const LayerTensors& tensors, const CommonAttentionMetadata* metadata) const {
  Call call;
  call.metadata = metadata;
  call.cache = tensors.cache;
  call.out_scale = tensors.out_scale;
  call.scales = config_.scales;
  const bool mla = config_.is_mla();
  const int64_t tokens = metadata->num_actual_tokens;
  const int64_t query_dim = mla ? config_.latent_rank + config_.rotary_dim : config_.head_size;
  const int64_t out_dim = config_.value_head_size;
  const int64_t heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  KVBLOCKS_ASSIGN_OR_RETURN(call.q, TakeRows(config_, "q", tensors.q, heads, query_dim, tokens));
  KVBLOCKS_ASSIGN_OR_RETURN(call.out,
                            TakeRows(config_, "out", tensors.out, heads, out_dim, tokens));
  if (QuantizesQueries(tensors)) {
    if (tensors.q_codes.absent()) {
      return RefusedBy(config_,
                       "queries are to be quantised and q_codes is absent; give it, e4m3 [T, ",
                       heads, ", ", config_.head_size, "]");
    }
    KVBLOCKS_ASSIGN_OR_RETURN(
        call.q_codes, TakeRows(config_, "q_codes", tensors.q_codes, heads, query_dim, tokens));
  }
  if (!tensors.lse.absent()) {
    KVBLOCKS_ASSIGN_OR_RETURN(call.lse, FirstRows(config_, "lse", tensors.lse, tokens));
  }
  const auto whole_out = AsHeads(config_, "out", tensors.out, heads, out_dim);
  call.padding = Rows(*whole_out, tokens, whole_out->extent[0]);
  if (tensors.k.absent() != tensors.v.absent()) {
    return RefusedBy(config_, "k and v go together; give both or neither");
  }
  if (tensors.k.absent()) return call;
  // Keys of an encoder are not the batch's tokens: as many as there are.
  const bool cross = config_.type == AttentionType::kEncoderDecoder;
  const int64_t rows = cross ? tensors.k.extent[0] : tokens;
  const int64_t k_dim = mla ? config_.latent_rank : config_.head_size;
  const int64_t v_dim = mla ? config_.rotary_dim : config_.value_head_size;
  KVBLOCKS_ASSIGN_OR_RETURN(call.k, TakeRows(config_, "k", tensors.k, kv_heads, k_dim, rows));
  KVBLOCKS_ASSIGN_OR_RETURN(call.v, TakeRows(config_, "v", tensors.v, kv_heads, v_dim, rows));
  call.slots = metadata->slot_mapping;
  if (!call.slots.absent() && !cross) {
    KVBLOCKS_ASSIGN_OR_RETURN(call.slots,
                              FirstRows(config_, "slot_mapping", call.slots, tokens));
  }
  return call;
}

bool AttentionLayer::QuantizesQueries(const LayerTensors& tensors) const {
  return config_.quantize_queries && backend_->flags().supports_quantized_query &&
         !config_.is_mla() && tensors.cache.k.dtype == DType::kF8E4M3 &&
         tensors.cache.takes_scale() && !IsQuantizedCode(tensors.q.dtype);
}

absl::Status AttentionLayer::ZeroPadding(const ExecContext& context, const Call& call) const {
  return call.padding.empty() ? absl::OkStatus() : backend_->FillZeros(context, call.padding);
}

absl::Status AttentionLayer::SettleScales(const ExecContext& context, Call& call) const {
  if (config_.scale_state == nullptr || !call.cache.takes_scale()) {
    return absl::OkStatus();
  }
  if (!config_.scale_state->frozen()) {
    // Only keys that are stored decide.
    if (call.k.absent() || call.k.extent[0] == 0 || !config_.shares_cache_of.empty()) {
      return absl::OkStatus();
    }
    ComputeKvScalesArgs args = config_.scale_divisors;
    const bool codes = IsQuantizedCode(call.q.dtype);
    if (!codes && !config_.scale_state->q_scale().absent()) args.q = call.q;
    args.k = call.k, args.v = call.v;
    if (!config_.is_mla() && call.cache.format == KvRowFormat::kElements) {
      call.makes_scales = args;
      return absl::OkStatus();
    }
    KVBLOCKS_RETURN_IF_ERROR(config_.scale_state->ComputeOnce(backend_->ops(), context, args));
  }
  if (config_.scale_state->frozen()) call.scales = config_.scale_state->scales();
  return absl::OkStatus();
}

absl::Status AttentionLayer::MlaSelfAttention(const ExecContext& context, const Call& call) const {
  MlaDecodeArgs args;
  args.q_lat = call.q;
  // The new rows as a cache of one block.
  const ConstTensorView latent = *call.k.Permute({1, 0, 2}), rotary = *call.v.Permute({1, 0, 2});
  args.cache = {KvLayout::kMlaSplit, latent, rotary};
  args.query_start_loc = args.kv_start_loc = call.metadata->query_start_loc;
  args.max_seq_len = call.metadata->max_query_len;
  KVBLOCKS_ASSIGN_OR_RETURN(args.params, ParamsOf(config_, *call.metadata, /*has_cache=*/false));
  args.out = call.out;
  args.lse = call.lse;
  const int64_t rank = config_.latent_rank, row = rank + config_.rotary_dim;
  if (config_.value_head_size != row || config_.rotary_dim == 0) {
    return backend_->ops().MlaDecode(context, args);
  }

  // Values are whole rows, as those of kMlaFp8_584: their rotary columns are attended to by the
  // same queries and keys with the two parts exchanged.
  std::optional<MlaDecodeArgs> head(args), tail(args);
  head->out = *call.out.Slice(2, 0, rank);
  tail->cache = {KvLayout::kMlaSplit, rotary, latent};
  tail->q_lat = *call.q.Slice(2, rank, row);
  tail->q_pe = *call.q.Slice(2, 0, rank);
  tail->out = *call.out.Slice(2, rank, row);
  tail->lse = {};  // as the head's
  return CheckAndRun(backend_->ops(), context, head, tail);
}

absl::Status AttentionLayer::SelfAttention(const ExecContext& context, const Call& call) const {
  const CommonAttentionMetadata& metadata = *call.metadata;
  if (call.k.absent()) return RefusedBy(config_, "no cache and no k and v; give either");
  if (config_.is_mla()) {
    if (call.out_scale > 0) return QuantizedMlaOutput(config_);
    return MlaSelfAttention(context, call);
  }
  VarlenSelfAttentionArgs args;
  args.q = call.q, args.k = call.k, args.v = call.v;
  args.query_start_loc = metadata.query_start_loc;
  KVBLOCKS_ASSIGN_OR_RETURN(args.params, ParamsOf(config_, metadata, call.has_cache));
  if (IsQuantizedCode(args.q.dtype)) args.params.scales.q = call.scales.q;
  args.out = call.out;
  args.lse = call.lse;
  args.out_scale = call.out_scale;
  // Keys of an encoder have lengths of their own.
  if (config_.type == AttentionType::kEncoderDecoder) {
    int64_t end = 0;
    for (int32_t length : metadata.host_seq_lens) {
      end += length;
      if (length < 0 || end > std::min<int64_t>(call.k.extent[0], INT32_MAX)) {
        return RefusedBy(config_, "seq_lens of the encoder add up to ", end,
                         " keys or more; k has ", call.k.extent[0]);
      }
    }
    args.kv_seq_lens = metadata.seq_lens;
  }
  return backend_->ops().VarlenSelfAttention(context, args);
}

absl::Status AttentionLayer::DenseAttention(const ExecContext& context, Call& call) const {
  const CommonAttentionMetadata& metadata = *call.metadata;
  KVBLOCKS_ASSIGN_OR_RETURN(AttnParams params, ParamsOf(config_, metadata, call.has_cache));
  std::optional<QuantizeQueriesArgs> quantize;
  if (!call.q_codes.absent()) {
    quantize = QuantizeQueriesArgs{call.q, call.scales.q, call.q_codes};
    call.q = call.q_codes;
  }
  params.scales = call.UsedScales();
  const bool per_request_scales = params.scales.k.rank == 2 || params.scales.v.rank == 2;

  std::optional<ReshapeAndCacheArgs> write;
  if (!call.k.absent() && config_.shares_cache_of.empty() && !call.makes_scales.has_value()) {
    write.emplace();
    write->k = call.k, write->v = call.v;
    write->slot_mapping = call.slots;
    write->cache = call.cache;
    write->scales = params.scales;
    write->scales.q = {};
  }

  const auto prefill_of = [&](const CommonAttentionMetadata& part, int64_t first_row) {
    PagedPrefillArgs args;
    const int64_t end = first_row + part.num_actual_tokens;
    args.q = Rows(call.q, first_row, end);
    args.out = Rows(call.out, first_row, end);
    if (!call.lse.absent()) args.lse = Rows(call.lse, first_row, end);
    args.cache = call.cache;
    args.query_start_loc = part.query_start_loc;
    args.seq_lens = part.seq_lens;
    args.block_table = part.block_table;
    args.max_query_len = part.max_query_len;
    args.max_seq_len = part.max_seq_len;
    args.params = params;
    args.out_scale = call.out_scale;
    return args;
  };

  // Decodes of one token take the decode operation, unless out is quantised, which only prefills
  // do.
  std::optional<PagedDecodeArgs> decode;
  std::optional<PagedPrefillArgs> prefill;
  std::optional<CascadeArgs> cascade;
  const bool as_prefill = call.out_scale > 0 || per_request_scales || params.mask.enabled() ||
                          config_.type != AttentionType::kDecoder;
  const int64_t singles = as_prefill ? 0 : SingleTokenRows(metadata);
  if (config_.cascade != CascadeChoice::kNever &&
      IsCascade(config_, metadata, params, backend_->num_multiprocessors(context))) {
    cascade = CascadeArgs{prefill_of(metadata, 0), metadata.common_prefix_len};
  } else if (singles == 0) {
    prefill = prefill_of(metadata, 0);
  } else {
    decode.emplace();
    decode->q = Rows(call.q, 0, singles);
    decode->out = Rows(call.out, 0, singles);
    if (!call.lse.absent()) decode->lse = Rows(call.lse, 0, singles);
    decode->cache = call.cache;
    KVBLOCKS_ASSIGN_OR_RETURN(decode->block_table,
                              FirstRows(config_, "block_table", metadata.block_table, singles));
    KVBLOCKS_ASSIGN_OR_RETURN(decode->seq_lens,
                              FirstRows(config_, "seq_lens", metadata.seq_lens, singles));
    decode->max_seq_len = metadata.max_seq_len;
    decode->params = params;
    decode->params.split = DecodeSplit(config_, metadata, singles);
    if (metadata.plans != nullptr) {
      KVBLOCKS_ASSIGN_OR_RETURN(decode->device_plan,
                                metadata.plans->ForDecode(*backend_, context, this, *decode));
    }
    if (metadata.num_prefills > 0) {
      KVBLOCKS_ASSIGN_OR_RETURN(auto part, PrefillView(metadata));
      prefill = prefill_of(part, singles);
    }
  }

  const AttentionOps& ops = backend_->ops();
  if (call.makes_scales.has_value()) {
    // First checks the attention operations without scales, which are not known yet.
    KVBLOCKS_RETURN_IF_ERROR(CheckAll(ops, context, decode, prefill, cascade));
    const ScaleAndCacheArgs store = {*call.makes_scales, call.slots, call.cache};
    KVBLOCKS_RETURN_IF_ERROR(config_.scale_state->ComputeAndStoreOnce(ops, context, store));
    call.scales = config_.scale_state->scales();
    const KvScales used = call.UsedScales();
    if (quantize.has_value()) quantize->scale = used.q;
    if (decode.has_value()) decode->params.scales = used;
    if (prefill.has_value()) prefill->params.scales = used;
    if (cascade.has_value()) cascade->prefill.params.scales = used;
  }
  return CheckAndRun(ops, context, quantize, write, decode, prefill, cascade);
}

absl::Status AttentionLayer::MlaAttention(const ExecContext& context, Call& call) const {
  const CommonAttentionMetadata& metadata = *call.metadata;
  if (call.out_scale > 0) return QuantizedMlaOutput(config_);
  KVBLOCKS_ASSIGN_OR_RETURN(AttnParams params, ParamsOf(config_, metadata, call.has_cache));
  std::optional<ConcatAndCacheMlaArgs> write;
  const bool quantised = call.cache.takes_scale();
  if (!call.k.absent() && config_.shares_cache_of.empty()) {
    write.emplace();
    write->kv_c = *call.k.Select(1, 0), write->k_pe = *call.v.Select(1, 0);
    write->slot_mapping = call.slots;
    write->cache = call.cache;
    if (quantised) write->scale = call.scales.k;
  }
  std::optional<MlaDecodeArgs> latent(std::in_place);
  MlaDecodeArgs& attend = *latent;
  attend.q_lat = call.q;
  attend.cache = call.cache;
  attend.query_start_loc = metadata.query_start_loc;
  attend.block_table = metadata.block_table;
  attend.seq_lens = metadata.seq_lens;
  attend.max_seq_len = metadata.max_seq_len;
  attend.params = std::move(params);
  if (quantised) attend.params.scales.k = call.scales.k;
  attend.out = call.out;
  attend.lse = call.lse;

  return CheckAndRun(backend_->ops(), context, write, latent);
}

absl::Status AttentionLayer::Forward(const ExecContext& context, const LayerTensors& tensors,
                                     const CommonAttentionMetadata* metadata) const {
  if (metadata == nullptr) {
    if (!tensors.lse.absent()) {
      KVBLOCKS_RETURN_IF_ERROR(backend_->FillZeros(context, tensors.lse));
    }
    return backend_->FillZeros(context, tensors.out);
  }
  LayerHooks* const hooks = tensors.hooks;
  if (hooks != nullptr) {
    KVBLOCKS_RETURN_IF_ERROR(hooks->WaitForLayer(config_.name, context));
  }
  absl::Status status = Attend(context, tensors, *metadata);
  if (status.ok() && hooks != nullptr) {
    status = hooks->SaveLayer(config_.name, tensors.cache, *metadata, context);
  }
  return status;
}

absl::Status AttentionLayer::Attend(const ExecContext& context, const LayerTensors& tensors,
                                    const CommonAttentionMetadata& metadata) const {
  KVBLOCKS_RETURN_IF_ERROR(CheckLayerCall(config_, context, tensors, metadata));
  KVBLOCKS_RETURN_IF_ERROR(CheckCacheRows(config_, "the cache", config_.row_format, tensors.cache));
  KVBLOCKS_ASSIGN_OR_RETURN(Call call, MakeCall(tensors, &metadata));
  if (metadata.num_actual_tokens == 0 && config_.type != AttentionType::kEncoderDecoder) {
    return ZeroPadding(context, call);
  }
  call.has_cache = !IsBidirectional(config_.type) && !tensors.cache.absent() &&
                   !tensors.cache.k.empty() && !metadata.block_table.absent() &&
                   !metadata.block_table.empty();
  absl::Status status;
  CommonAttentionMetadata rank_context;
  if (metadata.context_parallel.enabled()) {
    status = CheckRankCall(config_, tensors, metadata);
    if (!status.ok()) return status;
    if (call.has_cache) {
      rank_context = metadata;
      rank_context.seq_lens = metadata.local_context_lens;
      rank_context.host_seq_lens = metadata.host_local_context_lens;
      rank_context.max_seq_len = metadata.max_local_context_len;
      rank_context.causal = false;
      call.metadata = &rank_context;
    }
  }
  if (!call.has_cache) {
    status = SelfAttention(context, call);
  } else {
    status = SettleScales(context, call);
    if (status.ok()) {
      status = config_.is_mla() ? MlaAttention(context, call) : DenseAttention(context, call);
    }
  }
  if (status.ok()) status = ZeroPadding(context, call);
  return status;
}

}  // namespace kvblocks::attention
