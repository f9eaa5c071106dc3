// Writing and gathering the paged cache on the host: exact, in any layout, stride and type.
//
// Shared by the host backends. Rows of the cache's own type are copied bit by bit; others go
// through float64 and are rounded once. Arguments are checked first, and a failed call changes
// nothing. Tokens are spread over the context's threads; results do not depend on them. A
// conversion uses one row of scratch per thread; copies allocate nothing.

#ifndef KVBLOCKS_ATTENTION_CPU_CACHE_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_CACHE_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention {

absl::Status CpuReshapeAndCache(const ExecContext& context, const ReshapeAndCacheArgs& args);
absl::Status CpuConcatAndCacheMla(const ExecContext& context, const ConcatAndCacheMlaArgs& args);
absl::Status CpuComputeKvScales(const ExecContext& context, const ComputeKvScalesArgs& args);
absl::Status CpuGatherCache(const ExecContext& context, const GatherCacheArgs& args);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_CACHE_OPS_H_
