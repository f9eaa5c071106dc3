// Native traces (trace.proto): the binary form and its text form.
//
// Whatever the bytes, reading ends with requests, with a message that names the record and its byte
// offset, or both. A file without footer is truncated; a footer that does not fit the records is
// damage. Unknown fields of requests and of the header travel along and are written again.
//
// Memory: one record (at most max_line_bytes) and the copy window (see record_stream.h), which the
// file may ask to be at most 2^20 requests and 2^27 ids.

#ifndef KVBLOCKS_SIM_TRACE_NATIVE_READER_H_
#define KVBLOCKS_SIM_TRACE_NATIVE_READER_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeNativeReader(std::unique_ptr<ByteSource> source,
                                                            const TraceReaderOptions& options,
                                                            RowLog* log,
                                                            std::string dialect = "version 1");

// The text form: one Record in protobuf text format per block, blocks separated by blank lines. The
// footer may be left out. The whole text is held; it is meant for tests and hand-written cases.
absl::StatusOr<std::unique_ptr<RowSource>> MakeNativeTextReader(std::unique_ptr<ByteSource> source,
                                                                const TraceReaderOptions& options,
                                                                RowLog* log);

absl::StatusOr<std::string> NativeTextToBinary(std::string_view text, const std::string& file);
absl::StatusOr<std::string> NativeBinaryToText(std::string_view binary, const std::string& file);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_NATIVE_READER_H_
