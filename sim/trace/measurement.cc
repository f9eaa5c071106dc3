#include "sim/trace/measurement.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/trace/decimal.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// The rows of a measurement are its requests as a workload. What was measured can be had beside
// them.
class MeasurementReader : public LineRows {
 public:
  using LineRows::LineRows;

  // Gets all requests that are read from now on, those that failed included.
  void set_requests(std::vector<MeasuredRequest>* requests) { requests_ = requests; }
  int64_t num_failed() const { return num_failed_; }
  int64_t num_warmup() const { return num_warmup_; }  // left out

  std::string dialect() const override {
    std::string text = "lengths of a measurement";
    if (num_failed_ > 0) absl::StrAppend(&text, ", ", num_failed_, " failed requests left out");
    if (num_warmup_ > 0) absl::StrAppend(&text, ", ", num_warmup_, " warm-up requests left out");
    return text;
  }

 protected:
  // Appends the requests of a line to measured_, or what is wrong to problems_. A line may hold no
  // request.
  virtual void ParseMeasured(std::string_view text) = 0;

  // A start in Unix time; what is wrong is reported as a value of `name`.
  void SetStart(int64_t unix_ns, const char* name, JsonFields* fields) {
    const absl::Status status =
        clock_.Since(absl::FromUnixNanos(unix_ns), absl::StrCat(unix_ns, " ns"), &info_.notes,
                     &request_.start_ns);
    if (!status.ok()) fields->Bad(ProblemKind::kValue, absl::StrCat(name, ": ", status.message()));
  }
  void AddRequest() { measured_.push_back(std::move(request_)); }

  int64_t num_warmup_ = 0;
  // Of the line being read.
  std::vector<MeasuredRequest> measured_;
  MeasuredRequest request_;

 private:
  void Parse(std::string_view text) override {
    measured_.clear();
    request_ = MeasuredRequest();
    const int64_t warmup = num_warmup_;
    ParseMeasured(text);
    if (!problems_->empty()) return;
    log()->counters.not_selected += num_warmup_ - warmup;
    for (MeasuredRequest& measured : measured_) {
      if (measured.failed()) {
        ++num_failed_;
        ++log()->counters.not_selected;
      } else {
        AddWorkloadRow(measured);
      }
      if (requests_ == nullptr) continue;
      measured.row = static_cast<int64_t>(requests_->size());
      measured.line = row_.request.line;
      requests_->push_back(std::move(measured));
    }
  }

  void AddWorkloadRow(const MeasuredRequest& measured) {
    RawRow& row = rows_.emplace_back();
    row.timestamp_ns = std::max<int64_t>(measured.start_ns, 0);
    TraceRequest& r = row.request;
    r.id = measured.id;
    r.input_length = measured.input_length;
    r.output_length = measured.output_length;
    if (measured.session.empty()) return;
    r.session = sessions_.NumberOf({.text = measured.session});
    row.has_turn = measured.turn >= 0;
    if (row.has_turn) r.turn = static_cast<uint32_t>(measured.turn);
  }

  DayClock clock_;
  SessionNumbers sessions_;
  int64_t num_failed_ = 0;
  std::vector<MeasuredRequest>* requests_ = nullptr;
};

constexpr int kSecondsToNs = 9;

// The digits behind the point that a unit of time has in nanoseconds; -1: no such unit.
int ExponentOfUnit(std::string_view unit) {
  if (unit == "ns") return 0;
  if (unit == "us") return 3;
  if (unit == "ms") return 6;
  if (unit == "s" || unit == "sec") return 9;
  return -1;
}

// What follows from the other figures.
void CompleteMeasured(MeasuredRequest* r) {
  if (r->tpot_ns >= 0 || r->ttft_ns < 0 || r->latency_ns < r->ttft_ns || r->output_length < 2) {
    return;
  }
  const int64_t gaps = r->output_length - 1;
  r->tpot_ns = (r->latency_ns - r->ttft_ns + gaps / 2) / gaps;
}

// --- AIPerf ---

