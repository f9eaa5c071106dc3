// LineReader: lines of a byte source with their physical numbers.
//
// Accepts CRLF and LF, a byte-order mark at the start, and a last line without an end. A line
// longer than the limit is reported as such and skipped without being held, however long it is.
//
// Always: Line::text is valid until the next call and is followed by at least kPadding readable
// bytes. Memory: twice the longest line, at most max_line_bytes plus one 256 KiB chunk.

#ifndef KVBLOCKS_SIM_TRACE_LINE_READER_H_
#define KVBLOCKS_SIM_TRACE_LINE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

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
  static constexpr size_t kPadding = 64;

  LineReader(std::unique_ptr<ByteSource> source, int64_t max_line_bytes);

  // False at the end. On an error of the source every complete line was delivered before;
  // line_number() is the last.
  absl::StatusOr<bool> Next(Line* line);

  int64_t line_number() const { return line_number_; }
  const ByteSource& source() const { return *source_; }

 private:
  absl::Status ReadMore();
  bool Deliver(size_t length, size_t end_length, Line* line);

  std::unique_ptr<ByteSource> source_;
  size_t max_line_bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t skipped_ = 0;  // bytes dropped of a line that is too long
  bool ended_ = false;
  int64_t line_number_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_LINE_READER_H_
