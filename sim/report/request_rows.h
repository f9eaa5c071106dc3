// RequestRow: what is known of one request when it ends; RequestRowSink takes them as they come.
//
// CsvRequestSink writes RFC 4180: CRLF line ends, one header line, fields with commas, quotes or
// line ends in quotes. Times are milliseconds of simulated time; what a request never reached is
// empty.

#ifndef KVBLOCKS_SIM_REPORT_REQUEST_ROWS_H_
#define KVBLOCKS_SIM_REPORT_REQUEST_ROWS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "sim/cost/sim_time.h"
#include "sim/engine/sim_request.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {

// RequestProgress: what metrics remember of a live request, by its slot, and the latencies that
// follow from it.
//
// With arrival a, first scheduling s, first token f, last token l and k tokens: queueing s - a,
// TTFT f - a, prefill f - s, E2E l - a, TPOT (l - f) / (k - 1) for k > 1 only, normalised E2E / k.
//
// A row is reset when the request arrives and is good until its OnFinish or OnRejection.
struct RequestProgress {
  static constexpr SimTime kNever = -1;

  int64_t row = -1;  // the request's submission index: says whose row this is
  SimTime first_scheduled = kNever;
  SimTime first_output = kNever;
  SimTime last_output = kNever;
  int64_t num_outputs = 0;
  // Of the first admission.
  int64_t num_queried_tokens = 0;
  int64_t num_hit_tokens = 0;
  int64_t num_external_tokens = 0;  // behind them, from elsewhere
  int64_t num_possible_tokens = 0;
  SimTime preempted_at = kNever;
  SimTime preempted_time = 0;  // sum of the times until it was resumed
  int64_t num_resume_hit_tokens = 0;
  int64_t num_recomputed_tokens = 0;
  int64_t num_slots = 0;  // of the first group that keeps all tokens
  int64_t ordinal = -1;   // counts first admissions
  bool is_running = false;
};

struct RequestLatency {
  SimTime queueing = 0;
  SimTime ttft = 0;
  SimTime prefill = 0;
  SimTime e2e = 0;
  std::optional<SimTime> tpot;  // rounded down to a picosecond
  SimTime normalized = 0;
};

// REQUIRES: the request emitted a token.
inline RequestLatency LatencyOf(const SimRequest& request, const RequestProgress& progress,
                                SimTime client_rtt) {
  RequestLatency latency;
  latency.queueing = progress.first_scheduled - request.arrival;
  latency.ttft = progress.first_output - request.arrival + client_rtt;
  latency.prefill = progress.first_output - progress.first_scheduled;
  latency.e2e = progress.last_output - request.arrival + client_rtt;
  if (progress.num_outputs > 1) {
    latency.tpot = (progress.last_output - progress.first_output) / (progress.num_outputs - 1);
  }
  latency.normalized = latency.e2e / progress.num_outputs;
  return latency;
}

class RequestProgressTable {
 public:
  RequestProgress& Reset(const SimRequest& request) {
    const auto slot = static_cast<size_t>(request.slot);
    if (slot >= rows_.size()) rows_.resize(slot + 1);
    rows_[slot] = RequestProgress();
    rows_[slot].row = request.spec.row;
    return rows_[slot];
  }
  RequestProgress& operator[](const SimRequest& request) {
    return rows_[static_cast<size_t>(request.slot)];
  }
  // Whether the request's arrival was seen; one that is given up before it arrived has no row.
  bool Has(const SimRequest& request) const {
    return request.slot >= 0 && static_cast<size_t>(request.slot) < rows_.size() &&
           rows_[static_cast<size_t>(request.slot)].row == request.spec.row;
  }

 private:
  std::vector<RequestProgress> rows_;
};

struct RequestRow {
  const SimRequest* request = nullptr;
  const RequestProgress* progress = nullptr;  // null: given up before it arrived
  std::optional<RequestLatency> latency;      // of requests that emitted a token
  SimTime end = 0;
  int32_t replica = -1;  // of several; -1: none had it
  bool knows_hits = true;
  std::string further = {};  // fields of further columns, as they stand in the line
};

class RequestRowSink {
 public:
  virtual ~RequestRowSink() = default;
  virtual void OnRow(const RequestRow& row) = 0;
};

// Several sinks as one.
class RequestRowList final : public RequestRowSink {
 public:
  // Not owned.
  void Add(RequestRowSink* sink) { sinks_.push_back(sink); }
  void OnRow(const RequestRow& row) override {
    for (RequestRowSink* sink : sinks_) sink->OnRow(row);
  }

 private:
  std::vector<RequestRowSink*> sinks_;
};

// Bytes on their way to a file, which take it in large pieces.
class BufferedSink {
 public:
  BufferedSink(std::unique_ptr<ByteSink> sink, std::string head)
      : sink_(std::move(sink)), buffer_(std::move(head)) {}

  void Append(std::string_view bytes);
  // Reports the first error of all writes. The file is complete only then.
  absl::Status Close();

 private:
  void Flush();

  std::unique_ptr<ByteSink> sink_;
  std::string buffer_;
  absl::Status status_;
};

class CsvRequestSink final : public RequestRowSink {
 public:
  // `further_columns`: names of columns behind the others. "replica" says which replica had the
  // request; empty: none. Else their fields are those of RequestRow::further.
  explicit CsvRequestSink(std::unique_ptr<ByteSink> sink, std::string further_columns = "");

  void OnRow(const RequestRow& row) override;
  // See BufferedSink.
  absl::Status Close() { return file_.Close(); }

  static std::string Header();
  static std::string Format(const RequestRow& row);  // without further columns

 private:
  const std::string further_columns_;
  BufferedSink file_;
};

// The field as written in a CSV line.
std::string CsvField(std::string_view text);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REQUEST_ROWS_H_
