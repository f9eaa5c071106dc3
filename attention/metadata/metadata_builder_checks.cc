// What Build refuses, all of it before the first write.

#include <algorithm>
#include <limits>
#include <utility>

#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

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

}  // namespace

absl::Status AttentionMetadataBuilder::Check(const BatchInput& input) {
  const auto num_reqs = static_cast<int64_t>(input.requests.size());
  if (input.block_ids.size() != input.requests.size() * groups_.size()) {
    return InvalidArgument("BuildMetadata: block_ids has ", input.block_ids.size(), " lists; ",
                           num_reqs, " requests of ", groups_.size(), " KV groups need ",
                           num_reqs * groups_.size());
  }
  if (num_reqs > max_num_reqs_ || input.padded_num_reqs > max_num_reqs_) {
    return ResourceExhausted("BuildMetadata: ", std::max(num_reqs, input.padded_num_reqs),
                             " requests, padding included, but max_num_reqs is ", max_num_reqs_,
                             "; schedule fewer or create the builder with more");
  }
  if (input.padded_num_reqs != 0 && input.padded_num_reqs < num_reqs) {
    return InvalidArgument("BuildMetadata: padded_num_reqs is ", input.padded_num_reqs,
                           ", less than the ", num_reqs, " requests of the step");
  }
  int64_t num_tokens = 0;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    const RequestInput& request = input.requests[i];
    if (request.num_computed_tokens < 0 || request.num_scheduled_tokens < 1 ||
        request.num_prompt_tokens < 0) {
      return InvalidArgument(
          "BuildMetadata: request ", i, ": num_computed_tokens ", request.num_computed_tokens,
          ", num_scheduled_tokens ", request.num_scheduled_tokens, ", num_prompt_tokens ",
          request.num_prompt_tokens,
          "; scheduled must be at least 1, the others at least 0; leave requests out that have "
          "nothing scheduled");
    }
    if (request.num_scheduled_tokens > max_seq_len_ ||
        request.num_computed_tokens > max_seq_len_ - request.num_scheduled_tokens) {
      return OutOfRange("BuildMetadata: request ", i, ": ", request.num_computed_tokens,
                        " computed and ", request.num_scheduled_tokens,
                        " scheduled tokens; block tables cover max_seq_len ", max_seq_len_);
    }
    num_tokens += request.num_scheduled_tokens;
  }
  if (num_tokens > max_num_tokens_ || input.padded_num_tokens > max_num_tokens_) {
    return ResourceExhausted("BuildMetadata: ", std::max(num_tokens, input.padded_num_tokens),
                             " scheduled tokens, padding included, but max_num_tokens is ",
                             max_num_tokens_, "; schedule fewer or create the builder with more");
  }
  if (input.padded_num_tokens != 0 && input.padded_num_tokens < num_tokens) {
    return InvalidArgument("BuildMetadata: padded_num_tokens is ", input.padded_num_tokens,
                           ", less than the ", num_tokens, " scheduled tokens");
  }
  if (!input.encoder_lens.empty() && input.encoder_lens.size() != input.requests.size()) {
    return InvalidArgument("BuildMetadata: encoder_lens has ", input.encoder_lens.size(),
                           " entries; it must have one for each of ", num_reqs,
                           " requests, or none");
  }
  int64_t num_keys = 0;
  for (size_t i = 0; i < input.encoder_lens.size(); ++i) {
    num_keys += input.encoder_lens[i];
    if (input.encoder_lens[i] >= 0 && num_keys <= std::numeric_limits<int32_t>::max()) continue;
    return InvalidArgument("BuildMetadata: request ", i, ": encoder_lens is ",
                           input.encoder_lens[i], ", together ", num_keys,
                           "; at least 0, and together below 2^31");
  }
  if (!input.num_common_prefix_blocks.empty() &&
      input.num_common_prefix_blocks.size() != groups_.size()) {
    return InvalidArgument(
        "BuildMetadata: num_common_prefix_blocks has ", input.num_common_prefix_blocks.size(),
        " entries; it must have one for each of ", groups_.size(), " KV groups, or none");
  }
  for (const int64_t num_blocks : input.num_common_prefix_blocks) {
    if (num_blocks < 0) {
      return InvalidArgument("BuildMetadata: num_common_prefix_blocks has ", num_blocks,
                             "; it must not be negative");
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    KVBLOCKS_RETURN_IF_ERROR(CheckBlocks(input, g));
  }
  return absl::OkStatus();
}

