// RequestSelector: which request of a trace a user means - by its id, its row or its line.
//
//   "chat-17"    the id, as the trace gives it; without ids the row is the id
//   "row:17"     the submission index, from 0
//   "line:18"    the line of the file, from 1
//   "id:row:17"  an id that looks like one of the others

#ifndef KVBLOCKS_SIM_REPORT_REQUEST_SELECTOR_H_
#define KVBLOCKS_SIM_REPORT_REQUEST_SELECTOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/trace_request.h"

namespace kvblocks::sim {

class RequestSelector {
 public:
  // InvalidArgument for an empty text and for a row or line that is no whole number.
  static absl::StatusOr<RequestSelector> Parse(std::string_view text);

  bool Matches(const TraceRequest& request) const {
    switch (kind_) {
      case Kind::kId:
        return request.id == id_;
      case Kind::kRow:
        return request.row == number_;
      case Kind::kLine:
        return request.line == number_;
    }
    return false;
  }
  // Empty if it selects by row or line.
  const std::string& id() const { return id_; }

 private:
  enum class Kind { kId, kRow, kLine };

  Kind kind_ = Kind::kId;
  std::string id_;
  int64_t number_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REQUEST_SELECTOR_H_
