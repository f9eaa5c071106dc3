#include "attention/backends/layer_params.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/ops/arg_checker.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_masks.h"

namespace kvblocks::attention {

namespace {

absl::Status AddMask(const LayerConfig& layer, const CommonAttentionMetadata& metadata,
                     bool has_cache, AttnParams* params) {
  params->mask = ChooseMask(metadata, layer.window);
  if (!params->mask.enabled()) return absl::OkStatus();
  const bool custom = !metadata.custom_mask.null();
  // Rows of masks are positions of the sequence whose keys they hide.
  if (layer.type == AttentionType::kEncoderDecoder ||
      (!custom && layer.type != AttentionType::kDecoder)) {
    return RefusedBy(layer, "the metadata has a ", custom ? "custom" : "causal",
                     " mask, and the layer is of type ", Name(layer.type),
                     "; give it metadata without");
  }
  if (!custom) return absl::OkStatus();
  if (metadata.chunk > 0) {
    return RefusedBy(layer, "a custom mask counts positions of requests, not of their pieces");
  }
  params->causal = false;
  params->window_left = params->window_right = -1;
  for (int32_t b = 0; b < metadata.num_reqs && !has_cache; ++b) {
    const int64_t num_new =
        int64_t{metadata.host_query_start_loc[b + 1]} - metadata.host_query_start_loc[b];
    if (num_new == metadata.host_seq_lens[b]) continue;
    return RefusedBy(layer, "request ", b, " has ", metadata.host_seq_lens[b], " tokens, ", num_new,
                     " of them new; without a cache a custom mask needs all of them new");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDeclaredRows(const LayerConfig& layer, const BackendSupport& support,
                               const std::optional<KvRowFormat>& row_format, int64_t key_dim,
                               int64_t value_dim) {
  if (!row_format.has_value()) return absl::OkStatus();
  BackendConfig config;
  config.row_format = *row_format;
  config.cache_dtype = *row_format == KvRowFormat::kPerTokenHead ? DType::kI8 : DType::kU8;
  config.head_size = key_dim, config.value_head_size = value_dim;
  if (layer.is_mla()) config.features.Add(Feature::kMla);
  const std::vector<Reason> reasons = CheckRowFormat(support, config);
  return reasons.empty() ? absl::OkStatus() : RefusedBy(layer, reasons[0].text);
}

absl::Status CheckCacheRows(const LayerConfig& layer, const char* name,
                            const std::optional<KvRowFormat>& row_format,
                            const KvCacheView& cache) {
  if (!row_format.has_value() || cache.absent() || cache.format == *row_format) {
    return absl::OkStatus();
  }
  return RefusedBy(layer, name, " has rows of ", Name(cache.format), "; the layer was made for ",
                   Name(*row_format));
}

absl::StatusOr<AttnParams> ParamsOf(const LayerConfig& layer,
                                    const CommonAttentionMetadata& metadata, bool has_cache) {
  AttnParams params;
  params.scale = layer.scale;
  params.soft_cap = layer.soft_cap;
  params.causal = layer.type == AttentionType::kDecoder && metadata.causal;
  if (layer.window > 0 && layer.type != AttentionType::kEncoderDecoder) {
    params.window_left = layer.window - 1;
    params.window_right = params.causal ? -1 : layer.window - 1;
  }
  params.alibi_slopes = layer.alibi_slopes;
  params.sinks = layer.sinks;
  params.block_sparse = layer.block_sparse;
  params.split = layer.split;
  if (layer.type == AttentionType::kDecoder) params.chunk = layer.chunk;
  if (metadata.chunk > 0) {
    // In a piece of a request positions begin anew, and nothing else says where chunks end.
    if (metadata.chunk != layer.chunk || !params.causal || params.block_sparse.enabled()) {
      return RefusedBy(
          layer, "the metadata's requests are cut at multiples of ", metadata.chunk,
          ", for causal layers of that chunk without a block-sparse rule; this one has "
          "chunk ",
          layer.chunk);
    }
    params.chunk = 0;
  }
  if (metadata.sink_rows > 0) {
    if (!has_cache) {
      return RefusedBy(layer, "the batch has ", metadata.sink_rows,
                       " sink rows, which are in the cache; give cache and block table");
    }
    if (layer.chunk > 0 || params.block_sparse.enabled()) {
      return RefusedBy(layer, "tables begin with ", metadata.sink_rows,
                       " sink rows, which chunks and block-sparse rules do not know");
    }
    if (params.window_left >= 0 && metadata.custom_mask.null()) {
      return RefusedBy(layer, "tables begin with ", metadata.sink_rows,
                       " sink rows, which a window of ", layer.window,
                       " hides; let AttachMasks give the metadata a mask that shows them");
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(AddMask(layer, metadata, has_cache, &params));
  return params;
}

bool IsCascade(const LayerConfig& layer, const CommonAttentionMetadata& metadata,
               const AttnParams& params, int32_t num_multiprocessors) {
  if (layer.cascade == CascadeChoice::kNever || metadata.common_prefix_len == 0 ||
      layer.window > 0 || layer.chunk > 0 || params.block_sparse.enabled() ||
      params.mask.enabled() || !params.alibi_slopes.absent()) {
    return false;
  }
  return layer.cascade == CascadeChoice::kAlways ||
         UseCascade({.common_prefix_len = metadata.common_prefix_len,
                     .num_reqs = metadata.num_reqs,
                     .num_heads = layer.num_heads,
                     .num_kv_heads = layer.num_kv_heads,
                     .max_query_len = metadata.max_query_len,
                     .num_multiprocessors = num_multiprocessors});
}

SplitPolicy DecodeSplit(const LayerConfig& layer, const CommonAttentionMetadata& metadata,
                        int64_t num_requests) {
  if (!layer.split_as_vllm) return layer.split;
  return SelectDecodeVersion(metadata.max_seq_len, num_requests, layer.num_heads) ==
                 DecodeVersion::kV1
             ? SplitPolicy::None()
             : SplitPolicy::Fixed(kDecodePartitionTokens);
}

absl::Status CheckLayerCall(const LayerConfig& layer, const ExecContext& context,
                            const LayerTensors& tensors, const CommonAttentionMetadata& metadata) {
  ArgChecker check(context, "Forward");
  check.View("q", tensors.q, DTypeSet::All());
  check.View("out", tensors.out, DTypeSet::All());
  for (const auto& [name, view] : {std::pair<const char*, ConstTensorView>("k", tensors.k),
                                   {"v", tensors.v},
                                   {"cache.k", tensors.cache.k},
                                   {"cache.v", tensors.cache.v},
                                   {"q_codes", tensors.q_codes},
                                   {"block_table", metadata.block_table},
                                   {"seq_lens", metadata.seq_lens},
                                   {"local_context_lens", metadata.local_context_lens},
                                   {"lse", tensors.lse},
                                   {"slot_mapping", metadata.slot_mapping}}) {
    if (!view.absent()) check.View(name, view, DTypeSet::All());
  }
  const int64_t num_starts = static_cast<int64_t>(metadata.host_query_start_loc.size());
  const int64_t num_rows = static_cast<int64_t>(metadata.host_seq_lens.size());
  for (const auto& [name, count, limit] :
       {std::tuple<const char*, int64_t, int64_t>("num_reqs", metadata.num_reqs, num_rows),
        {"num_decodes", metadata.num_decodes, num_rows},
        {"num_decode_tokens", metadata.num_decode_tokens, metadata.num_actual_tokens}}) {
    if (count < 0 || count > limit) {
      check.Invalid(name, " is ", count, "; 0 to ", limit, " by the rest of the metadata");
    }
  }
  if (num_starts != num_rows + 1) {
    check.Invalid("host_query_start_loc has ", num_starts, " elements and host_seq_lens ", num_rows,
                  "; one more than those");
  }
  if (check.ok()) return absl::OkStatus();
  return absl::Status(check.status().code(), absl::StrCat("layer ", layer.name, ": ",
                                                          std::string(check.status().message())));
}

absl::Status CheckRankCall(const LayerConfig& layer, const LayerTensors& tensors,
                           const CommonAttentionMetadata& metadata) {
  const int32_t ranks = metadata.context_parallel.num_ranks;
  const char* what = nullptr;
  if (layer.type != AttentionType::kDecoder) what = "attention of other types than decoder";
  if (layer.window > 0) what = "a window";
  if (layer.chunk > 0 || metadata.chunk > 0) what = "chunks";
  if (!layer.alibi_slopes.absent()) what = "ALiBi";
  if (layer.block_sparse.enabled()) what = "a block-sparse rule";
  if (!metadata.attn_mask.null() || !metadata.custom_mask.null()) what = "a mask";
  if (what != nullptr) {
    return RefusedBy(layer, "the metadata is that of a rank of ", ranks, "; ", what,
                     " cannot be spread over ranks; use one rank");
  }
  if (!layer.sinks.absent() || tensors.out_scale > 0) {
    return RefusedBy(layer, "a rank of ", ranks, " has but a state, and there is ",
                     layer.sinks.absent() ? "out_scale" : "a sink",
                     "; give it to MergeStates, behind the merge");
  }
  if (tensors.lse.absent()) {
    return RefusedBy(layer, "lse is absent; states of ", ranks, " ranks cannot be merged without");
  }
  if (metadata.host_local_context_lens.size() != metadata.host_seq_lens.size()) {
    return RefusedBy(layer, "host_local_context_lens has ", metadata.host_local_context_lens.size(),
                     " elements; as many as host_seq_lens, ", metadata.host_seq_lens.size());
  }
  return absl::OkStatus();
}

void KvScaleState::SetOutputs(ComputeKvScalesArgs& args) const {
  if (!args.q.absent()) args.q_scale = q_scale_;
  args.k_scale = k_scale_;
  args.v_scale = v_scale_;
}

absl::Status KvScaleState::ComputeOnce(const AttentionOps& ops, const ExecContext& context,
                                       ComputeKvScalesArgs args) {
  if (frozen_ || args.k.empty()) return absl::OkStatus();
  SetOutputs(args);
  absl::Status status = ops.ComputeKvScales(context, args);
  frozen_ = status.ok();
  return status;
}

absl::Status KvScaleState::ComputeAndStoreOnce(const AttentionOps& ops, const ExecContext& context,
                                               ScaleAndCacheArgs args) {
  if (frozen_ || args.scales.k.empty()) return absl::OkStatus();
  SetOutputs(args.scales);
  absl::Status status = ops.ScaleAndCache(context, args);
  frozen_ = status.ok();
  return status;
}

DecodeVersion SelectDecodeVersion(int64_t max_seq_len, int64_t num_reqs, int64_t num_heads) {
  const int64_t partitions = CeilDiv(max_seq_len, kDecodePartitionTokens);
  const bool enough_work = num_reqs * num_heads > 512;
  return max_seq_len <= kMaxSinglePassTokens && (partitions <= 1 || enough_work)
             ? DecodeVersion::kV1
             : DecodeVersion::kV2;
}

namespace {

constexpr int64_t kCascadeTileRows = 128, kCascadeTileKeys = 128;

}  // namespace

CascadeCost ModelCascade(const CascadeShape& choice) {
  const int64_t key_tiles = CeilDiv(choice.common_prefix_len, kCascadeTileKeys);
  const int64_t group = choice.num_heads / choice.num_kv_heads;
  CascadeCost cost;
  cost.cascade = CeilDiv(choice.num_heads * CeilDiv(choice.num_reqs, kCascadeTileRows),
                         choice.num_multiprocessors) *
                 key_tiles;
  cost.per_request =
      CeilDiv(choice.num_reqs * choice.num_kv_heads * CeilDiv(group, kCascadeTileRows) * key_tiles,
              choice.num_multiprocessors);
  return cost;
}

bool UseCascade(const CascadeShape& choice) {
  if (choice.common_prefix_len < 256 || choice.num_reqs < 8) return false;
  if (choice.has_alibi || choice.has_window || choice.has_chunk) return false;
  if (choice.max_query_len > 1 || choice.num_heads == choice.num_kv_heads) return true;
  const CascadeCost cost = ModelCascade(choice);
  return cost.cascade < cost.per_request;
}

}  // namespace kvblocks::attention
