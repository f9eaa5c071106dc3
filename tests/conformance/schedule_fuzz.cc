// Lines of recorded schedules: each is refused with the name of a field or gives values in the
// ranges that replaying relies on.

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>

#include "tests/conformance/schedule.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::conformance;

constexpr int64_t kRows = 4;

void CheckRows(const std::vector<int64_t>& rows) {
  for (const int64_t row : rows) FUZZ_EXPECT(row >= 0 && row < kRows, "row");
}

void Check(const ScheduleCall& call) {
  FUZZ_EXPECT(call.time >= 0 && call.num_free >= 0, "negative");
  FUZZ_EXPECT(call.parts.size() == call.num_emitted.size(), "one number per part");
  CheckRows(call.preempted);
  CheckRows(call.finished);
  for (const ScheduledPart& part : call.parts) {
    CheckRows({part.row});
    for (const auto& blocks : part.new_blocks) {
      for (const kvblocks::BlockId id : blocks) FUZZ_EXPECT(id >= 0, "block id");
    }
  }
}

void Check(const ScheduleAbort& abort) { CheckRows(abort.rows); }
void Check(const ScheduleEnd& end) { FUZZ_EXPECT(end.num_steps >= 0, "negative"); }

void Check(const Schedule& schedule) {
  const ScheduleConfig& config = schedule.config;
  FUZZ_EXPECT(config.num_blocks >= 2 && config.max_model_len >= 2 && config.step_ms >= 1,
              "config");
  for (const RecordedGroup& group : config.groups) FUZZ_EXPECT(group.block_size >= 1, "block size");
  int64_t last = 0, num_tokens = 0;
  for (const ScheduleRequest& request : schedule.requests) {
    FUZZ_EXPECT(request.arrival >= last, "order of arrival");
    last = request.arrival;
    num_tokens += request.num_prompt_tokens() + request.num_outputs;
  }
  FUZZ_EXPECT(num_tokens <= int64_t{1} << 26, "tokens");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  std::string_view rest = input.Rest();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string text(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto schedule = ParseSchedule(text);
    if (schedule.ok()) {
      Check(*schedule);
    } else {
      FUZZ_EXPECT(!schedule.status().message().empty(), "says nothing");
    }
    const auto line = ParseScheduleLine(text, kRows);
    if (!line.ok()) continue;
    std::visit([](const auto& what) { Check(what); }, *line);
    FUZZ_EXPECT(Agrees(*line, *line), "agrees with itself");
    FUZZ_EXPECT(!Describe(*line).empty(), "says nothing");
  }
  return 0;
}
