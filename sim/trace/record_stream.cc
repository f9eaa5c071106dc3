#include "sim/trace/record_stream.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::sim {

void AppendRecordLength(uint64_t length, std::string* out) {
  for (; length >= 0x80; length >>= 7) out->push_back(static_cast<char>(length | 0x80));
  out->push_back(static_cast<char>(length));
}

RecordHash::RecordHash() : state_(XXH64_createState()) {
  XXH64_reset(static_cast<XXH64_state_t*>(state_), 0);
}
RecordHash::~RecordHash() { XXH64_freeState(static_cast<XXH64_state_t*>(state_)); }
void RecordHash::Add(std::string_view bytes) {
  XXH64_update(static_cast<XXH64_state_t*>(state_), bytes.data(), bytes.size());
}
uint64_t RecordHash::value() const {
  return XXH64_digest(static_cast<const XXH64_state_t*>(state_));
}

void AppendRecord(std::string_view record, std::string* out, RecordHash* hash) {
  const size_t begin = out->size();
  AppendRecordLength(record.size(), out);
  out->append(record);
  hash->Add(std::string_view(*out).substr(begin));
}

RecordStream::RecordStream(std::unique_ptr<ByteSource> source, int64_t max_record_bytes)
    : source_(std::move(source)),
      max_record_bytes_(static_cast<uint64_t>(std::max<int64_t>(max_record_bytes, 1))) {}

// A length alone allocates nothing: what is held grows with what arrives.
absl::StatusOr<std::string_view> RecordStream::Take(size_t size) {
  KVBLOCKS_RETURN_IF_ERROR(source_.Fill(size));
  const std::string_view bytes = source_.bytes().substr(0, size);
  if (bytes.size() < size) {
    return absl::DataLossError(
        absl::StrCat("truncated record: got ", bytes.size(), " bytes, expected ", size));
  }
  source_.Consume(size);
  offset_ += static_cast<int64_t>(size);
  return bytes;
}

absl::Status RecordStream::Start() {
  KVBLOCKS_ASSIGN_OR_RETURN(const std::string_view magic, Take(kNativeMagic.size()));
  if (magic == kNativeMagic) return absl::OkStatus();
  return absl::InvalidArgumentError("magic: got other bytes, expected KVTRACE1");
}

absl::StatusOr<bool> RecordStream::Next(std::string_view* record) {
  hash_before_record_ = hash_.value();
  uint64_t length = 0;
  const int64_t offset = offset_;
  for (int shift = 0;; shift += 7) {
    KVBLOCKS_RETURN_IF_ERROR(source_.Fill(1));
    if (source_.bytes().empty() && shift == 0) return false;
    if (source_.bytes().empty()) return absl::DataLossError("truncated record length");
    KVBLOCKS_ASSIGN_OR_RETURN(const std::string_view byte, Take(1));
    if (shift == 0) {
      ++record_number_;
      record_offset_ = offset;
    }
    if (shift > 63) return absl::DataLossError("record length: got more than 64 bits");
    length |= static_cast<uint64_t>(byte[0] & 0x7f) << shift;
    if ((byte[0] & 0x80) == 0) break;
  }
  if (length > max_record_bytes_) {
    return absl::DataLossError(absl::StrCat("record length: got ", length,
                                            " bytes, expected at most ", max_record_bytes_));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(*record, Take(static_cast<size_t>(length)));
  std::string prefix;
  AppendRecordLength(length, &prefix);
  hash_.Add(prefix);
  hash_.Add(*record);
  return true;
}

}  // namespace kvblocks::sim
