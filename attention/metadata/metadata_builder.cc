#include "attention/metadata/metadata_builder.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/metadata/slot_mapping.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTableEntries = kMaxInt32;
constexpr uint8_t kDecode = 0, kExtend = 1, kFresh = 2;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Sizes of pieces of one allocation, each beginning at a multiple of 64 bytes.
class Pieces {
 public:
  template <typename T>
  int64_t Add(int64_t count) {  // -> offset in bytes
    const int64_t offset = total_;
    total_ += CeilDiv(count * static_cast<int64_t>(sizeof(T)), 64) * 64;
    return offset;
  }
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

template <typename T>
ConstTensorView View(const T* data, std::initializer_list<int64_t> extents) {
  return ConstTensorView::Contiguous(reinterpret_cast<const std::byte*>(data), DTypeOf<T>(),
                                     extents);
}

// Whether some id is not below the limit, negative ones counting as large. Fixed chunks, so that
// the compiler vectorises at -O2.
bool AnyOutside(const int32_t* ids, int64_t count, uint32_t limit) {
  constexpr int64_t kChunk = 32;
  int64_t i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    uint32_t largest = 0;
    for (int64_t k = 0; k < kChunk; ++k) {
      const auto id = static_cast<uint32_t>(ids[i + k]);
      largest = id > largest ? id : largest;
    }
    if (largest >= limit) return true;
  }
  for (; i < count; ++i) {
    if (static_cast<uint32_t>(ids[i]) >= limit) return true;
  }
  return false;
}

// The first block of the manager that a query of the step may look at.
int64_t FirstVisibleBlock(const KvGroupConfig& config, const RequestInput& request) {
  if (config.window == 0) return 0;
  return std::max<int64_t>(0, request.num_computed_tokens - config.window + 1) /
         config.manager_block_size;
}

// Slots of the request's new tokens.
void FillSlots(const KvGroupConfig& config, int64_t rows_per_block, absl::Span<const int32_t> ids,
               const RequestInput& request, int64_t* slots) {
  const int64_t block_size = config.manager_block_size, ratio = config.compression_ratio;
  int64_t p = request.num_computed_tokens;
  const int64_t end = p + request.num_scheduled_tokens;
  while (p < end) {
    // 32-bit division is several times faster, and positions fit.
    const int64_t block = static_cast<uint32_t>(p) / static_cast<uint32_t>(block_size);
    const int64_t block_begin = block * block_size;
    const int64_t run_end = std::min(end, block_begin + block_size);
    const int32_t id = ids[block];
    if (id == config.null_block) {
      slots = std::fill_n(slots, run_end - p, int64_t{-1});
      p = run_end;
    } else if (ratio == 1) {
      const int64_t first = id * rows_per_block - block_begin;
      for (; p < run_end; ++p) *slots++ = first + p;
    } else {
      for (; p < run_end; ++p) {
        *slots++ = (p + 1) % ratio == 0 ? id * rows_per_block + (p - block_begin) / ratio : -1;
      }
    }
  }
}

absl::Status CheckConfig(const KvGroupConfig& config, size_t g, int64_t max_num_reqs,
                         int64_t max_seq_len) {
  const std::string where = absl::StrCat("AttentionMetadataBuilder: KV group ", g, ": ");
  if (config.window < 0 || config.window > kMaxInt32) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "window is ", config.window, "; it must be 0 (none) to ", kMaxInt32));
  }
  if (config.manager_block_size < 1 || config.manager_block_size > kMaxInt32) {
    return absl::InvalidArgumentError(absl::StrCat(where, "manager_block_size is ",
                                                   config.manager_block_size,
                                                   "; it must be from 1 to ", kMaxInt32));
  }
  const int64_t ratio = config.compression_ratio;
  if (ratio < 1 || config.manager_block_size % ratio != 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, "compression_ratio is ", ratio,
                                                   "; it must divide the manager's ",
                                                   config.manager_block_size, " tokens per block"));
  }
  const absl::StatusOr<int64_t> expansion =
      BlockExpansion(config.manager_block_size / ratio, config.kernel_block_size);
  if (!expansion.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, std::string(expansion.status().message()).c_str(),
                     ratio == 1 ? "" : " (in rows of the compressed cache)"));
  }
  if (config.num_blocks < 1 || config.num_blocks > kMaxInt32 / *expansion) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "num_blocks is ", config.num_blocks, "; it must be from 1 to ",
                     kMaxInt32 / *expansion, ", so that kernel block ids fit in int32"));
  }
  if (config.null_block < -1 || config.null_block >= config.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(where, "null_block is ", config.null_block,
                                                   "; it must be a block id below ",
                                                   config.num_blocks, ", or -1 for none"));
  }
  const int64_t max_columns = kMaxTableEntries / std::max<int64_t>(1, max_num_reqs) / *expansion;
  if (CeilDiv(max_seq_len, config.manager_block_size) > max_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "a table of max_num_reqs ", max_num_reqs, " times max_seq_len ",
                     max_seq_len, " in blocks of ", config.kernel_block_size, " has more than ",
                     kMaxTableEntries, " entries; lower a bound"));
  }
  return absl::OkStatus();
}