class AiperfProfileReader final : public MeasurementReader {
 public:
  explicit AiperfProfileReader(RowInput& input)
      : MeasurementReader(input),
        fields_({{"metadata.conversation_id", By(&JsonValue::ReadName, &request_.session)},
                 {"metadata.turn_index", By(&JsonValue::ReadLength, &request_.turn)},
                 {"metadata.x_request_id", By(&JsonValue::ReadName, &request_.id)},
                 {"metadata.request_start_ns", Whole(0, INT64_MAX, &start_)},
                 {"metadata.request_end_ns", Whole(0, INT64_MAX, &end_)},
                 {"metadata.benchmark_phase", By(&JsonValue::ReadString, &phase_)},
                 {"metrics.time_to_first_token.value", By(&JsonValue::ReadText, &values_[kTtft])},
                 {"metrics.time_to_first_token.unit", Unit(kTtft)},
                 {"metrics.inter_token_latency.value", By(&JsonValue::ReadText, &values_[kTpot])},
                 {"metrics.inter_token_latency.unit", Unit(kTpot)},
                 {"metrics.request_latency.value", By(&JsonValue::ReadText, &values_[kLatency])},
                 {"metrics.request_latency.unit", Unit(kLatency)},
                 {"metrics.inter_chunk_latency.value",
                  Each([this](JsonValue& gap) { return gap.ReadText(&gaps_.emplace_back()); })},
                 {"metrics.inter_chunk_latency.unit", Unit(kGaps)},
                 {"metrics.input_sequence_length.value", Tokens(&request_.input_length)},
                 {"metrics.output_sequence_length.value", Tokens(&request_.output_length)},
                 {"error.type", By(&JsonValue::ReadText, &error_type_)},
                 {"error.message", By(&JsonValue::ReadText, &error_)}},
                input.log) {}

  void ParseMeasured(std::string_view text) override {
    phase_.clear();
    for (std::string& unit : units_) unit = "ms";
    for (std::string& value : values_) value.clear();
    gaps_.clear();
    if (!fields_.ParseLine(text, &row_.request, problems_)) return;
    row_.request.id = request_.id;
    if (phase_ == "warmup" && problems_->empty()) {
      ++num_warmup_;
      return;
    }
    if (fields_.Seen("error.type") || fields_.Seen("error.message")) {
      request_.error =
          absl::StrCat(error_type_, error_type_.empty() || error_.empty() ? "" : ": ", error_);
      if (request_.error.empty()) request_.error = "unknown error";
    } else {
      fields_.Require({"metadata.request_start_ns", "metrics.input_sequence_length.value",
                       "metrics.output_sequence_length.value"});
    }
    TakeTimes(&request_);
    if (fields_.Seen("metadata.request_start_ns") && problems_->empty()) {
      SetStart(start_, "request_start_ns", &fields_);
    }
    if (!problems_->empty()) return;
    CompleteMeasured(&request_);
    AddRequest();
  }

 private:
  enum Time { kTtft, kTpot, kLatency, kGaps };

  JsonFields::Read Unit(Time time) {
    return [unit = &units_[time]](JsonValue& value) {
      KVBLOCKS_RETURN_IF_ERROR(value.ReadString(unit));
      if (ExponentOfUnit(*unit) >= 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("got ", Shown(*unit), ", expected ns, us, ms, s or sec"));
    };
  }

