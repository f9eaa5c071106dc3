// Where a split policy or a plan cuts the keys of a request.

#ifndef KVBLOCKS_ATTENTION_CPU_REFERENCE_CUTS_H_
#define KVBLOCKS_ATTENTION_CPU_REFERENCE_CUTS_H_

#include <cstdint>
#include <vector>

#include "kvblocks/attention_args.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention {

// Ascending, in (0, kv_len). Auto without a plan is one piece.
std::vector<int64_t> CutsOf(const SplitPolicy& policy, int64_t kv_len, int64_t block_size);
std::vector<int64_t> CutsOf(const SplitPlan& plan, int64_t request, int64_t kv_len);
// One cut, or none if it is at or past the end.
std::vector<int64_t> CutsAt(int64_t position, int64_t kv_len);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_REFERENCE_CUTS_H_