absl::Status CheckBound(const char* name, int64_t value) {
  if (value >= 0 && value < kMaxInt32) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("AttentionMetadataBuilder: ", name, " is ", value,
                                                 "; it must be from 0 to ", kMaxInt32 - 1));
}

}  // namespace

absl::StatusOr<AttentionMetadataBuilder> AttentionMetadataBuilder::Create(
    const MetadataBuilderOptions& options) {
  if (options.groups.empty()) {
    return absl::InvalidArgumentError(
        "AttentionMetadataBuilder: groups is empty; give at least one KV group");
  }
  for (const absl::Status& status : {CheckBound("max_num_reqs", options.max_num_reqs),
                                     CheckBound("max_num_tokens", options.max_num_tokens),
                                     CheckBound("max_seq_len", options.max_seq_len)}) {
    if (!status.ok()) return status;
  }
  if (options.split.decode_threshold < 1 || options.split.decode_threshold > 1024) {
    return absl::InvalidArgumentError(absl::StrCat("AttentionMetadataBuilder: decode_threshold is ",
                                                   options.split.decode_threshold,
                                                   "; it must be from 1 to 1024"));
  }
  for (size_t g = 0; g < options.groups.size(); ++g) {
    const absl::Status status =
        CheckConfig(options.groups[g], g, options.max_num_reqs, options.max_seq_len);
    if (!status.ok()) return status;
  }

  AttentionMetadataBuilder builder;
  builder.split_ = options.split;
  builder.masks_ = options.masks;
  builder.is_pooling_ = options.is_pooling;
  builder.max_num_reqs_ = options.max_num_reqs;
  builder.max_num_tokens_ = options.max_num_tokens;
  builder.max_seq_len_ = options.max_seq_len;
  builder.groups_.resize(options.groups.size());

  Pieces pieces;
  const int64_t starts = pieces.Add<int32_t>(options.max_num_reqs + 1);
  const int64_t prefill_starts = pieces.Add<int32_t>(options.max_num_reqs + 1);
  const int64_t lens = pieces.Add<int32_t>(options.max_num_reqs);
  const int64_t permutation = pieces.Add<int32_t>(options.max_num_reqs);
  const int64_t positions = pieces.Add<int32_t>(options.max_num_tokens);
  const int64_t token_to_req = pieces.Add<int32_t>(options.max_num_tokens);
  std::vector<std::pair<int64_t, int64_t>> of_group;  // slots, table
  for (size_t g = 0; g < options.groups.size(); ++g) {
    Group& group = builder.groups_[g];
    group.config = options.groups[g];
    group.rows_per_block = group.config.manager_block_size / group.config.compression_ratio;
    group.expansion = group.rows_per_block / group.config.kernel_block_size;
    group.columns = CeilDiv(options.max_seq_len, group.config.manager_block_size) * group.expansion;
    group.null_kernel_block =
        static_cast<int32_t>(std::max(group.config.null_block, 0) * group.expansion);
    group.filled.assign(static_cast<size_t>(options.max_num_reqs), 0);
    group.writer.assign(static_cast<size_t>(group.config.num_blocks), 0);
    const int64_t slots = pieces.Add<int64_t>(options.max_num_tokens);
    of_group.emplace_back(slots, pieces.Add<int32_t>(options.max_num_reqs * group.columns));
  }

  builder.storage_bytes_ = static_cast<size_t>(pieces.total());
  builder.storage_ = std::make_unique<std::byte[]>(builder.storage_bytes_);
  std::byte* const base = builder.storage_.get();
  const auto ints = [base](int64_t offset) { return reinterpret_cast<int32_t*>(base + offset); };
  builder.query_start_loc_ = ints(starts);
  builder.prefill_query_start_loc_ = ints(prefill_starts);
  builder.seq_lens_ = ints(lens);
  builder.permutation_ = ints(permutation);
  builder.positions_ = ints(positions);
  builder.token_to_req_ = ints(token_to_req);
  for (size_t g = 0; g < of_group.size(); ++g) {
    Group& group = builder.groups_[g];
    group.slot_mapping = reinterpret_cast<int64_t*>(base + of_group[g].first);
    group.block_table = ints(of_group[g].second);
    std::fill_n(group.block_table, options.max_num_reqs * group.columns, group.null_kernel_block);
  }
  builder.phase_.resize(static_cast<size_t>(options.max_num_reqs));
  builder.uniform_count_.resize(static_cast<size_t>(options.split.decode_threshold) + 1);
  builder.window_masks_.resize(options.groups.size());

  const absl::Status empty = builder.Build({});
  if (!empty.ok()) return empty;
  return builder;
}