  static JsonFields::Read Tokens(int64_t* out) {
    return [out](JsonValue& value) {
      KVBLOCKS_RETURN_IF_ERROR(value.ReadDecimal(0, out));
      if (*out <= kMaxTraceLength) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("got ", *out, ", expected 0 to ", kMaxTraceLength));
    };
  }

  // Value and unit may come in any order.
  void TakeTimes(MeasuredRequest* r) {
    constexpr std::array<std::string_view, 4> kNames = {
        "time_to_first_token", "inter_token_latency", "request_latency", "inter_chunk_latency"};
    const auto take = [&](size_t i, const std::string& text, int64_t* out) {
      absl::StatusOr<int64_t> ns = ParseRoundedDecimal(text, ExponentOfUnit(units_[i]));
      if (ns.ok()) {
        *out = *ns;
      } else {
        fields_.Bad(ProblemKind::kValue,
                    absl::StrCat("metrics.", View(kNames[i]), ": ", ns.status().message()));
      }
      return ns.ok();
    };
    int64_t* const out[] = {&r->ttft_ns, &r->tpot_ns, &r->latency_ns};
    for (size_t i = 0; i < values_.size(); ++i) {
      if (ExponentOfUnit(units_[i]) >= 0 && !values_[i].empty()) take(i, values_[i], out[i]);
    }
    if (ExponentOfUnit(units_[kGaps]) < 0) return;
    for (const std::string& gap : gaps_) {
      if (!take(kGaps, gap, &r->itl_ns.emplace_back())) return;
    }
    if (r->latency_ns < 0 && fields_.Seen("metadata.request_start_ns") &&
        fields_.Seen("metadata.request_end_ns") && end_ >= start_) {
      r->latency_ns = end_ - start_;
    }
  }

  // Of the line being read.
  std::array<std::string, 3> values_;
  std::array<std::string, 4> units_;
  JsonFields fields_;
  std::vector<std::string> gaps_;
  std::string phase_, error_type_, error_;
  int64_t start_ = 0;
  int64_t end_ = 0;
};

// --- vllm bench serve ---

class VllmBenchReader final : public MeasurementReader {
 public:
  explicit VllmBenchReader(RowInput& input)
      : MeasurementReader(input),
        fields_({{"input_lens", By(&JsonValue::ReadLengths, &inputs_)},
                 {"output_lens", By(&JsonValue::ReadLengths, &outputs_)},
                 {"start_times", By(&JsonValue::ReadRoundedList, kSecondsToNs, &starts_)},
                 {"ttfts", By(&JsonValue::ReadRoundedList, kSecondsToNs, &ttfts_)},
                 {"itls", Each([this](JsonValue& gaps) {
                    return gaps.ReadRoundedList(kSecondsToNs, &itls_.emplace_back());
                  })},
                 {"errors", By(&JsonValue::ReadStrings, &errors_)}},
                input.log,
                {"date",
                 "endpoint_type",
                 "backend",
                 "label",
                 "model_id",
                 "tokenizer_id",
                 "num_prompts",
                 "request_rate",
                 "burstiness",
                 "max_concurrency",
                 "duration",
                 "completed",
                 "failed",
                 "total_input_tokens",
                 "total_output_tokens",
                 "request_throughput",
                 "request_goodput",
                 "output_throughput",
                 "total_token_throughput",
                 "generated_texts",
                 "max_output_tokens_per_s",
                 "max_concurrent_requests"}) {}

  void ParseMeasured(std::string_view text) override {
    inputs_.clear();
    outputs_.clear();
    starts_.clear();
    ttfts_.clear();
    itls_.clear();
    errors_.clear();
    fields_.ParseLine(text, &row_.request, problems_);
    if (!problems_->empty()) return;
    if (!fields_.Seen("input_lens") && !fields_.Seen("output_lens")) {
      fields_.Bad(ProblemKind::kMissingField,
                  "field input_lens: got nothing, expected a list (--save-detailed writes it)");
      return;
    }
    fields_.Require({"input_lens", "output_lens"});
    for (const auto& [name, size] :
         {std::pair("output_lens", outputs_.size()), std::pair("start_times", starts_.size()),
          std::pair("ttfts", ttfts_.size()), std::pair("itls", itls_.size()),
          std::pair("errors", errors_.size())}) {
      if (!fields_.Seen(name) || size == inputs_.size()) continue;
      fields_.Bad(ProblemKind::kValue, absl::StrCat(name, ": got ", size, " values, expected ",
                                                    inputs_.size(), " as in input_lens"));
    }
    if (!problems_->empty()) return;
    for (size_t i = 0; i < inputs_.size(); ++i) measured_.push_back(RequestAt(i));
  }

