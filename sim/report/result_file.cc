#include "sim/report/result_file.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "kvblocks/check.h"
#include "sim/cost/sim_time.h"
#include "sim/report/distribution.h"
#include "sim/report/latency_metrics.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {

namespace {

namespace pb = ::kvblocks::report::v1;

constexpr size_t kHeadBytes = 64 << 10;
constexpr size_t kMaxReportBytes = size_t{64} << 20;
constexpr const char* kExpected = "expected a report of kvsim replay --json";

absl::Status Error(const std::string& file, const std::string& text) {
  return InvalidArgument(file, ": error: ", text);
}

std::string_view Trimmed(std::string_view text) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// The first line of the parser's message, which may go on with an excerpt.
std::string Shortened(const std::string& message) {
  constexpr size_t kMost = 200;
  return absl::CHexEscape(message.substr(0, std::min(message.find('\n'), kMost)));
}

absl::StatusOr<std::string> ReadAll(ByteSource& source, const std::string& file) {
  std::string text;
  std::string chunk(kHeadBytes, '\0');
  while (true) {
    const absl::StatusOr<size_t> n = source.Read(chunk.data(), chunk.size());
    if (!n.ok()) return Error(file, std::string(n.status().message()));
    if (*n == 0) return text;
    text.append(chunk, 0, *n);
    if (text.size() > kMaxReportBytes) {
      return Error(file,
                   absl::StrCat("size: got more than ", kMaxReportBytes, " bytes, ", kExpected));
    }
  }
}

absl::Status FromJson(std::string_view json, bool ignore_unknown, pb::Report* out) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = ignore_unknown;
  out->Clear();
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), out, options);
  if (status.ok()) return absl::OkStatus();
  return InvalidArgument(std::string(status.message()));
}

}  // namespace

absl::StatusOr<pb::Report> ParseReport(std::string_view json, const std::string& file) {
  const std::string_view text = Trimmed(json);
  pb::Report report;
  const absl::Status status = FromJson(text, false, &report);
  pb::Report lenient;
  // A version that this code does not know may have other fields: say what the matter is.
  const bool is_json = status.ok() || FromJson(text, true, &lenient).ok();
  const uint32_t version = status.ok() ? report.schema_version() : lenient.schema_version();
  const bool is_known = version + 1 >= kReportSchemaVersion && version <= kReportSchemaVersion;
  if (is_json && version != 0 && !is_known) {
    return Error(file, absl::StrCat("schema_version: got ", version, ", expected ",
                                    kReportSchemaVersion - 1, " or ", kReportSchemaVersion,
                                    " (written by another version of kvsim; replay again)"));
  }
  if (!status.ok()) {
    if (text.empty() || text.back() != '}') {
      return Error(file, absl::StrCat("JSON: got ", text.size(), " bytes without an end, ",
                                      kExpected, " (truncated?)"));
    }
    return Error(file, absl::StrCat("JSON: got something else (",
                                    Shortened(std::string(status.message())), "), ", kExpected));
  }
  if (version == 0) {
    return Error(file, absl::StrCat("schema_version: got nothing, ", kExpected));
  }
  return report;
}

absl::StatusOr<ResultFile> OpenResult(std::unique_ptr<ByteSource> source, const std::string& file) {
  absl::StatusOr<std::string> head = PeekHead(&source, kHeadBytes);
  if (!head.ok()) return Error(file, std::string(head.status().message()));
  ResultFile result;
  result.file = file;
  if (StepReader::Recognises(*head)) {
    auto steps = StepReader::Create(std::move(source), file);
    if (!steps.ok()) return steps.status();
    result.steps = *std::move(steps);
    return result;
  }
  const std::string_view text = Trimmed(*head);
  if (text.substr(0, 1) != "{") {
    return Error(file,
                 absl::StrCat("content: got ", text.empty() ? "nothing" : Shown(text.substr(0, 40)),
                              ", ", kExpected, " or a file of kvsim replay --steps"));
  }
  const absl::StatusOr<std::string> json = ReadAll(*source, file);
  if (!json.ok()) return json.status();
  auto report = ParseReport(*json, file);
  if (!report.ok()) return report.status();
  result.report = std::make_unique<pb::Report>(*std::move(report));
  return result;
}

