#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/sim/trace/format_detection.h"
#include "kvblocks/sim/trace/native_reader.h"
#include "kvblocks/sim/trace/record_stream.h"
#include "kvblocks/sim/trace/trace.pb.h"

namespace kvblocks::sim {
namespace {

namespace pb = kvblocks::trace::v1;

// Keeps the first error of a block.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (!message_.empty()) return;
    line_ = line;
    column_ = column;
    message_ = message;
  }
  int line_ = 0;
  int column_ = 0;
  std::string message_;
};

void AppendRecord(const pb::Record& record, std::string* out, RecordHash* hash) {
  const std::string bytes = record.SerializeAsString();
  std::string prefix;
  AppendRecordLength(bytes.size(), &prefix);
  hash->Add(prefix);
  hash->Add(bytes);
  *out += prefix + bytes;
}

}  // namespace

absl::StatusOr<std::string> NativeTextToBinary(std::string_view text, const std::string& file) {
  RowLog log;
  log.file = file;
  std::string out(kNativeMagic);
  RecordHash hash;
  pb::Record footer;
  bool has_footer = false;
  std::string block;
  int64_t line = 0;
  int64_t block_line = 1;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    const bool blank = row.find_first_not_of(" \t\r") == std::string_view::npos;
    if (!blank) {
      if (block.empty()) block_line = line;
      block.append(row);
      block.push_back('\n');
    }
    if ((!blank && begin <= text.size()) || block.empty()) continue;
    pb::Record record;
    FirstError error;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&error);
    if (!parser.ParseFromString(block, &record)) {
      return absl::InvalidArgumentError(RowError(
          log, block_line + error.line_, error.column_ + 1,
          absl::StrCat("text record: got ", Shown(error.message_),
                       ", expected one Record per block, blocks separated by blank lines")));
    }
    block.clear();
    if (record.has_footer()) {
      has_footer = true;
      AppendRecord(record, &out, &hash);
      continue;
    }
    if (record.has_request()) {
      pb::Footer& sums = *footer.mutable_footer();
      sums.set_num_requests(sums.num_requests() + 1);
      sums.set_input_tokens(sums.input_tokens() + record.request().input_length());
      sums.set_output_tokens(sums.output_tokens() + record.request().output_length());
    }
    AppendRecord(record, &out, &hash);
  }
  if (!has_footer) {
    footer.mutable_footer()->set_xxh64_of_records(hash.value());
    AppendRecord(footer, &out, &hash);
  }
  return out;
}

absl::StatusOr<std::string> NativeBinaryToText(std::string_view binary, const std::string& file) {
  RecordStream stream(ByteSourceOfString(std::string(binary)), int64_t{1} << 30);
  absl::Status status = stream.Start();
  std::string text;
  std::string bytes;
  while (status.ok()) {
    absl::StatusOr<bool> more = stream.Next(&bytes);
    status = more.status();
    if (!status.ok() || !*more) break;
    pb::Record record;
    std::string block;
    if (!record.ParseFromString(bytes) ||
        !google::protobuf::TextFormat::PrintToString(record, &block)) {
      status = absl::DataLossError("record: got bytes that do not parse, expected a Record");
      break;
    }
    absl::StrAppend(&text, text.empty() ? "" : "\n", block);
  }
  if (status.ok()) return text;
  RowLog log;
  log.file = file;
  return StreamError(log, status, "record", stream.record_number());
}

absl::StatusOr<std::unique_ptr<RowSource>> MakeNativeTextReader(std::unique_ptr<ByteSource> source,
                                                                const TraceReaderOptions& options,
                                                                RowLog* log) {
  std::string text;
  std::string chunk(64 * 1024, '\0');
  while (true) {
    absl::StatusOr<size_t> n = source->Read(chunk.data(), chunk.size());
    if (!n.ok()) return StreamError(*log, n.status(), "line", 0);
    if (*n == 0) break;
    text.append(chunk, 0, *n);
    if (static_cast<int64_t>(text.size()) > options.max_line_bytes) {
      return absl::InvalidArgumentError(
          RowError(*log, 1,
                   absl::StrCat("native text: got more than ", options.max_line_bytes,
                                " bytes, expected a small file (use the binary form)")));
    }
  }
  absl::StatusOr<std::string> binary = NativeTextToBinary(text, log->file);
  if (!binary.ok()) return binary.status();
  return MakeNativeReader(ByteSourceOfString(*std::move(binary)), options, log,
                          "version 1, text form");
}

}  // namespace kvblocks::sim
