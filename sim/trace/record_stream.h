// RecordStream: the length-delimited records of a native trace, with the running hash that its
// footer states.
//
// Memory: twice the longest record, and never more than twice the bytes that are really there.

#ifndef KVBLOCKS_SIM_TRACE_RECORD_STREAM_H_
#define KVBLOCKS_SIM_TRACE_RECORD_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/trace/byte_source.h"

namespace kvblocks::sim {

// With which a native trace begins.
inline constexpr std::string_view kNativeMagic = "KVTRACE1";

// The varint length before a record.
void AppendRecordLength(uint64_t length, std::string* out);

// XXH64 with seed 0 of everything added.
class RecordHash {
 public:
  RecordHash();
  ~RecordHash();
  RecordHash(const RecordHash&) = delete;
  RecordHash& operator=(const RecordHash&) = delete;

  void Add(std::string_view bytes);
  uint64_t value() const;

 private:
  void* state_;
};

// Appends a record behind its length and adds both to the hash.
void AppendRecord(std::string_view record, std::string* out, RecordHash* hash);

class RecordStream {
 public:
  RecordStream(std::unique_ptr<ByteSource> source, int64_t max_record_bytes);

  // Reads the magic; an error if it is not there.
  absl::Status Start();
  // The next record without its length, valid until the next call; false at the end of the stream.
  // Errors lack the file's name.
  absl::StatusOr<bool> Next(std::string_view* record);

  uint64_t hash_before_record() const { return hash_before_record_; }
  int64_t record_number() const { return record_number_; }  // of the last record, from 1
  int64_t record_offset() const { return record_offset_; }  // its first byte, uncompressed
  const ByteSource& source() const { return source_; }

 private:
  // The next bytes of the stream.
  absl::StatusOr<std::string_view> Take(size_t size);

  BufferedSource source_;
  const uint64_t max_record_bytes_;
  int64_t offset_ = 0;
  int64_t record_number_ = 0;
  int64_t record_offset_ = 0;
  uint64_t hash_before_record_ = 0;
  RecordHash hash_;
};

// IdWindow: the content ids of the last requests of a native trace, which later requests copy from.
//
// Writer and reader follow the same rule, so that what one refers to the other still has: the last
// `max_requests` requests, without the oldest ones while all have more than `max_ids` ids. The last
// request always stays.
inline constexpr int64_t kDefaultCopyWindow = 65536;
inline constexpr int64_t kDefaultCopyWindowIds = int64_t{1} << 24;
// What a reader accepts; a file that asks for more is hostile: a few bytes copy as many.
inline constexpr int64_t kMostCopyWindow = int64_t{1} << 20;
inline constexpr int64_t kMostCopyWindowIds = int64_t{1} << 25;

class IdWindow {
 public:
  IdWindow(int64_t max_requests, int64_t max_ids)
      : max_requests_(max_requests), max_ids_(max_ids) {}

  // Calls dropped(request) for each request that leaves, counted from 0 since the start.
  template <typename Dropped>
  void Push(std::vector<int64_t> ids, Dropped dropped) {
    num_ids_ += static_cast<int64_t>(ids.size());
    requests_.push_back(std::move(ids));
    while (requests_.size() > 1 &&
           (static_cast<int64_t>(requests_.size()) > max_requests_ || num_ids_ > max_ids_)) {
      dropped(first_);
      num_ids_ -= static_cast<int64_t>(requests_.front().size());
      requests_.pop_front();
      ++first_;
    }
  }

  // The ids of a request, or null if it has left or is not there yet.
  const std::vector<int64_t>* Find(int64_t request) const {
    const int64_t index = request - first_;
    if (index < 0 || index >= static_cast<int64_t>(requests_.size())) return nullptr;
    return &requests_[static_cast<size_t>(index)];
  }

 private:
  int64_t max_requests_;
  int64_t max_ids_;
  std::deque<std::vector<int64_t>> requests_;
  int64_t first_ = 0;
  int64_t num_ids_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_RECORD_STREAM_H_
