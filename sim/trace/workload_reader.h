// Workloads (sim/gen) read in place of a trace: their requests as they are made.
//
// The same requests as from the native file that `kvsim gen` writes, and the same notes: the whole
// specification, its seed, and what it is expected to come to.

#ifndef KVBLOCKS_SIM_TRACE_WORKLOAD_READER_H_
#define KVBLOCKS_SIM_TRACE_WORKLOAD_READER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeWorkloadReader(std::unique_ptr<ByteSource> source,
                                                              const TraceReaderOptions& options,
                                                              RowLog* log);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_WORKLOAD_READER_H_
