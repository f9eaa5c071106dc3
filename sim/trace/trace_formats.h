// The trace formats that can be read: their names, their readers, and which options are theirs
// alone. What a format means is said where its reader is.

#ifndef KVBLOCKS_SIM_TRACE_TRACE_FORMATS_H_
#define KVBLOCKS_SIM_TRACE_TRACE_FORMATS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

using OpenedRows = absl::StatusOr<std::unique_ptr<RowSource>>;

// A reader of the format, which is one of TraceFormats(); another one is an error, and so is an
// option of a format that this is not. `log` must outlive the result.
OpenedRows MakeReaderOfFormat(const std::string& format, std::unique_ptr<ByteSource> source,
                              const TraceReaderOptions& options, RowLog* log);

// What a reader makes of a file. `log` must outlive the result.
using MakeReader = OpenedRows(std::unique_ptr<ByteSource> source,
                              const TraceReaderOptions& options, RowLog* log);
// Of block ids or hashes.
MakeReader MakeMooncakeReader, MakeBailianReader, MakeDynamoReader, MakeCodingSessionReader,
    MakeRagPulseReader;
// Of conversations of which lengths are known.
MakeReader MakeAiperfReader, MakeLlmServingSimReader, MakeAppliedComputeReader, MakeTraceLabReader;
// Of texts.
MakeReader MakeShareGptReader;
// Of columns that --fields or a preset names (field_map.h).
MakeReader MakeFieldMapReader;
OpenedRows MakePresetReader(const std::string& format, std::unique_ptr<ByteSource> source,
                            const TraceReaderOptions& options, RowLog* log);
// Of a workload in place of a trace: its requests as they are made.
MakeReader MakeWorkloadReader;

// The most tokens that one record may become where every one of them has an id.
inline constexpr int64_t kMostTokenIds = int64_t{1} << 24;

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TRACE_FORMATS_H_
