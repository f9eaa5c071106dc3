// Azure LLM inference traces of 2023 and 2024: CSV with the header
// TIMESTAMP,ContextTokens,GeneratedTokens.
//
// Timestamps are YYYY-MM-DD hh:mm:ss with 0 to 9 fractional digits, an optional T, and an optional
// Z or +hh:mm. Arrivals count from midnight (UTC) of the first row's day, which is kept as the note
// "day_one". Lengths only: the format has no content identity.

#ifndef KVBLOCKS_SIM_TRACE_AZURE_READER_H_
#define KVBLOCKS_SIM_TRACE_AZURE_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {

// `log` must outlive the result.
absl::StatusOr<std::unique_ptr<RowSource>> MakeAzureReader(std::unique_ptr<ByteSource> source,
                                                           const TraceReaderOptions& options,
                                                           RowLog* log);

struct CivilTime {
  int64_t day = 0;  // since 1970-01-01, UTC
  int64_t ns_of_day = 0;
};

absl::StatusOr<CivilTime> ParseAzureTimestamp(std::string_view text);
// The inverse, with 7 fractional digits, or 9 if they are needed.
std::string FormatAzureTimestamp(int64_t day, int64_t ns);
// "2023-11-16"; the inverse of what stands in the note "day_one".
std::string FormatDay(int64_t day);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TRACE_AZURE_READER_H_