absl::Status AttentionMetadataBuilder::Build(const BatchInput& input) {
  const absl::Status status = Check(input);
  if (!status.ok()) return status;
  const BatchSplit split = Order(input.requests);
  const CommonAttentionMetadata lengths = FillLengths(input, split);
  for (size_t g = 0; g < groups_.size(); ++g) {
    FillGroup(input, g);
    Publish(input, lengths, g);
  }
  return absl::OkStatus();
}

absl::Status AttentionMetadataBuilder::Check(const BatchInput& input) {
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  if (input.block_ids.size() != input.requests.size() * groups_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BuildMetadata: block_ids has ", input.block_ids.size(), " lists; ", num_reqs,
        " requests of ", groups_.size(), " KV groups need ", num_reqs * groups_.size()));
  }
  if (num_reqs > max_num_reqs_ || input.padded_num_reqs > max_num_reqs_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("BuildMetadata: ", std::max(num_reqs, input.padded_num_reqs),
                     " requests, padding included, but max_num_reqs is ", max_num_reqs_,
                     "; schedule fewer or create the builder with more"));
  }
  if (input.padded_num_reqs != 0 && input.padded_num_reqs < num_reqs) {
    return absl::InvalidArgumentError(absl::StrCat("BuildMetadata: padded_num_reqs is ",
                                                   input.padded_num_reqs, ", less than the ",
                                                   num_reqs, " requests of the step"));
  }
  int64_t num_tokens = 0;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    const RequestInput& request = input.requests[i];
    if (request.num_computed_tokens < 0 || request.num_scheduled_tokens < 1 ||
        request.num_prompt_tokens < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "BuildMetadata: request ", i, ": num_computed_tokens ", request.num_computed_tokens,
          ", num_scheduled_tokens ", request.num_scheduled_tokens, ", num_prompt_tokens ",
          request.num_prompt_tokens,
          "; scheduled must be at least 1, the others at least 0; leave requests out that have "
          "nothing scheduled"));
    }
    if (request.num_scheduled_tokens > max_seq_len_ ||
        request.num_computed_tokens > max_seq_len_ - request.num_scheduled_tokens) {
      return absl::OutOfRangeError(
          absl::StrCat("BuildMetadata: request ", i, ": ", request.num_computed_tokens,
                       " computed and ", request.num_scheduled_tokens,
                       " scheduled tokens; block tables cover max_seq_len ", max_seq_len_));
    }
    num_tokens += request.num_scheduled_tokens;
  }
  if (num_tokens > max_num_tokens_ || input.padded_num_tokens > max_num_tokens_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("BuildMetadata: ", std::max(num_tokens, input.padded_num_tokens),
                     " scheduled tokens, padding included, but max_num_tokens is ", max_num_tokens_,
                     "; schedule fewer or create the builder with more"));
  }
  if (input.padded_num_tokens != 0 && input.padded_num_tokens < num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("BuildMetadata: padded_num_tokens is ",
                                                   input.padded_num_tokens, ", less than the ",
                                                   num_tokens, " scheduled tokens"));
  }
  if (!input.num_common_prefix_blocks.empty() &&
      input.num_common_prefix_blocks.size() != groups_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "BuildMetadata: num_common_prefix_blocks has ", input.num_common_prefix_blocks.size(),
        " entries; it must have one for each of ", groups_.size(), " KV groups, or none"));
  }
  for (const int64_t num_blocks : input.num_common_prefix_blocks) {
    if (num_blocks < 0) {
      return absl::InvalidArgumentError(absl::StrCat("BuildMetadata: num_common_prefix_blocks has ",
                                                     num_blocks, "; it must not be negative"));
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const absl::Status status = CheckBlocks(input, g);
    if (!status.ok()) return status;
  }
  return FetchMasks(input.causal);
}

