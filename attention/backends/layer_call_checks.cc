#include "kvblocks/attention/backends/layer_call_checks.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/backends/layer_params.h"
#include "kvblocks/attention/ops/arg_checker.h"

namespace kvblocks::attention {

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

}  // namespace kvblocks::attention
