#include "kvblocks/attention_metadata.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

std::vector<int64_t> GraphCaptureSizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= most;) {
    sizes.push_back(size);
    size = size < 4 ? 2 * size : (size < 256 ? size / 8 * 8 + 8 : size + 16);
  }
  return sizes;
}

namespace {

// What a graph has of a mask.
struct Captured {
  MaskForm form;
  const std::byte* data;  // null: of bits, which are copied

  static Captured Of(const MaskRef& mask) {
    return {mask.form, mask.form == MaskForm::kRaggedBits ? nullptr : mask.view.data};
  }
  friend bool operator==(const Captured&, const Captured&) = default;
};

// The attach_masks of the options; refuses masks that are not those of the group's first batch.
AttachMasksFunction MasksThatStay(const MetadataBuilderOptions& options) {
  return [attach = options.attach_masks, has_room = options.max_mask_bytes > 0,
          first = absl::flat_hash_map<const KvGroupConfig*, std::array<Captured, 3>>()](
             const KvGroupConfig& config, CommonAttentionMetadata* meta) mutable -> absl::Status {
    KVBLOCKS_RETURN_IF_ERROR(attach(config, meta));
    if (meta->custom_mask.form == MaskForm::kRaggedBits && !has_room) {
      return InvalidArgument(
          "GraphParameters: the custom mask is ragged bits, made anew for each step, and "
          "max_mask_bytes is 0; give room for the bits of the largest graph");
    }
    const std::array<Captured, 3> masks = {Captured::Of(meta->attn_mask),
                                           Captured::Of(meta->swa_mask),
                                           Captured::Of(meta->custom_mask)};
    const auto [found, is_first] = first.try_emplace(&config, masks);
    if (is_first || found->second == masks) return absl::OkStatus();
    return FailedPrecondition(
        "GraphParameters: masks of a group are others than those that graphs were captured with; "
        "let MaskNeeds::max_seq_len choose them, and make no new ones of the kind");
  };
}

}  // namespace

absl::StatusOr<GraphParameters> GraphParameters::Create(const MetadataBuilderOptions& options,
                                                        const GraphParameterOptions& graphs) {
  const int64_t query_len = graphs.uniform_query_len;
  if (graphs.sizes.empty() || query_len < 0) {
    return InvalidArgument("GraphParameters: ", graphs.sizes.size(),
                           " sizes and uniform_query_len ", query_len,
                           "; at least one size, and 0 (any) or more");
  }
  if (options.max_num_reqs < 1) {
    return InvalidArgument("GraphParameters: max_num_reqs is ", options.max_num_reqs,
                           "; at least 1");
  }
  if (query_len > options.split.decode_threshold) {
    return InvalidArgument("GraphParameters: uniform_query_len is ", query_len,
                           "; decodes have at most decode_threshold ",
                           options.split.decode_threshold, " tokens");
  }
  for (size_t i = 0; i < graphs.sizes.size(); ++i) {
    const int64_t size = graphs.sizes[i];
    if (size < 1 || (i > 0 && size <= graphs.sizes[i - 1]) ||
        (query_len > 0 && size % query_len != 0) || size > options.max_num_tokens ||
        (query_len > 0 && size / query_len > options.max_num_reqs)) {
      return InvalidArgument("GraphParameters: sizes[", i, "] is ", size,
                             "; sizes ascend from 1, are multiples of uniform_query_len ",
                             query_len, ", and their tokens and requests are at most "
                             "max_num_tokens ", options.max_num_tokens, " and max_num_reqs ",
                             options.max_num_reqs);
    }
  }
  GraphParameters made;
  made.graphs_ = graphs;
  MetadataBuilderOptions checked = options;
  if (options.attach_masks) checked.attach_masks = MasksThatStay(options);
  KVBLOCKS_ASSIGN_OR_RETURN(AttentionMetadataBuilder builder,
                            AttentionMetadataBuilder::Create(checked));
  made.builder_ = std::make_unique<AttentionMetadataBuilder>(std::move(builder));
  made.max_seq_len_ = options.max_seq_len;
  made.max_mask_bytes_ = options.max_mask_bytes;
  for (const int64_t size : graphs.sizes) {
    const int64_t num_reqs =
        query_len > 0 ? size / query_len : std::min(size, options.max_num_reqs);
    KVBLOCKS_RETURN_IF_ERROR(made.AddSet(size, num_reqs));
  }
  KVBLOCKS_RETURN_IF_ERROR(made.builder_->Build({}));
  return made;
}

