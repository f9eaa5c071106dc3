#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/unknown_field_set.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/row_source.h"
#include "sim/trace/trace.pb.h"

namespace kvblocks::sim {
namespace {

namespace pb = kvblocks::trace::v1;

// A byte of a record takes up to 50 in memory, and compressed records cost next to nothing.
constexpr int64_t kMostRecordBytes = int64_t{16} << 20;
constexpr size_t kMostStrings = size_t{1} << 20;
constexpr size_t kMostStringBytes = size_t{64} << 20;

std::string UnknownFieldsOf(const google::protobuf::Message& message) {
  std::string bytes;
  message.GetReflection()->GetUnknownFields(message).SerializeToString(&bytes);
  return bytes;
}

class NativeReader : public RowSource {
 public:
  NativeReader(RowInput& input, std::string dialect)
      : stream_(std::move(input.source), std::min(input.options.max_line_bytes, kMostRecordBytes)),
        log_(input.log),
        dialect_(std::move(dialect)),
        window_(kDefaultCopyWindow, kDefaultCopyWindowIds) {}

  absl::Status Open() {
    if (absl::Status status = stream_.Start(); !status.ok()) return Damage(status);
    KVBLOCKS_ASSIGN_OR_RETURN(const bool more, NextRecord());
    if (!more || !record_.has_header()) {
      return Damage(
          absl::DataLossError("first record: got none or another one, expected a header"));
    }
    return TakeHeader();
  }

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) override {
    while (!ended_) {
      KVBLOCKS_ASSIGN_OR_RETURN(const bool more, NextRecord());
      if (!more) {
        return Damage(absl::DataLossError(absl::StrCat("truncated file: got ", num_requests_,
                                                       " requests and no footer, "
                                                       "expected a footer at the end")));
      }
      switch (record_.kind_case()) {
        case pb::Record::kRequest:
          return TakeRequest(row, problems);
        case pb::Record::kStrings:
          for (std::string& value : *record_.mutable_strings()->mutable_value()) {
            string_bytes_ += value.size();
            strings_.push_back(std::move(value));
          }
          if (strings_.size() > kMostStrings || string_bytes_ > kMostStringBytes) {
            return Damage(absl::ResourceExhaustedError(
                absl::StrCat("strings: got ", strings_.size(), " of ", string_bytes_,
                             " bytes, expected at most ", kMostStrings, " of ", kMostStringBytes)));
          }
          break;
        case pb::Record::kFooter:
          KVBLOCKS_RETURN_IF_ERROR(TakeFooter());
          break;
        case pb::Record::kHeader:
          return Damage(absl::DataLossError("record: got a second header, expected one"));
        case pb::Record::KIND_NOT_SET:
          log_->Warn(ProblemKind::kUnknownRecord, stream_.record_number(),
                     "record: got a kind that this version does not know, expected a request, "
                     "strings or the footer; it is left out");
          break;
      }
    }
    return RowOutcome::kEnd;
  }

  const TraceInfo& info() const override { return info_; }
  std::string dialect() const override { return dialect_; }
  ReadProgress progress() const override {
    return {stream_.source().bytes_read(), stream_.source().bytes_total()};
  }

 private:
  absl::Status Damage(const absl::Status& status) const {
    return absl::Status(
        status.code(),
        absl::StrCat(log_->file, ":", stream_.record_number(), ": error: ", status.message(),
                     " (record ", stream_.record_number(), " at byte ", stream_.record_offset(),
                     "; ", num_requests_, " good requests before it)"));
  }

  absl::StatusOr<bool> NextRecord() {
    std::string_view bytes;
    absl::StatusOr<bool> more = stream_.Next(&bytes);
    if (!more.ok()) return Damage(more.status());
    if (*more && !record_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return Damage(absl::DataLossError("record: got bytes that do not parse, expected a Record"));
    }
    return more;
  }

  absl::Status TakeHeader() {
    const pb::Header& header = record_.header();
    if (header.version() != 1) {
      return Damage(absl::InvalidArgumentError(
          absl::StrCat("version: got ", header.version(), ", expected 1")));
    }
    if (!pb::Header::Scope_IsValid(header.scope())) {
      return Damage(
          absl::InvalidArgumentError(absl::StrCat("scope: got ", static_cast<int>(header.scope()),
                                                  ", expected GLOBAL, SESSION or TENANT")));
    }
    if (header.block_tokens() > kMaxTraceLength) {
      return Damage(absl::InvalidArgumentError(absl::StrCat(
          "block_tokens: got ", header.block_tokens(), ", expected 0 to ", kMaxTraceLength)));
    }
    info_.format = "native";
    info_.name = header.name();
    info_.source = header.source();
    info_.license = header.license();
    info_.block_tokens = header.block_tokens();
    info_.scope = static_cast<ContentScope>(header.scope());
    info_.sorted = header.sorted();
    info_.pseudo_tokens = header.pseudo_tokens();
    info_.num_requests = header.num_requests();
    info_.notes.insert(header.notes().begin(), header.notes().end());
    info_.unknown_fields = UnknownFieldsOf(header);
    int64_t requests = kDefaultCopyWindow;
    int64_t ids = kDefaultCopyWindowIds;
    KVBLOCKS_RETURN_IF_ERROR(ReadNote("copy_window", kMostCopyWindow, &requests));
    KVBLOCKS_RETURN_IF_ERROR(ReadNote("copy_window_ids", kMostCopyWindowIds, &ids));
    window_ = IdWindow(requests, ids);
    return absl::OkStatus();
  }

