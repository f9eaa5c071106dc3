// Schedule: what a serving engine's scheduler was recorded to do with a list of requests, one JSON
// object per line: settings and requests, then each call of the scheduler with what came out of it.
//
// Parsing checks settings and requests: the format, the kind of every value and the ranges that
// replaying relies on; it knows nothing of schedulers. Lines of calls are compared as they are.
// Times are milliseconds. The position of a request in the list is its row.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_H_
#define KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/conformance/field_reader.h"

namespace kvblocks::conformance {

struct ScheduleConfig {
  bool async = false;
  int64_t num_blocks = 0;
  int64_t block_size = 0;  // of states, where there are any
  std::vector<RecordedGroup> groups;
  int64_t max_num_seqs = 0;
  int64_t max_num_batched_tokens = 0;
  int64_t max_model_len = 0;
  bool priority_policy = false;
  bool chunked_prefill = false;
  int64_t long_prefill_threshold = 0;
  double watermark = 0;
  bool reserve_full_isl = false;
  int64_t num_drafts = 0;
  std::string method;  // of drafting; empty: none
  bool lookahead_hashes = false;
  std::optional<int64_t> retention;
  bool prefix_caching = false;
  int64_t step_ms = 0;
  std::optional<int64_t> max_num_active_seqs;
  bool adaptive_threshold = false;
  int64_t prefill_interval = 1;
};

struct ScheduleRequest {
  int64_t arrival = 0;
  std::vector<TokenSegment> prompt;
  int64_t num_outputs = 0;
  int64_t priority = 0;
  int64_t abort_after = 0;  // 0: never
  std::vector<int64_t> accepted_drafts;

  int64_t num_prompt_tokens() const;
};

struct Schedule {
  ScheduleConfig config;
  // What the engine made of the settings, as far as it was recorded; 1 for true.
  std::map<std::string, int64_t> derived;
  std::vector<ScheduleRequest> requests;
};

// InvalidArgument says which field is missing or wrong.
absl::StatusOr<Schedule> ParseSchedule(const std::string& line);
// A line behind the first: the text of each value by its name. Empty lists are left out, since a
// recording may leave them out.
using ScheduleLine = std::map<std::string, std::string>;

absl::StatusOr<ScheduleLine> ParseScheduleLine(const std::string& line);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_H_
