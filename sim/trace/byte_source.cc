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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kSourceBuffer = 256 * 1024;

// Where stored bytes come from, before decompression.
class RawInput {
 public:
  virtual ~RawInput() = default;
  virtual absl::StatusOr<size_t> Read(char* out, size_t size) = 0;
  virtual int64_t total() const = 0;
};

class FileInput : public RawInput {
 public:
  FileInput(int fd, bool owned, int64_t total) : fd_(fd), owned_(owned), total_(total) {}
  ~FileInput() override {
    if (owned_) close(fd_);
  }

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    while (true) {
      const ssize_t n = read(fd_, out, size);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) {
        return absl::DataLossError(absl::StrCat("read failed: ", std::strerror(errno)));
      }
    }
  }
  int64_t total() const override { return total_; }

 private:
  int fd_;
  bool owned_;
  int64_t total_;
};

class StringInput : public RawInput {
 public:
  explicit StringInput(std::string content) : content_(std::move(content)) {}

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const size_t n = std::min(size, content_.size() - position_);
    std::memcpy(out, content_.data() + position_, n);
    position_ += n;
    return n;
  }
  int64_t total() const override { return static_cast<int64_t>(content_.size()); }

 private:
  std::string content_;
  size_t position_ = 0;
};

// Stored bytes in a buffer, refilled when it is empty; the decompressors eat from it.
class StoredBytes {
 public:
  explicit StoredBytes(std::unique_ptr<RawInput> input)
      : input_(std::move(input)), buffer_(kSourceBuffer) {}

  // Makes at least `want` (<= kSourceBuffer) bytes available unless the input ends before.
  absl::Status Fill(size_t want) {
    while (size() < want && !ended_) {
      if (begin_ > 0) {
        std::memmove(buffer_.data(), data(), size());
        end_ -= begin_;
        begin_ = 0;
      }
      absl::StatusOr<size_t> n = input_->Read(buffer_.data() + end_, buffer_.size() - end_);
      if (!n.ok()) return n.status();
      ended_ = *n == 0;
      end_ += *n;
      bytes_read_ += static_cast<int64_t>(*n);
    }
    return absl::OkStatus();
  }
  char* data() { return buffer_.data() + begin_; }
  size_t size() const { return end_ - begin_; }
  void Consume(size_t n) { begin_ += n; }
  int64_t bytes_read() const { return bytes_read_ - static_cast<int64_t>(size()); }
  int64_t bytes_total() const { return input_->total(); }

 private:
  std::unique_ptr<RawInput> input_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool ended_ = false;
  int64_t bytes_read_ = 0;
};

class DecodingSource : public ByteSource {
 public:
  explicit DecodingSource(StoredBytes stored) : stored_(std::move(stored)) {}
  int64_t bytes_read() const override { return stored_.bytes_read(); }
  int64_t bytes_total() const override { return stored_.bytes_total(); }

 protected:
  StoredBytes stored_;
};

class PlainSource : public DecodingSource {
 public:
  using DecodingSource::DecodingSource;
  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    if (absl::Status status = stored_.Fill(1); !status.ok()) return status;
    const size_t n = std::min(size, stored_.size());
    std::memcpy(out, stored_.data(), n);
    stored_.Consume(n);
    return n;
  }
};

bool IsGzip(const char* data, size_t size) {
  return size >= 2 && data[0] == '\x1f' && data[1] == '\x8b';
}

bool IsZstd(const char* data, size_t size) {
  return size >= 4 && std::memcmp(data, "\x28\xb5\x2f\xfd", 4) == 0;
}

