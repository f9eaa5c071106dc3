#include "sim/trace/measurement.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/trace/format_detection.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/measurement_parser.h"

namespace kvblocks::sim {
namespace {

class MeasurementReader : public LineRows {
 public:
  MeasurementReader(std::unique_ptr<ByteSource> source, const std::string& format,
                    const TraceReaderOptions& options, RowLog* log)
      : LineRows(std::move(source), options, log, format.c_str()),
        parser_(MakeMeasurementParser(format, log)) {}

  std::string dialect() const override {
    std::string text = "lengths of a measurement";
    if (num_failed_ > 0) absl::StrAppend(&text, ", ", num_failed_, " failed requests left out");
    if (parser_->num_warmup() > 0) {
      absl::StrAppend(&text, ", ", parser_->num_warmup(), " warm-up requests left out");
    }
    return text;
  }

 private:
  void Parse(std::string_view text) override {
    measured_.clear();
    const int64_t warmup = parser_->num_warmup();
    parser_->Parse(text, &row_.request, &measured_, problems_);
    if (!problems_->empty()) return;
    log()->counters.not_selected += parser_->num_warmup() - warmup;
    info_.notes.insert(parser_->notes().begin(), parser_->notes().end());
    for (MeasuredRequest& measured : measured_) {
      if (measured.failed()) {
        ++num_failed_;
        ++log()->counters.not_selected;
        continue;
      }
      RawRow& row = rows_.emplace_back();
      row.timestamp_ns = measured.start_ns >= 0 ? measured.start_ns : 0;
      TraceRequest& r = row.request;
      r.id = std::move(measured.id);
      r.input_length = measured.input_length;
      r.output_length = measured.output_length;
      if (measured.session.empty()) continue;
      JsonId session;
      session.text = std::move(measured.session);
      r.session = sessions_.NumberOf(session);
      row.has_turn = measured.turn >= 0;
      if (row.has_turn) r.turn = static_cast<uint32_t>(measured.turn);
    }
  }

  std::unique_ptr<MeasurementParser> parser_;
  SessionNumbers sessions_;
  int64_t num_failed_ = 0;
  std::vector<MeasuredRequest> measured_;  // of the line being read
};

absl::StatusOr<Measurement> ReadAllMeasured(std::unique_ptr<ByteSource> source,
                                            const std::string& file,
                                            const TraceReaderOptions& options) {
  RowLog log;
  log.file = file;
  Measurement out;
  out.file = file;
  out.format = options.format;
  if (out.format == "auto") {
    absl::StatusOr<std::string> head =
        PeekHead(&source, static_cast<size_t>(std::max<int64_t>(options.max_line_bytes, 64)));
    if (!head.ok()) return StreamError(log, head.status(), "line", 0);
    absl::StatusOr<std::string> format = DetectFormat(*std::move(head), file);
    if (!format.ok()) return format.status();
    out.format = *std::move(format);
  }
  const std::unique_ptr<MeasurementParser> parser = MakeMeasurementParser(out.format, &log);
  if (parser == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ":1: error: measurement: got a file of the format ", out.format,
        ", expected aiperf-profile, vllm-bench, request-log or otel-genai (a workload has no "
        "measured times)"));
  }
  RowLines lines(std::move(source), options, &log);
  std::vector<std::string> errors;
  int64_t num_errors = 0;
  TraceRequest at;
  for (at.row = 0;; ++at.row) {
    Line line;
    TraceProblem problem;
    std::vector<TraceProblem> problems;
    absl::StatusOr<RowOutcome> got = lines.Next(&line, &problem);
    if (!got.ok()) return got.status();
    if (*got == RowOutcome::kEnd) break;
    at.line = line.number;
    at.id.clear();
    const size_t before = out.requests.size();
    if (*got == RowOutcome::kBad) {
      problems.push_back(std::move(problem));
    } else {
      parser->Parse(line.text, &at, &out.requests, &problems);
    }
    if (!problems.empty()) out.requests.resize(before);
    for (size_t i = before; i < out.requests.size(); ++i) {
      out.requests[i].row = static_cast<int64_t>(i);
      out.requests[i].line = line.number;
      out.num_failed += out.requests[i].failed() ? 1 : 0;
    }
    if (options.skip_bad_rows) continue;
    for (const TraceProblem& p : problems) {
      if (num_errors++ < options.max_errors || errors.empty()) {
        errors.push_back(ProblemMessage(file, p));
      }
    }
  }
  const int64_t more = num_errors - static_cast<int64_t>(errors.size());
  if (more > 0) errors.push_back(absl::StrCat("and ", more, " more errors"));
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  out.num_warmup = parser->num_warmup();
  if (const auto day = parser->notes().find("day_one"); day != parser->notes().end()) {
    out.day_one = day->second;
  }
  if (static_cast<int64_t>(out.requests.size()) > out.num_failed) return out;
  return absl::InvalidArgumentError(absl::StrCat(file, ":1: error: measurement: got ",
                                                 out.num_failed, " failed and ", out.num_warmup,
                                                 " warm-up requests, expected one that succeeded"));
}

}  // namespace

bool IsMeasurementFormat(std::string_view format) {
  RowLog log;
  return MakeMeasurementParser(format, &log) != nullptr;
}

absl::StatusOr<Measurement> ReadMeasurement(const std::string& path,
                                            const TraceReaderOptions& options) {
  absl::StatusOr<std::unique_ptr<ByteSource>> source =
      OpenByteSource(path, options.zstd_window_log);
  if (!source.ok()) return source.status();
  return ReadAllMeasured(*std::move(source), path == "-" ? "<stdin>" : path, options);
}

absl::StatusOr<Measurement> ReadMeasurementString(std::string content, const std::string& name,
                                                  const TraceReaderOptions& options) {
  return ReadAllMeasured(ByteSourceOfString(std::move(content), options.zstd_window_log), name,
                         options);
}

absl::StatusOr<std::unique_ptr<RowSource>> MakeMeasurementReader(std::unique_ptr<ByteSource> source,
                                                                 const std::string& format,
                                                                 const TraceReaderOptions& options,
                                                                 RowLog* log) {
  return OpenLineRows<MeasurementReader>(std::move(source), format, options, log);
}

}  // namespace kvblocks::sim
