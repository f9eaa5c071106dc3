#include "kvblocks/sim/trace/measurement_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/civil_time.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/sim/trace/json_fields.h"

namespace kvblocks::sim {
namespace {

constexpr int kMeasuredSecondsToNs = 9;

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
      : fields_({{"metadata.conversation_id", kConversation},
                 {"metadata.turn_index", kTurn},
                 {"metadata.x_request_id", kId},
                 {"metadata.request_start_ns", kStart},
                 {"metadata.request_end_ns", kEnd},
                 {"metadata.benchmark_phase", kPhase},
                 {"metrics.time_to_first_token.value", kTtft},
                 {"metrics.time_to_first_token.unit", kTtftUnit},
                 {"metrics.inter_token_latency.value", kTpot},
                 {"metrics.inter_token_latency.unit", kTpotUnit},
                 {"metrics.request_latency.value", kLatency},
                 {"metrics.request_latency.unit", kLatencyUnit},
                 {"metrics.inter_chunk_latency.value", kGaps},
                 {"metrics.inter_chunk_latency.unit", kGapsUnit},
                 {"metrics.input_sequence_length.value", kInput},
                 {"metrics.output_sequence_length.value", kOutput},
                 {"error.type", kErrorType},
                 {"error.message", kErrorMessage}},
                log) {}

  void Parse(std::string_view text, TraceRequest* at, std::vector<MeasuredRequest>* requests,
             std::vector<TraceProblem>* problems) override {
    MeasuredRequest r;
    phase_.clear();
    for (std::string& unit : units_) unit = "ms";
    for (std::string& value : values_) value.clear();
    gaps_.clear();
    fields_.Begin(at, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) { return Read(field, value, &r); });
    if (!problems->empty() && problems->back().kind == ProblemKind::kSyntax) return;
    at->id = r.id;
    if (phase_ == "warmup" && problems->empty()) {
      ++num_warmup_;
      return;
    }
    if (fields_.Seen(kErrorType) || fields_.Seen(kErrorMessage)) {
      r.error =
          absl::StrCat(error_type_, error_type_.empty() || error_.empty() ? "" : ": ", error_);
      if (r.error.empty()) r.error = "unknown error";
    } else {
      fields_.Require({kStart, kInput, kOutput});
    }
    TakeTimes(&r);
    if (fields_.Seen(kStart) && problems->empty()) {
      const absl::Status status =
          clock_.Since(absl::FromUnixNanos(start_), absl::StrCat(start_, " ns"), &notes_, &r.start_ns);
      if (!status.ok()) {
        fields_.Bad(ProblemKind::kValue, absl::StrCat("request_start_ns: ", status.message()));
      }
    }
    if (!problems->empty()) return;
    CompleteMeasured(&r);
    requests->push_back(std::move(r));
  }

 private:
  enum Field {
    kTtft,  // the first four have a unit each
    kTpot,
    kLatency,
    kGaps,
    kTtftUnit,
    kTpotUnit,
    kLatencyUnit,
    kGapsUnit,
    kConversation,
    kTurn,
    kId,
    kStart,
    kEnd,
    kPhase,
    kInput,
    kOutput,
    kErrorType,
    kErrorMessage,
  };

  absl::Status Read(int field, JsonValue& value, MeasuredRequest* r) {
    JsonId id;
    switch (field) {
      case kTtft:
      case kTpot:
      case kLatency:
        return value.ReadText(&values_[static_cast<size_t>(field)]);
      case kGaps:
        return value.ReadList([&](JsonValue& gap) { return gap.ReadText(&gaps_.emplace_back()); });
      case kTtftUnit:
      case kTpotUnit:
      case kLatencyUnit:
      case kGapsUnit: {
        std::string& unit = units_[static_cast<size_t>(field - kTtftUnit)];
        if (absl::Status status = value.ReadString(&unit); !status.ok()) return status;
        if (ExponentOfUnit(unit) >= 0) return absl::OkStatus();
        return absl::InvalidArgumentError(
            absl::StrCat("got ", Shown(unit), ", expected ns, us, ms, s or sec"));
      }
      case kConversation:
      case kId: {
        absl::Status status = value.ReadId(&id);
        (field == kId ? r->id : r->session) = std::move(id.text);
        return status;
      }
      case kTurn:
        return value.ReadInteger(0, kMaxTraceLength, &r->turn);
      case kStart:
        return value.ReadInteger(0, INT64_MAX, &start_);
      case kEnd:
        return value.ReadInteger(0, INT64_MAX, &end_);
      case kPhase:
        return value.ReadString(&phase_);
      case kInput:
        return ReadTokens(value, &r->input_length);
      case kOutput:
        return ReadTokens(value, &r->output_length);
      case kErrorType:
        return value.ReadText(&error_type_);
      default:
        return value.ReadText(&error_);
    }
  }

