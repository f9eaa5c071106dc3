#include "kvblocks/attention_metadata.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "attention/metadata/slot_mapping.h"
#include "checks/ceil_div.h"
#include "checks/checked_int64.h"
#include "checks/memory_limit.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr uint8_t kDecode = 0, kExtend = 1, kFresh = 2;

// Of a group's block table.
int64_t NumColumns(const KvGroupConfig& config, int64_t max_seq_len) {
  return (CeilDiv(max_seq_len, config.manager_block_size) +
          static_cast<int64_t>(config.sink_blocks.size())) *
         config.expansion();
}

// Whether a group has lengths that others have not.
bool HasOwnLens(const KvGroupConfig& config) {
  return !config.sink_blocks.empty() || config.context_parallel.enabled();
}

template <typename T>
ConstTensorView View(const T* data, std::initializer_list<int64_t> extents) {
  return ConstTensorView::Contiguous(reinterpret_cast<const std::byte*>(data), DTypeOf<T>(),
                                     extents);
}

void FillEntries(const KvGroupConfig& config, absl::Span<const int32_t> ids, int32_t* entries) {
  if (config.block_map) {
    MapBlockIds(*config.block_map, ids, config.expansion(), entries);
  } else {
    ExpandBlockIds(ids, config.expansion(), entries);
  }
}

absl::Status CheckBound(const char* name, int64_t value) {
  if (value >= 0 && value < kMaxInt32) return absl::OkStatus();
  return InvalidArgument("AttentionMetadataBuilder: ", name, " is ", value,
                         "; it must be from 0 to ", kMaxInt32 - 1);
}

}  // namespace

