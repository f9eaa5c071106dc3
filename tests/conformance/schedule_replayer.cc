#include "tests/conformance/schedule_replayer.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/drafting.h"
#include "sim/simulation.h"
#include "sim/simulation_config.h"
#include "sim/testing/replay.h"
#include "sim/trace/trace_request.h"
#include "tests/conformance/transcript.h"

namespace kvblocks::conformance {
namespace {

// --- A recorded schedule as what the simulator takes ---

constexpr int64_t kFirstOutputDocument = 100000;

absl::StatusOr<sim::DraftOptions> MakeDraftOptions(const ScheduleConfig& config) {
  sim::DraftOptions drafts;
  drafts.num_draft_tokens = config.num_drafts;
  if (config.num_drafts == 0) return drafts;
  const auto drafter = sim::ParseDrafter(config.method);
  if (!drafter) {
    return absl::InvalidArgumentError(absl::StrCat("unknown method \"", config.method, "\""));
  }
  drafts.drafter = *drafter;
  drafts.lookahead_hashes = config.lookahead_hashes;
  return drafts;
}

// InvalidArgument for what no simulation can be made of.
absl::StatusOr<sim::SimulationConfig> MakeSimulationConfig(const Schedule& schedule) {
  const ScheduleConfig& config = schedule.config;
  sim::SimulationConfig out;
  if (absl::Status status = sim::ApplyEnginePreset("vllm-0.33", &out); !status.ok()) return status;
  out.kv_cache.num_blocks = config.num_blocks;
  bool has_states = false;
  int64_t state_size = 1;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    auto spec = SpecOf(config.groups[g]);
    if (!spec.ok()) return spec.status();
    out.kv_cache.groups.push_back({.spec = *std::move(spec),
                                   .layer_names = {absl::StrCat("layer.", g)},
                                   .is_draft = config.groups[g].is_draft});
    if (config.groups[g].kind != "mamba") continue;
    has_states = true;
    if (config.block_size % config.groups[g].block_size == 0) {
      state_size = std::lcm(state_size, config.groups[g].block_size);
    }
  }
  if (has_states && state_size != config.block_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("field \"block_size\" is ", config.block_size,
                     ", expected the least common multiple of those of states, at which the "
                     "simulator ends parts of prompts"));
  }
  out.manager.max_model_len = config.max_model_len;
  out.manager.enable_caching = config.prefix_caching;
  out.manager.watermark = config.watermark;
  out.manager.block_count_formula = BlockCountFormula::kUpstream;  // for the gate
  out.manager.semantics = Semantics::Vllm033Exactly();
  out.manager.semantics.retention_interval = config.retention;
  sim::SchedulerOptions& scheduler = out.scheduler;
  scheduler.async = config.async;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens;
  scheduler.max_num_seqs = config.max_num_seqs;
  scheduler.max_num_active_seqs = config.max_num_active_seqs.value_or(0);
  scheduler.long_prefill_token_threshold = config.long_prefill_threshold;
  scheduler.adaptive_prefill_threshold = config.adaptive_threshold;
  scheduler.prefill_schedule_interval = config.prefill_interval;
  scheduler.enable_chunked_prefill = config.chunked_prefill;
  scheduler.policy =
      config.priority_policy ? sim::SchedulingPolicy::kPriority : sim::SchedulingPolicy::kFcfs;
  scheduler.reserve_full_isl = config.reserve_full_isl;
  // Pools of recordings are smaller than an engine would start with.
  scheduler.too_big = sim::TooBigRequest::kRun;
  const auto drafts = MakeDraftOptions(config);
  if (!drafts.ok()) return drafts.status();
  if (absl::Status status = sim::ApplyDrafts(*drafts, &out); !status.ok()) return status;
  out.manager.partial_hits = SupportsPartialHits(out.kv_cache, out.manager);
  return out;
}