absl::StatusOr<ResultFile> OpenResultFile(const std::string& path) {
  auto source = OpenByteSource(path);
  if (!source.ok()) return source.status();
  return OpenResult(*std::move(source), path == "-" ? "<stdin>" : path);
}

namespace {

namespace pb = ::kvblocks::report::v1;

void AddNanoseconds(int64_t ns, Distribution* out) {
  if (ns >= 0 && ns <= kMaxSimTime / kNanosecond) out->Add(ns * kNanosecond);
}

}  // namespace

pb::Report MeasuredReport(const Measurement& measurement) {
  pb::Report report;
  report.set_schema_version(kReportSchemaVersion);
  Distribution queueing, ttft, e2e, tpot, itl;
  int64_t num_requests = 0, input_tokens = 0, output_tokens = 0;
  int64_t first_start = -1, last_end = -1;
  for (const MeasuredRequest& request : measurement.requests) {
    if (request.failed()) continue;
    ++num_requests;
    input_tokens += request.input_length;
    output_tokens += request.output_length;
    AddNanoseconds(request.queue_ns, &queueing);
    AddNanoseconds(request.ttft_ns, &ttft);
    AddNanoseconds(request.latency_ns, &e2e);
    AddNanoseconds(request.tpot_ns, &tpot);
    for (const int64_t gap : request.itl_ns) AddNanoseconds(gap, &itl);
    if (request.start_ns < 0) continue;
    if (first_start < 0 || request.start_ns < first_start) first_start = request.start_ns;
    if (request.latency_ns >= 0) {
      last_end = std::max(last_end, request.start_ns + request.latency_ns);
    }
  }
  report.mutable_totals()->set_requests_finished(num_requests);
  report.mutable_totals()->set_output_tokens(output_tokens);
  pb::Latency* latency = report.mutable_latency();
  for (const auto& [values, out] : {std::pair(&queueing, latency->mutable_queueing()),
                                    {&ttft, latency->mutable_ttft()},
                                    {&e2e, latency->mutable_e2e()},
                                    {&tpot, latency->mutable_tpot()},
                                    {&itl, latency->mutable_itl()}}) {
    FillDistribution(*values, out);
  }
  if (last_end > first_start && first_start >= 0) {
    const double seconds = static_cast<double>(last_end - first_start) / 1e9;
    pb::Throughput* throughput = report.mutable_throughput();
    throughput->set_duration_s(seconds);
    throughput->set_requests_per_s(static_cast<double>(num_requests) / seconds);
    throughput->set_input_tokens_per_s(static_cast<double>(input_tokens) / seconds);
    throughput->set_output_tokens_per_s(static_cast<double>(output_tokens) / seconds);
  }
  return report;
}

pb::Report CutToMeasured(const pb::Report& replayed, const pb::Report& measured) {
  pb::Report cut;
  cut.set_schema_version(replayed.schema_version());
  cut.mutable_totals()->set_requests_finished(replayed.totals().requests_finished());
  cut.mutable_totals()->set_output_tokens(replayed.totals().output_tokens());
  pb::Latency* latency = cut.mutable_latency();
  const auto* reflection = pb::Latency::GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> of_measured;
  reflection->ListFields(measured.latency(), &of_measured);
  for (const auto* field : of_measured) {
    auto* to = static_cast<pb::Distribution*>(reflection->MutableMessage(latency, field));
    const auto& has = reflection->GetMessage(measured.latency(), field);
    if (static_cast<const pb::Distribution&>(has).count() == 0) continue;
    to->CopyFrom(reflection->GetMessage(replayed.latency(), field));
    to->clear_definition();  // a measurement does not state it
  }
  if (measured.has_throughput()) {
    const pb::Throughput& rates = replayed.throughput();
    pb::Throughput* throughput = cut.mutable_throughput();
    throughput->set_duration_s(rates.duration_s());
    throughput->set_requests_per_s(rates.requests_per_s());
    throughput->set_input_tokens_per_s(rates.input_tokens_per_s());
    throughput->set_output_tokens_per_s(rates.output_tokens_per_s());
  }
  return cut;
}

}  // namespace kvblocks::sim
