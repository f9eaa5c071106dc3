// ByteSink: where a trace or another result is written, compressed by the file's name: .gz gzip,
// .zst zstd, otherwise plain.
//
// A file appears under its name, with all of its content, only when Close succeeds. Until then it
// is NAME.PID.part, which is removed if the sink goes away before. A file that is replaced keeps
// its mode, and a symbolic link keeps leading to it. What is no regular file, a pipe or a device,
// is opened and written as it is; so are "-", standard output, and names of its file. The bytes
// depend on the content alone, not on time or name.

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

// Whether OpenByteSink(path) writes to standard output.
bool IsStandardOutput(const std::string& path);

// Whether writing failed because nobody reads the pipe any more (| head). Only with SIGPIPE
// ignored.
bool IsReaderGone(const absl::Status& status);

// Removes the .part files of all sinks that are not closed. May be called from a signal handler;
// the process must end then.
void RemoveUnfinishedFiles();

// Appends to `out`, which must outlive the sink.
std::unique_ptr<ByteSink> ByteSinkToString(std::string* out);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_BYTE_SINK_H_