 private:
  MeasuredRequest RequestAt(size_t i) {
    MeasuredRequest r;
    r.input_length = inputs_[i];
    r.output_length = outputs_[i];
    if (!starts_.empty()) r.start_ns = starts_[i];
    if (!errors_.empty()) r.error = errors_[i];
    if (r.failed()) return r;
    if (!ttfts_.empty()) r.ttft_ns = ttfts_[i];
    if (!itls_.empty()) {
      r.itl_ns = std::move(itls_[i]);
      if (r.ttft_ns >= 0) {
        r.latency_ns = r.ttft_ns;
        // A sum of times that is none is not a time either.
        for (const int64_t gap : r.itl_ns) {
          if (__builtin_add_overflow(r.latency_ns, gap, &r.latency_ns)) r.latency_ns = INT64_MAX;
        }
      }
    }
    CompleteMeasured(&r);
    return r;
  }

  JsonFields fields_;
  // Of the line being read.
  std::vector<int64_t> inputs_, outputs_, starts_, ttfts_;
  std::vector<std::vector<int64_t>> itls_;
  std::vector<std::string> errors_;
};

// --- One request per line, with the times of an engine ---

class RequestLogReader final : public MeasurementReader {
 public:
  explicit RequestLogReader(RowInput& input)
      : MeasurementReader(input),
        fields_({{"request_id", By(&JsonValue::ReadName, &request_.id)},
                 {"input_toks", By(&JsonValue::ReadLength, &request_.input_length)},
                 {"output_toks", By(&JsonValue::ReadLength, &request_.output_length)},
                 {"arrival_time", By(&JsonValue::ReadRounded, kSecondsToNs, &arrival_)},
                 {"queued_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &queued_)},
                 {"scheduled_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &scheduled_)},
                 {"first_token_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &first_)},
                 {"last_token_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &last_)}},
                input.log) {}

  void ParseMeasured(std::string_view text) override {
    fields_.ParseLine(text, &row_.request, problems_);
    if (!problems_->empty()) return;
    row_.request.id = request_.id;
    fields_.Require({"input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts",
                     "last_token_ts"});
    if (!problems_->empty()) return;
    SetStart(arrival_, "arrival_time", &fields_);
    TakeDifference("first_token_ts", first_, &request_.ttft_ns);
    TakeDifference("last_token_ts", last_, &request_.latency_ns);
    if (fields_.Seen("scheduled_ts")) {
      TakeDifference("scheduled_ts", scheduled_, &request_.queue_ns);
    }
    if (!problems_->empty()) return;
    CompleteMeasured(&request_);
    AddRequest();
  }

 private:
  void TakeDifference(const char* name, int64_t ns, int64_t* out) {
    if (ns >= queued_) {
      *out = ns - queued_;
      return;
    }
    fields_.Bad(ProblemKind::kValue, absl::StrCat(name, ": got ", ns, " ns, expected at least ",
                                                  queued_, " ns as in queued_ts"));
  }

  JsonFields fields_;
  // Of the line being read.
  int64_t arrival_ = 0, queued_ = 0, scheduled_ = 0, first_ = 0, last_ = 0;
};

// --- OpenTelemetry: spans of generative AI, one export request of OTLP/JSON per line ---

// More are not worth telling.
constexpr size_t kMostSpanProblems = 20;

class OtelReader final : public MeasurementReader {
 public:
  explicit OtelReader(RowInput& input)
      : MeasurementReader(input),
        export_({{"resourceSpans", Each([this](JsonValue& resource) {
                    return resource_.ReadObject(resource, &row_.request, problems_);
                  })}},
                input.log),
        resource_({{"scopeSpans", Each([this](JsonValue& scope) {
                      return scope_.ReadObject(scope, &row_.request, problems_);
                    })}},
                  input.log, {"resource", "schemaUrl"}),
        scope_({{"spans", Each([this](JsonValue& span) { return ReadSpan(span); })}}, input.log,
               {"scope", "schemaUrl"}),
        span_({{"spanId", By(&JsonValue::ReadText, &request_.id)},
               {"startTimeUnixNano", Unix(&start_ns_)},
               {"endTimeUnixNano", Unix(&end_ns_)},
               {"attributes",
                Each([this](JsonValue& attribute) { return ReadAttribute(attribute); })},
               {"status.code", By(&JsonValue::ReadText, &code_)},
               {"status.message", By(&JsonValue::ReadText, &message_)}},
              input.log,
              {"traceId", "parentSpanId", "name", "kind", "flags", "events", "links", "traceState",
               "droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"}),
        attribute_({{"key", By(&JsonValue::ReadText, &key_)},
                    {"value.stringValue", By(&JsonValue::ReadText, &text_)},
                    {"value.intValue", By(&JsonValue::ReadText, &text_)},
                    {"value.doubleValue", By(&JsonValue::ReadText, &text_)}},
                   input.log, {"value.boolValue", "value.arrayValue", "value.kvlistValue"}) {}

 private:
  void ParseMeasured(std::string_view text) override {
    num_spans_ = 0;
    export_.ParseLine(text, &row_.request, problems_);
    if (problems_->empty()) export_.Require({"resourceSpans"});
  }

  absl::Status ReadSpan(JsonValue& value) {
    request_ = MeasuredRequest();
    where_ = absl::StrCat("span ", num_spans_++, ": ");
    for (std::string* text : {&input_, &output_, &code_, &message_}) text->clear();
    start_ns_ = end_ns_ = 0;
    KVBLOCKS_RETURN_IF_ERROR(span_.ReadObject(value, &row_.request, problems_, where_));
    if (input_.empty() && output_.empty()) return absl::OkStatus();  // of something else
    if (code_ == "2" || code_ == "STATUS_CODE_ERROR") {
      request_.error = message_.empty() ? "error" : message_;
    }
    Finish();
    return problems_->size() < kMostSpanProblems ? absl::OkStatus()
                                                 : absl::CancelledError("enough problems");
  }

  // Numbers of 64 bits are texts in this form of JSON, and sometimes numbers.
  static JsonFields::Read Unix(int64_t* out) {
    return [out](JsonValue& value) {
      std::string text;
      KVBLOCKS_RETURN_IF_ERROR(value.ReadText(&text));
      KVBLOCKS_ASSIGN_OR_RETURN(*out, ParseScaledDecimal(text, 0));
      return absl::OkStatus();
    };
  }

  absl::Status ReadAttribute(JsonValue& value) {
    key_.clear();
    text_.clear();
    KVBLOCKS_RETURN_IF_ERROR(attribute_.ReadObject(value, &row_.request, problems_, where_));
    if (key_ == "gen_ai.usage.input_tokens") input_ = text_;
    if (key_ == "gen_ai.usage.output_tokens") output_ = text_;
    if (key_ == "gen_ai.conversation.id") request_.session = text_;
    return absl::OkStatus();
  }

  void TakeTokens(const char* name, const std::string& text, int64_t* out) {
    absl::StatusOr<int64_t> tokens = ParseScaledDecimal(text, 0);
    if (tokens.ok() && *tokens <= kMaxTraceLength) {
      *out = *tokens;
      return;
    }
    span_.Bad(ProblemKind::kValue,
              absl::StrCat("gen_ai.usage.", name, ": got ", Shown(text),
                           ", expected a whole number from 0 to ", kMaxTraceLength));
  }

  void Finish() {
    const size_t before = problems_->size();
    TakeTokens("input_tokens", input_, &request_.input_length);
    // A call that failed may have no output.
    if (!request_.failed() || !output_.empty()) {
      TakeTokens("output_tokens", output_, &request_.output_length);
    }
    span_.Require({"startTimeUnixNano"});
    if (problems_->size() != before) return;
    SetStart(start_ns_, "startTimeUnixNano", &span_);
    const bool has_end = span_.Seen("endTimeUnixNano");
    if (has_end && end_ns_ < start_ns_) {
      span_.Bad(ProblemKind::kValue,
                absl::StrCat("endTimeUnixNano: got ", end_ns_, ", expected at least ", start_ns_,
                             " as in startTimeUnixNano"));
    }
    if (problems_->size() != before) return;
    if (has_end) request_.latency_ns = end_ns_ - start_ns_;
    AddRequest();
  }

  JsonFields export_, resource_, scope_, span_, attribute_;
  int64_t num_spans_ = 0;  // of the line being read
  // Of the span being read.
  std::string where_, input_, output_, code_, message_;
  int64_t start_ns_ = 0;
  int64_t end_ns_ = 0;
  std::string key_, text_;  // of its attribute
};

template <typename Reader>
std::unique_ptr<MeasurementReader> Make(RowInput& input) {
  return std::make_unique<Reader>(input);
}

// Null if there is no such format.
std::unique_ptr<MeasurementReader> MakeReaderOf(RowInput& input) {
  constexpr std::pair<std::string_view, std::unique_ptr<MeasurementReader> (*)(RowInput&)> kAll[] =
      {{"aiperf-profile", Make<AiperfProfileReader>},
       {"vllm-bench", Make<VllmBenchReader>},
       {"request-log", Make<RequestLogReader>},
       {"otel-genai", Make<OtelReader>}};
  for (const auto& [format, make] : kAll) {
    if (format == input.format) return make(input);
  }
  return nullptr;
}

absl::StatusOr<Measurement> ReadAllMeasured(std::unique_ptr<ByteSource> source,
                                            const std::string& file,
                                            const TraceReaderOptions& options) {
  RowLog log;
  log.file = file;
  RowInput input{std::move(source), options, &log, options.format};
  if (input.format == "auto") {
    KVBLOCKS_ASSIGN_OR_RETURN(std::string head, PeekHead(input));
    KVBLOCKS_ASSIGN_OR_RETURN(input.format, DetectFormat(std::move(head), file));
  }
  const std::unique_ptr<MeasurementReader> reader = MakeReaderOf(input);
  if (reader == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ":1: error: measurement: got a file of the format ", input.format,
        ", expected aiperf-profile, vllm-bench, request-log or otel-genai (a workload has no "
        "measured times)"));
  }
  Measurement out;
  out.file = file;
  out.format = input.format;
  reader->set_requests(&out.requests);
  ErrorList errors(options.max_errors);
  RawRow row;
  RowOutcome outcome = RowOutcome::kRow;
  while (outcome != RowOutcome::kEnd) {
    std::vector<TraceProblem> problems;
    KVBLOCKS_ASSIGN_OR_RETURN(outcome, reader->Next(&row, &problems));
    if (options.skip_bad_rows) continue;
    for (const TraceProblem& problem : problems) errors.Add(ProblemMessage(file, problem));
  }
  if (!errors.empty()) return errors.status();
  out.num_failed = reader->num_failed();
  out.num_warmup = reader->num_warmup();
  const auto& notes = reader->info().notes;
  if (const auto day = notes.find("day_one"); day != notes.end()) out.day_one = day->second;
  if (static_cast<int64_t>(out.requests.size()) > out.num_failed) return out;
  return absl::InvalidArgumentError(absl::StrCat(file, ":1: error: measurement: got ",
                                                 out.num_failed, " failed and ", out.num_warmup,
                                                 " warm-up requests, expected one that succeeded"));
}

}  // namespace

absl::StatusOr<Measurement> ReadMeasurement(const std::string& path,
                                            const TraceReaderOptions& options) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto source, OpenByteSource(path, options.zstd_window_log));
  return ReadAllMeasured(std::move(source), path == "-" ? "<stdin>" : path, options);
}

absl::StatusOr<Measurement> ReadMeasurementString(std::string content, const std::string& name,
                                                  const TraceReaderOptions& options) {
  return ReadAllMeasured(ByteSourceOfString(std::move(content), options.zstd_window_log), name,
                         options);
}

OpenedRows MakeMeasurementReader(RowInput& input) {
  std::unique_ptr<MeasurementReader> reader = MakeReaderOf(input);
  KVBLOCKS_RETURN_IF_ERROR(reader->ReadAhead());
  return reader;
}

}  // namespace kvblocks::sim