absl::StatusOr<AttentionMetadataBuilder> AttentionMetadataBuilder::Create(
    const MetadataBuilderOptions& options) {
  if (options.groups.empty()) {
    return InvalidArgument("AttentionMetadataBuilder: groups is empty; give at least one KV group");
  }
  for (const absl::Status& status : {CheckBound("max_num_reqs", options.max_num_reqs),
                                     CheckBound("max_num_tokens", options.max_num_tokens),
                                     CheckBound("max_seq_len", options.max_seq_len)}) {
    if (!status.ok()) return status;
  }
  if (options.split.decode_threshold < 1 || options.split.decode_threshold > 1024) {
    return InvalidArgument("AttentionMetadataBuilder: decode_threshold is ",
                           options.split.decode_threshold, "; it must be from 1 to 1024");
  }
  if (options.max_mask_bytes < 0 || options.max_mask_bytes > int64_t{1} << 40) {
    return InvalidArgument("AttentionMetadataBuilder: max_mask_bytes is ", options.max_mask_bytes,
                           "; it must be from 0 to 2^40");
  }
  for (size_t g = 0; g < options.groups.size(); ++g) {
    const absl::Status status =
        CheckKvGroup(options.groups[g], options.max_num_reqs, options.max_seq_len);
    if (!status.ok()) {
      return InvalidArgument("AttentionMetadataBuilder: KV group ", g, ": ",
                             std::string(status.message()).c_str());
    }
  }

  AttentionMetadataBuilder builder;
  builder.split_ = options.split;
  builder.max_num_reqs_ = options.max_num_reqs;
  builder.max_num_tokens_ = options.max_num_tokens;
  builder.max_seq_len_ = options.max_seq_len;
  builder.max_mask_bytes_ = options.max_mask_bytes;
  builder.groups_.resize(options.groups.size());
  int64_t bytes = options.max_num_reqs;  // of scratch, then of the arrays, too
  for (size_t g = 0; g < options.groups.size(); ++g) {
    Group& group = builder.groups_[g];
    group.config = options.groups[g];
    group.expansion = group.config.expansion();
    group.columns = NumColumns(group.config, options.max_seq_len);
    bytes += (group.config.num_blocks + options.max_num_reqs) *
             static_cast<int64_t>(sizeof(int32_t));
  }
  // The arrays of one allocation, each beginning at a multiple of 64 bytes.
  const auto for_each_array = [&](auto place) {
    const int64_t reqs = options.max_num_reqs, tokens = options.max_num_tokens;
    place(builder.query_start_loc_, reqs + 1);
    place(builder.prefill_query_start_loc_, reqs + 1);
    place(builder.seq_lens_, reqs);
    place(builder.encoder_lens_, reqs);
    place(builder.permutation_, reqs);
    place(builder.positions_, tokens);
    place(builder.token_to_req_, tokens);
    for (Group& group : builder.groups_) {
      place(group.slot_mapping, tokens);
      place(group.block_table, reqs * group.columns);
      if (HasOwnLens(group.config)) place(group.own_lens, reqs);
    }
    // Last, because most steps have none.
    for (Group& group : builder.groups_) {
      if (options.max_mask_bytes > 0) place(group.mask_bits, options.max_mask_bytes);
    }
  };
  const auto bytes_of = [](const auto* array, int64_t count) {
    return RoundUp(count * static_cast<int64_t>(sizeof(*array)), 64);
  };
  int64_t storage_bytes = 0;
  for_each_array([&](auto*& array, int64_t count) { storage_bytes += bytes_of(array, count); });
  bytes += storage_bytes;
  // Refused here rather than by the kernel, half-way through filling the arrays.
  const int64_t memory = MemoryLimit();
  if (bytes > memory) {
    return ResourceExhausted("AttentionMetadataBuilder: max_num_reqs ", options.max_num_reqs,
                             ", max_num_tokens ", options.max_num_tokens, " and the blocks of ",
                             options.groups.size(), " KV groups take ", bytes >> 20,
                             " MiB of host memory; this process may take ", memory >> 20,
                             " MiB; lower the bounds");
  }
  builder.storage_bytes_ = static_cast<size_t>(storage_bytes);
  builder.storage_ = std::make_unique<std::byte[]>(builder.storage_bytes_);
  std::byte* at = builder.storage_.get();
  for_each_array([&](auto*& array, int64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
    at += bytes_of(array, count);
  });
  for (Group& group : builder.groups_) {
    group.null_kernel_block =
        static_cast<int32_t>(group.config.FirstKernelBlock(std::max(group.config.null_block, 0)));
    group.filled.assign(static_cast<size_t>(options.max_num_reqs), 0);
    group.writer.assign(static_cast<size_t>(group.config.num_blocks), 0);
    std::fill_n(group.block_table, options.max_num_reqs * group.columns, group.null_kernel_block);
    group.sink_columns = static_cast<int64_t>(group.config.sink_blocks.size()) * group.expansion;
    for (int64_t b = 0; b < options.max_num_reqs && group.sink_columns > 0; ++b) {
      FillEntries(group.config, group.config.sink_blocks, group.block_table + b * group.columns);
    }
  }
  builder.phase_.resize(static_cast<size_t>(options.max_num_reqs));
  builder.uniform_count_.resize(static_cast<size_t>(options.split.decode_threshold) + 1);

  KVBLOCKS_RETURN_IF_ERROR(builder.Build({}));
  if (options.attach_masks) {
    builder.attach_masks_ = options.attach_masks;
    builder.mask_order_.resize(static_cast<size_t>(options.max_num_reqs));
    builder.mask_query_start_loc_.resize(static_cast<size_t>(options.max_num_reqs) + 1);
    builder.mask_seq_lens_.resize(static_cast<size_t>(options.max_num_reqs));
  }
  return builder;
}

absl::Status AttentionMetadataBuilder::Build(const BatchInput& input) {
  absl::Status status = Check(input);
  if (!status.ok()) return status;
  const CommonAttentionMetadata scalars = CountPhases(input);
  status = FetchMasks(input, scalars);
  if (!status.ok()) return status;
  Order(input.requests, scalars, permutation_);
  const CommonAttentionMetadata lengths = FillLengths(input, scalars);
  for (size_t g = 0; g < groups_.size(); ++g) {
    FillGroup(input, g);
    Publish(input, lengths, g);
  }
  return absl::OkStatus();
}

