// Schedule: what a serving engine's scheduler was recorded to do with a list of requests, one JSON
// object per line: settings and requests, then each call of the scheduler with what came out of it.
//
// Parsing checks the format, the kind of every value and the ranges that replaying relies on; it
// knows nothing of schedulers. Times are milliseconds. The position of a request in the list is its
// row.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_H_
#define KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
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

// What the engine made of the settings.
struct ScheduleDerived {
  int64_t lookahead_slots = 0;
  int64_t hash_lookahead_tokens = 0;
  bool drop_last_hit_block = false;
  int64_t draft_slots = 0;
  int64_t max_in_flight_tokens = 0;
  int64_t steps_in_flight = 0;
  // Of the block manager; not all recordings have them.
  std::optional<int64_t> watermark_blocks, scheduler_block_size, hash_block_size,
      prefill_lookahead_tokens;
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
  std::optional<ScheduleDerived> derived;
  std::vector<ScheduleRequest> requests;
};

// A request's part of a step.
struct ScheduledPart {
  int64_t row = 0;
  int64_t num_tokens = 0;
  std::optional<int64_t> num_hit_tokens;  // of a request that enters
  BlockLists new_blocks;
  int64_t num_verified_drafts = 0;

  friend bool operator==(const ScheduledPart&, const ScheduledPart&) = default;
};

// A call of the scheduler that gave tokens or preempted.
struct ScheduleCall {
  int64_t time = 0;
  // What a recording leaves out is not compared.
  std::optional<int64_t> num_running, num_waiting;
  int64_t num_free = 0;
  std::vector<int64_t> preempted;
  // With tokens only:
  std::optional<int64_t> step;
  std::optional<int64_t> start;
  std::vector<ScheduledPart> parts;
  std::vector<int64_t> num_emitted;  // per part
  std::vector<int64_t> finished;
};

struct ScheduleAbort {
  std::vector<int64_t> rows;
  int64_t time = 0;
  bool before_outputs = false;  // of a step under way; else between steps

  friend bool operator==(const ScheduleAbort&, const ScheduleAbort&) = default;
};

struct ScheduleEnd {
  int64_t time = 0;
  int64_t num_steps = 0;
  int64_t num_free = 0;
  uint32_t queue_crc = 0;
  int64_t num_keyed_blocks = 0;

  friend bool operator==(const ScheduleEnd&, const ScheduleEnd&) = default;
};

using ScheduleLine = std::variant<ScheduleCall, ScheduleAbort, ScheduleEnd>;

// InvalidArgument says which field is missing or wrong.
absl::StatusOr<Schedule> ParseSchedule(const std::string& line);
// `num_rows`: of the schedule's requests.
absl::StatusOr<ScheduleLine> ParseScheduleLine(const std::string& line, int64_t num_rows);

// Whether they agree on all that `recorded` has.
bool Agrees(const ScheduleLine& recorded, const ScheduleLine& replayed);
// On one line, for messages.
std::string Describe(const ScheduleLine& line);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_H_
