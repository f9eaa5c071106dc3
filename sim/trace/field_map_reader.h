// Any CSV or JSONL as a trace, by naming its columns:
// --fields=input_length=prompt_tokens,arrival_s=ts.
//
// Left of each equals sign stands a field, right of it the column of a CSV header or the path of a
// JSON field ("usage.prompt"). Fields:
//   input_length, output_length        tokens; both are needed
//   arrival_s, _ms, _us, _ns, arrival  when; the last one is a date and time (civil_time.h),
//                                      counted from midnight (UTC) of the first row's day. Without
//                                      any of them all requests arrive at 0
//   ids                                content ids, of which --trace-block-size says how many
//                                      tokens each stands for: a JSON list, or a text of numbers
//                                      from 0 to 2^64-1 with blanks, commas, ; or | between them
//   id, session, turn, priority, min_tokens, encoder_tokens, tenant, slo_class, adapter, salt
//   think_s, _ms, _us, _ns             after the request before in the session
//   abort_after_s, _ms, _us, _ns
// An empty text or null means that a row does not have the field. A row without arrival or with a
// think time waits for the one before it in its session. Times are rounded to 1 ns. No field and no
// column may be named twice.

#ifndef KVBLOCKS_SIM_TRACE_FIELD_MAP_READER_H_
#define KVBLOCKS_SIM_TRACE_FIELD_MAP_READER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeFieldMapReader(std::unique_ptr<ByteSource> source,
                                                              const TraceReaderOptions& options,
                                                              RowLog* log);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_FIELD_MAP_READER_H_