// InvalidArgument if the engine derived other values from the settings than the simulator does.
absl::Status CheckDerived(const ScheduleDerived& recorded, const sim::SimulationConfig& config,
                          const KvCacheManager& manager) {
  const auto blocks = static_cast<double>(config.kv_cache.num_blocks);
  const struct {
    const char* name;
    std::optional<int64_t> recorded;
    int64_t here;
  } values[] = {
      {"lookahead_slots", recorded.lookahead_slots, config.scheduler.num_lookahead_tokens},
      {"hash_lookahead_tokens", recorded.hash_lookahead_tokens,
       config.manager.num_hash_lookahead_tokens},
      {"drop_last_hit_block", recorded.drop_last_hit_block, config.manager.use_eagle},
      {"draft_slots", recorded.draft_slots, config.scheduler.num_draft_slots},
      {"max_in_flight_tokens", recorded.max_in_flight_tokens, sim::MaxInFlightTokens(config)},
      {"steps_in_flight", recorded.steps_in_flight, config.scheduler.async ? 2 : 1},
      {"prefill_lookahead_tokens", recorded.prefill_lookahead_tokens,
       config.manager.prefill_lookahead_tokens},
      {"watermark_blocks", recorded.watermark_blocks,
       static_cast<int64_t>(config.manager.watermark * blocks)},
      {"scheduler_block_size", recorded.scheduler_block_size, manager.scheduler_block_size()},
      {"hash_block_size", recorded.hash_block_size, manager.hash_block_size()},
  };
  for (const auto& value : values) {
    if (!value.recorded || *value.recorded == value.here) continue;
    return absl::InvalidArgumentError(absl::StrCat("field \"derived\": ", value.name, " is ",
                                                   *value.recorded, ", but the simulator derives ",
                                                   value.here));
  }
  return absl::OkStatus();
}

// Every token of every document has a number of its own, so two tokens are equal iff document and
// position are; outputs of row r are the document 100000 + r.
absl::StatusOr<std::vector<sim::TraceRequest>> MakeTraceRequests(const Schedule& schedule) {
  std::map<int64_t, int64_t> length_of;  // of each document
  for (size_t row = 0; row < schedule.requests.size(); ++row) {
    const ScheduleRequest& request = schedule.requests[row];
    for (const TokenSegment& segment : request.prompt) {
      int64_t& length = length_of[segment.document];
      length = std::max(length, segment.start + segment.count);
    }
    int64_t& length = length_of[kFirstOutputDocument + static_cast<int64_t>(row)];
    length = std::max(length, request.num_outputs);
  }
  std::map<int64_t, int64_t> first_number_of;
  int64_t num_numbers = 0;
  for (const auto& [document, length] : length_of) {
    first_number_of[document] = num_numbers;
    num_numbers += length;
    if (num_numbers > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError("the documents have more than 2^32 tokens in all");
    }
  }

  std::vector<sim::TraceRequest> out;
  for (size_t row = 0; row < schedule.requests.size(); ++row) {
    const ScheduleRequest& request = schedule.requests[row];
    sim::TraceRequest trace;
    trace.row = static_cast<int64_t>(row);
    trace.line = trace.row + 1;
    trace.id = absl::StrCat(row);
    trace.arrival_ns = request.arrival * 1000000;
    trace.input_length = request.num_prompt_tokens();
    trace.output_length = request.num_outputs;
    trace.priority = static_cast<int32_t>(request.priority);
    trace.abort_after_ns = request.abort_after * 1000000;
    for (const TokenSegment& segment : request.prompt) {
      const int64_t first = first_number_of[segment.document] + segment.start;
      for (int64_t i = 0; i < segment.count; ++i) trace.content_ids.push_back(first + i);
    }
    const int64_t first_output = first_number_of[kFirstOutputDocument + trace.row];
    for (int64_t i = 0; i < request.num_outputs; ++i) {
      trace.output_ids.push_back(static_cast<uint32_t>(first_output + i));
    }
    // Each verification yields a token, so more entries than output tokens are never used.
    const size_t num_accepted = request.accepted_drafts.size();
    for (size_t i = 0; num_accepted > 0 && i < static_cast<size_t>(request.num_outputs); ++i) {
      trace.accepted_drafts.push_back(
          static_cast<uint32_t>(request.accepted_drafts[i % num_accepted]));
    }
    out.push_back(std::move(trace));
  }
  return out;
}

// --- What it does ---

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
  // A simulator that does more than the recording differs from it already.
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
