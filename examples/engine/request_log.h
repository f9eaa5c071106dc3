// RequestLog: the times of each request that ended with all its output, as the JSONL log that
// kvsim calibrate takes for a measured run (docs/traces.md).
//
// Lines are in the order of the trace, which is how calibrate finds the request of each. Held in
// memory until Text is asked for: about 200 bytes a request.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_REQUEST_LOG_H_
#define KVBLOCKS_EXAMPLES_ENGINE_REQUEST_LOG_H_

#include <cstdint>
#include <map>
#include <string>

#include "sim/report/request_rows.h"

namespace kvblocks::engine {

class RequestLog final : public sim::RequestRowSink {
 public:
  void OnRow(const sim::RequestRow& row) override;
  std::string Text() const;

 private:
  std::map<int64_t, std::string> lines_;  // by row of the trace
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_REQUEST_LOG_H_