class GzipSource : public DecodingSource {
 public:
  explicit GzipSource(StoredBytes stored) : DecodingSource(std::move(stored)) {
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
        absl::StatusOr<bool> more = NextMember();
        if (!more.ok()) return more.status();
        if (!*more) return size_t{0};
      }
      if (absl::Status status = stored_.Fill(1); !status.ok()) return status;
      if (stored_.size() == 0) {
        return absl::DataLossError("truncated gzip stream: got its end, expected more data");
      }
      stream_.next_in = reinterpret_cast<Bytef*>(stored_.data());
      stream_.avail_in = static_cast<uInt>(stored_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      stored_.Consume(stored_.size() - stream_.avail_in);
      if (result == Z_STREAM_END) {
        at_member_end_ = true;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return absl::DataLossError(
            absl::StrCat("damaged gzip stream at byte ", stored_.bytes_read(), ": ",
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
      if (absl::Status status = stored_.Fill(2); !status.ok()) return status;
      if (stored_.size() == 0) return false;
      if (IsGzip(stored_.data(), stored_.size())) break;
      if (*stored_.data() != '\0') {
        return absl::DataLossError(absl::StrCat("damaged gzip stream: got other bytes at byte ",
                                                stored_.bytes_read(),
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
  ZstdSource(StoredBytes stored, int window_log)
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
      if (absl::Status status = stored_.Fill(1); !status.ok()) return status;
      if (stored_.size() == 0 && frame_complete_) return size_t{0};
      ZSTD_inBuffer input = {stored_.data(), stored_.size(), 0};
      const size_t hint = ZSTD_decompressStream(context_, &output, &input);
      if (ZSTD_isError(hint)) {
        return absl::DataLossError(absl::StrCat(
            "damaged zstd stream at byte ", stored_.bytes_read(), ": ", ZSTD_getErrorName(hint),
            " (windows above 2^", window_log_, " bytes need --zstd-window-log)"));
      }
      if (frame_complete_) frame_start_.clear();  // this call began a frame
      frame_start_.append(stored_.data(),
                          std::min(input.pos, kMostHeaderBytes - frame_start_.size()));
      frame_bytes_ = (frame_complete_ ? 0 : frame_bytes_) + output.pos;
      stored_.Consume(input.pos);
      frame_complete_ = hint == 0;
      // The library misses this one if the last block is empty and the data came in parts.
      const uint64_t expected = ZSTD_getFrameContentSize(frame_start_.data(), frame_start_.size());
      if (frame_complete_ && expected != ZSTD_CONTENTSIZE_UNKNOWN &&
          expected != ZSTD_CONTENTSIZE_ERROR && expected != frame_bytes_) {
        return absl::DataLossError(absl::StrCat("damaged zstd stream at byte ",
                                                stored_.bytes_read(), ": a frame of ", frame_bytes_,
                                                " bytes, expected ", expected));
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

absl::StatusOr<std::unique_ptr<ByteSource>> Detect(std::unique_ptr<RawInput> input,
                                                   int zstd_window_log) {
  StoredBytes stored(std::move(input));
  if (absl::Status status = stored.Fill(4); !status.ok()) return status;
  if (IsGzip(stored.data(), stored.size())) {
    return std::unique_ptr<ByteSource>(new GzipSource(std::move(stored)));
  }
  if (IsZstd(stored.data(), stored.size())) {
    return std::unique_ptr<ByteSource>(new ZstdSource(std::move(stored), zstd_window_log));
  }
  return std::unique_ptr<ByteSource>(new PlainSource(std::move(stored)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           int zstd_window_log) {
  if (path == "-") {
    return Detect(std::make_unique<FileInput>(STDIN_FILENO, false, 0), zstd_window_log);
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
  return Detect(std::make_unique<FileInput>(fd, true, total), zstd_window_log);
}

bool CanBeReadAgain(const std::string& path) {
  if (path == "-") return false;
  struct stat info;
  // What is not there, or is a directory, is refused when it is opened.
  return stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
}

std::unique_ptr<ByteSource> ByteSourceOfString(std::string content, int zstd_window_log) {
  // A string cannot fail to be read.
  return *Detect(std::make_unique<StringInput>(std::move(content)), zstd_window_log);
}

}  // namespace kvblocks::sim
