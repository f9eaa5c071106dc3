#include "kvblocks/tests/conformance/schedule_replayer.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/simulation.h"
#include "kvblocks/sim/testing/replay.h"
#include "kvblocks/tests/conformance/gzip_lines.h"
#include "kvblocks/tests/conformance/schedule_workload.h"

namespace kvblocks::conformance {
namespace {

constexpr sim::SimTime kMillisecond = sim::kSecond / 1000;

// Writes down what a simulation does in the words of a recording.
class ScheduleWriter final : public sim::EngineObserver {
 public:
  explicit ScheduleWriter(int64_t max_in_flight) : max_in_flight_(max_in_flight) {}

  const std::vector<ScheduleLine>& lines() const { return lines_; }

  void OnPreemption(const sim::PreemptionRecord& record, sim::SimTime) override {
    preempted_.push_back(record.request->spec.row);
  }

  void OnStepScheduled(const sim::StepRecord& step) override {
    aborts_are_open_ = false;
    // A batch behind another one, and a call that gave no tokens, are followed by outputs.
    next_is_outputs_ = step.scheduled.empty();
    if (step.scheduled.empty() && preempted_.empty()) return;
    ScheduleCall call;
    call.time = step.start / kMillisecond;
    call.num_running = step.num_running;
    call.num_waiting = step.num_waiting;
    call.num_free = step.pool.num_free;
    call.preempted = std::exchange(preempted_, {});
    if (!step.scheduled.empty()) {
      call.step = step.step;
      for (const sim::ScheduledRecord& record : step.scheduled)
        call.parts.push_back(PartOf(record));
      under_way_.push_back(lines_.size());
      next_is_outputs_ = static_cast<int64_t>(under_way_.size()) == max_in_flight_;
    }
    lines_.emplace_back(std::move(call));
  }

  void OnStepFinished(const sim::StepRecord& step) override {
    aborts_are_open_ = false;
    next_is_outputs_ = false;
    finished_ = under_way_.front();
    under_way_.pop_front();
    auto& call = std::get<ScheduleCall>(lines_[finished_]);
    call.start = step.device_start / kMillisecond;
    for (const sim::OutputRecord& output : step.outputs) {
      call.num_emitted.push_back(output.num_emitted);
    }
  }

  void OnFinish(const sim::SimRequest& request, sim::SimTime now) override {
    if (request.finish_reason != sim::FinishReason::kAbort) {
      std::get<ScheduleCall>(lines_[finished_]).finished.push_back(request.spec.row);
      return;
    }
    if (!aborts_are_open_) {
      lines_.emplace_back(ScheduleAbort{
          .rows = {}, .time = now / kMillisecond, .before_outputs = next_is_outputs_});
      aborts_are_open_ = true;
    }
    std::get<ScheduleAbort>(lines_.back()).rows.push_back(request.spec.row);
  }

  void Finish(const sim::Simulation& simulation) {
    const BlockPool& pool = simulation.manager().pool();
    uLong crc = crc32(0, nullptr, 0);
    for (const BlockId id : pool.free_queue().Walk()) {
      const auto word = static_cast<uint32_t>(id);
      const std::array<Bytef, 4> bytes = {static_cast<Bytef>(word), static_cast<Bytef>(word >> 8),
                                          static_cast<Bytef>(word >> 16),
                                          static_cast<Bytef>(word >> 24)};
      crc = crc32(crc, bytes.data(), bytes.size());
    }
    lines_.emplace_back(ScheduleEnd{.time = simulation.result().end_time / kMillisecond,
                                    .num_steps = simulation.result().scheduler.num_steps,
                                    .num_free = pool.num_free(),
                                    .queue_crc = static_cast<uint32_t>(crc),
                                    .num_keyed_blocks = pool.num_keyed_blocks()});
  }

 private:
  ScheduledPart PartOf(const sim::ScheduledRecord& record) const {
    ScheduledPart part;
    part.row = record.request->spec.row;
    part.num_tokens = record.num_tokens;
    if (record.is_admission) part.num_hit_tokens = record.num_context;
    part.num_verified_drafts = record.num_verified_drafts;
    part.new_blocks.resize(static_cast<size_t>(num_groups_));
    for (size_t g = 0; record.num_new_blocks > 0 && g < record.new_blocks.num_groups(); ++g) {
      for (const BlockId id : record.new_blocks.blocks(static_cast<GroupId>(g))) {
        if (id != kNullBlockId) part.new_blocks[g].push_back(id);
      }
    }
    return part;
  }

