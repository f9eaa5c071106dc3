// How many rows of a KV cache a step reads and how many (query, row) pairs it computes, per layer
// kind: closed forms for `count` new tokens after `context` tokens of the same request.
//
// A query is a token and sees itself. Rows may stand for several tokens (compressed caches): a row
// of ratio r exists once all of its r tokens do. Counts need at most 128 bits for contexts and
// counts below 2^62.

#ifndef KVBLOCKS_SIM_COST_ATTENTION_COUNTS_H_
#define KVBLOCKS_SIM_COST_ATTENTION_COUNTS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvblocks::sim {

__extension__ using Wide = __int128;

// What a query of one layer kind sees of the rows before it.
struct AttentionReach {
  int64_t ratio = 1;  // tokens per row
  // The most rows that one query reads: the window, or what an indexer selects.
  int64_t limit = std::numeric_limits<int64_t>::max();
  // Whether neighbouring queries read the same rows, as within a window, or each its own choice.
  bool is_window = false;
  // Queries see only the rows of their own chunk of so many tokens; 0: no chunks. With ratio 1.
  int64_t chunk = 0;

  // Pairs and rows depend on context and count only through their sums over sequences.
  bool adds_up() const {
    return ratio == 1 && chunk == 0 && limit == std::numeric_limits<int64_t>::max();
  }
};

// Pairs of the new tokens' queries with the rows that each of them reads.
Wide AttendedPairs(const AttentionReach& reach, int64_t context, int64_t count);

// Distinct rows that the new tokens read or write, each once; for a choice of rows, at most so
// many.
int64_t AttendedRows(const AttentionReach& reach, int64_t context, int64_t count);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_ATTENTION_COUNTS_H_
