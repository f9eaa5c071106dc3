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

// False: standard input, a pipe or a device. To open a pipe again would wait for another writer.
bool CanBeReadAgain(const std::string& path);

// For tests and for content that is already in memory; detects compression as well.
std::unique_ptr<ByteSource> ByteSourceOfString(std::string content, int zstd_window_log = 27);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_BYTE_SOURCE_H_
