// ConvertTrace: reads a trace in any supported form and writes it in another, in arrival order.
//
// Reading the result gives the same requests, except what ConvertReport::losses names; rows and
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/trace_reader.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

// TraceWriter: writes requests in the order they come, which must be arrival order.
//
//   native    everything a TraceRequest holds; ids that are no decimal numbers get numbers from
//             2^63 on
//   mooncake  everything but the scope of content ids and unknown fields
//   csv       the Azure form: arrivals and lengths only
//   oracle    one access per block of a prompt, as libCacheSim's oracleGeneral has them; not read
// What a format cannot hold is left out and named in losses(), once per kind.
//
// Memory: for native the copy window (record_stream.h); for native and mooncake one table entry per
// request, so that dependencies can be written; for oracle 24 bytes per block of a prompt.
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  virtual absl::Status Begin(const TraceInfo& info) = 0;  // once, first
  // REQUIRES: arrival_ns is not below that of the request before. What it waits for must have been
  // written.
  virtual absl::Status Write(const TraceRequest& request) = 0;
  virtual absl::Status Finish() = 0;  // once, last; closes the sink
  const std::set<std::string>& losses() const { return losses_; }

 protected:
  std::set<std::string> losses_;
};

struct NativeWriterOptions {
  int64_t copy_window = kDefaultCopyWindow;         // requests
  int64_t copy_window_ids = kDefaultCopyWindowIds;  // their content ids in total
};

std::unique_ptr<TraceWriter> MakeNativeWriter(std::unique_ptr<ByteSink> sink,
                                              const NativeWriterOptions& options = {});

enum class TraceFormat { kNative, kMooncake, kCsv, kOracle };
std::unique_ptr<TraceWriter> MakeTraceWriter(std::unique_ptr<ByteSink> sink, TraceFormat format,
                                             const NativeWriterOptions& native = {});

struct ConvertOptions {
  TraceReaderOptions reader;
  NativeWriterOptions native;
  // Holds the whole trace in memory and so accepts any order of rows.
  bool sort = false;
  // May put a reader before the one that is read.
  std::function<std::unique_ptr<TraceReader>(std::unique_ptr<TraceReader>)> wrap = nullptr;
};

struct ConvertReport {
  int64_t num_requests = 0, input_tokens = 0, output_tokens = 0;
  std::set<std::string> losses;
  std::vector<std::string> warnings;  // of the reader
};

absl::StatusOr<ConvertReport> ConvertTrace(const std::string& in, const std::string& out,
                                           TraceFormat format, const ConvertOptions& options);

// The same between a reader and a writer that are already there. Leaves the reader at its end.
absl::StatusOr<ConvertReport> CopyTrace(TraceReader& reader, TraceWriter& writer);

// "native", "mooncake", "csv" or "oracle".
absl::StatusOr<TraceFormat> ParseTraceFormat(const std::string& name);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CONVERT_H_