  static absl::Status ReadTokens(JsonValue& value, int64_t* out) {
    if (absl::Status status = value.ReadDecimal(0, out); !status.ok()) return status;
    if (*out <= kMaxTraceLength) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("got ", *out, ", expected 0 to ", kMaxTraceLength));
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
    if (r->latency_ns < 0 && fields_.Seen(kStart) && fields_.Seen(kEnd) && end_ >= start_) {
      r->latency_ns = end_ - start_;
    }
  }

  JsonFields fields_;
  DayClock clock_;
  // Of the line being read.
  std::array<std::string, 3> values_;
  std::array<std::string, 4> units_;
  std::vector<std::string> gaps_;
  std::string phase_, error_type_, error_;
  int64_t start_ = 0;
  int64_t end_ = 0;
};

// --- vllm bench serve ---

class VllmBenchParser : public MeasurementParser {
 public:
  explicit VllmBenchParser(const RowLog* log)
      : fields_({{"input_lens", kInputs},
                 {"output_lens", kOutputs},
                 {"start_times", kStarts},
                 {"ttfts", kTtfts},
                 {"itls", kItls},
                 {"errors", kErrors}},
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

  void Parse(std::string_view text, TraceRequest* at, std::vector<MeasuredRequest>* requests,
             std::vector<TraceProblem>* problems) override {
    inputs_.clear();
    outputs_.clear();
    starts_.clear();
    ttfts_.clear();
    itls_.clear();
    errors_.clear();
    fields_.Begin(at, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) { return Read(field, value); });
    if (!problems->empty()) return;
    if (!fields_.Seen(kInputs) && !fields_.Seen(kOutputs)) {
      fields_.Bad(ProblemKind::kMissingField,
                  "field input_lens: got nothing, expected a list (--save-detailed writes it)");
      return;
    }
    fields_.Require({kInputs, kOutputs});
    const auto check = [&](Field field, size_t size, const char* name) {
      if (!fields_.Seen(field) || size == inputs_.size()) return;
      fields_.Bad(ProblemKind::kValue, absl::StrCat(name, ": got ", size, " values, expected ",
                                                    inputs_.size(), " as in input_lens"));
    };
    check(kOutputs, outputs_.size(), "output_lens");
    check(kStarts, starts_.size(), "start_times");
    check(kTtfts, ttfts_.size(), "ttfts");
    check(kItls, itls_.size(), "itls");
    check(kErrors, errors_.size(), "errors");
    if (!problems->empty()) return;
    for (size_t i = 0; i < inputs_.size(); ++i) requests->push_back(RequestAt(i));
  }

 private:
  enum Field { kInputs, kOutputs, kStarts, kTtfts, kItls, kErrors };

