// ConvertTrace: reads a trace in any supported form and writes it in another, in arrival order.
//
// Reading the result gives the same requests, apart from what ConvertReport::losses names; rows and
// lines are those of the new file. The output is compressed by its name (byte_sink.h) and appears
// only if all went well.

#ifndef KVBLOCKS_SIM_TRACE_CONVERT_H_
#define KVBLOCKS_SIM_TRACE_CONVERT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/trace_reader.h"
#include "kvblocks/sim/trace/trace_writer.h"

namespace kvblocks::sim {

enum class TraceFormat { kNative, kMooncake, kCsv, kOracle };

struct ConvertOptions {
  TraceReaderOptions reader;
  NativeWriterOptions native;
  // Holds the whole trace in memory and so accepts any order of rows.
  bool sort = false;
  // May put a reader before the one that is read.
  std::function<std::unique_ptr<TraceReader>(std::unique_ptr<TraceReader>)> wrap = nullptr;
};

struct ConvertReport {
  int64_t num_requests = 0;
  std::set<std::string> losses;
  std::vector<std::string> warnings;  // of the reader
};

absl::StatusOr<ConvertReport> ConvertTrace(const std::string& in, const std::string& out,
                                           TraceFormat format, const ConvertOptions& options);

std::unique_ptr<TraceWriter> MakeTraceWriter(std::unique_ptr<ByteSink> sink, TraceFormat format,
                                             const NativeWriterOptions& native);

// The same between a reader and a writer that are already there. Leaves the reader at its end.
absl::StatusOr<ConvertReport> CopyTrace(TraceReader& reader, TraceWriter& writer);

// "native", "mooncake", "csv" or "oracle".
absl::StatusOr<TraceFormat> ParseTraceFormat(const std::string& name);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CONVERT_H_