  void OnRunStart(const sim::RunInfo& info) override { num_groups_ = info.manager->num_groups(); }

  int64_t max_in_flight_;
  int64_t num_groups_ = 0;
  std::vector<ScheduleLine> lines_;
  std::vector<int64_t> preempted_;
  std::deque<size_t> under_way_;  // lines of steps
  size_t finished_ = 0;           // line of the step that finished last
  bool next_is_outputs_ = false;
  bool aborts_are_open_ = false;  // the last line is of aborts at this very moment
};

absl::Status AtLine(const std::string& name, size_t line, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ":", line, ": ", status.message()));
}

}  // namespace

absl::StatusOr<ScheduleReplayResult> ReplayScheduleFile(const std::string& path,
                                                        const ScheduleReplayOptions& options) {
  const auto lines = ReadLines(path);
  if (!lines.ok()) return lines.status();
  return ReplayScheduleLines(path, *lines, options);
}

absl::StatusOr<ScheduleReplayResult> ReplayScheduleLines(const std::string& name,
                                                         const std::vector<std::string>& lines,
                                                         const ScheduleReplayOptions& options) {
  if (lines.size() < 2) return absl::InvalidArgumentError(absl::StrCat(name, ": no schedule"));
  const auto schedule = ParseSchedule(lines[0]);
  if (!schedule.ok()) return AtLine(name, 1, schedule.status());
  auto config = MakeSimulationConfig(*schedule);
  if (!config.ok()) return AtLine(name, 1, config.status());
  config->scheduler.exact_steps = options.exact_steps;
  config->progress_interval = 1;
  auto requests = MakeTraceRequests(*schedule);
  if (!requests.ok()) return AtLine(name, 1, requests.status());
  const auto num_rows = static_cast<int64_t>(schedule->requests.size());
  std::vector<ScheduleLine> recorded;
  for (size_t i = 1; i < lines.size(); ++i) {
    auto line = ParseScheduleLine(lines[i], num_rows);
    if (!line.ok()) return AtLine(name, i + 1, line.status());
    recorded.push_back(*std::move(line));
  }

  sim::TraceInfo info;
  info.format = "schedule";
  info.block_tokens = 1;
  sim::VectorTraceReader reader(info, *std::move(requests));
  const auto step_time = sim::MakeFixedStepTime(schedule->config.step_ms * kMillisecond);
  if (!step_time.ok()) return AtLine(name, 1, step_time.status());
  ScheduleWriter writer(config->scheduler.async ? 2 : 1);
  auto simulation = sim::Simulation::Create(*config, &reader, step_time->get(), {&writer});
  if (!simulation.ok()) return AtLine(name, 1, simulation.status());
  if (schedule->derived) {
    const absl::Status status =
        CheckDerived(*schedule->derived, *config, (*simulation)->manager());
    if (!status.ok()) return AtLine(name, 1, status);
  }
  // Whoever does more than the recording differs from it already.
  (*simulation)->set_progress([&](const sim::SimulationProgress&) {
    return writer.lines().size() <= recorded.size();
  });
  const absl::Status status = (*simulation)->Run();
  if (status.ok()) writer.Finish(**simulation);

  ScheduleReplayResult result;
  result.num_steps = (*simulation)->result().scheduler.num_steps;
  const std::vector<ScheduleLine>& replayed = writer.lines();
  for (size_t i = 0; i < std::max(recorded.size(), replayed.size()); ++i) {
    if (i < std::min(recorded.size(), replayed.size()) && Agrees(recorded[i], replayed[i])) {
      continue;
    }
    result.differing_line = static_cast<int64_t>(i) + 2;
    result.difference = absl::StrCat(
        "\n  recorded: ", i < recorded.size() ? Describe(recorded[i]) : "no more lines",
        "\n  replayed: ",
        i < replayed.size() ? Describe(replayed[i])
                            : absl::StrCat("the run ended: ", status.ToString()));
    break;
  }
  return result;
}

}  // namespace kvblocks::conformance
