// Plain attention: one query against a list of key and value rows, as the formula says, in float64.
//
// What paged attention is compared with. Knows no blocks: rows lie one after another in the order
// of their tokens. Shares nothing with the backends. Cost: O(rows * heads * (key + value size)).

#ifndef KVBLOCKS_ATTENTION_VERIFY_PLAIN_ATTENTION_H_
#define KVBLOCKS_ATTENTION_VERIFY_PLAIN_ATTENTION_H_

#include <cstdint>

#include "absl/types/span.h"

namespace kvblocks::attention {

// How a row of floats holds keys and values.
struct RowShape {
  bool is_mla = false;       // V is the first value_size columns of K; one KV head
  int64_t num_heads = 1;     // of queries
  int64_t num_kv_heads = 1;  // 1 for MLA
  int64_t key_size = 0;
  int64_t value_size = 0;

  // Keys of all heads, then values of all heads.
  int64_t floats() const { return is_mla ? key_size : num_kv_heads * (key_size + value_size); }
};

// out [num_heads, value_size] of query [num_heads, key_size] over `num_rows` rows. `sinks`, one
// logit per head or none, take part in the sum of the softmax only. No row: zeros.
void AttendPlainly(const RowShape& shape, double scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_VERIFY_PLAIN_ATTENTION_H_
