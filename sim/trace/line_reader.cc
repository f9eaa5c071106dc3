#include "sim/trace/line_reader.h"

#include <algorithm>
#include <utility>

#include "checks/status_macros.h"

namespace kvblocks::sim {

LineReader::LineReader(std::unique_ptr<ByteSource> source, int64_t max_line_bytes)
    : source_(std::move(source)),
      max_line_bytes_(static_cast<size_t>(std::max<int64_t>(max_line_bytes, 1))) {}

// The line is the next `length` bytes behind `skipped` ones that are dropped.
bool LineReader::Deliver(size_t skipped, size_t length, Line* line) {
  std::string_view text = source_.bytes().substr(0, length);
  source_.Consume(std::min(length + 1, source_.bytes().size()));
  ++line_number_;
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (line_number_ == 1 && text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  line->number = line_number_;
  line->bytes = static_cast<int64_t>(skipped + length);
  line->too_long = skipped + length > max_line_bytes_;
  line->text = line->too_long ? std::string_view() : text;
  return true;
}

absl::StatusOr<bool> LineReader::Next(Line* line) {
  size_t skipped = 0;
  size_t searched = 0;
  while (true) {
    const size_t end = source_.bytes().find('\n', searched);
    if (end != std::string_view::npos) return Deliver(skipped, end, line);
    searched = source_.bytes().size();
    if (searched > max_line_bytes_) {
      skipped += searched;
      source_.Consume(searched);
      searched = 0;
    }
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, source_.ReadMore());
    if (more) continue;
    if (searched + skipped == 0) return false;
    return Deliver(skipped, searched, line);
  }
}

}  // namespace kvblocks::sim
