#include "sim/trace/byte_sink.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

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

// The .part files that exist, where a signal handler can find them.
struct Unfinished {
  std::atomic<bool> is_taken = false;
  std::atomic<bool> is_set = false;
  char path[PATH_MAX];
};
constexpr size_t kMostUnfinished = 16;
Unfinished unfinished_files[kMostUnfinished];

// Null if the table is full or the path too long; then nobody removes the file on a signal.
Unfinished* Register(const std::string& part) {
  if (part.size() >= PATH_MAX) return nullptr;
  for (Unfinished& file : unfinished_files) {
    if (file.is_taken.exchange(true)) continue;
    std::memcpy(file.path, part.c_str(), part.size() + 1);
    file.is_set = true;
    return &file;
  }
  return nullptr;
}

void Unregister(Unfinished* file) {
  if (file == nullptr) return;
  file->is_set = false;
  file->is_taken = false;
}

// Writes to an open file; with a `part`, that becomes `target` in the end.
class FileSink : public ByteSink {
 public:
  // `name` is for messages. A file without a part is closed if it is owned.
  FileSink(std::string name, int fd, bool is_owned)
      : name_(std::move(name)), fd_(fd), is_owned_(is_owned) {}
  FileSink(std::string name, int fd, std::string part, std::string target)
      : name_(std::move(name)),
        fd_(fd),
        is_owned_(true),
        part_(std::move(part)),
        target_(std::move(target)),
        unfinished_(Register(part_)) {}
  ~FileSink() override {
    if (fd_ < 0 || !is_owned_) return;
    close(fd_);
    RemovePart();
  }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  absl::Status Write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EPIPE) {
        return absl::CancelledError(absl::StrCat(name_, ": error: nobody reads it any more"));
      }
      if (n < 0) return Failed("cannot write");
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }
  absl::Status Close() override {
    if (!is_owned_) return absl::OkStatus();
    const int fd = std::exchange(fd_, -1);
    if (close(fd) != 0 || (!part_.empty() && rename(part_.c_str(), target_.c_str()) != 0)) {
      const absl::Status status = Failed("cannot finish");
      RemovePart();
      return status;
    }
    Unregister(unfinished_);
    return absl::OkStatus();
  }

 private:
  absl::Status Failed(const char* what) const {
    return absl::DataLossError(absl::StrCat(name_, ": error: ", what, ": ", std::strerror(errno)));
  }
  void RemovePart() {
    if (part_.empty()) return;
    unlink(part_.c_str());
    Unregister(unfinished_);
  }

  std::string name_;
  int fd_;
  bool is_owned_;
  std::string part_;  // empty: written in place
  std::string target_;
  Unfinished* unfinished_ = nullptr;
};

absl::Status CannotCreate(const std::string& path) {
  return absl::PermissionDeniedError(
      absl::StrCat(path, ": error: cannot create: ", std::strerror(errno)));
}

// What `path` leads to when it is a symbolic link, also one that leads to nothing yet.
absl::StatusOr<std::string> FollowLinks(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::string target = path;
  for (int links = 0; links < kMostLinks; ++links) {
    char text[PATH_MAX];
    const ssize_t size = readlink(target.c_str(), text, sizeof(text));
    if (size < 0) return target;
    const std::string next(text, static_cast<size_t>(size));
    const size_t slash = target.rfind('/');
    const bool is_relative = next.empty() || next[0] != '/';
    target = is_relative && slash != std::string::npos ? target.substr(0, slash + 1) + next : next;
  }
  errno = ELOOP;
  return CannotCreate(path);
}

// Rename gives a regular file all of its content at once; anything else would be lost by it.
absl::StatusOr<std::unique_ptr<ByteSink>> OpenFile(const std::string& path) {
  struct stat old;
  const bool exists = stat(path.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return CannotCreate(path);
    return std::make_unique<FileSink>(path, fd, true);
  }
  if (exists && faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    return CannotCreate(path);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(std::string target, FollowLinks(path));
  std::string part = absl::StrCat(target, ".", getpid(), ".part");
  unlink(part.c_str());  // of a process that is gone
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return CannotCreate(path);
  auto sink = std::make_unique<FileSink>(path, fd, std::move(part), std::move(target));
  if (exists) {
    // A user who may not give files away keeps it as his own.
    [[maybe_unused]] const int given = fchown(fd, old.st_uid, old.st_gid);
    if (fchmod(fd, old.st_mode & 07777) != 0) return CannotCreate(path);
  }
  return sink;
}

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
      KVBLOCKS_RETURN_IF_ERROR(Deflate(part, Z_NO_FLUSH));
    }
    return absl::OkStatus();
  }
  absl::Status Close() override {
    KVBLOCKS_RETURN_IF_ERROR(Deflate({}, Z_FINISH));
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
      KVBLOCKS_RETURN_IF_ERROR(to_->Write({buffer_.data(), buffer_.size() - stream_.avail_out}));
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
    KVBLOCKS_RETURN_IF_ERROR(Compress({}, ZSTD_e_end));
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
      KVBLOCKS_RETURN_IF_ERROR(to_->Write({buffer_.data(), output.pos}));
      if (input.pos == input.size && (directive == ZSTD_e_continue || left == 0)) {
        return absl::OkStatus();
      }
    }
  }

  std::unique_ptr<ByteSink> to_;
  std::vector<char> buffer_;
  ZSTD_CCtx* context_;
};

}  // namespace

bool IsStandardOutput(const std::string& path) {
  if (path == "-") return true;
  struct stat named, out;
  return stat(path.c_str(), &named) == 0 && fstat(STDOUT_FILENO, &out) == 0 &&
         named.st_dev == out.st_dev && named.st_ino == out.st_ino && !S_ISCHR(out.st_mode);
}

bool IsReaderGone(const absl::Status& status) { return absl::IsCancelled(status); }

void RemoveUnfinishedFiles() {
  for (const Unfinished& file : unfinished_files) {
    if (file.is_set) unlink(file.path);
  }
}

absl::StatusOr<std::unique_ptr<ByteSink>> OpenByteSink(const std::string& path) {
  if (IsStandardOutput(path)) {
    return std::make_unique<FileSink>("<stdout>", STDOUT_FILENO, false);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto sink, OpenFile(path));
  if (path.ends_with(".gz")) return std::make_unique<GzipSink>(std::move(sink));
  if (path.ends_with(".zst")) return std::make_unique<ZstdSink>(std::move(sink));
  return sink;
}

std::unique_ptr<ByteSink> ByteSinkToString(std::string* out) {
  return std::make_unique<StringSink>(out);
}

}  // namespace kvblocks::sim
