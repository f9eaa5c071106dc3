// Short ways to read a trace from a string in tests.

#ifndef KVBLOCKS_SIM_TESTING_TRACE_TESTING_H_
#define KVBLOCKS_SIM_TESTING_TRACE_TESTING_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

inline absl::StatusOr<std::vector<TraceRequest>> AllRequests(TraceReader& reader) {
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (true) {
    absl::StatusOr<bool> more = reader.Next(request);
    if (!more.ok()) return more.status();
    if (!*more) return requests;
    requests.push_back(std::move(request));
    request = TraceRequest();
  }
}

inline absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::string content,
                                                           const TraceReaderOptions& options = {}) {
  auto reader = OpenTraceString(std::move(content), "t", options);
  if (!reader.ok()) return reader.status();
  return AllRequests(**reader);
}

// The same of what must be readable, or else the test ends.
inline std::unique_ptr<TraceReader> MustOpen(const std::string& path,
                                             const TraceReaderOptions& options = {}) {
  return OpenTrace(path, options).value();
}
inline std::unique_ptr<TraceReader> MustOpenString(std::string content,
                                                   const TraceReaderOptions& options = {}) {
  return OpenTraceString(std::move(content), "t", options).value();
}
inline std::vector<TraceRequest> MustRead(TraceReader& reader) {
  return AllRequests(reader).value();
}
inline std::vector<TraceRequest> MustRead(std::string content,
                                          const TraceReaderOptions& options = {}) {
  return ReadTrace(std::move(content), options).value();
}

// The error's message, or "" if the trace reads well.
inline std::string TraceError(std::string content, const TraceReaderOptions& options = {}) {
  return std::string(ReadTrace(std::move(content), options).status().message());
}

// A Mooncake row of length-only content.
inline std::string Row(const std::string& timestamp, const std::string& more = "") {
  return "{\"timestamp\": " + timestamp +
         ", \"input_length\": 8, \"output_length\": 2, \"block_size\": 0, \"hash_ids\": []" +
         (more.empty() ? "" : ", ") + more + "}\n";
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_TRACE_TESTING_H_