absl::Status AttentionMetadataBuilder::CheckBlocks(const BatchInput& input, size_t g) {
  Group& group = groups_[g];
  const KvGroupConfig& config = group.config;
  if (g == 0 && ++check_ == 0) {  // wrapped: marks of long ago must not look like today's
    for (Group& each : groups_) std::fill(each.writer.begin(), each.writer.end(), 0);
    check_ = 1;
  }
  bool written_twice = false;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    const RequestInput& request = input.requests[i];
    const absl::Span<const int32_t> ids = input.block_ids[i * groups_.size() + g];
    const int64_t length = request.num_computed_tokens + request.num_scheduled_tokens;
    const int64_t needed = CeilDiv(length, config.manager_block_size);
    if (static_cast<int64_t>(ids.size()) < needed) {
      return absl::OutOfRangeError(absl::StrCat(
          "BuildMetadata: request ", i, ": KV group ", g, " has ", ids.size(), " block ids for ",
          length, " tokens; blocks of ", config.manager_block_size, " tokens need ", needed));
    }
    const int64_t first = FirstVisibleBlock(config, request);
    if (AnyOutside(ids.data() + first, needed - first, static_cast<uint32_t>(config.num_blocks))) {
      for (int64_t k = first; k < needed; ++k) {
        if (ids[k] >= 0 && ids[k] < config.num_blocks) continue;
        return absl::OutOfRangeError(absl::StrCat("BuildMetadata: request ", i, ": block id ", k,
                                                  " of KV group ", g, " is ", ids[k],
                                                  "; ids are from 0 to ", config.num_blocks - 1));
      }
    }
    const int64_t block_size = config.manager_block_size;
    for (int64_t k =
             static_cast<uint32_t>(request.num_computed_tokens) / static_cast<uint32_t>(block_size);
         k < needed; ++k) {
      if (ids[k] == config.null_block) continue;
      uint32_t& writer = group.writer[static_cast<size_t>(ids[k])];
      written_twice |= writer == check_;
      writer = check_;
    }
  }
  // Two requests may write to different rows of a block; slots tell.
  return written_twice ? FindDuplicateSlot(input, g) : absl::OkStatus();
}

absl::Status AttentionMetadataBuilder::FindDuplicateSlot(const BatchInput& input, size_t g) {
  const Group& group = groups_[g];
  std::vector<std::pair<int64_t, int64_t>>
      slots;  // slot, request; allocates on this rare path only
  std::vector<int64_t> own;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    own.resize(static_cast<size_t>(input.requests[i].num_scheduled_tokens));
    FillSlots(group.config, group.rows_per_block, input.block_ids[i * groups_.size() + g],
              input.requests[i], own.data());
    for (const int64_t slot : own) {
      if (slot >= 0) slots.emplace_back(slot, static_cast<int64_t>(i));
    }
  }
  std::sort(slots.begin(), slots.end());
  for (size_t i = 0; i + 1 < slots.size(); ++i) {
    if (slots[i].first != slots[i + 1].first) continue;
    return absl::InvalidArgumentError(absl::StrCat("BuildMetadata: request ", slots[i + 1].second,
                                                   ": slot ", slots[i].first, " of KV group ", g,
                                                   " is also written by request ", slots[i].second,
                                                   "; new tokens need slots of their own"));
  }
  return absl::OkStatus();
}

absl::Status AttentionMetadataBuilder::FetchMasks(bool causal) {
  if (masks_ == nullptr) return absl::OkStatus();
  attention_mask_ = {};
  custom_mask_ = {};
  std::fill(window_masks_.begin(), window_masks_.end(), MaskRef());
  if (!causal) return absl::OkStatus();
  const auto fetch = [](absl::StatusOr<MaskRef> from, MaskRef& to) {
    if (from.ok()) to = *std::move(from);
    return from.status();
  };
  absl::Status status = fetch(masks_->AttentionMask(is_pooling_), attention_mask_);
  if (status.ok()) status = fetch(masks_->CustomMask(), custom_mask_);
  for (size_t g = 0; g < groups_.size() && status.ok(); ++g) {
    const int64_t window = groups_[g].config.window;
    if (window > 0) status = fetch(masks_->WindowMask(window), window_masks_[g]);
  }
  return status;
}

BatchSplit AttentionMetadataBuilder::Order(absl::Span<const RequestInput> requests) {
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
  BatchSplit split;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestInput& request = requests[i];
    if (may_decode(request) && (uniform == 0 || request.num_scheduled_tokens == uniform)) {
      phase_[i] = kDecode;
      ++split.num_decodes;
      split.num_decode_tokens += static_cast<int32_t>(request.num_scheduled_tokens);
    } else {
      phase_[i] = request.num_computed_tokens > 0 ? kExtend : kFresh;
      split.num_extends += phase_[i] == kExtend;
      ++split.num_prefills;
      split.num_prefill_tokens += static_cast<int32_t>(request.num_scheduled_tokens);
    }
  }
  int32_t next[3] = {0, split.num_decodes, split.num_decodes + split.num_extends};
  for (size_t i = 0; i < requests.size(); ++i) {
    permutation_[next[phase_[i]]++] = static_cast<int32_t>(i);
  }
  return split;
}

