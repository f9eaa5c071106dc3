// Attention of one query over plain rows, which lie one after another in the order of their tokens:
// what attention through block tables is compared with. It is the float64 engine of the `reference`
// backend, which knows no blocks here; the dense oracle of the tests checks both.

#ifndef KVBLOCKS_ATTENTION_VERIFY_PLAIN_ATTENTION_H_
#define KVBLOCKS_ATTENTION_VERIFY_PLAIN_ATTENTION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "attention/verify/paged_memory.h"

namespace kvblocks::attention {

// out [num_heads, value_size] of query [num_heads, key_size] over `num_rows` rows. `sinks`, one
// logit per head or none, take part in the sum of the softmax only. No row: zeros.
void AttendPlainly(const RowShape& shape, float scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_VERIFY_PLAIN_ATTENTION_H_
