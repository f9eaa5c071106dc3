// The builder against the definitions, evaluated one token at a time for random steps.

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "attention/metadata/slot_mapping.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_metadata.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::attention {
namespace {

// Any of them from the first case on; RapidCheck by itself begins with small ranges.
int64_t Drawn(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

constexpr int64_t kMaxSeqLen = 48, kPoolBlocks = 400;

// Sinks in groups behind the first, whose lengths are compared with the requests' own.
KvGroupConfig AnyGroup(bool may_have_sinks) {
  KvGroupConfig config;
  config.compression_ratio = Drawn(0, 3) == 0 ? 4 : 1;
  config.kernel_block_size = Drawn(1, 4);
  config.manager_block_size = config.kernel_block_size * config.compression_ratio * Drawn(1, 3);
  config.num_blocks = kPoolBlocks;
  config.window = Drawn(0, 1) == 0 ? 0 : Drawn(1, 12);
  config.null_block = static_cast<int32_t>(Drawn(-1, 1));
  if (may_have_sinks && config.compression_ratio == 1 && Drawn(0, 1) == 0) {
    for (int32_t id = kPoolBlocks - static_cast<int32_t>(Drawn(1, 2)); id < kPoolBlocks; ++id) {
      config.sink_blocks.push_back(id);
    }
  } else if (config.compression_ratio == 1 && config.window == 0 && Drawn(0, 1) == 0) {
    const auto num_ranks = static_cast<int32_t>(Drawn(2, 3));
    const auto interleave = static_cast<int32_t>(Drawn(0, 1) == 0 ? 1 : config.kernel_block_size);
    config.context_parallel = {num_ranks, static_cast<int32_t>(Drawn(0, num_ranks - 1)),
                               interleave};
    config.manager_block_size *= num_ranks;
  }
  if (Drawn(0, 2) > 0) return config;
  // Pages that do not lie end to end, of which no two share a number.
  BlockMap map;
  map.block_stride = config.expansion() == 1 ? 1 : Drawn(1, 3);
  map.page_stride = config.expansion() * map.block_stride + Drawn(0, 2);
  if (Drawn(0, 1) == 1) {
    map.ids_per_chunk = map.pages_per_chunk = Drawn(1, 7);
    map.chunk_stride = map.ids_per_chunk * map.page_stride + Drawn(0, 3);
    map.null_number = (kPoolBlocks / map.ids_per_chunk + 1) * map.chunk_stride;
  }
  config.block_map = map;
  return config;
}

// The number of kernel block `i` of a block, chunk by chunk.
int64_t NumberOf(const KvGroupConfig& config, int64_t id, int64_t i) {
  if (!config.block_map) return id * config.expansion() + i;
  const BlockMap& map = *config.block_map;
  int64_t first = 0;
  if (map.ids_per_chunk == 0) {
    first = id * map.page_stride;
  } else if (id == 0) {
    first = map.null_number;
  } else {
    for (--id; id >= map.ids_per_chunk; id -= map.ids_per_chunk) first += map.chunk_stride;
    first += id * map.page_stride;
  }
  return first + i * map.block_stride;
}

struct Step {
  std::vector<RequestInput> requests;
  std::vector<std::vector<int32_t>> tables;
  std::vector<absl::Span<const int32_t>> spans;
  std::vector<int64_t> common;
  BatchInput input;
};

// Tables of distinct blocks, with null blocks here and there and nonsense outside of windows.
void DrawStep(const std::vector<KvGroupConfig>& groups, int32_t threshold, Step& step) {
  const int64_t num_reqs = Drawn(0, 6);
  std::vector<int32_t> next(groups.size(), 2);
  int64_t num_tokens = 0;
  for (int64_t i = 0; i < num_reqs; ++i) {
    RequestInput request;
    request.num_scheduled_tokens = Drawn(0, 1) == 0 ? Drawn(1, threshold) : Drawn(1, 16);
    request.num_computed_tokens =
        Drawn(0, 2) == 0 ? 0 : Drawn(0, kMaxSeqLen - request.num_scheduled_tokens);
    request.num_prompt_tokens = Drawn(0, kMaxSeqLen);
    num_tokens += request.num_scheduled_tokens;
    step.requests.push_back(request);
    for (size_t g = 0; g < groups.size(); ++g) {
      const KvGroupConfig& config = groups[g];
      const int64_t length = request.num_computed_tokens + request.num_scheduled_tokens;
      const int64_t first_key =
          config.window == 0
              ? 0
              : std::max<int64_t>(0, request.num_computed_tokens - config.window + 1);
      std::vector<int32_t> table;
      for (int64_t begin = 0; begin < length; begin += config.manager_block_size) {
        if (begin + config.manager_block_size <= first_key) {
          table.push_back(static_cast<int32_t>(Drawn(-5, 2000)));
        } else if (config.null_block >= 0 && Drawn(0, 9) == 0) {
          table.push_back(config.null_block);
        } else {
          table.push_back(next[g]++);
        }
      }
      for (int64_t more = Drawn(0, 2); more > 0; --more) table.push_back(-1);
      step.tables.push_back(table);
    }
  }
  step.spans.assign(step.tables.begin(), step.tables.end());
  step.input.requests = step.requests;
  step.input.block_ids = step.spans;
  if (Drawn(0, 1) == 1) {
    step.input.padded_num_reqs = num_reqs + Drawn(0, 3);
    step.input.padded_num_tokens = num_tokens + Drawn(0, 5);
  }
}

// Where the definition puts a token; -1: nowhere.
int64_t SlotOf(const KvGroupConfig& config, absl::Span<const int32_t> table, int64_t p) {
  if ((p + 1) % config.compression_ratio != 0) return -1;
  const int32_t block = table[static_cast<size_t>(p / config.manager_block_size)];
  if (block == config.null_block) return -1;
  int64_t row = p % config.manager_block_size / config.compression_ratio;
  const ContextParallel& parallel = config.context_parallel;
  if (parallel.enabled()) {
    // Runs of `interleave` tokens go around the ranks.
    if (row / parallel.interleave % parallel.num_ranks != parallel.rank) return -1;
    row = row / parallel.interleave / parallel.num_ranks * parallel.interleave +
          row % parallel.interleave;
  }
  return NumberOf(config, block, row / config.kernel_block_size) * config.kernel_block_size +
         row % config.kernel_block_size;
}

RC_GTEST_PROP(MetadataBuilderPropertyTest, IsWhatTheDefinitionsSay, ()) {
  MetadataBuilderOptions options;
  for (int64_t g = Drawn(1, 3); g > 0; --g) {
    options.groups.push_back(AnyGroup(/*may_have_sinks=*/!options.groups.empty()));
  }
  options.max_num_reqs = 10;
  options.max_num_tokens = 120;
  options.max_seq_len = kMaxSeqLen;
  options.split.decode_threshold = static_cast<int32_t>(Drawn(1, 4));
  options.split.require_uniform = Drawn(0, 1) == 1;
  options.split.short_extends_are_decodes = Drawn(0, 1) == 1;
  absl::StatusOr<AttentionMetadataBuilder> builder = AttentionMetadataBuilder::Create(options);
  RC_ASSERT(builder.ok());

  // Several steps, so that what one leaves behind would show in the next.
  for (int64_t steps = Drawn(1, 3); steps > 0; --steps) {
    Step step;
    DrawStep(options.groups, options.split.decode_threshold, step);
    const absl::Status built = builder->Build(step.input);
    RC_ASSERT(built.ok());
    const auto num_reqs = static_cast<int64_t>(step.requests.size());

    // The permutation is one, keeps the input's order within a phase, and phases are in order.
    const absl::Span<const int32_t> permutation = builder->permutation();
    const std::set<int32_t> distinct(permutation.begin(), permutation.end());
    RC_ASSERT(static_cast<int64_t>(distinct.size()) == num_reqs);
    const CommonAttentionMetadata& meta = builder->metadata();
    std::vector<int32_t> starts = {0}, lens;
    std::vector<uint8_t> in_prompt;
    for (const int32_t i : permutation) {
      const RequestInput& request = step.requests[static_cast<size_t>(i)];
      starts.push_back(starts.back() + static_cast<int32_t>(request.num_scheduled_tokens));
      lens.push_back(
          static_cast<int32_t>(request.num_computed_tokens + request.num_scheduled_tokens));
      in_prompt.push_back(request.num_computed_tokens < request.num_prompt_tokens);
    }
    const BatchSplit split = SplitCounts(starts, lens, in_prompt, options.split);
    RC_ASSERT(split == (BatchSplit{meta.num_decodes, meta.num_decode_tokens, meta.num_extends,
                                   meta.num_prefills, meta.num_prefill_tokens}));
    for (int64_t b = 0; b < num_reqs; ++b) {
      const bool is_fresh = lens[b] == starts[b + 1] - starts[b];
      if (b >= meta.num_decodes) RC_ASSERT(is_fresh == (b >= meta.num_decodes + meta.num_extends));
      const bool begins_phase =
          b == 0 || b == meta.num_decodes || b == meta.num_decodes + meta.num_extends;
      if (!begins_phase) RC_ASSERT(permutation[b - 1] < permutation[b]);
    }
    // Every request that may be a decode is one, unless decodes must be uniform.
    if (!options.split.require_uniform) {
      for (int64_t b = meta.num_decodes; b < num_reqs; ++b) {
        RC_ASSERT(starts[b + 1] - starts[b] > options.split.decode_threshold ||
                  (!options.split.short_extends_are_decodes && in_prompt[b] != 0));
      }
    }

    // Lengths, and their padding.
    const int64_t rows = std::max(num_reqs, step.input.padded_num_reqs);
    const int64_t tokens = std::max<int64_t>(starts.back(), step.input.padded_num_tokens);
    RC_ASSERT(meta.num_reqs == num_reqs);
    RC_ASSERT(meta.num_actual_tokens == starts.back());
    starts.resize(static_cast<size_t>(rows) + 1, starts.back());
    lens.resize(static_cast<size_t>(rows), 0);
    RC_ASSERT(std::vector<int32_t>(meta.host_query_start_loc.begin(),
                                   meta.host_query_start_loc.end()) == starts);
    RC_ASSERT(std::vector<int32_t>(meta.host_seq_lens.begin(), meta.host_seq_lens.end()) == lens);
    RC_ASSERT(meta.max_seq_len == (rows == 0 ? 0 : *std::max_element(lens.begin(), lens.end())));
    RC_ASSERT(meta.positions.extent[0] == tokens);
    const ConstTensorView token_to_req = builder->token_to_req();

    for (size_t g = 0; g < options.groups.size(); ++g) {
      const KvGroupConfig& config = options.groups[g];
      const CommonAttentionMetadata& group = builder->metadata(static_cast<int>(g));
      const ContextParallel& parallel = config.context_parallel;
      const int64_t expansion = config.manager_block_size / config.compression_ratio /
                                parallel.num_ranks / config.kernel_block_size;
      const auto num_sinks = static_cast<int64_t>(config.sink_blocks.size());
      const int64_t sink_rows = num_sinks * config.manager_block_size;
      RC_ASSERT(group.sink_rows == sink_rows);
      const auto null =
          static_cast<int32_t>(NumberOf(config, std::max(config.null_block, 0), 0));
      const int64_t columns = group.block_table.extent[1];
      RC_ASSERT(group.block_table.extent[0] == rows);
      RC_ASSERT(group.slot_mapping.extent[0] == tokens);
      const auto* slots = group.slot_mapping.as<int64_t>();
      for (int64_t t = starts.back(); t < tokens; ++t) {
        RC_ASSERT(slots[t] == -1);
        RC_ASSERT(group.positions.as<int32_t>()[t] == 0);
        RC_ASSERT(token_to_req.as<int32_t>()[t] == -1);
      }
      for (int64_t b = 0; b < rows; ++b) {
        const int32_t* row = group.block_table.as<int32_t>() + b * columns;
        const bool is_padding = b >= num_reqs;
        const size_t i = is_padding ? 0 : static_cast<size_t>(permutation[b]);
        const absl::Span<const int32_t> table =
            is_padding ? absl::Span<const int32_t>() : step.spans[i * options.groups.size() + g];
        const int64_t computed = lens[b] - (starts[b + 1] - starts[b]);
        const int64_t first_key =
            config.window == 0 ? 0 : std::max<int64_t>(0, computed - config.window + 1);
        RC_ASSERT(group.host_seq_lens[b] == (lens[b] == 0 ? 0 : lens[b] + sink_rows));
        RC_ASSERT(group.seq_lens.as<int32_t>()[b] == group.host_seq_lens[b]);
        RC_ASSERT(group.max_seq_len >= group.host_seq_lens[b]);
        if (parallel.enabled()) {
          int32_t local = 0;
          for (int64_t p = 0; p < computed; ++p) {
            local += p / parallel.interleave % parallel.num_ranks == parallel.rank;
          }
          RC_ASSERT(group.host_local_context_lens[b] == local);
          RC_ASSERT(group.local_context_lens.as<int32_t>()[b] == local);
          RC_ASSERT(group.max_local_context_len >= local);
        }
        for (int64_t c = 0; c < num_sinks * expansion; ++c) {
          RC_ASSERT(row[c] == NumberOf(config, config.sink_blocks[c / expansion], c % expansion));
        }
        row += num_sinks * expansion;
        for (int64_t c = 0; c < columns - num_sinks * expansion; ++c) {
          const int64_t k = c / expansion;
          const bool visible = k * config.manager_block_size < lens[b] &&
                               (k + 1) * config.manager_block_size > first_key;
          RC_ASSERT(row[c] ==
                    (visible ? NumberOf(config, table[static_cast<size_t>(k)], c % expansion)
                             : null));
        }
        for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
          const int64_t p = computed + t - starts[b];
          RC_ASSERT(group.positions.as<int32_t>()[t] == p);
          RC_ASSERT(group.token_to_req.as<int32_t>()[t] == b);
          RC_ASSERT(slots[t] == SlotOf(config, table, p));
        }
      }
      // The operation that works from tables agrees.
      if (config.compression_ratio != 1 || config.block_map) continue;
      std::vector<int64_t> again(static_cast<size_t>(tokens), 77);
      const NullBlocks nulls = {null, config.null_block < 0 ? 0 : static_cast<int32_t>(expansion)};
      const absl::Status status =
          ComputeSlotMapping({.query_start_loc = group.query_start_loc,
                              .positions = group.positions,
                              .block_table = group.block_table,
                              .block_size = group.block_size,
                              .num_blocks = config.num_blocks * expansion,
                              .null_blocks = nulls,
                              .sink_rows = sink_rows,
                              .context_parallel = parallel,
                              .slot_mapping = ViewOf(absl::MakeSpan(again))});
      RC_ASSERT(status.ok());
      RC_ASSERT(again == std::vector<int64_t>(slots, slots + tokens));
    }

    // The two views together are the batch.
    const CommonAttentionMetadata& decode = builder->decode_view();
    const CommonAttentionMetadata& prefill = builder->prefill_view();
    RC_ASSERT(decode.num_reqs + prefill.num_reqs == meta.num_reqs);
    RC_ASSERT(decode.num_actual_tokens + prefill.num_actual_tokens == meta.num_actual_tokens);
    RC_ASSERT(std::max(decode.max_query_len, prefill.max_query_len) == meta.max_query_len);
    for (int32_t b = 0; b < prefill.num_reqs; ++b) {
      const int32_t whole = decode.num_reqs + b;
      RC_ASSERT(prefill.host_query_start_loc[b] ==
                meta.host_query_start_loc[whole] - meta.num_decode_tokens);
      RC_ASSERT(prefill.host_seq_lens[b] == meta.host_seq_lens[whole]);
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention
