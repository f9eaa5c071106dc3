#include "sim/trace/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kSourceBuffer = 256 * 1024;

// The stored bytes of a file.
class FileSource : public ByteSource {
 public:
  FileSource(int fd, bool owned, int64_t total) : fd_(fd), owned_(owned), total_(total) {}
  ~FileSource() override {
    if (owned_) close(fd_);
  }

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    ssize_t n = -1;
    do {
      n = read(fd_, out, size);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return absl::DataLossError(absl::StrCat("read failed: ", std::strerror(errno)));
    bytes_read_ += n;
    return static_cast<size_t>(n);
  }
  int64_t bytes_read() const override { return bytes_read_; }
  int64_t bytes_total() const override { return total_; }

 private:
  const int fd_;
  const bool owned_;
  const int64_t total_;
  int64_t bytes_read_ = 0;
};

class StringSource : public ByteSource {
 public:
  explicit StringSource(std::string content) : content_(std::move(content)) {}

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const size_t n = content_.copy(out, size, position_);
    position_ += n;
    return n;
  }
  int64_t bytes_read() const override { return static_cast<int64_t>(position_); }
  int64_t bytes_total() const override { return static_cast<int64_t>(content_.size()); }

 private:
  const std::string content_;
  size_t position_ = 0;
};

// The decompressors take from what was read ahead of stored bytes.
class DecodingSource : public ByteSource {
 public:
  explicit DecodingSource(BufferedSource stored) : stored_(std::move(stored)) {}
  int64_t bytes_read() const override {
    return stored_.bytes_read() - static_cast<int64_t>(stored_.bytes().size());
  }
  int64_t bytes_total() const override { return stored_.bytes_total(); }

 protected:
  BufferedSource stored_;
};

constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";

class GzipSource : public DecodingSource {
 public:
  explicit GzipSource(BufferedSource stored) : DecodingSource(std::move(stored)) {
    std::memset(&stream_, 0, sizeof(stream_));
    constexpr int kGzipOnly = 16;
    ready_ = inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK;
  }
  ~GzipSource() override {
    if (ready_) inflateEnd(&stream_);
  }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    if (!ready_) return absl::ResourceExhaustedError("no memory for the gzip decoder");
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min(size, kSourceBuffer));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (at_member_end_) {
        KVBLOCKS_ASSIGN_OR_RETURN(const bool more, NextMember());
        if (!more) return size_t{0};
      }
      KVBLOCKS_RETURN_IF_ERROR(stored_.Fill(1));
      const std::string_view in = stored_.bytes();
      if (in.empty()) {
        return absl::DataLossError("truncated gzip stream: got its end, expected more data");
      }
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
      stream_.avail_in = static_cast<uInt>(in.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      stored_.Consume(in.size() - stream_.avail_in);
      if (result == Z_STREAM_END) {
        at_member_end_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return absl::DataLossError(
            absl::StrCat("damaged gzip stream at byte ", bytes_read(), ": ",
                         stream_.msg != nullptr ? stream_.msg : "inflate failed"));
      }
    }
    return static_cast<size_t>(wanted - stream_.avail_out);
  }

 private:
  // Another member may follow; padding with zero bytes (tapes, block devices) is allowed as in
  // gzip(1).
  absl::StatusOr<bool> NextMember() {
    while (true) {
      KVBLOCKS_RETURN_IF_ERROR(stored_.Fill(kGzipMagic.size()));
      if (stored_.bytes().empty()) return false;
      if (stored_.bytes().starts_with(kGzipMagic)) break;
      if (stored_.bytes()[0] != '\0') {
        return absl::DataLossError(absl::StrCat("damaged gzip stream: got other bytes at byte ",
                                                bytes_read(),
                                                ", expected a further member or the end"));
      }
      stored_.Consume(1);
    }
    inflateReset(&stream_);
    at_member_end_ = false;
    return true;
  }

  z_stream stream_;
  bool ready_ = false;
  bool at_member_end_ = false;
};

class ZstdSource : public DecodingSource {
 public:
  ZstdSource(BufferedSource stored, int window_log)
      : DecodingSource(std::move(stored)), context_(ZSTD_createDCtx()), window_log_(window_log) {
    if (context_ != nullptr) {
      ready_ = !ZSTD_isError(ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, window_log));
    }
  }
  ~ZstdSource() override { ZSTD_freeDCtx(context_); }
  ZstdSource(const ZstdSource&) = delete;
  ZstdSource& operator=(const ZstdSource&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    if (!ready_) {
      return absl::InvalidArgumentError(
          absl::StrCat("zstd window log: got ", window_log_, ", expected 10 to 31"));
    }
    ZSTD_outBuffer output = {out, size, 0};
    while (output.pos == 0) {
      KVBLOCKS_RETURN_IF_ERROR(stored_.Fill(1));
      const std::string_view in = stored_.bytes();
      if (in.empty() && frame_complete_) return size_t{0};
      ZSTD_inBuffer input = {in.data(), in.size(), 0};
      const size_t hint = ZSTD_decompressStream(context_, &output, &input);
      if (ZSTD_isError(hint)) {
        return absl::DataLossError(absl::StrCat("damaged zstd stream at byte ", bytes_read(), ": ",
                                                ZSTD_getErrorName(hint), " (windows above 2^",
                                                window_log_, " bytes need --zstd-window-log)"));
      }
      if (frame_complete_) frame_start_.clear();  // this call began a frame
      frame_start_.append(
          in.substr(0, std::min(input.pos, kMostHeaderBytes - frame_start_.size())));
      frame_bytes_ = (frame_complete_ ? 0 : frame_bytes_) + output.pos;
      stored_.Consume(input.pos);
      frame_complete_ = hint == 0;
      // The library misses this one if the last block is empty and the data came in parts.
      const uint64_t expected = ZSTD_getFrameContentSize(frame_start_.data(), frame_start_.size());
      if (frame_complete_ && expected != ZSTD_CONTENTSIZE_UNKNOWN &&
          expected != ZSTD_CONTENTSIZE_ERROR && expected != frame_bytes_) {
        return absl::DataLossError(absl::StrCat("damaged zstd stream at byte ", bytes_read(),
                                                ": a frame of ", frame_bytes_, " bytes, expected ",
                                                expected));
      }
      if (input.size == 0 && output.pos == 0 && !frame_complete_) {
        return absl::DataLossError("truncated zstd stream: got its end, expected more data");
      }
    }
    return output.pos;
  }

 private:
  static constexpr size_t kMostHeaderBytes = 18;

  ZSTD_DCtx* context_;
  int window_log_;
  bool ready_ = false;
  bool frame_complete_ = false;
  std::string frame_start_;  // the first bytes of the frame under way
  uint64_t frame_bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<ByteSource>> Detect(std::unique_ptr<ByteSource> input,
                                                   int zstd_window_log) {
  BufferedSource stored(std::move(input));
  KVBLOCKS_RETURN_IF_ERROR(stored.Fill(kZstdMagic.size()));
  if (stored.bytes().starts_with(kGzipMagic)) {
    return std::make_unique<GzipSource>(std::move(stored));
  }
  if (stored.bytes().starts_with(kZstdMagic)) {
    return std::make_unique<ZstdSource>(std::move(stored), zstd_window_log);
  }
  return std::make_unique<BufferedSource>(std::move(stored));
}

}  // namespace

BufferedSource::BufferedSource(std::unique_ptr<ByteSource> source)
    : source_(std::move(source)), buffer_(kSourceBuffer + kPadding) {}

absl::StatusOr<bool> BufferedSource::ReadMore() {
  if (is_ended_) return false;
  const auto room = [this] { return buffer_.size() - kPadding - end_; };
  if (begin_ > 0 && room() < kSourceBuffer / 2) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (room() < kSourceBuffer / 2) buffer_.resize(2 * buffer_.size());
  KVBLOCKS_ASSIGN_OR_RETURN(const size_t n, source_->Read(buffer_.data() + end_, room()));
  end_ += n;
  is_ended_ = n == 0;
  return !is_ended_;
}

absl::Status BufferedSource::Fill(size_t num_bytes) {
  while (bytes().size() < num_bytes) {
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, ReadMore());
    if (!more) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> BufferedSource::Read(char* out, size_t size) {
  if (bytes().empty() && !is_ended_) return source_->Read(out, size);
  const size_t n = bytes().copy(out, size);
  Consume(n);
  return n;
}

absl::StatusOr<std::string> ReadUpTo(int64_t most, ByteSource& source) {
  std::string content;
  while (static_cast<int64_t>(content.size()) <= most) {
    constexpr size_t kChunk = 64 * 1024;
    const size_t size = content.size();
    content.resize(size + kChunk);
    KVBLOCKS_ASSIGN_OR_RETURN(const size_t n, source.Read(content.data() + size, kChunk));
    content.resize(size + n);
    if (n == 0) break;
  }
  return content;
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           int zstd_window_log) {
  if (path == "-") {
    return Detect(std::make_unique<FileSource>(STDIN_FILENO, false, 0), zstd_window_log);
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    const std::string message = absl::StrCat(path, ": error: cannot open: ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::PermissionDeniedError(message);
  }
  struct stat info;
  int64_t total = 0;
  if (fstat(fd, &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      close(fd);
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": error: input: got a directory, expected a file"));
    }
    if (S_ISREG(info.st_mode)) total = info.st_size;
  }
  return Detect(std::make_unique<FileSource>(fd, true, total), zstd_window_log);
}

bool CanBeReadAgain(const std::string& path) {
  if (path == "-") return false;
  struct stat info;
  // What is not there, or is a directory, is refused when it is opened.
  return stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
}

std::unique_ptr<ByteSource> ByteSourceOfString(std::string content, int zstd_window_log) {
  // A string cannot fail to be read.
  return *Detect(std::make_unique<StringSource>(std::move(content)), zstd_window_log);
}

}  // namespace kvblocks::sim