absl::Status AttentionMetadataBuilder::CheckBlocks(const BatchInput& input, size_t g) {
  Group& group = groups_[g];
  const KvGroupConfig& config = group.config;
  if (g == 0 && ++check_ == 0) {  // wrapped: marks of long ago must not look like today's
    for (Group& each : groups_) std::fill(each.writer.begin(), each.writer.end(), 0);
    check_ = 1;
  }
  bool written_twice = false;
  // Sink rows are nobody's to write.
  for (const int32_t id : config.sink_blocks) group.writer[static_cast<size_t>(id)] = check_;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    const RequestInput& request = input.requests[i];
    const absl::Span<const int32_t> ids = input.block_ids[i * groups_.size() + g];
    const int64_t length = request.num_computed_tokens + request.num_scheduled_tokens;
    const int64_t needed = CeilDiv(length, config.manager_block_size);
    if (static_cast<int64_t>(ids.size()) < needed) {
      return OutOfRange("BuildMetadata: request ", i, ": KV group ", g, " has ", ids.size(),
                        " block ids for ", length, " tokens; blocks of ", config.manager_block_size,
                        " tokens need ", needed);
    }
    const int64_t first = config.FirstVisibleBlock(request.num_computed_tokens);
    if (AnyOutside(ids.data() + first, needed - first, static_cast<uint32_t>(config.num_blocks))) {
      for (int64_t k = first; k < needed; ++k) {
        if (ids[k] >= 0 && ids[k] < config.num_blocks) continue;
        return OutOfRange("BuildMetadata: request ", i, ": block id ", k, " of KV group ", g,
                          " is ", ids[k], "; ids are from 0 to ", config.num_blocks - 1);
      }
    }
    if (config.block_map && config.block_map->ids_per_chunk > 0) {
      for (int64_t k = first; k < needed; ++k) {
        if (config.IsPage(ids[k])) continue;
        return OutOfRange("BuildMetadata: request ", i, ": block id ", k, " of KV group ", g,
                          " is ", ids[k], ", number ",
                          (ids[k] - 1) % config.block_map->ids_per_chunk,
                          " of its chunk; pages of this group are numbers 0 to ",
                          config.block_map->pages_per_chunk - 1);
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
  // Slot, request; allocates on this rare path only.
  std::vector<std::pair<int64_t, int64_t>> slots;
  std::vector<int64_t> own;
  for (size_t i = 0; i < input.requests.size(); ++i) {
    const absl::Span<const int32_t> ids = input.block_ids[i * groups_.size() + g];
    const KvGroupConfig& config = group.config;
    const int64_t length =
        input.requests[i].num_computed_tokens + input.requests[i].num_scheduled_tokens;
    for (int64_t k = input.requests[i].num_computed_tokens / config.manager_block_size;
         k < CeilDiv(length, config.manager_block_size); ++k) {
      if (std::find(config.sink_blocks.begin(), config.sink_blocks.end(), ids[k]) !=
          config.sink_blocks.end()) {
        return InvalidArgument("BuildMetadata: request ", i, ": block id ", k, " of KV group ", g,
                               " is ", ids[k], ", a sink block, which no request writes to");
      }
    }
    own.resize(static_cast<size_t>(input.requests[i].num_scheduled_tokens));
    FillSlots(group.config, input.block_ids[i * groups_.size() + g], input.requests[i], own.data());
    for (const int64_t slot : own) {
      if (slot >= 0) slots.emplace_back(slot, static_cast<int64_t>(i));
    }
  }
  std::sort(slots.begin(), slots.end());
  for (size_t i = 0; i + 1 < slots.size(); ++i) {
    if (slots[i].first != slots[i + 1].first) continue;
    return InvalidArgument("BuildMetadata: request ", slots[i + 1].second, ": slot ",
                           slots[i].first, " of KV group ", g, " is also written by request ",
                           slots[i].second, "; new tokens need slots of their own");
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
