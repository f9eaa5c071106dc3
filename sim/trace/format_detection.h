// Format detection: which trace format a file has, from its first record.
//
// The file's name plays no part. Parquet is recognised and refused.

#ifndef KVBLOCKS_SIM_TRACE_FORMAT_DETECTION_H_
#define KVBLOCKS_SIM_TRACE_FORMAT_DETECTION_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sim/trace/byte_source.h"

namespace kvblocks::sim {

inline constexpr std::string_view kNativeMagic = "KVTRACE1";

// One of TraceFormats(). `head` is the file's begin: at least the whole first line that is not
// blank, unless that is longer than the caller cares to look at or begins with a bracket. `file` is
// for messages.
absl::StatusOr<std::string> DetectFormat(std::string head, const std::string& file);

// Reads the head for DetectFormat (at most `max_bytes`) and returns it; afterwards *source delivers
// everything from the first byte again.
absl::StatusOr<std::string> PeekHead(std::unique_ptr<ByteSource>* source, size_t max_bytes);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_FORMAT_DETECTION_H_
