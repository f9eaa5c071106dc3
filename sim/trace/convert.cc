#include "sim/trace/convert.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/civil_time.h"
#include "absl/types/span.h"
#include "checks/ceil_div.h"
#include "checks/json_text.h"
#include "checks/status_macros.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/decimal.h"
#include "sim/trace/line_rows.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kNanosecondsPerDay = 86400000000000;

std::string JsonString(const std::string& text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

// A number where the name is one, so that files stay like those of the recorders.
std::string JsonName(const std::string& id) {
  int64_t number;
  return absl::SimpleAtoi(id, &number) && absl::StrCat(number) == id ? id : JsonString(id);
}

class MooncakeWriter : public TraceWriter {
 public:
  explicit MooncakeWriter(std::unique_ptr<ByteSink> sink) : sink_(std::move(sink)) {}

  absl::Status Begin(const TraceInfo& info) override {
    block_tokens_ = info.block_tokens;
    scope_ = info.scope;
    if (scope_ != ContentScope::kGlobal && block_tokens_ == 1) {
      return absl::InvalidArgumentError(
          "content ids: got token ids that hold within one session or tenant, expected ids that "
          "hold everywhere, as all do in Mooncake files (--to=native keeps them)");
    }
    if (scope_ != ContentScope::kGlobal && block_tokens_ != 0) {
      losses_.insert(
          "content ids (numbered anew, so that those of two sessions or tenants differ)");
    }
    if (!info.unknown_fields.empty()) losses_.insert("unknown fields");
    return absl::OkStatus();
  }

  absl::Status Write(const TraceRequest& r) override {
    std::string line = absl::StrCat("{\"request_id\": ", JsonName(r.id));
    const auto add = [&line](const char* name, const auto& text) {
      absl::StrAppend(&line, ", \"", name, "\": ", text);
    };
    const auto add_ms = [&add](const char* name, int64_t ns) {
      add(name, FormatScaledDecimal(ns, 6));
    };
    const auto add_list = [&add](const char* name, const auto& values) {
      add(name, absl::StrCat("[", absl::StrJoin(values, ", "), "]"));
    };
    if (r.has_arrival) add_ms("timestamp", r.arrival_ns);
    add("input_length", r.input_length);
    add("output_length", r.output_length);
    add("block_size", block_tokens_);
    const int64_t scope = ScopeNumber(r);
    std::vector<int64_t> ids;
    for (const int64_t id : r.content_ids) ids.push_back(GlobalId(scope, id));
    const auto num_prompt_ids = static_cast<size_t>(NumberOfPromptIds(r));
    add_list("hash_ids", absl::MakeConstSpan(ids).first(num_prompt_ids));
    if (r.ids_cover_output) add_list("sequence_hash_ids", ids);
    if (r.session != 0) {
      const bool integer = r.session < uint64_t{1} << 63;
      add("session_id", absl::StrCat(integer ? "" : "\"", r.session, integer ? "" : "\""));
      if (!integer) losses_.insert("session numbers from 2^63 on (numbered anew)");
    }
    if (r.turn != 0 || r.session != 0) add("turn", r.turn);
    // Written for every turn: without it a row of a session waits for the row before.
    if (!r.waits_for.empty() || r.session != 0) {
      std::vector<std::string> names;
      for (const int64_t row : r.waits_for) {
        const auto found = id_of_row_.find(row);
        if (found == id_of_row_.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat("waits_for: got row ", row, ", expected a row written before"));
        }
        names.push_back(JsonName(found->second));
      }
      add_list("wait_for", names);
    }
    if (r.think_ns != 0) add_ms("delay", r.think_ns);
    if (!r.output_ids.empty()) add_list("output_token_ids", r.output_ids);
    if (r.priority != 0) add("priority", r.priority);
    if (r.min_tokens != 0) add("min_tokens", r.min_tokens);
    if (r.encoder_tokens) add("encoder_tokens", *r.encoder_tokens);
    if (r.abort_after_ns != 0) add_ms("abort_after_ms", r.abort_after_ns);
    for (const auto& [name, text] :
         {std::pair("tenant", &r.tenant), std::pair("slo_class", &r.slo_class),
          std::pair("adapter", &r.adapter), std::pair("cache_salt", &r.salt)}) {
      if (!text->empty()) add(name, JsonString(*text));
    }
    if (!r.accepted_drafts.empty()) add_list("accepted_drafts", r.accepted_drafts);
    if (!r.unknown_fields.empty()) losses_.insert("unknown fields");
    line += "}\n";
    id_of_row_[r.row] = r.id;
    return sink_->Write(line);
  }

  absl::Status Finish() override { return sink_->Close(); }

 private:
  // A block that begins within the prompt is one of its blocks.
  int64_t NumberOfPromptIds(const TraceRequest& r) const {
    const int64_t num_ids = static_cast<int64_t>(r.content_ids.size());
    if (!r.ids_cover_output || block_tokens_ <= 0) return num_ids;
    return std::min(num_ids, CeilDiv(r.input_length, block_tokens_));
  }
  // Of the request's session or tenant.
  int64_t ScopeNumber(const TraceRequest& r) {
    if (scope_ == ContentScope::kGlobal) return 0;
    // As in ScopeKey: without a session the ids are nobody else's.
    std::string name = scope_ == ContentScope::kTenant ? r.tenant
                       : r.session != 0                ? absl::StrCat("session ", r.session)
                                                       : absl::StrCat("row ", r.row);
    const int64_t next = static_cast<int64_t>(scopes_.size());
    return scopes_.try_emplace(std::move(name), next).first->second;
  }
  // A number that no other scope has for its content.
  int64_t GlobalId(int64_t scope, int64_t id) {
    if (scope_ == ContentScope::kGlobal) return id;
    const int64_t next = static_cast<int64_t>(global_ids_.size());
    return global_ids_.try_emplace({scope, id}, next).first->second;
  }

  std::unique_ptr<ByteSink> sink_;
  int64_t block_tokens_ = 0;
  ContentScope scope_ = ContentScope::kGlobal;
  absl::flat_hash_map<int64_t, std::string> id_of_row_;
  // Only of ids that do not hold everywhere.
  absl::flat_hash_map<std::string, int64_t> scopes_;
  absl::flat_hash_map<std::pair<int64_t, int64_t>, int64_t> global_ids_;  // of (scope, id)
};

