// Context parallelism: tokens of every request spread over the caches of several ranks.
//
// Rank (p / I) % N keeps the token at position p, I being the interleave and N the number of ranks,
// as row p / (N * I) * I + p % I of the request in its cache. So a request's rows on a rank have no
// gaps, and a block id of the manager, which covers N * B tokens, is a block of B rows on each rank.
// This is how vLLM 0.33 spreads tokens (cp_kv_cache_interleave_size).
//
// A step on rank r, with metadata of its own builder (KvGroupConfig::context_parallel):
//   gather   the queries of all heads that the ranks have between them
//   store    new keys and values by slot_mapping, which is -1 for tokens of other ranks
//   attend   to the rows that were there before the step, local_context_lens of them: all are before
//            every query, so there is no causal rule -> a state (out, lse) per rank
//   attend   causally to the step's own keys and values, without a cache -> one more state
//   merge    the N + 1 states (MergeStates), then sinks, once
// AttentionLayer::Forward does the two middle ones: with a cache and without.
//
// Prompts may be cut over ranks as well (prefill context parallelism): PrefillShard. Windows and
// chunks do not go with this, here as in the block manager, nor do ALiBi and masks, which count
// positions that a rank's rows do not have.

#ifndef KVBLOCKS_ATTENTION_METADATA_CONTEXT_PARALLEL_H_
#define KVBLOCKS_ATTENTION_METADATA_CONTEXT_PARALLEL_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

struct CommonAttentionMetadata;

// With decode and prefill ranks, the number of both together: rank = prefill rank * decode ranks +
// decode rank.
struct ContextParallel {
  int32_t num_ranks = 1;
  int32_t rank = 0;
  int32_t interleave = 1;  // successive tokens on one rank; divides the rows of a block

  bool enabled() const { return num_ranks > 1; }
  bool IsLocal(int64_t position) const { return position / interleave % num_ranks == rank; }
  // The row of a token that is local.
  int64_t LocalRow(int64_t position) const {
    return position / (int64_t{num_ranks} * interleave) * interleave + position % interleave;
  }
  // How many of the first `length` tokens are local.
  int64_t LocalLength(int64_t length) const {
    const int64_t round = int64_t{num_ranks} * interleave;
    const int64_t rest = length % round - int64_t{rank} * interleave;
    return length / round * interleave + std::clamp<int64_t>(rest, 0, interleave);
  }

  friend bool operator==(const ContextParallel&, const ContextParallel&) = default;
};
// InvalidArgument unless there is such a rank and `rows_per_block` is a multiple of the interleave.
absl::Status CheckContextParallel(const ContextParallel& parallel, int64_t rows_per_block);

// The positions that a rank of prefill context parallelism has of `num_tokens` tokens. They are cut
// into 2 * N chunks of equal length, the last ones short or empty; rank r takes chunks r and
// 2 * N - 1 - r, one after the other, so that all ranks have as many keys to look at.
struct ShardRows {
  int64_t first_begin = 0, first_size = 0;
  int64_t second_begin = 0, second_size = 0;

  // REQUIRES: num_tokens >= 0, 0 <= rank < num_ranks.
  static ShardRows Of(int64_t num_tokens, int32_t num_ranks, int32_t rank);
  int64_t size() const { return first_size + second_size; }
  int64_t Position(int64_t row) const {
    return row < first_size ? first_begin + row : second_begin + row - first_size;
  }
};

// The rows of a batch that each rank of prefill context parallelism computes.
//
// The new tokens of a request are cut as ShardRows says, and decodes go to the ranks in turn. All ranks' rows are padded to the same number, num_rows, as a gather
// wants them: row i of rank r lands in row r * num_rows + i of what was gathered.
//
//   shard.Build(meta, num_ranks, rank);
//   mine = gather(x, shard.rows());                  // -1: padding
//   ...                                              // with query_start_loc and positions
//   x = gather(all_ranks(mine), shard.restore());    // in the batch's order again
//
// Host memory; O(R * N + T). Views are good until the next Build; one that fails changes nothing.
class PrefillShard {
 public:
  // InvalidArgument for ranks that there are not, ResourceExhausted if rows of all ranks together do
  // not fit in int32.
  absl::Status Build(const CommonAttentionMetadata& meta, int32_t num_ranks, int32_t rank);

  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_tokens() const { return query_start_loc_.back(); }  // without padding
  // [num_rows]: the batch's row of each, request by request, ascending; -1: padding.
  absl::Span<const int32_t> rows() const { return rows_; }
  // [R + 1]: whose rows they are.
  absl::Span<const int32_t> query_start_loc() const { return query_start_loc_; }
  // [num_tokens]: the place of each among the new tokens of its request: query_positions against
  // the keys of all new tokens.
  absl::Span<const int32_t> query_positions() const { return query_positions_; }
  // [T]: where each row of the batch is in the gathered rows.
  absl::Span<const int32_t> restore() const { return restore_; }

 private:
  std::vector<int32_t> rows_, query_positions_, restore_;
  std::vector<int32_t> query_start_loc_ = {0};
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_CONTEXT_PARALLEL_H_
