#include "sim/report/request_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/report/report_section.h"

namespace kvblocks::sim {

namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr std::string_view kLineEnd = "\r\n";

std::string Time(SimTime time) { return time < 0 ? "" : MillisecondsText(time); }

// A line with further fields behind the others.
std::string WithFurther(std::string line, const std::string& further) {
  return line.insert(line.size() - kLineEnd.size(), further);
}

}  // namespace

std::string CsvField(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string CsvRequestSink::Header() {
  return "row,id,arrival_ms,input_tokens,output_tokens,requested_output_tokens,finish_reason,"
         "detail,queried_tokens,hit_tokens,possible_hit_tokens,queueing_ms,ttft_ms,prefill_ms,"
         "e2e_ms,tpot_ms,preemptions,recomputed_tokens,resume_hit_tokens,preempted_ms,end_ms\r\n";
}

std::string CsvRequestSink::Format(const RequestRow& row) {
  const SimRequest& request = *row.request;
  const RequestProgress progress = row.progress == nullptr ? RequestProgress() : *row.progress;
  const bool rejected = request.finish_reason == FinishReason::kRejected;
  const std::string_view cause = AbortCauseName(request.abort_cause);
  const std::string detail = rejected                                   ? request.finish_text
                             : request.abort_cause == AbortCause::kNone ? std::string()
                                                                        : std::string(cause);
  const std::string_view reason = FinishReasonName(request.finish_reason);
  std::string line =
      absl::StrCat(request.spec.row, ",", CsvField(request.spec.id), ",",
                   row.progress == nullptr ? std::string() : Time(request.arrival), ",",
                   request.num_prompt, ",", request.num_outputs(), ",", request.max_output, ",",
                   std::string(reason), ",", CsvField(detail), ",");
  const bool is_scheduled = progress.first_scheduled != RequestProgress::kNever;
  line += !is_scheduled || !row.knows_hits
              ? ",,,"
              : absl::StrCat(progress.num_queried_tokens, ",", progress.num_hit_tokens, ",",
                             progress.num_possible_tokens, ",");
  absl::StrAppend(&line, is_scheduled ? Time(progress.first_scheduled - request.arrival) : "", ",");
  if (row.latency) {
    absl::StrAppend(&line, Time(row.latency->ttft), ",", Time(row.latency->prefill), ",",
                    Time(row.latency->e2e), ",", Time(row.latency->tpot.value_or(-1)), ",");
  } else {
    absl::StrAppend(&line, ",,,,");
  }
  absl::StrAppend(&line, request.num_preemptions, ",", progress.num_recomputed_tokens, ",",
                  progress.num_resume_hit_tokens, ",", Time(progress.preempted_time), ",",
                  Time(row.end), "\r\n");
  return line;
}

CsvRequestSink::CsvRequestSink(std::unique_ptr<ByteSink> sink, std::string further_columns)
    : further_columns_(std::move(further_columns)),
      file_(std::move(sink),
            further_columns_.empty() ? Header() : WithFurther(Header(), "," + further_columns_)) {}

void CsvRequestSink::OnRow(const RequestRow& row) {
  const std::string further = row.replica < 0 ? row.further : absl::StrCat(row.replica);
  file_.Append(further_columns_.empty() ? Format(row) : WithFurther(Format(row), "," + further));
}

void BufferedSink::Append(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() >= kBufferBytes) Flush();
}

void BufferedSink::Flush() {
  if (status_.ok()) status_ = sink_->Write(buffer_);
  buffer_.clear();
}

absl::Status BufferedSink::Close() {
  Flush();
  return status_.ok() ? sink_->Close() : status_;
}

}  // namespace kvblocks::sim