class CsvWriter : public TraceWriter {
 public:
  explicit CsvWriter(std::unique_ptr<ByteSink> sink) : sink_(std::move(sink)) {}

  absl::Status Begin(const TraceInfo& info) override {
    if (info.block_tokens != 0) losses_.insert("the content of prompts");
    const auto note = info.notes.find("day_one");
    if (note != info.notes.end()) {
      absl::StatusOr<absl::Time> time = ParseAzureTimestamp(note->second + " 00:00:00");
      if (time.ok()) day_one_ = *time;
    }
    return sink_->Write("TIMESTAMP,ContextTokens,GeneratedTokens\n");
  }

  absl::Status Write(const TraceRequest& r) override {
    if (first_ && r.arrival_ns >= kNanosecondsPerDay) {
      return absl::InvalidArgumentError(absl::StrCat(
          "first arrival: got ", FormatScaledDecimal(r.arrival_ns, 9),
          " s, expected less than a day, since CSV times count from the first row's midnight "
          "(--rebase)"));
    }
    first_ = false;
    const absl::Time time = day_one_ + absl::Nanoseconds(r.arrival_ns);
    if (absl::ToCivilDay(time, absl::UTCTimeZone()) > absl::CivilDay(9999, 12, 31)) {
      return absl::InvalidArgumentError(
          absl::StrCat("arrival: got the day ", FormatDay(time),
                       ", expected one up to 9999-12-31, the last that CSV can say"));
    }
    TraceRequest plain;
    plain.row = r.row;
    plain.line = r.line;
    plain.id = r.id;
    plain.arrival_ns = r.arrival_ns;
    plain.input_length = r.input_length;
    plain.output_length = r.output_length;
    plain.content_ids = r.content_ids;
    if (!(plain == r)) losses_.insert("fields other than arrival and lengths");
    return sink_->Write(absl::StrCat(FormatAzureTimestamp(time), ",", r.input_length, ",",
                                     r.output_length, "\n"));
  }

  absl::Status Finish() override { return sink_->Close(); }

 private:
  std::unique_ptr<ByteSink> sink_;
  absl::Time day_one_ = absl::UnixEpoch();
  bool first_ = true;
};

// Cache simulators of objects take one record per access: time in seconds (4 bytes), object (8),
// its size (4), and the number of the record that accesses it next, from 1, or -1 (8);
// little-endian, without gaps. The last of these is known at the end only, so the records wait in
// memory.
class OracleWriter : public TraceWriter {
 public:
  explicit OracleWriter(std::unique_ptr<ByteSink> sink) : sink_(std::move(sink)) {}

  absl::Status Begin(const TraceInfo& info) override {
    if (info.block_tokens == 0) {
      return absl::InvalidArgumentError(
          "content: got a trace of lengths only, expected one with content ids, whose blocks are "
          "the objects");
    }
    info_ = info;
    losses_.insert("everything but the blocks of prompts, their tokens and arrivals");
    return absl::OkStatus();
  }

