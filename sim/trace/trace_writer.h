// TraceWriter: writes requests in the order they come, which must be arrival order.
//
//   native    everything a TraceRequest holds; ids that are not decimal numbers get numbers from 2^63
//             on
//   mooncake  everything but the scope of content ids and unknown fields
//   csv       the Azure form: arrivals and lengths only
//   oracle    one access per block of a prompt, as libCacheSim's oracleGeneral has them; not read
// What a format cannot hold is left out and named in losses(), once per kind.
//
// Memory: for native the copy window (id_window.h); for native and mooncake one table entry per
// request, so that dependencies can be written; for oracle 24 bytes per block of a prompt.

#ifndef KVBLOCKS_SIM_TRACE_TRACE_WRITER_H_
#define KVBLOCKS_SIM_TRACE_TRACE_WRITER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "kvblocks/sim/trace/byte_sink.h"
#include "kvblocks/sim/trace/id_window.h"
#include "kvblocks/sim/trace/trace_request.h"

namespace kvblocks::sim {

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
std::unique_ptr<TraceWriter> MakeMooncakeWriter(std::unique_ptr<ByteSink> sink);
std::unique_ptr<TraceWriter> MakeCsvWriter(std::unique_ptr<ByteSink> sink);
std::unique_ptr<TraceWriter> MakeOracleWriter(std::unique_ptr<ByteSink> sink);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TRACE_WRITER_H_
