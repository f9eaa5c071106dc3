// LineReader: lines of a byte source with their physical numbers.
//
// Accepts CRLF and LF, a byte-order mark at the start, and a last line without an end. A line
// longer than the limit is reported as such and skipped without being held, however long it is.
//
// Always: Line::text is valid until the next call and is followed by at least kPadding readable
// bytes. Memory: twice the longest line, at most twice max_line_bytes and one 256 KiB chunk.

#ifndef KVBLOCKS_SIM_TRACE_LINE_READER_H_
#define KVBLOCKS_SIM_TRACE_LINE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "sim/trace/byte_source.h"

namespace kvblocks::sim {

struct Line {
  std::string_view text;  // without its end; empty if too_long
  int64_t number = 0;     // physical, from 1
  bool too_long = false;
  int64_t bytes = 0;  // of the whole line without its end, also when too long
};

class LineReader {
 public:
  static constexpr size_t kPadding = BufferedSource::kPadding;

  LineReader(std::unique_ptr<ByteSource> source, int64_t max_line_bytes);

  // False at the end. On an error of the source every complete line was delivered before;
  // line_number() is the last.
  absl::StatusOr<bool> Next(Line* line);

  int64_t line_number() const { return line_number_; }
  const ByteSource& source() const { return source_; }

 private:
  bool Deliver(size_t skipped, size_t length, Line* line);

  BufferedSource source_;
  const size_t max_line_bytes_;
  int64_t line_number_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_LINE_READER_H_
