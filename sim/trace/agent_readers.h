// Readers of JSONL workloads of agents: one request or one session of requests per line.
//
// LLMServingSim     flat rows: input_toks, output_toks, arrival_time_ns, and input_tok_ids and
//                   output_tok_ids if there. Sessions: session_id, arrival_time_ns and
//                   sub_requests, each with input_toks, output_toks, token ids if there, and
//                   tool_duration_ns, after which the next one follows. Both may stand in one file.
//                   Either all requests have ids of their prompts or none has; without them nothing
//                   is shared.
// Applied Compute   num_turns, input_prompt_length, assistant_response_length (one per turn),
//                   tool_call_output_length (one less) and tool_call_latency (s, as many). A turn's
//                   prompt is all of the session before it and the output of the tool. All sessions
//                   start at 0.
// TraceLab          a round per line: session_id, prefix_tokens, newly_append_tokens, output_tokens,
//                   and timing_events. A round's prompt is the first prefix_tokens of the session
//                   before it, in blocks of 64 tokens unless it is all of it, and new ones. Sessions
//                   start at 0; the next round follows after the recorded time between the last
//                   output and the input that it waited for.
//
// Always: a line is good or bad as a whole.

#ifndef KVBLOCKS_SIM_TRACE_AGENT_READERS_H_
#define KVBLOCKS_SIM_TRACE_AGENT_READERS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeLlmServingSimReader(
    std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log);
absl::StatusOr<std::unique_ptr<RowSource>> MakeAppliedComputeReader(
    std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log);
absl::StatusOr<std::unique_ptr<RowSource>> MakeTraceLabReader(std::unique_ptr<ByteSource> source,
                                                              const TraceReaderOptions& options,
                                                              RowLog* log);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_AGENT_READERS_H_
