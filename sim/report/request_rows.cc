#include "kvblocks/sim/report/request_rows.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr int kPicosecondsPerMillisecondExponent = 9;

std::string Time(SimTime time) {
  return time < 0 ? std::string() : FormatScaledDecimal(time, kPicosecondsPerMillisecondExponent);
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
                   absl::string_view(reason.data(), reason.size()), ",", CsvField(detail), ",");
  if (progress.first_scheduled == RequestProgress::kNever) {
    absl::StrAppend(&line, ",,,,");
  } else {
    absl::StrAppend(&line, progress.num_queried_tokens, ",", progress.num_hit_tokens, ",",
                    progress.num_possible_tokens, ",",
                    Time(progress.first_scheduled - request.arrival), ",");
  }
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

absl::StatusOr<std::unique_ptr<CsvRequestSink>> CsvRequestSink::Open(const std::string& path) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  std::unique_ptr<CsvRequestSink> sink(new CsvRequestSink(path, file));
  const std::string header = Header();
  sink->failed_ = std::fwrite(header.data(), 1, header.size(), file) != header.size();
  return sink;
}

CsvRequestSink::~CsvRequestSink() {
  if (file_ != nullptr && file_ != stdout) std::fclose(file_);
}

void CsvRequestSink::OnRow(const RequestRow& row) {
  const std::string line = Format(row);
  failed_ = std::fwrite(line.data(), 1, line.size(), file_) != line.size() || failed_;
}

absl::Status CsvRequestSink::Close() {
  const bool closed = file_ == stdout ? std::fflush(file_) == 0 : std::fclose(file_) == 0;
  file_ = nullptr;
  if (closed && !failed_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("writing ", path_, " failed: ", std::strerror(errno)));
}

}  // namespace kvblocks::sim