CommonAttentionMetadata AttentionMetadataBuilder::CountPhases(const BatchInput& input) {
  const absl::Span<const RequestInput> requests = input.requests;
  const int32_t threshold = split_.decode_threshold;
  const auto may_decode = [&](const RequestInput& request) {
    return request.num_scheduled_tokens <= threshold &&
           (split_.short_extends_are_decodes ||
            request.num_computed_tokens >= request.num_prompt_tokens);
  };
  int64_t uniform = 0;
  if (split_.require_uniform) {
    // The commonest length, the longer of two.
    std::fill(uniform_count_.begin(), uniform_count_.end(), 0);
    for (const RequestInput& request : requests) {
      if (may_decode(request)) ++uniform_count_[request.num_scheduled_tokens];
    }
    for (int32_t n = 1; n <= threshold; ++n) {
      if (uniform_count_[n] >= uniform_count_[uniform]) uniform = n;
    }
  }
  CommonAttentionMetadata meta;
  meta.num_reqs = static_cast<int32_t>(requests.size());
  meta.causal = input.causal;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestInput& request = requests[i];
    const auto scheduled = static_cast<int32_t>(request.num_scheduled_tokens);
    const auto computed = static_cast<int32_t>(request.num_computed_tokens);
    if (may_decode(request) && (uniform == 0 || scheduled == uniform)) {
      phase_[i] = kDecode;
      ++meta.num_decodes;
      meta.num_decode_tokens += scheduled;
    } else {
      phase_[i] = computed > 0 ? kExtend : kFresh;
      meta.num_extends += phase_[i] == kExtend;
      ++meta.num_prefills;
      meta.num_prefill_tokens += scheduled;
    }
    meta.max_query_len = std::max(meta.max_query_len, scheduled);
    meta.max_seq_len = std::max(meta.max_seq_len, computed + scheduled);
  }
  meta.num_actual_tokens = meta.num_decode_tokens + meta.num_prefill_tokens;
  return meta;
}

absl::Status AttentionMetadataBuilder::FetchMasks(const BatchInput& input,
                                                  const CommonAttentionMetadata& scalars) {
  if (!attach_masks_) return absl::OkStatus();
  const size_t num_reqs = input.requests.size();
  Order(input.requests, scalars, mask_order_.data());
  for (size_t b = 0; b < num_reqs; ++b) {
    const RequestInput& request = input.requests[mask_order_[b]];
    const auto scheduled = static_cast<int32_t>(request.num_scheduled_tokens);
    mask_query_start_loc_[b + 1] = mask_query_start_loc_[b] + scheduled;
    mask_seq_lens_[b] = static_cast<int32_t>(request.num_computed_tokens) + scheduled;
  }
  int32_t sink_rows = 0;  // in mask_seq_lens_
  for (Group& group : groups_) {
    group.masks = scalars;
    const auto own_sink_rows = static_cast<int32_t>(group.config.num_sink_rows());
    for (size_t b = 0; b < num_reqs; ++b) mask_seq_lens_[b] += own_sink_rows - sink_rows;
    sink_rows = own_sink_rows;
    if (num_reqs > 0) group.masks.max_seq_len += sink_rows;
    group.masks.sink_rows = sink_rows;
    group.masks.host_query_start_loc = {mask_query_start_loc_.data(), num_reqs + 1};
    group.masks.host_seq_lens = {mask_seq_lens_.data(), num_reqs};
    group.masks.block_size = group.config.kernel_block_size;
    KVBLOCKS_RETURN_IF_ERROR(attach_masks_(group.config, &group.masks));
    const MaskRef& custom = group.masks.custom_mask;
    if (custom.form == MaskForm::kRaggedBits && max_mask_bytes_ > 0 &&
        custom.view.extent[0] > max_mask_bytes_) {
      return ResourceExhausted("AttentionMetadataBuilder: the step's mask has ",
                               custom.view.extent[0], " bytes of bits; max_mask_bytes is ",
                               max_mask_bytes_, "; raise it or take fewer new tokens per step");
    }
  }
  return absl::OkStatus();
}

