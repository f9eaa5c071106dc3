#include "sim/trace/record_stream.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sim/trace/format_detection.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kRecordBuffer = 256 * 1024;

}  // namespace

void AppendRecordLength(uint64_t length, std::string* out) {
  for (; length >= 0x80; length >>= 7) out->push_back(static_cast<char>(length | 0x80));
  out->push_back(static_cast<char>(length));
}

RecordHash::RecordHash() : state_(XXH64_createState()) {
  XXH64_reset(static_cast<XXH64_state_t*>(state_), 0);
}
RecordHash::~RecordHash() { XXH64_freeState(static_cast<XXH64_state_t*>(state_)); }
void RecordHash::Add(const std::string& bytes) {
  XXH64_update(static_cast<XXH64_state_t*>(state_), bytes.data(), bytes.size());
}
uint64_t RecordHash::value() const {
  return XXH64_digest(static_cast<const XXH64_state_t*>(state_));
}

RecordStream::RecordStream(std::unique_ptr<ByteSource> source, int64_t max_record_bytes)
    : source_(std::move(source)),
      max_record_bytes_(static_cast<uint64_t>(std::max<int64_t>(max_record_bytes, 1))),
      buffer_(kRecordBuffer, '\0') {}

absl::StatusOr<bool> RecordStream::Byte(char* byte) {
  if (begin_ == end_) {
    absl::StatusOr<size_t> n = source_->Read(buffer_.data(), buffer_.size());
    if (!n.ok()) return n.status();
    begin_ = 0;
    end_ = *n;
    if (*n == 0) return false;
  }
  *byte = buffer_[begin_++];
  ++offset_;
  return true;
}

// Grows with what arrives: a length alone allocates nothing.
absl::Status RecordStream::Fill(size_t want, std::string* out) {
  out->clear();
  while (out->size() < want) {
    char first;
    absl::StatusOr<bool> more = Byte(&first);
    if (!more.ok()) return more.status();
    if (!*more) {
      return absl::DataLossError(
          absl::StrCat("truncated record: got ", out->size(), " bytes, expected ", want));
    }
    out->push_back(first);
    const size_t n = std::min(want - out->size(), end_ - begin_);
    out->append(buffer_, begin_, n);
    begin_ += n;
    offset_ += static_cast<int64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status RecordStream::Start() {
  std::string magic;
  absl::Status status = Fill(kNativeMagic.size(), &magic);
  if (status.ok() && magic != kNativeMagic) {
    status = absl::InvalidArgumentError("magic: got other bytes, expected KVTRACE1");
  }
  return status;
}

absl::StatusOr<bool> RecordStream::Next(std::string* record) {
  hash_before_record_ = hash_.value();
  uint64_t length = 0;
  const int64_t offset = offset_;
  for (int shift = 0;; shift += 7) {
    char byte;
    absl::StatusOr<bool> more = Byte(&byte);
    if (!more.ok()) return more.status();
    if (!*more && shift == 0) return false;
    if (!*more) return absl::DataLossError("truncated record length");
    if (shift == 0) {
      ++record_number_;
      record_offset_ = offset;
    }
    if (shift > 63) return absl::DataLossError("record length: got more than 64 bits");
    length |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  if (length > max_record_bytes_) {
    return absl::DataLossError(absl::StrCat("record length: got ", length,
                                            " bytes, expected at most ", max_record_bytes_));
  }
  if (absl::Status status = Fill(static_cast<size_t>(length), record); !status.ok()) return status;
  std::string prefix;
  AppendRecordLength(length, &prefix);
  hash_.Add(prefix);
  hash_.Add(*record);
  return true;
}

}  // namespace kvblocks::sim
