// ByteSink: where a trace is written, compressed by the file's name: .gz gzip, .zst zstd, otherwise
// plain.
//
// A file appears under its name only when Close succeeds; until then it is NAME.part, which is
// removed if the sink goes away before. "-" is standard output. The bytes depend on the content
// alone, not on time or name.

#ifndef KVBLOCKS_SIM_TRACE_BYTE_SINK_H_
#define KVBLOCKS_SIM_TRACE_BYTE_SINK_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblocks::sim {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual absl::Status Write(std::string_view bytes) = 0;
  virtual absl::Status Close() = 0;  // once, last
};

absl::StatusOr<std::unique_ptr<ByteSink>> OpenByteSink(const std::string& path);

// Appends to `out`, which must outlive the sink.
std::unique_ptr<ByteSink> ByteSinkToString(std::string* out);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_BYTE_SINK_H_