absl::Status GraphParameters::AddSet(int64_t size, int64_t num_reqs) {
  KVBLOCKS_RETURN_IF_ERROR(
      builder_->Build({.padded_num_reqs = num_reqs, .padded_num_tokens = size}));
  GraphParameterSet set;
  set.num_tokens = size;
  set.num_reqs = num_reqs;
  for (int g = 0; g < builder_->num_groups(); ++g) {
    set.metadata.push_back(Filled(builder_->metadata(g), size));
  }
  sets_.push_back(std::move(set));
  return absl::OkStatus();
}

CommonAttentionMetadata GraphParameters::Filled(CommonAttentionMetadata meta, int64_t size) {
  const auto num_reqs = static_cast<int64_t>(meta.host_seq_lens.size());
  const auto as_int = [](int64_t value) { return static_cast<int32_t>(value); };
  meta.max_seq_len = as_int(max_seq_len_ + meta.sink_rows);
  host_.emplace_back(static_cast<size_t>(num_reqs), meta.max_seq_len);
  meta.host_seq_lens = host_.back();
  if (meta.context_parallel.enabled()) {
    ContextParallel first = meta.context_parallel;
    first.rank = 0;  // which has the most rows, so that all ranks capture alike
    meta.max_local_context_len = as_int(first.LocalLength(max_seq_len_));
    host_.emplace_back(static_cast<size_t>(num_reqs), meta.max_local_context_len);
    meta.host_local_context_lens = host_.back();
  }
  // All tokens belong to some request: as many to each, what is over to the first.
  std::vector<int32_t> starts = {0};
  for (int64_t b = 1; b <= num_reqs; ++b) {
    starts.push_back(as_int(size - (num_reqs - b) * (size / num_reqs)));
  }
  host_.push_back(std::move(starts));
  meta.host_query_start_loc = host_.back();
  meta.num_reqs = as_int(num_reqs);
  meta.num_actual_tokens = as_int(size);
  if (meta.custom_mask.form == MaskForm::kRaggedBits) {
    meta.custom_mask.view.extent[0] = max_mask_bytes_;
  }
  if (graphs_.uniform_query_len > 0) {
    meta.num_decodes = meta.num_reqs;
    meta.num_decode_tokens = meta.num_actual_tokens;
    meta.max_query_len = as_int(graphs_.uniform_query_len);
    meta.attn_state = graphs_.uniform_query_len == 1 ? AttentionState::kDecodeOnly
                                                     : AttentionState::kSpecDecoding;
  } else {
    meta.num_extends = meta.num_prefills = meta.num_reqs;
    meta.num_prefill_tokens = meta.num_actual_tokens;
    meta.max_query_len = as_int(std::min(size, max_seq_len_));
    meta.attn_state = AttentionState::kChunkedPrefill;
  }
  return meta;
}

absl::StatusOr<const GraphParameterSet*> GraphParameters::Find(const BatchInput& input) const {
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  int64_t num_tokens = 0;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    const int64_t scheduled = input.requests[i].num_scheduled_tokens;
    if (graphs_.uniform_query_len > 0 && scheduled != graphs_.uniform_query_len) {
      return OutOfRange("GraphParameters: request ", i, " has ", scheduled,
                        " tokens; graphs were captured for ", graphs_.uniform_query_len,
                        " per request; run the step without a graph");
    }
    num_tokens += scheduled;
  }
  for (const GraphParameterSet& set : sets_) {
    if (set.num_tokens >= num_tokens && set.num_reqs >= num_reqs) return &set;
  }
  return OutOfRange("GraphParameters: the step has ", num_reqs, " requests and ", num_tokens,
                    " tokens; the largest graph is of ", sets_.back().num_reqs, " and ",
                    sets_.back().num_tokens, "; run the step without a graph");
}

absl::StatusOr<const GraphParameterSet*> GraphParameters::Update(const BatchInput& input) {
  if (input.padded_num_reqs != 0 || input.padded_num_tokens != 0) {
    return InvalidArgument("GraphParameters: the input is padded to ", input.padded_num_reqs,
                           " requests and ", input.padded_num_tokens,
                           " tokens; leave 0, the set says how far");
  }
  const absl::StatusOr<const GraphParameterSet*> set = Find(input);
  if (!set.ok()) return set;
  BatchInput padded = input;
  padded.padded_num_reqs = (*set)->num_reqs;
  padded.padded_num_tokens = (*set)->num_tokens;
  KVBLOCKS_RETURN_IF_ERROR(builder_->Build(padded));
  return set;
}

absl::Status GraphParameters::RequireWorkspace(
    absl::FunctionRef<absl::StatusOr<int64_t>(const GraphParameterSet&)> bytes_of) {
  std::vector<int64_t> bytes;
  for (const GraphParameterSet& set : sets_) {
    KVBLOCKS_ASSIGN_OR_RETURN(const int64_t needed, bytes_of(set));
    bytes.push_back(std::max(set.workspace_bytes, needed));
  }
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].workspace_bytes = bytes[i];
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
