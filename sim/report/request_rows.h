// RequestRow: what is known of one request when it ends; RequestRowSink takes them as they come.
//
// CsvRequestSink writes RFC 4180: CRLF line ends, one header line, fields with commas, quotes or
// line ends in quotes. Times are milliseconds of simulated time; what a request never reached is
// empty.

#ifndef KVBLOCKS_SIM_REPORT_REQUEST_ROWS_H_
#define KVBLOCKS_SIM_REPORT_REQUEST_ROWS_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/engine/sim_request.h"
#include "kvblocks/sim/report/request_progress.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {

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

class CsvRequestSink final : public RequestRowSink {
 public:
  // `further_columns`: names of columns behind the others. "replica" says which replica had the request;
  // empty: none. Else their fields are those of RequestRow::further.
  explicit CsvRequestSink(std::unique_ptr<ByteSink> sink, std::string further_columns = "");

  void OnRow(const RequestRow& row) override;
  // Reports the first error of all writes. The file is complete only then.
  absl::Status Close();

  static std::string Header();
  static std::string Format(const RequestRow& row);  // without further columns

 private:
  void Flush();

  std::unique_ptr<ByteSink> sink_;
  const std::string further_columns_;
  std::string buffer_;
  absl::Status status_;
};

// The field as it stands in a CSV line.
std::string CsvField(std::string_view text);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REQUEST_ROWS_H_