  absl::Status Write(const TraceRequest& r) override {
    const int64_t seconds = r.arrival_ns / 1'000'000'000;
    if (seconds > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("arrival: got ", seconds,
                                                     " s, expected at most 4294967295 s (--rebase "
                                                     "makes the first arrival 0)"));
    }
    absl::uint128 path = ScopeKey(info_, r);
    int64_t begin = 0;
    for (const int64_t id : r.content_ids) {
      if (begin >= r.input_length) break;
      path = PathKey(path, id);
      const int64_t tokens = std::min(info_.block_tokens, r.input_length - begin);
      begin += tokens;
      const uint64_t object = absl::Uint128Low64(path);
      const auto [last, is_new] = last_use_.try_emplace(object, accesses_.size());
      if (!is_new) {
        accesses_[last->second].next = static_cast<int64_t>(accesses_.size()) + 1;
        last->second = accesses_.size();
      }
      accesses_.push_back({.object = object,
                           .next = -1,
                           .time = static_cast<uint32_t>(seconds),
                           .size = static_cast<uint32_t>(tokens)});
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    constexpr size_t kChunk = 1 << 20;
    std::string bytes;
    const auto append = [&](uint64_t value, int num_bytes) {
      for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>(value >> (8 * i));
    };
    for (const Access& access : accesses_) {
      append(access.time, 4);
      append(access.object, 8);
      append(access.size, 4);
      append(static_cast<uint64_t>(access.next), 8);
      if (bytes.size() < kChunk) continue;
      KVBLOCKS_RETURN_IF_ERROR(sink_->Write(bytes));
      bytes.clear();
    }
    KVBLOCKS_RETURN_IF_ERROR(sink_->Write(bytes));
    return sink_->Close();
  }

 private:
  struct Access {
    uint64_t object;
    int64_t next;
    uint32_t time, size;
  };

  std::unique_ptr<ByteSink> sink_;
  TraceInfo info_;
  std::vector<Access> accesses_;
  absl::flat_hash_map<uint64_t, size_t> last_use_;  // by object
};

}  // namespace

absl::StatusOr<TraceFormat> ParseTraceFormat(const std::string& name) {
  constexpr std::pair<const char*, TraceFormat> kAll[] = {{"native", TraceFormat::kNative},
                                                          {"mooncake", TraceFormat::kMooncake},
                                                          {"csv", TraceFormat::kCsv},
                                                          {"oracle", TraceFormat::kOracle}};
  for (const auto& [known, format] : kAll) {
    if (known == name) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("got \"", name, "\", expected native, mooncake, csv or oracle"));
}

std::unique_ptr<TraceWriter> MakeTraceWriter(std::unique_ptr<ByteSink> sink, TraceFormat format,
                                             const NativeWriterOptions& native) {
  switch (format) {
    case TraceFormat::kNative:
      break;
    case TraceFormat::kMooncake:
      return std::make_unique<MooncakeWriter>(std::move(sink));
    case TraceFormat::kCsv:
      return std::make_unique<CsvWriter>(std::move(sink));
    case TraceFormat::kOracle:
      return std::make_unique<OracleWriter>(std::move(sink));
  }
  return MakeNativeWriter(std::move(sink), native);
}

absl::StatusOr<ConvertReport> CopyTrace(TraceReader& reader, TraceWriter& writer) {
  KVBLOCKS_RETURN_IF_ERROR(writer.Begin(reader.info()));
  ConvertReport report;
  KVBLOCKS_RETURN_IF_ERROR(ForEachRequest(reader, [&](const TraceRequest& request) {
    ++report.num_requests;
    report.input_tokens += request.input_length;
    report.output_tokens += request.output_length;
    return writer.Write(request);
  }));
  KVBLOCKS_RETURN_IF_ERROR(writer.Finish());
  report.losses = writer.losses();
  report.warnings = reader.warnings();
  return report;
}

absl::StatusOr<ConvertReport> ConvertTrace(const std::string& in, const std::string& out,
                                           TraceFormat format, const ConvertOptions& options) {
  TraceReaderOptions reader_options = options.reader;
  if (options.sort) {
    reader_options.reorder_window = std::numeric_limits<int64_t>::max();
    reader_options.reorder_bytes = kMostSortedBytes;
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenTrace(in, reader_options));
  if (options.wrap) reader = options.wrap(std::move(reader));
  KVBLOCKS_ASSIGN_OR_RETURN(auto sink, OpenByteSink(out));
  return CopyTrace(*reader, *MakeTraceWriter(std::move(sink), format, options.native));
}

}  // namespace kvblocks::sim
