// Mooncake JSONL and its dialects: one JSON object per line.
//
// Fields (aliases): timestamp (created_time) in ms, input_length (input_tokens), output_length
// (output_tokens), hash_ids, block_size (512 if absent; 0: lengths only, 1: hash_ids are token
// ids), request_id, session_id, delay (delay_ms), tool_wait_ms, wait_for, priority,
// output_token_ids. To carry every request through a conversion we also write and read turn,
// min_tokens, encoder_tokens, abort_after_ms, tenant, slo_class, adapter, cache_salt, accepted_drafts. Other fields
// are checked to be valid JSON and ignored; null means absent.
//
// Rows of one session_id form a closed loop: each waits for the one before it, unless it has its
// own wait_for list, which then stands alone. A row without timestamp must wait for something.
//
// sequence_hash_ids takes the place of hash_ids: the ids of the prompt's blocks and, in the same
// count, those of the output's behind them, so that later prompts can share outputs.
//
// AIPerf's rows without hash_ids are conversations: a turn's input_length is what is new in it, and
// its prompt is all of the session so far, outputs included, and then that. So are its contents.
// Rows without a session share nothing.

#ifndef KVBLOCKS_SIM_TRACE_MOONCAKE_READER_H_
#define KVBLOCKS_SIM_TRACE_MOONCAKE_READER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

inline constexpr int64_t kMooncakeBlockTokens = 512;

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeMooncakeReader(std::unique_ptr<ByteSource> source,
                                                              const TraceReaderOptions& options,
                                                              RowLog* log);

absl::StatusOr<std::unique_ptr<RowSource>> MakeAiperfReader(std::unique_ptr<ByteSource> source,
                                                            const TraceReaderOptions& options,
                                                            RowLog* log);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_MOONCAKE_READER_H_
