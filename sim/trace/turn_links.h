// Turn links (SM-47): a guess at which prompts go on from an earlier prompt and its output, for
// traces that have block ids and no sessions.
//
// A request goes on from an earlier one if its ids begin with all ids of full blocks of the other
// one's prompt, one at least, and it is at least as long as the other one's prompt and output. Of
// several earlier ones the longest such path counts, then the longest text; each goes on at most
// once. Then the earlier one's output, and the end of its prompt behind the last full block, are
// what the later prompt has at their place. Nothing is linked where somebody else shares that end
// of a prompt, since that would then be lost.
//
// Memory: about 100 bytes per request, and the ids of outputs. The trace is read three times.

#ifndef KVBLOCKS_SIM_TRACE_TURN_LINKS_H_
#define KVBLOCKS_SIM_TRACE_TURN_LINKS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

// The note of a trace (TraceInfo) that says what linking did: how many were linked, and what an
// infinite cache hits with and without it.
inline constexpr const char* kTurnLinksNote = "turns_linked";

// Reads the trace, begins it anew, and gives it out linked. InvalidArgument for a trace without
// block ids, with sessions, or with contents of outputs.
absl::StatusOr<std::unique_ptr<TraceReader>> WithTurnLinks(std::unique_ptr<TraceReader> reader);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_TURN_LINKS_H_