void AttentionMetadataBuilder::Order(absl::Span<const RequestInput> requests,
                                     const CommonAttentionMetadata& scalars,
                                     int32_t* permutation) const {
  int32_t next[3] = {0, scalars.num_decodes, scalars.num_decodes + scalars.num_extends};
  for (size_t i = 0; i < requests.size(); ++i) {
    permutation[next[phase_[i]]++] = static_cast<int32_t>(i);
  }
}

CommonAttentionMetadata AttentionMetadataBuilder::FillLengths(
    const BatchInput& input, const CommonAttentionMetadata& scalars) {
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  CommonAttentionMetadata meta = scalars;
  int32_t num_tokens = 0;
  query_start_loc_[0] = 0;
  for (int64_t b = 0; b < num_reqs; ++b) {
    const RequestInput& request = input.requests[permutation_[b]];
    const auto computed = static_cast<int32_t>(request.num_computed_tokens);
    const auto scheduled = static_cast<int32_t>(request.num_scheduled_tokens);
    for (int32_t t = 0; t < scheduled; ++t) positions_[num_tokens + t] = computed + t;
    num_tokens += scheduled;
    query_start_loc_[b + 1] = num_tokens;
    seq_lens_[b] = computed + scheduled;
    encoder_lens_[b] = input.encoder_lens.empty() ? 0 : input.encoder_lens[permutation_[b]];
  }
  const int64_t rows = std::max(num_reqs, input.padded_num_reqs);
  const int64_t tokens = std::max<int64_t>(num_tokens, input.padded_num_tokens);
  std::fill(query_start_loc_ + num_reqs + 1, query_start_loc_ + rows + 1, num_tokens);
  std::fill(seq_lens_ + num_reqs, seq_lens_ + rows, 0);
  std::fill(encoder_lens_ + num_reqs, encoder_lens_ + rows, 0);
  std::fill(positions_ + num_tokens, positions_ + tokens, 0);
  padded_reqs_ = rows;
  padded_tokens_ = tokens;
  has_token_to_req_ = false;

  meta.query_start_loc = View(query_start_loc_, {rows + 1});
  meta.seq_lens = View(seq_lens_, {rows});
  meta.positions = View(positions_, {tokens});
  meta.host_query_start_loc = {query_start_loc_, static_cast<size_t>(rows + 1)};
  meta.host_seq_lens = {seq_lens_, static_cast<size_t>(rows)};
  if (meta.num_decodes > 0) {
    const int64_t begin = meta.num_decodes;
    for (int64_t b = begin; b <= rows; ++b) {
      prefill_query_start_loc_[b - begin] = query_start_loc_[b] - query_start_loc_[begin];
    }
    meta.prefill_query_start_loc = View(prefill_query_start_loc_, {rows - begin + 1});
    meta.host_prefill_query_start_loc = {prefill_query_start_loc_,
                                         static_cast<size_t>(rows - begin + 1)};
  }
  const BatchSplit split = {meta.num_decodes, meta.num_decode_tokens, meta.num_extends,
                            meta.num_prefills, meta.num_prefill_tokens};
  meta.attn_state =
      StateOf(meta.host_query_start_loc, meta.host_seq_lens, split, split_.decode_threshold);
  return meta;
}

