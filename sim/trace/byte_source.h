// ByteSource: the bytes of a trace file, decompressed on the way, in constant memory.
//
// The first bytes decide: gzip (1f 8b; any number of members), zstd (28 b5 2f fd; any number of
// frames), otherwise plain. "-" is standard input. The name of the file plays no part.
//
// Always: what Read delivers is a prefix of the file's content; a compressed stream that ends too
// early or is damaged is DataLoss, never a silent end. Memory: 256 KiB, and for zstd the window (up
// to 2^zstd_window_log bytes, and only if the file asks for it). Single-threaded.

#ifndef KVBLOCKS_SIM_TRACE_BYTE_SOURCE_H_
#define KVBLOCKS_SIM_TRACE_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace kvblocks::sim {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Fills up to `size` bytes (> 0) and returns how many; 0 is the end.
  virtual absl::StatusOr<size_t> Read(char* out, size_t size) = 0;

  // Of the file as stored. The total is 0 if unknown.
  virtual int64_t bytes_read() const = 0;
  virtual int64_t bytes_total() const = 0;
};

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path,
                                                           int zstd_window_log = 27);

// What a source has next, with room to look further ahead.
//
// Always: bytes() is followed by at least kPadding readable bytes and valid until the next ReadMore
// or Read. Memory: 256 KiB, or twice what is held.
class BufferedSource final : public ByteSource {
 public:
  static constexpr size_t kPadding = 64;

  explicit BufferedSource(std::unique_ptr<ByteSource> source);

  std::string_view bytes() const { return {buffer_.data() + begin_, end_ - begin_}; }
  // Appends what the source delivers next to bytes(). False: the end.
  absl::StatusOr<bool> ReadMore();
  // Until there are so many bytes, or the source ends.
  absl::Status Fill(size_t num_bytes);
  // Takes so many of bytes() off their front.
  void Consume(size_t num_bytes) { begin_ += num_bytes; }

  absl::StatusOr<size_t> Read(char* out, size_t size) override;
  int64_t bytes_read() const override { return source_->bytes_read(); }
  int64_t bytes_total() const override { return source_->bytes_total(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool is_ended_ = false;
};

// The whole content, or its first `most` bytes and one more.
absl::StatusOr<std::string> ReadUpTo(int64_t most, ByteSource& source);

// False: standard input, a pipe or a device. To open a pipe again would wait for another writer.
bool CanBeReadAgain(const std::string& path);

// For tests and for content that is already in memory; detects compression as well.
std::unique_ptr<ByteSource> ByteSourceOfString(std::string content, int zstd_window_log = 27);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_BYTE_SOURCE_H_