  absl::Status Read(int field, JsonValue& value) {
    const auto lengths = [&](std::vector<int64_t>* out) {
      return value.ReadList([&](JsonValue& element) {
        return element.ReadInteger(0, kMaxTraceLength, &out->emplace_back());
      });
    };
    switch (field) {
      case kInputs:
        return lengths(&inputs_);
      case kOutputs:
        return lengths(&outputs_);
      case kStarts:
        return value.ReadRoundedList(kMeasuredSecondsToNs, &starts_);
      case kTtfts:
        return value.ReadRoundedList(kMeasuredSecondsToNs, &ttfts_);
      case kItls:
        return value.ReadList([&](JsonValue& element) {
          return element.ReadRoundedList(kMeasuredSecondsToNs, &itls_.emplace_back());
        });
      default:
        return value.ReadList(
            [&](JsonValue& element) { return element.ReadString(&errors_.emplace_back()); });
    }
  }

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
      : fields_({{"request_id", kId},
                 {"input_toks", kInput},
                 {"output_toks", kOutput},
                 {"arrival_time", kArrival},
                 {"queued_ts", kQueued},
                 {"scheduled_ts", kScheduled},
                 {"first_token_ts", kFirst},
                 {"last_token_ts", kLast}},
                log) {}

  void Parse(std::string_view text, TraceRequest* at, std::vector<MeasuredRequest>* requests,
             std::vector<TraceProblem>* problems) override {
    MeasuredRequest r;
    fields_.Begin(at, problems);
    fields_.ParseLine(text, [&](int field, JsonValue& value) { return Read(field, value, &r); });
    if (!problems->empty()) return;
    at->id = r.id;
    fields_.Require({kInput, kOutput, kArrival, kQueued, kFirst, kLast});
    if (!problems->empty()) return;
    const absl::Status status = clock_.Since(absl::FromUnixNanos(arrival_),
                                             absl::StrCat(arrival_, " ns"), &notes_, &r.start_ns);
    if (!status.ok()) {
      fields_.Bad(ProblemKind::kValue, absl::StrCat("arrival_time: ", status.message()));
    }
    TakeDifference("first_token_ts", first_, &r.ttft_ns);
    TakeDifference("last_token_ts", last_, &r.latency_ns);
    if (fields_.Seen(kScheduled)) TakeDifference("scheduled_ts", scheduled_, &r.queue_ns);
    if (!problems->empty()) return;
    CompleteMeasured(&r);
    requests->push_back(std::move(r));
  }

 private:
  enum Field { kId, kInput, kOutput, kArrival, kQueued, kScheduled, kFirst, kLast };

  absl::Status Read(int field, JsonValue& value, MeasuredRequest* r) {
    switch (field) {
      case kId: {
        JsonId id;
        absl::Status status = value.ReadId(&id);
        r->id = std::move(id.text);
        return status;
      }
      case kInput:
        return value.ReadInteger(0, kMaxTraceLength, &r->input_length);
      case kOutput:
        return value.ReadInteger(0, kMaxTraceLength, &r->output_length);
      case kArrival:
        return value.ReadRounded(kMeasuredSecondsToNs, &arrival_);
      case kQueued:
        return value.ReadRounded(kMeasuredSecondsToNs, &queued_);
      case kScheduled:
        return value.ReadRounded(kMeasuredSecondsToNs, &scheduled_);
      case kFirst:
        return value.ReadRounded(kMeasuredSecondsToNs, &first_);
      default:
        return value.ReadRounded(kMeasuredSecondsToNs, &last_);
    }
  }

  void TakeDifference(const char* name, int64_t ns, int64_t* out) {
    if (ns >= queued_) {
      *out = ns - queued_;
      return;
    }
    fields_.Bad(ProblemKind::kValue, absl::StrCat(name, ": got ", ns, " ns, expected at least ",
                                                  queued_, " ns as in queued_ts"));
  }

  JsonFields fields_;
  DayClock clock_;
  // Of the line being read.
  int64_t arrival_ = 0, queued_ = 0, scheduled_ = 0, first_ = 0, last_ = 0;
};

}  // namespace

std::unique_ptr<MeasurementParser> MakeMeasurementParser(std::string_view format,
                                                         const RowLog* log) {
  if (format == "aiperf-profile") return std::make_unique<AiperfMeasurementParser>(log);
  if (format == "vllm-bench") return std::make_unique<VllmBenchParser>(log);
  if (format == "request-log") return std::make_unique<RequestLogParser>(log);
  if (format == "otel-genai") return MakeOtelParser(log);
  return nullptr;
}

}  // namespace kvblocks::sim