void AttentionMetadataBuilder::FillGroup(const BatchInput& input, size_t g) {
  Group& group = groups_[g];
  const KvGroupConfig& config = group.config;
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  for (int64_t b = 0; b < padded_reqs_; ++b) {
    int32_t* const row = group.block_table + b * group.columns + group.sink_columns;
    int64_t end = 0;
    if (b < num_reqs) {
      const size_t i = static_cast<size_t>(permutation_[b]);
      const RequestInput& request = input.requests[i];
      const absl::Span<const int32_t> ids = input.block_ids[i * groups_.size() + g];
      const int64_t first = config.FirstVisibleBlock(request.num_computed_tokens);
      const int64_t num_blocks = CeilDiv(seq_lens_[b], config.manager_block_size);
      std::fill_n(row, first * group.expansion, group.null_kernel_block);
      const absl::Span<const int32_t> visible = ids.subspan(first, num_blocks - first);
      FillEntries(config, visible, row + first * group.expansion);
      end = num_blocks * group.expansion;
      FillSlots(config, ids, request, group.slot_mapping + query_start_loc_[b]);
    }
    if (group.filled[b] > end) std::fill(row + end, row + group.filled[b], group.null_kernel_block);
    group.filled[b] = static_cast<int32_t>(end);
  }
  std::fill(group.slot_mapping + query_start_loc_[num_reqs], group.slot_mapping + padded_tokens_,
            int64_t{-1});
}

void AttentionMetadataBuilder::Publish(const BatchInput& input,
                                       const CommonAttentionMetadata& lengths, size_t g) {
  Group& group = groups_[g];
  CommonAttentionMetadata& meta = group.meta;
  meta = lengths;
  meta.block_table = View(group.block_table, {padded_reqs_, group.columns});
  meta.slot_mapping = View(group.slot_mapping, {padded_tokens_});
  meta.block_size = group.config.kernel_block_size;
  const int64_t sink_rows = group.config.num_sink_rows();
  if (group.config.context_parallel.enabled()) {
    PublishLocalContext(group);
  } else if (sink_rows > 0) {
    meta.sink_rows = sink_rows;
    for (int64_t b = 0; b < padded_reqs_; ++b) {
      group.own_lens[b] = seq_lens_[b] == 0 ? 0 : seq_lens_[b] + static_cast<int32_t>(sink_rows);
    }
    meta.seq_lens = View(group.own_lens, {padded_reqs_});
    meta.host_seq_lens = {group.own_lens, static_cast<size_t>(padded_reqs_)};
    if (meta.num_reqs > 0) meta.max_seq_len += static_cast<int32_t>(sink_rows);
    // A request whose tokens are all new has sink rows before them, as if they were cached.
    meta.num_extends = meta.num_prefills;
    const BatchSplit split = {meta.num_decodes, meta.num_decode_tokens, meta.num_extends,
                              meta.num_prefills, meta.num_prefill_tokens};
    meta.attn_state =
        StateOf(meta.host_query_start_loc, meta.host_seq_lens, split, split_.decode_threshold);
  }
  if (!input.num_common_prefix_blocks.empty() && !input.requests.empty() &&
      group.config.window == 0 && group.config.compression_ratio == 1 &&
      !group.config.context_parallel.enabled()) {
    // Every query must see all of the prefix, so it ends where the first of them begins.
    int64_t common = max_seq_len_;
    for (const RequestInput& request : input.requests) {
      common = std::min(common, request.num_computed_tokens);
    }
    const int64_t num_blocks = std::min(input.num_common_prefix_blocks[g],
                                        CeilDiv(common, group.config.manager_block_size));
    common = std::min(common, num_blocks * group.config.manager_block_size);
    meta.common_prefix_len = sink_rows + common / meta.block_size * meta.block_size;
  }
  if (attach_masks_) PublishMasks(group);
  group.has_decode_view = group.has_prefill_view = false;
}

