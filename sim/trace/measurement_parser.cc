#include "sim/trace/measurement_parser.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sim/trace/decimal.h"
#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"

namespace kvblocks::sim {
namespace {

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

class AiperfMeasurementParser : public MeasurementParser {
 public:
  explicit AiperfMeasurementParser(const RowLog* log)
      : fields_({{"metadata.conversation_id", By(&JsonValue::ReadName, &request_.session)},
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
                log) {}

  void ParseLine(std::string_view text) override {
    phase_.clear();
    for (std::string& unit : units_) unit = "ms";
    for (std::string& value : values_) value.clear();
    gaps_.clear();
    fields_.Begin(at_, problems_);
    if (!fields_.ParseLine(text)) return;
    at_->id = request_.id;
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
      if (absl::Status status = value.ReadString(unit); !status.ok()) return status;
      if (ExponentOfUnit(*unit) >= 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("got ", Shown(*unit), ", expected ns, us, ms, s or sec"));
    };
  }

  static JsonFields::Read Tokens(int64_t* out) {
    return [out](JsonValue& value) {
      if (absl::Status status = value.ReadDecimal(0, out); !status.ok()) return status;
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

class VllmBenchParser : public MeasurementParser {
 public:
  explicit VllmBenchParser(const RowLog* log)
      : fields_({{"input_lens", By(&JsonValue::ReadLengths, &inputs_)},
                 {"output_lens", By(&JsonValue::ReadLengths, &outputs_)},
                 {"start_times", By(&JsonValue::ReadRoundedList, kSecondsToNs, &starts_)},
                 {"ttfts", By(&JsonValue::ReadRoundedList, kSecondsToNs, &ttfts_)},
                 {"itls", Each([this](JsonValue& gaps) {
                    return gaps.ReadRoundedList(kSecondsToNs, &itls_.emplace_back());
                  })},
                 {"errors", By(&JsonValue::ReadStrings, &errors_)}},
                log,
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

  void ParseLine(std::string_view text) override {
    inputs_.clear();
    outputs_.clear();
    starts_.clear();
    ttfts_.clear();
    itls_.clear();
    errors_.clear();
    fields_.Begin(at_, problems_);
    fields_.ParseLine(text);
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
    for (size_t i = 0; i < inputs_.size(); ++i) requests_->push_back(RequestAt(i));
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

class RequestLogParser : public MeasurementParser {
 public:
  explicit RequestLogParser(const RowLog* log)
      : fields_({{"request_id", By(&JsonValue::ReadName, &request_.id)},
                 {"input_toks", By(&JsonValue::ReadLength, &request_.input_length)},
                 {"output_toks", By(&JsonValue::ReadLength, &request_.output_length)},
                 {"arrival_time", By(&JsonValue::ReadRounded, kSecondsToNs, &arrival_)},
                 {"queued_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &queued_)},
                 {"scheduled_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &scheduled_)},
                 {"first_token_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &first_)},
                 {"last_token_ts", By(&JsonValue::ReadRounded, kSecondsToNs, &last_)}},
                log) {}

  void ParseLine(std::string_view text) override {
    fields_.Begin(at_, problems_);
    fields_.ParseLine(text);
    if (!problems_->empty()) return;
    at_->id = request_.id;
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

class OtelParser : public MeasurementParser {
 public:
  explicit OtelParser(const RowLog* log)
      : export_({{"resourceSpans", Each([this](JsonValue& resource) {
                    resource_.Begin(at_, problems_);
                    return resource_.ReadObject(resource);
                  })}},
                log),
        resource_({{"scopeSpans", Each([this](JsonValue& scope) {
                      scope_.Begin(at_, problems_);
                      return scope_.ReadObject(scope);
                    })}},
                  log, {"resource", "schemaUrl"}),
        scope_({{"spans", Each([this](JsonValue& span) { return ReadSpan(span); })}}, log,
               {"scope", "schemaUrl"}),
        span_({{"spanId", By(&JsonValue::ReadText, &request_.id)},
               {"startTimeUnixNano", Unix(&start_ns_)},
               {"endTimeUnixNano", Unix(&end_ns_)},
               {"attributes",
                Each([this](JsonValue& attribute) { return ReadAttribute(attribute); })},
               {"status.code", By(&JsonValue::ReadText, &code_)},
               {"status.message", By(&JsonValue::ReadText, &message_)}},
              log,
              {"traceId", "parentSpanId", "name", "kind", "flags", "events", "links", "traceState",
               "droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"}),
        attribute_({{"key", By(&JsonValue::ReadText, &key_)},
                    {"value.stringValue", By(&JsonValue::ReadText, &text_)},
                    {"value.intValue", By(&JsonValue::ReadText, &text_)},
                    {"value.doubleValue", By(&JsonValue::ReadText, &text_)}},
                   log, {"value.boolValue", "value.arrayValue", "value.kvlistValue"}) {}

 private:
  void ParseLine(std::string_view text) override {
    num_spans_ = 0;
    export_.Begin(at_, problems_);
    export_.ParseLine(text);
    if (problems_->empty()) export_.Require({"resourceSpans"});
  }

  absl::Status ReadSpan(JsonValue& value) {
    request_ = MeasuredRequest();
    where_ = absl::StrCat("span ", num_spans_++, ": ");
    for (std::string* text : {&input_, &output_, &code_, &message_}) text->clear();
    start_ns_ = end_ns_ = 0;
    span_.Begin(at_, problems_, where_);
    if (absl::Status status = span_.ReadObject(value); !status.ok()) return status;
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
      if (absl::Status status = value.ReadText(&text); !status.ok()) return status;
      absl::StatusOr<int64_t> ns = ParseScaledDecimal(text, 0);
      if (ns.ok()) *out = *ns;
      return ns.status();
    };
  }

  absl::Status ReadAttribute(JsonValue& value) {
    key_.clear();
    text_.clear();
    attribute_.Begin(at_, problems_, where_);
    if (absl::Status status = attribute_.ReadObject(value); !status.ok()) return status;
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

}  // namespace

void MeasurementParser::SetStart(int64_t unix_ns, const char* name, JsonFields* fields) {
  const absl::Status status = clock_.Since(absl::FromUnixNanos(unix_ns),
                                           absl::StrCat(unix_ns, " ns"), &notes_,
                                           &request_.start_ns);
  if (!status.ok()) {
    fields->Bad(ProblemKind::kValue, absl::StrCat(name, ": ", status.message()));
  }
}

std::unique_ptr<MeasurementParser> MakeMeasurementParser(std::string_view format,
                                                         const RowLog* log) {
  if (format == "aiperf-profile") return std::make_unique<AiperfMeasurementParser>(log);
  if (format == "vllm-bench") return std::make_unique<VllmBenchParser>(log);
  if (format == "request-log") return std::make_unique<RequestLogParser>(log);
  if (format == "otel-genai") return std::make_unique<OtelParser>(log);
  return nullptr;
}

}  // namespace kvblocks::sim