  absl::Status ReadNote(const char* name, int64_t most, int64_t* value) const {
    const auto found = info_.notes.find(name);
    if (found == info_.notes.end()) return absl::OkStatus();
    if (!absl::SimpleAtoi(found->second, value) || *value < 0 || *value > most) {
      return Damage(absl::InvalidArgumentError(
          absl::StrCat("note ", name, ": got ", Shown(found->second), ", expected 0 to ", most)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RowOutcome> TakeRequest(RawRow* row, std::vector<TraceProblem>* problems) {
    pb::Request& from = *record_.mutable_request();
    *row = RawRow();
    TraceRequest& to = row->request;
    to.row = num_requests_;
    to.line = stream_.record_number();
    // What later records build on comes first: without it nothing after this record can be read.
    if (__builtin_add_overflow(arrival_ns_, from.arrival_delta_ns(), &arrival_ns_)) {
      return Damage(absl::DataLossError("arrival: got a sum beyond 64 bits, expected less"));
    }
    KVBLOCKS_RETURN_IF_ERROR(DecodeIds(from, &to.content_ids));
    window_.Push(to.content_ids, [](int64_t) {});
    ++num_requests_;
    input_tokens_ += from.input_length();
    output_tokens_ += from.output_length();

    row->timestamp_ns = arrival_ns_;
    to.id = absl::StrCat(from.id());
    to.input_length = from.input_length();
    to.output_length = from.output_length();
    to.ids_cover_output = from.ids_cover_output();
    to.output_ids.assign(from.output_ids().begin(), from.output_ids().end());
    to.accepted_drafts.assign(from.accepted_drafts().begin(), from.accepted_drafts().end());
    to.min_tokens = from.min_tokens();
    if (from.has_encoder_tokens()) to.encoder_tokens = from.encoder_tokens();
    to.priority = from.priority();
    to.session = from.session();
    to.turn = from.turn();
    row->has_turn = true;
    to.unknown_fields = UnknownFieldsOf(from);
    TakeReferences(from, &to, problems);
    return problems->empty() ? RowOutcome::kRow : RowOutcome::kBad;
  }

  absl::Status DecodeIds(const pb::Request& from, std::vector<int64_t>* ids) const {
    const int64_t total = int64_t{from.copy_ids()} + from.ids_size();
    if (total > kMostCopyWindowIds) {
      return Damage(absl::ResourceExhaustedError(
          absl::StrCat("content ids: got ", total, ", expected at most ", kMostCopyWindowIds)));
    }
    ids->reserve(static_cast<size_t>(from.ids_size()));
    if (from.copy_from() == 0 && from.copy_ids() != 0) {
      return Damage(absl::DataLossError(
          absl::StrCat("copy_ids: got ", from.copy_ids(), " without copy_from, expected 0")));
    }
    if (from.copy_from() != 0) {
      const std::vector<int64_t>* source = window_.Find(num_requests_ - from.copy_from());
      if (source == nullptr) {
        return Damage(absl::DataLossError(absl::StrCat(
            "copy_from: got ", from.copy_from(), " records back, expected one within the window ",
            "(header notes copy_window and copy_window_ids)")));
      }
      if (from.copy_ids() > source->size()) {
        return Damage(absl::DataLossError(absl::StrCat("copy_ids: got ", from.copy_ids(),
                                                       ", expected at most ", source->size())));
      }
      ids->reserve(static_cast<size_t>(total));
      ids->assign(source->begin(), source->begin() + from.copy_ids());
    }
    // Deltas wrap around, so that any two ids can follow each other.
    uint64_t id = ids->empty() ? 0 : static_cast<uint64_t>(ids->back());
    for (const int64_t delta : from.ids()) {
      id += static_cast<uint64_t>(delta);
      ids->push_back(static_cast<int64_t>(id));
    }
    return absl::OkStatus();
  }

  void TakeReferences(const pb::Request& from, TraceRequest* to,
                      std::vector<TraceProblem>* problems) const {
    const auto bad = [&](ProblemKind kind, const std::string& problem) {
      problems->push_back(RowProblem(
          kind, *to,
          absl::StrCat(problem, " (record ", to->line, " at byte ", stream_.record_offset(), ")")));
    };
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    for (const auto& [name, ns, out] :
         {std::tuple("think_ns", from.think_ns(), &to->think_ns),
          std::tuple("abort_after_ns", from.abort_after_ns(), &to->abort_after_ns)}) {
      *out = static_cast<int64_t>(std::min(ns, kMax));
      if (ns > kMax) {
        bad(ProblemKind::kValue, absl::StrCat(name, ": got ", ns, " ns, expected less than 2^63"));
      }
    }
    for (const uint32_t back : from.waits_for()) {
      if (back == 0 || int64_t{back} > to->row) {
        bad(ProblemKind::kDependency,
            absl::StrCat("waits_for: got ", back, " records back, expected 1 to ", to->row));
        break;
      }
      to->waits_for.push_back(to->row - back);
    }
    for (const auto& [name, index, text] :
         {std::tuple("tenant", from.tenant(), &to->tenant),
          std::tuple("slo_class", from.slo_class(), &to->slo_class),
          std::tuple("adapter", from.adapter(), &to->adapter),
          std::tuple("salt", from.salt(), &to->salt)}) {
      if (index >= strings_.size()) {
        bad(ProblemKind::kValue,
            absl::StrCat(name, ": got string ", index, ", expected below ", strings_.size()));
        continue;
      }
      *text = strings_[index];
    }
  }

  absl::Status TakeFooter() {
    const pb::Footer footer = record_.footer();
    for (const auto& [what, got, expected] :
         {std::tuple("num_requests", footer.num_requests(), static_cast<uint64_t>(num_requests_)),
          std::tuple("input_tokens", footer.input_tokens(), input_tokens_),
          std::tuple("output_tokens", footer.output_tokens(), output_tokens_),
          std::tuple("xxh64_of_records", footer.xxh64_of_records(),
                     stream_.hash_before_record())}) {
      if (got == expected) continue;
      return Damage(absl::DataLossError(absl::StrCat("footer ", what, ": got ", got, ", expected ",
                                                     expected, ", which the records give")));
    }
    std::string_view bytes;
    const absl::StatusOr<bool> more = stream_.Next(&bytes);
    if (!more.ok()) return Damage(more.status());
    if (*more) {
      return Damage(absl::DataLossError("end: got a record after the footer, expected none"));
    }
    ended_ = true;
    return absl::OkStatus();
  }

  RecordStream stream_;
  RowLog* log_;
  const std::string dialect_;
  TraceInfo info_;
  IdWindow window_;
  pb::Record record_;
  std::vector<std::string> strings_ = {""};
  size_t string_bytes_ = 0;
  int64_t arrival_ns_ = 0;
  int64_t num_requests_ = 0;
  uint64_t input_tokens_ = 0;
  uint64_t output_tokens_ = 0;
  bool ended_ = false;
};

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

OpenedRows OpenNative(RowInput& input, const char* dialect) {
  auto reader = std::make_unique<NativeReader>(input, dialect);
  KVBLOCKS_RETURN_IF_ERROR(reader->Open());
  return reader;
}

}  // namespace

OpenedRows MakeNativeReader(RowInput& input) { return OpenNative(input, "version 1"); }

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
    has_footer = has_footer || record.has_footer();
    if (record.has_request()) {
      pb::Footer& sums = *footer.mutable_footer();
      sums.set_num_requests(sums.num_requests() + 1);
      sums.set_input_tokens(sums.input_tokens() + record.request().input_length());
      sums.set_output_tokens(sums.output_tokens() + record.request().output_length());
    }
    AppendRecord(record.SerializeAsString(), &out, &hash);
  }
  if (!has_footer) {
    footer.mutable_footer()->set_xxh64_of_records(hash.value());
    AppendRecord(footer.SerializeAsString(), &out, &hash);
  }
  return out;
}

OpenedRows MakeNativeTextReader(RowInput& input) {
  const int64_t most = input.options.max_line_bytes;
  const absl::StatusOr<std::string> text = ReadUpTo(most, *input.source);
  if (!text.ok()) return StreamError(*input.log, text.status(), "line", 0);
  if (static_cast<int64_t>(text->size()) > most) {
    return absl::InvalidArgumentError(
        RowError(*input.log, 1,
                 absl::StrCat("native text: got more than ", most,
                              " bytes, expected a small file (use the binary form)")));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(std::string binary, NativeTextToBinary(*text, input.log->file));
  input.source = ByteSourceOfString(std::move(binary));
  return OpenNative(input, "version 1, text form");
}

}  // namespace kvblocks::sim
