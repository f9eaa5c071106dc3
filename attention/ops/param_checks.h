// CheckParams: what AttnParams may not say, explicit masks included.
//
// A mask is held against the lengths of the batch where the host knows them, otherwise against the
// bounds given. Cost: O(1), O(H) for sinks, O(R) for ragged masks.

#ifndef KVBLOCKS_ATTENTION_OPS_PARAM_CHECKS_H_
#define KVBLOCKS_ATTENTION_OPS_PARAM_CHECKS_H_

#include <cstdint>

#include "kvblocks/attention/ops/arg_checker.h"
#include "kvblocks/attention/ops/batch_checks.h"
#include "kvblocks/attention/ops/params.h"

namespace kvblocks::attention {

// Everything but the scales of a quantised cache. block_size 0: keys are not paged.
bool CheckParams(ArgChecker& check, const AttnParams& params, const BatchLengths& batch,
                 int64_t block_size);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_PARAM_CHECKS_H_
