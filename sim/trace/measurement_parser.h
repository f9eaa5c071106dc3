// MeasurementParser: the requests that one line of a measurement file holds (measurement.h).

#ifndef KVBLOCKS_SIM_TRACE_MEASUREMENT_PARSER_H_
#define KVBLOCKS_SIM_TRACE_MEASUREMENT_PARSER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/trace/json_fields.h"
#include "sim/trace/line_rows.h"
#include "sim/trace/measurement.h"
#include "sim/trace/trace_problem.h"

namespace kvblocks::sim {

class MeasurementParser {
 public:
  virtual ~MeasurementParser() = default;

  // Appends the requests of a line, which has LineReader's padding, or what is wrong with it; `at`
  // is where problems are. A line may hold no request.
  void Parse(std::string_view text, TraceRequest* at, std::vector<MeasuredRequest>* requests,
             std::vector<TraceProblem>* problems) {
    at_ = at;
    requests_ = requests;
    problems_ = problems;
    request_ = MeasuredRequest();
    ParseLine(text);
  }

  int64_t num_warmup() const { return num_warmup_; }  // requests left out
  // "day_one", where times count from a day.
  const std::map<std::string, std::string>& notes() const { return notes_; }

 protected:
  virtual void ParseLine(std::string_view text) = 0;
  // A start in Unix time; what is wrong is reported as a value of `name`.
  void SetStart(int64_t unix_ns, const char* name, JsonFields* fields);
  void AddRequest() { requests_->push_back(std::move(request_)); }

  int64_t num_warmup_ = 0;
  std::map<std::string, std::string> notes_;
  DayClock clock_;
  // Of the line being read.
  TraceRequest* at_ = nullptr;
  std::vector<MeasuredRequest>* requests_ = nullptr;
  std::vector<TraceProblem>* problems_ = nullptr;
  MeasuredRequest request_;
};

// Null if there is no such format. `log` must outlive the parser.
std::unique_ptr<MeasurementParser> MakeMeasurementParser(std::string_view format,
                                                         const RowLog* log);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_MEASUREMENT_PARSER_H_
