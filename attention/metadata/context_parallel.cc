#include "kvblocks/attention_metadata.h"

#include <limits>

#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int32_t kMaxRanks = 4096;  // as the block manager has it

absl::Status CheckRank(const char* what, int32_t num_ranks, int32_t rank) {
  if (num_ranks >= 1 && num_ranks <= kMaxRanks && rank >= 0 && rank < num_ranks) {
    return absl::OkStatus();
  }
  return InvalidArgument(what, ": rank is ", rank, " of ", num_ranks,
                         "; from 0 to below a number of ", "ranks of 1 to ", kMaxRanks);
}

}  // namespace

absl::Status CheckContextParallel(const ContextParallel& parallel, int64_t rows_per_block) {
  KVBLOCKS_RETURN_IF_ERROR(CheckRank("context_parallel", parallel.num_ranks, parallel.rank));
  if (parallel.interleave >= 1 && rows_per_block % parallel.interleave == 0)
    return absl::OkStatus();
  return InvalidArgument("context_parallel.interleave is ", parallel.interleave,
                         "; it must divide the ", rows_per_block,
                         " rows that a block has on a rank");
}

ShardRows ShardRows::Of(int64_t num_tokens, int32_t num_ranks, int32_t rank) {
  const int64_t num_chunks = 2 * int64_t{num_ranks};
  const int64_t length = CeilDiv(num_tokens, num_chunks);
  const auto size_of = [&](int64_t begin) {
    return std::clamp<int64_t>(num_tokens - begin, 0, length);
  };
  const int64_t first = rank * length, second = (num_chunks - 1 - rank) * length;
  return {first, size_of(first), second, size_of(second)};
}

absl::Status PrefillShard::Build(const CommonAttentionMetadata& meta, int32_t num_ranks,
                                 int32_t rank) {
  KVBLOCKS_RETURN_IF_ERROR(CheckRank("PrefillShard", num_ranks, rank));
  const absl::Span<const int32_t> starts = meta.host_query_start_loc;
  const auto num_reqs = static_cast<int64_t>(starts.size()) - 1;
  if (num_reqs < meta.num_reqs || meta.num_decodes < 0 || meta.num_decodes > meta.num_reqs) {
    return InvalidArgument("PrefillShard: host_query_start_loc has ", starts.size(), " entries; ",
                           meta.num_reqs, " requests, ", meta.num_decodes,
                           " of them decodes, need at least one more than requests");
  }
  for (int64_t b = 0; b < num_reqs; ++b) {
    if (starts[b] >= 0 && starts[b + 1] >= starts[b]) continue;
    return InvalidArgument("PrefillShard: host_query_start_loc[", b + 1, "] is ", starts[b + 1],
                           ", after ", starts[b], "; it must not decrease");
  }
  // Calls visit(rank, first, end) for the stretches of each request's rows, ascending per rank.
  const auto for_each_stretch = [&](int64_t b, auto visit) {
    const int64_t count = int64_t{starts[b + 1]} - starts[b];
    if (b < meta.num_decodes) {
      visit(static_cast<int32_t>(b % num_ranks), 0, count);
      return;
    }
    for (int32_t owner = 0; owner < num_ranks; ++owner) {
      const ShardRows rows = ShardRows::Of(count, num_ranks, owner);
      visit(owner, rows.first_begin, rows.first_begin + rows.first_size);
      visit(owner, rows.second_begin, rows.second_begin + rows.second_size);
    }
  };

  std::vector<int64_t> used(static_cast<size_t>(num_ranks));
  for (int64_t b = 0; b < num_reqs; ++b) {
    for_each_stretch(
        b, [&](int32_t owner, int64_t first, int64_t end) { used[owner] += end - first; });
  }
  const int64_t num_rows = *std::max_element(used.begin(), used.end());
  if (num_rows > std::numeric_limits<int32_t>::max() / num_ranks) {
    return ResourceExhausted("PrefillShard: ", num_ranks, " ranks of ", num_rows,
                             " rows each; together they must fit in int32; schedule fewer tokens");
  }

  rows_.assign(static_cast<size_t>(num_rows), -1);
  query_positions_.clear();
  query_start_loc_.assign(1, 0);
  restore_.resize(static_cast<size_t>(starts[num_reqs]));
  std::fill(used.begin(), used.end(), 0);
  for (int64_t b = 0; b < num_reqs; ++b) {
    for_each_stretch(b, [&](int32_t owner, int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        const int64_t at = used[owner]++;
        restore_[static_cast<size_t>(starts[b] + i)] = static_cast<int32_t>(owner * num_rows + at);
        if (owner != rank) continue;
        rows_[static_cast<size_t>(at)] = static_cast<int32_t>(starts[b] + i);
        query_positions_.push_back(static_cast<int32_t>(i));
      }
    });
    query_start_loc_.push_back(static_cast<int32_t>(query_positions_.size()));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