CommonAttentionMetadata AttentionMetadataBuilder::FillLengths(const BatchInput& input,
                                                              const BatchSplit& split) {
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  CommonAttentionMetadata meta;
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
    meta.max_query_len = std::max(meta.max_query_len, scheduled);
    meta.max_seq_len = std::max(meta.max_seq_len, computed + scheduled);
  }
  const int64_t rows = std::max(num_reqs, input.padded_num_reqs);
  const int64_t tokens = std::max<int64_t>(num_tokens, input.padded_num_tokens);
  std::fill(query_start_loc_ + num_reqs + 1, query_start_loc_ + rows + 1, num_tokens);
  std::fill(seq_lens_ + num_reqs, seq_lens_ + rows, 0);
  std::fill(positions_ + num_tokens, positions_ + tokens, 0);
  padded_reqs_ = rows;
  padded_tokens_ = tokens;
  has_token_to_req_ = false;

  meta.query_start_loc = View(query_start_loc_, {rows + 1});
  meta.seq_lens = View(seq_lens_, {rows});
  meta.positions = View(positions_, {tokens});
  meta.host_query_start_loc = {query_start_loc_, static_cast<size_t>(rows + 1)};
  meta.host_seq_lens = {seq_lens_, static_cast<size_t>(rows)};
  if (split.num_decodes > 0) {
    const int64_t begin = split.num_decodes;
    for (int64_t b = begin; b <= rows; ++b) {
      prefill_query_start_loc_[b - begin] = query_start_loc_[b] - query_start_loc_[begin];
    }
    meta.prefill_query_start_loc = View(prefill_query_start_loc_, {rows - begin + 1});
    meta.host_prefill_query_start_loc = {prefill_query_start_loc_,
                                         static_cast<size_t>(rows - begin + 1)};
  }
  meta.num_reqs = static_cast<int32_t>(num_reqs);
  meta.num_actual_tokens = num_tokens;
  meta.causal = input.causal;
  meta.num_decodes = split.num_decodes;
  meta.num_decode_tokens = split.num_decode_tokens;
  meta.num_extends = split.num_extends;
  meta.num_prefills = split.num_prefills;
  meta.num_prefill_tokens = split.num_prefill_tokens;
  meta.attn_state =
      StateOf(meta.host_query_start_loc, meta.host_seq_lens, split, split_.decode_threshold);
  return meta;
}

void AttentionMetadataBuilder::FillGroup(const BatchInput& input, size_t g) {
  Group& group = groups_[g];
  const KvGroupConfig& config = group.config;
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  for (int64_t b = 0; b < padded_reqs_; ++b) {
    int32_t* const row = group.block_table + b * group.columns;
    int64_t end = 0;
    if (b < num_reqs) {
      const size_t i = static_cast<size_t>(permutation_[b]);
      const RequestInput& request = input.requests[i];
      const absl::Span<const int32_t> ids = input.block_ids[i * groups_.size() + g];
      const int64_t first = FirstVisibleBlock(config, request);
      const int64_t num_blocks = CeilDiv(seq_lens_[b], config.manager_block_size);
      std::fill_n(row, first * group.expansion, group.null_kernel_block);
      ExpandBlockIds(ids.subspan(first, num_blocks - first), group.expansion,
                     row + first * group.expansion);
      end = num_blocks * group.expansion;
      FillSlots(config, group.rows_per_block, ids, request,
                group.slot_mapping + query_start_loc_[b]);
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
  if (!input.num_common_prefix_blocks.empty() && !input.requests.empty() &&
      group.config.window == 0 && group.config.compression_ratio == 1) {
    // Every query must see all of the prefix, so it ends where the first of them begins.
    int64_t common = max_seq_len_;
    for (const RequestInput& request : input.requests) {
      common = std::min(common, request.num_computed_tokens);
    }
    const int64_t num_blocks = std::min(input.num_common_prefix_blocks[g],
                                        CeilDiv(common, group.config.manager_block_size));
    common = std::min(common, num_blocks * group.config.manager_block_size);
    meta.common_prefix_len = common / meta.block_size * meta.block_size;
  }
  if (masks_ != nullptr) {
    meta.attn_mask = attention_mask_;
    meta.custom_mask = custom_mask_;
    meta.swa_mask = window_masks_[g];
  }
  group.has_decode_view = group.has_prefill_view = false;
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
