#include "kvblocks/sim/trace/byte_sink.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kSinkBuffer = 256 * 1024;

class StringSink : public ByteSink {
 public:
  explicit StringSink(std::string* out) : out_(out) {}
  absl::Status Write(std::string_view bytes) override {
    out_->append(bytes);
    return absl::OkStatus();
  }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  std::string* out_;
};

class FileSink : public ByteSink {
 public:
  FileSink(std::string path, std::string part, int fd)
      : path_(std::move(path)), part_(std::move(part)), fd_(fd) {}
  ~FileSink() override {
    if (fd_ < 0 || part_.empty()) return;
    close(fd_);
    unlink(part_.c_str());
  }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  absl::Status Write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("cannot write");
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }
  absl::Status Close() override {
    if (part_.empty()) return absl::OkStatus();
    const int fd = std::exchange(fd_, -1);
    if (close(fd) != 0 || rename(part_.c_str(), path_.c_str()) != 0) {
      const absl::Status status = Failed("cannot finish");
      unlink(part_.c_str());
      return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Failed(const char* what) const {
    return absl::DataLossError(absl::StrCat(path_, ": error: ", what, ": ", std::strerror(errno)));
  }
  std::string path_;
  std::string part_;  // empty: standard output
  int fd_;
};

class GzipSink : public ByteSink {
 public:
  explicit GzipSink(std::unique_ptr<ByteSink> to) : to_(std::move(to)), buffer_(kSinkBuffer) {
    std::memset(&stream_, 0, sizeof(stream_));
    constexpr int kGzip = 16;
    constexpr int kMemoryLevel = 8;
    ready_ = deflateInit2(&stream_, Z_BEST_COMPRESSION, Z_DEFLATED, MAX_WBITS + kGzip, kMemoryLevel,
                          Z_DEFAULT_STRATEGY) == Z_OK;
  }
  ~GzipSink() override {
    if (ready_) deflateEnd(&stream_);
  }
  GzipSink(const GzipSink&) = delete;
  GzipSink& operator=(const GzipSink&) = delete;

  absl::Status Write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const std::string_view part = bytes.substr(0, kSinkBuffer);
      bytes.remove_prefix(part.size());
      if (absl::Status status = Deflate(part, Z_NO_FLUSH); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status Close() override {
    if (absl::Status status = Deflate({}, Z_FINISH); !status.ok()) return status;
    return to_->Close();
  }

 private:
  absl::Status Deflate(std::string_view bytes, int flush) {
    if (!ready_) return absl::ResourceExhaustedError("no memory for the gzip encoder");
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_out = static_cast<uInt>(buffer_.size());
      deflate(&stream_, flush);
      const size_t n = buffer_.size() - stream_.avail_out;
      if (absl::Status s = to_->Write(std::string_view(buffer_.data(), n)); !s.ok()) return s;
    } while (stream_.avail_out == 0);
    return absl::OkStatus();
  }

  std::unique_ptr<ByteSink> to_;
  std::vector<char> buffer_;
  z_stream stream_;
  bool ready_ = false;
};

class ZstdSink : public ByteSink {
 public:
  explicit ZstdSink(std::unique_ptr<ByteSink> to)
      : to_(std::move(to)), buffer_(kSinkBuffer), context_(ZSTD_createCCtx()) {
    constexpr int kLevel = 9;
    if (context_ != nullptr) {
      ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, kLevel);
      ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1);
    }
  }
  ~ZstdSink() override { ZSTD_freeCCtx(context_); }
  ZstdSink(const ZstdSink&) = delete;
  ZstdSink& operator=(const ZstdSink&) = delete;

  absl::Status Write(std::string_view bytes) override { return Compress(bytes, ZSTD_e_continue); }
  absl::Status Close() override {
    if (absl::Status status = Compress({}, ZSTD_e_end); !status.ok()) return status;
    return to_->Close();
  }

 private:
  absl::Status Compress(std::string_view bytes, ZSTD_EndDirective directive) {
    if (context_ == nullptr) return absl::ResourceExhaustedError("no memory for the zstd encoder");
    ZSTD_inBuffer input = {bytes.data(), bytes.size(), 0};
    while (true) {
      ZSTD_outBuffer output = {buffer_.data(), buffer_.size(), 0};
      const size_t left = ZSTD_compressStream2(context_, &output, &input, directive);
      if (ZSTD_isError(left)) {
        return absl::InternalError(absl::StrCat("zstd: ", ZSTD_getErrorName(left)));
      }
      if (absl::Status status = to_->Write(std::string_view(buffer_.data(), output.pos));
          !status.ok()) {
        return status;
      }
      if (input.pos == input.size && (directive == ZSTD_e_continue || left == 0)) break;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<ByteSink> to_;
  std::vector<char> buffer_;
  ZSTD_CCtx* context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSink>> OpenByteSink(const std::string& path) {
  std::unique_ptr<ByteSink> sink;
  if (path == "-") {
    return std::unique_ptr<ByteSink>(new FileSink("<stdout>", "", STDOUT_FILENO));
  }
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": error: cannot create: ", std::strerror(errno)));
  }
  sink = std::make_unique<FileSink>(path, part, fd);
  if (path.ends_with(".gz")) {
    sink = std::make_unique<GzipSink>(std::move(sink));
  } else if (path.ends_with(".zst")) {
    sink = std::make_unique<ZstdSink>(std::move(sink));
  }
  return sink;
}

std::unique_ptr<ByteSink> ByteSinkToString(std::string* out) {
  return std::make_unique<StringSink>(out);
}

}  // namespace kvblocks::sim
