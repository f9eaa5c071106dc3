// Arrivals: when the requests of a trace reach the engine - at their own times, after the requests
// they wait for, or as fast as a number of concurrent sessions allows.
//
// Reads the trace no further than the clock needs. A request with dependencies arrives at
// max(own time, last finish of its dependencies + think time). With a concurrency of k, whenever
// fewer than k sessions are active the next one starts: its first turn arrives at once, and its
// other turns keep their distance to the first. A session is active while a turn of it that was
// read is unfinished; up to kReadAhead rows are read early to find a session's turns. A request
// without a session is one of its own.
//
// Memory: live requests, bounded by CheckHeldBytes; 8 bytes per row read, and one entry per session
// if sessions matter.

#ifndef KVBLOCKS_SIM_ARRIVALS_H_
#define KVBLOCKS_SIM_ARRIVALS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/cost/sim_time.h"
#include "sim/engine/request_store.h"
#include "sim/engine/sim_request.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

class Arrivals {
 public:
  static constexpr size_t kReadAhead = 1024;

  // Of closed loops. The first sessions start one by one within `jitter`, drawn at random but
  // always the same, so that sessions of equal length do not march in step; each later one starts
  // `delay` after another ended.
  struct Starts {
    SimTime jitter = 0;
    SimTime delay = 0;
  };

  // `concurrency` 0: arrival times as the trace has them. Neither pointer is owned.
  Arrivals(TraceReader* reader, RequestStore* store, int64_t concurrency, const Starts& starts)
      : reader_(reader), store_(store), concurrency_(concurrency), starts_(starts) {}

  // The next request with an arrival time <= now, in (time, submission index) order, its `arrival`
  // set; null if there is none. An error is the trace's or the clock's.
  absl::StatusOr<SimRequest*> TakeDue(SimTime now);

  // When the next request arrives as far as is known now; empty: only after others have finished,
  // or never.
  absl::StatusOr<std::optional<SimTime>> NextTime(SimTime now);

  // To be called once for every request when it is over in whatever way, before it leaves the
  // store: requests that wait for it may arrive.
  absl::Status Resolve(const SimRequest& request, SimTime now);

  // Marks a session as given up and returns its turns that were read and have not begun to run, in
  // submission order. The caller ends them, and Resolves each.
  std::vector<SimRequest*> GiveUpSession(uint64_t session);
  // Turns, read since the last call, of sessions given up; to be ended and Resolved as well.
  std::vector<SimRequest*> TakeGivenUp() { return std::exchange(given_up_, {}); }

 private:
  struct Due {
    SimTime time;
    int64_t row;
    friend bool operator>(const Due& a, const Due& b) {
      return a.time != b.time ? a.time > b.time : a.row > b.row;
    }
  };
  struct Pending {
    int64_t num_unresolved = 0;
    bool has_dependencies = false;
    SimTime last_finish = 0;
    SimTime own_time = 0;
  };
  struct Session {
    SimTime shift = 0;           // from the trace's times to the simulation's
    int64_t num_unresolved = 0;  // turns entered and not over
  };
  struct Held {
    TraceRequest request;
    uint64_t session;
  };

  absl::Status Peek();
  absl::Status Enter(TraceRequest request, uint64_t session, SimTime shift);
  absl::Status SetDue(const SimRequest& request, const Pending& pending);
  absl::Status FillSessions(SimTime now);
  absl::Status ReadAhead();
  absl::Status StartSession(SimTime now);
  SimTime NextStart(SimTime now);
  uint64_t SessionOf(const TraceRequest& request) const;
  void DropStale();

  TraceReader* reader_;
  RequestStore* store_;
  int64_t concurrency_;
  const Starts starts_;
  int64_t num_started_ = 0;  // sessions of a closed loop

  std::optional<TraceRequest> next_;  // the row that was read last
  bool is_at_end_ = false;

  std::priority_queue<Due, std::vector<Due>, std::greater<Due>> due_;  // may name requests gone
  absl::flat_hash_map<int64_t, SimRequest*> unresolved_;               // by row: read and not over
  absl::flat_hash_map<int64_t, std::vector<int64_t>> dependents_;      // rows, by row waited for
  std::vector<Pending> pending_;                                       // by slot
  std::vector<SimTime> finish_times_;                                  // by row
  absl::flat_hash_set<uint64_t> given_up_sessions_;
  std::vector<SimRequest*> given_up_;

  // With concurrency only.
  std::list<Held> held_;                             // turns of sessions that have not started
  int64_t held_bytes_ = 0;                           // of them, about
  absl::flat_hash_map<uint64_t, Session> sessions_;  // started
  int64_t num_active_ = 0;                           // of them
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ARRIVALS_H_
