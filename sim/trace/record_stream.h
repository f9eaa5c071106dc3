// RecordStream: the length-delimited records of a native trace, with the running hash that its
// footer states.
//
// Memory: the longest record, and never more than twice the bytes that are really there.

#ifndef KVBLOCKS_SIM_TRACE_RECORD_STREAM_H_
#define KVBLOCKS_SIM_TRACE_RECORD_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/byte_source.h"

namespace kvblocks::sim {

// The varint length before a record.
void AppendRecordLength(uint64_t length, std::string* out);

// XXH64 with seed 0 of everything added.
class RecordHash {
 public:
  RecordHash();
  ~RecordHash();
  RecordHash(const RecordHash&) = delete;
  RecordHash& operator=(const RecordHash&) = delete;

  void Add(const std::string& bytes);
  uint64_t value() const;

 private:
  void* state_;
};

class RecordStream {
 public:
  RecordStream(std::unique_ptr<ByteSource> source, int64_t max_record_bytes);

  // Reads the magic; an error if it is not there.
  absl::Status Start();
  // The next record without its length; false at the end of the stream. Errors lack the file's
  // name.
  absl::StatusOr<bool> Next(std::string* record);

  uint64_t hash_before_record() const { return hash_before_record_; }
  int64_t record_number() const { return record_number_; }  // of the last record, from 1
  int64_t record_offset() const { return record_offset_; }  // its first byte, uncompressed
  const ByteSource& source() const { return *source_; }

 private:
  absl::StatusOr<bool> Byte(char* byte);
  absl::Status Fill(size_t want, std::string* out);

  std::unique_ptr<ByteSource> source_;
  uint64_t max_record_bytes_;
  std::string buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  int64_t offset_ = 0;
  int64_t record_number_ = 0;
  int64_t record_offset_ = 0;
  uint64_t hash_before_record_ = 0;
  RecordHash hash_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_RECORD_STREAM_H_
