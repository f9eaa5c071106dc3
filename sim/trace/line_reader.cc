#include "sim/trace/line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kLineBuffer = 256 * 1024;

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteSource> source, int64_t max_line_bytes)
    : source_(std::move(source)),
      max_line_bytes_(static_cast<size_t>(std::max<int64_t>(max_line_bytes, 1))),
      buffer_(kLineBuffer + kPadding) {}

absl::Status LineReader::ReadMore() {
  if (begin_ > 0 && buffer_.size() - kPadding - end_ < kLineBuffer / 2) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - kPadding - end_ < kLineBuffer / 2) {
    const size_t limit = max_line_bytes_ + kLineBuffer + kPadding;
    buffer_.resize(
        std::max(std::min(buffer_.size() * 2, limit), end_ + kLineBuffer / 2 + kPadding));
  }
  absl::StatusOr<size_t> n = source_->Read(buffer_.data() + end_, buffer_.size() - kPadding - end_);
  if (!n.ok()) return n.status();
  end_ += *n;
  ended_ = *n == 0;
  return absl::OkStatus();
}

bool LineReader::Deliver(size_t length, size_t end_length, Line* line) {
  std::string_view text(buffer_.data() + begin_, length);
  begin_ += length + end_length;
  const size_t bytes = skipped_ + length;
  skipped_ = 0;
  ++line_number_;
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (line_number_ == 1 && text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  line->number = line_number_;
  line->bytes = static_cast<int64_t>(bytes);
  line->too_long = bytes > max_line_bytes_;
  line->text = line->too_long ? std::string_view() : text;
  return true;
}

absl::StatusOr<bool> LineReader::Next(Line* line) {
  size_t searched = 0;
  while (true) {
    const char* from = buffer_.data() + begin_ + searched;
    const size_t left = end_ - begin_ - searched;
    if (const void* found = left == 0 ? nullptr : std::memchr(from, '\n', left)) {
      const size_t length = static_cast<size_t>(static_cast<const char*>(found) - buffer_.data());
      return Deliver(length - begin_, 1, line);
    }
    searched = end_ - begin_;
    if (ended_) {
      if (searched == 0 && skipped_ == 0) return false;
      return Deliver(searched, 0, line);
    }
    if (searched > max_line_bytes_) {
      skipped_ += searched;
      begin_ = end_ = 0;
      searched = 0;
    }
    if (absl::Status status = ReadMore(); !status.ok()) return status;
  }
}

}  // namespace kvblocks::sim
