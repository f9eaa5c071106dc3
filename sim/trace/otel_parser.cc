// OpenTelemetry's spans of generative AI: one export request of OTLP/JSON per line.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/civil_time.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/sim/trace/json_fields.h"
#include "kvblocks/sim/trace/measurement_parser.h"

namespace kvblocks::sim {
namespace {

// More are not worth telling.
constexpr size_t kMostSpanProblems = 20;

class OtelParser : public MeasurementParser {
 public:
  explicit OtelParser(const RowLog* log)
      : export_({{"resourceSpans", kList}}, log),
        resource_({{"scopeSpans", kList}}, log, {"resource", "schemaUrl"}),
        scope_({{"spans", kList}}, log, {"scope", "schemaUrl"}),
        span_({{"spanId", kSpanId},
               {"startTimeUnixNano", kStart},
               {"endTimeUnixNano", kEnd},
               {"attributes", kAttributes},
               {"status.code", kCode},
               {"status.message", kMessage}},
              log,
              {"traceId", "parentSpanId", "name", "kind", "flags", "events", "links", "traceState",
               "droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"}),
        attribute_({{"key", kKey},
                    {"value.stringValue", kString},
                    {"value.intValue", kInt},
                    {"value.doubleValue", kDouble}},
                   log, {"value.boolValue", "value.arrayValue", "value.kvlistValue"}) {}

  void Parse(std::string_view text, TraceRequest* at, std::vector<MeasuredRequest>* requests,
             std::vector<TraceProblem>* problems) override {
    at_ = at;
    requests_ = requests;
    problems_ = problems;
    num_spans_ = 0;
    export_.Begin(at, problems);
    export_.ParseLine(text, [&](int, JsonValue& resources) {
      return resources.ReadList([&](JsonValue& resource) {
        return ReadListOf(&resource_, resource, [&](JsonValue& scope) {
          return ReadListOf(&scope_, scope, [&](JsonValue& span) { return ReadSpan(span); });
        });
      });
    });
    if (problems->empty()) export_.Require({kList});
  }

 private:
  enum Field {
    kList,
    kSpanId,
    kStart,
    kEnd,
    kAttributes,
    kCode,
    kMessage,
    kKey,
    kString,
    kInt,
    kDouble,
  };

  // The elements of the one list that an object is read for.
  template <typename OnElement>
  absl::Status ReadListOf(JsonFields* fields, JsonValue& value, OnElement on_element) {
    fields->Begin(at_, problems_);
    return fields->ReadObject(value, [&](int, JsonValue& list) {
      return list.ReadList([&](JsonValue& element) { return on_element(element); });
    });
  }

  absl::Status ReadSpan(JsonValue& value) {
    MeasuredRequest r;
    const std::string where = absl::StrCat("span ", num_spans_++, ": ");
    input_.clear();
    output_.clear();
    start_ns_ = end_ns_ = 0;
    std::string code, message;
    span_.Begin(at_, problems_, where);
    const absl::Status status = span_.ReadObject(value, [&](int field, JsonValue& inner) {
      switch (field) {
        case kSpanId:
          return inner.ReadText(&r.id);
        case kStart:
          return ReadUnix(inner, &start_ns_);
        case kEnd:
          return ReadUnix(inner, &end_ns_);
        case kCode:
          return inner.ReadText(&code);
        case kMessage:
          return inner.ReadText(&message);
        default:
          return inner.ReadList(
              [&](JsonValue& attribute) { return ReadAttribute(attribute, where, &r); });
      }
    });
    if (!status.ok()) return status;
    if (input_.empty() && output_.empty()) return absl::OkStatus();  // of something else
    if (code == "2" || code == "STATUS_CODE_ERROR") r.error = message.empty() ? "error" : message;
    Finish(&r);
    return problems_->size() < kMostSpanProblems ? absl::OkStatus()
                                                 : absl::CancelledError("enough problems");
  }

  // Numbers of 64 bits are texts in this form of JSON, and sometimes numbers.
  static absl::Status ReadUnix(JsonValue& value, int64_t* out) {
    std::string text;
    if (absl::Status status = value.ReadText(&text); !status.ok()) return status;
    absl::StatusOr<int64_t> ns = ParseScaledDecimal(text, 0);
    if (ns.ok()) *out = *ns;
    return ns.status();
  }

  absl::Status ReadAttribute(JsonValue& value, const std::string& where, MeasuredRequest* r) {
    std::string key, text;
    attribute_.Begin(at_, problems_, where);
    const absl::Status status = attribute_.ReadObject(value, [&](int field, JsonValue& inner) {
      return inner.ReadText(field == kKey ? &key : &text);
    });
    if (!status.ok()) return status;
    if (key == "gen_ai.usage.input_tokens") input_ = text;
    if (key == "gen_ai.usage.output_tokens") output_ = text;
    if (key == "gen_ai.conversation.id") r->session = text;
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

  void Finish(MeasuredRequest* r) {
    const size_t before = problems_->size();
    TakeTokens("input_tokens", input_, &r->input_length);
    // A call that failed may have no output.
    if (!r->failed() || !output_.empty()) TakeTokens("output_tokens", output_, &r->output_length);
    span_.Require({kStart});
    if (problems_->size() != before) return;
    const absl::Status status = clock_.Since(absl::FromUnixNanos(start_ns_),
                                             absl::StrCat(start_ns_, " ns"), &notes_, &r->start_ns);
    if (!status.ok()) {
      span_.Bad(ProblemKind::kValue, absl::StrCat("startTimeUnixNano: ", status.message()));
    }
    if (span_.Seen(kEnd) && end_ns_ < start_ns_) {
      span_.Bad(ProblemKind::kValue,
                absl::StrCat("endTimeUnixNano: got ", end_ns_, ", expected at least ", start_ns_,
                             " as in startTimeUnixNano"));
    }
    if (problems_->size() != before) return;
    if (span_.Seen(kEnd)) r->latency_ns = end_ns_ - start_ns_;
    requests_->push_back(std::move(*r));
  }

  JsonFields export_, resource_, scope_, span_, attribute_;
  DayClock clock_;
  // Of the line being read.
  TraceRequest* at_ = nullptr;
  std::vector<MeasuredRequest>* requests_ = nullptr;
  std::vector<TraceProblem>* problems_ = nullptr;
  int64_t num_spans_ = 0;
  // Of the span being read.
  std::string input_, output_;
  int64_t start_ns_ = 0;
  int64_t end_ns_ = 0;
};

}  // namespace

std::unique_ptr<MeasurementParser> MakeOtelParser(const RowLog* log) {
  return std::make_unique<OtelParser>(log);
}

}  // namespace kvblocks::sim