void AttentionMetadataBuilder::PublishMasks(Group& group) {
  group.meta.attn_mask = group.masks.attn_mask;
  group.meta.swa_mask = group.masks.swa_mask;
  MaskRef& custom = group.meta.custom_mask = group.masks.custom_mask;
  if (custom.form != MaskForm::kRaggedBits || group.mask_bits == nullptr ||
      !custom.view.device.on_host()) {
    return;
  }
  std::copy_n(custom.view.data, custom.view.extent[0], group.mask_bits);
  custom.view.data = group.mask_bits;
  custom.storage = nullptr;
}

void AttentionMetadataBuilder::PublishLocalContext(Group& group) {
  CommonAttentionMetadata& meta = group.meta;
  meta.context_parallel = group.config.context_parallel;
  for (int64_t b = 0; b < padded_reqs_; ++b) {
    const int32_t context = seq_lens_[b] == 0
                                ? 0
                                : seq_lens_[b] - (query_start_loc_[b + 1] - query_start_loc_[b]);
    group.own_lens[b] = static_cast<int32_t>(meta.context_parallel.LocalLength(context));
    meta.max_local_context_len = std::max(meta.max_local_context_len, group.own_lens[b]);
  }
  meta.local_context_lens = View(group.own_lens, {padded_reqs_});
  meta.host_local_context_lens = {group.own_lens, static_cast<size_t>(padded_reqs_)};
}

const CommonAttentionMetadata& AttentionMetadataBuilder::decode_view(int g) {
  Group& group = groups_[g];
  if (!group.has_decode_view) group.decode_view = DecodeView(group.meta);
  group.has_decode_view = true;
  return group.decode_view;
}

const CommonAttentionMetadata& AttentionMetadataBuilder::prefill_view(int g) {
  Group& group = groups_[g];
  // Cannot fail: FillLengths provides the offsets.
  if (!group.has_prefill_view) group.prefill_view = *PrefillView(group.meta);
  group.has_prefill_view = true;
  return group.prefill_view;
}

CommonAttentionMetadata AttentionMetadataBuilder::cross_metadata() const {
  CommonAttentionMetadata meta = groups_[0].meta;
  meta.seq_lens = View(encoder_lens_, {padded_reqs_});
  meta.host_seq_lens = {encoder_lens_, static_cast<size_t>(padded_reqs_)};
  meta.max_seq_len = 0;
  for (const int32_t length : meta.host_seq_lens) {
    meta.max_seq_len = std::max(meta.max_seq_len, length);
  }
  meta.causal = false;
  meta.block_table = meta.slot_mapping = meta.local_context_lens = {};
  meta.host_local_context_lens = {};
  meta.max_local_context_len = 0;
  meta.context_parallel = {};
  meta.sink_rows = meta.common_prefix_len = 0;
  meta.attn_mask = meta.swa_mask = meta.custom_mask = {};
  return meta;
}

ConstTensorView AttentionMetadataBuilder::token_to_req() {
  const ConstTensorView view = View(token_to_req_, {padded_tokens_});
  if (has_token_to_req_) return view;
  const CommonAttentionMetadata& meta = groups_[0].meta;
  for (int32_t b = 0; b < meta.num_reqs; ++b) {
    std::fill(token_to_req_ + query_start_loc_[b], token_to_req_ + query_start_loc_[b + 1], b);
  }
  std::fill(token_to_req_ + meta.num_actual_tokens, token_to_req_ + padded_tokens_, -1);
  for (Group& group : groups_) {
    group.meta.token_to_req = view;
    group.has_decode_view = group.has_prefill_view = false;
  }
  has_token_to_req_ = true;
  return view;
}

std::optional<int> AttentionMetadataBuilder::FindGroup(const KvGroupKey& wanted) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].config.key() == wanted) return static_cast<int>(g);
  }
  return std::nullopt;
}

absl::Span<const std::byte> AttentionMetadataBuilder::storage() const {
  return {storage_.get(), storage_bytes_};
}

}  // namespace kvblocks::attention
