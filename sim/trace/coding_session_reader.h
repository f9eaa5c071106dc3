// Sessions of coding agents, as kv-cache-tester records them: one JSON document per session, one
// document per line.
//
// A session has id, block_size (64 if absent), hash_id_scope (local, the default: hash_ids mean
// something within the session only; global: in the whole file) and requests. A request has t
// (seconds), type (n or s, which are the same here), in, out, hash_ids (one per full block of the
// prompt; the rest of the prompt is shared with nobody) and may have api_time and think_time
// (seconds). An entry of type subagent has t and requests of its own, whose t count from it; they
// share the session's scope. What else the recorder writes is checked to be JSON and ignored; null
// means absent.
//
// Every session is a closed loop that starts at 0. A request waits for the one before it in its
// list and, after sub-agents, for all of them as well; the sub-agents between two requests run side
// by side. It then thinks for think_time, or, if the session does not say, for as long as the
// recording shows between the end of what it waits for (t + api_time) and t. A request after
// sub-agents thinks for the shorter of both, as it is not told whether think_time has the
// sub-agents' time in it. A sub-agent's first request takes the time that the recording shows.
//
// Always: a session is good or bad as a whole, since a loop without one of its turns is not what
// was recorded. Requests are named SESSION/INDEX, those of sub-agents SESSION/INDEX/INDEX. Memory:
// one session at a time, and one table entry per session name.

#ifndef KVBLOCKS_SIM_TRACE_CODING_SESSION_READER_H_
#define KVBLOCKS_SIM_TRACE_CODING_SESSION_READER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeCodingSessionReader(
    std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_CODING_SESSION_READER_H_
