// RowChecker: the checks and completions that all trace formats share, row by row in file order.
//
// Lengths and their sum, numbers of content and output ids, order, duplicate request ids,
// dependencies (by name, by row and within a session), and, if asked for, what content ids say
// about themselves. All of them are made, so that a row's problems are all found at once. A good
// row leaves with its final id, turn, waits_for and an arrival that is not before that of any row
// it waits for.
//
// Memory: 8 bytes per row, plus one table entry per named request, per session, and (with
// check_ids) per content id.

#ifndef KVBLOCKS_SIM_TRACE_ROW_CHECKER_H_
#define KVBLOCKS_SIM_TRACE_ROW_CHECKER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {

// The earliest time at which a row may still arrive, as later ones have been handed out.
struct ArrivalBound {
  int64_t ns = -1;
  int64_t line = 0;    // of the row that was handed out
  int64_t window = 0;  // rows that may be out of order; 0: the file says that it is sorted
  int64_t bytes = 0;   // the memory of held rows that has cut the window short; 0: it has not
};

class RowChecker {
 public:
  RowChecker(const TraceReaderOptions& options, const TraceInfo& info, RowLog* log);

  // On success row->request is complete. Otherwise what is wrong is appended to `problems`, the row
  // counts as bad and nothing may depend on it.
  bool Check(RawRow* row, const ArrivalBound& bound, std::vector<TraceProblem>* problems);

 private:
  struct Session {
    int64_t last_row = -1;
    uint32_t next_turn = 0;
  };
  struct IdUse {
    absl::uint128 parent;
    int64_t tokens;
    int64_t line;
  };

  void CheckLengths(const TraceRequest& request);
  void CheckNumberOfIds(const TraceRequest& request);
  void CheckOrder(RawRow* row);
  void CheckName(const TraceRequest& request);
  void CheckDependencies(RawRow* row);
  void CheckNotTooLate(const TraceRequest& request, const ArrivalBound& bound);
  void CheckIds(const TraceRequest& request);
  void Accept(RawRow* row);
  void Note(const RawRow& row);
  void Bad(ProblemKind kind, std::string_view text);

  const bool require_sorted_;
  const bool check_ids_;
  const bool ids_are_unique_;
  const TraceInfo& info_;
  RowLog* log_;

  std::vector<int64_t> arrivals_;  // by row; -1: bad
  absl::flat_hash_map<std::string, int64_t> row_of_id_;
  absl::flat_hash_map<uint64_t, Session> sessions_;
  // By id and what the id is local to: the session's number, or 0.
  absl::flat_hash_map<std::pair<uint64_t, int64_t>, IdUse> id_uses_;
  bool has_unchecked_ids_ = false;
  const TraceRequest* request_ = nullptr;  // being checked
  std::vector<TraceProblem>* problems_ = nullptr;
  int64_t num_good_ = 0;
  bool all_named_ = false;  // of the good rows; either all have a request id or none has
  int64_t last_timestamp_ns_ = 0;
  int64_t last_line_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_ROW_CHECKER_H_
