#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/cost/kernel_tables.h"
#include "sim/cost/nodes.h"
#include "sim/cost/pipeline.h"
#include "sim/cost/recorded_steps.h"
#include "sim/cost/roofline.h"
#include "sim/cost/table_clock.h"
#include "specs/catalogue/pipeline_stages.h"

namespace kvblocks::sim {
namespace {

// What `text` says, or `otherwise` where it is empty.
absl::StatusOr<SimTime> TimeOption(absl::string_view flag, const std::string& text, SimTime low,
                                   SimTime otherwise) {
  if (text.empty()) return otherwise;
  const auto time = ParseDuration(text);
  if (time.ok() && *time >= low) return *time;
  return InvalidArgument(flag, ": got \"", text, "\", expected ",
                         time.ok() ? "more than 0s" : "a time with a unit, like 20ms or 1.5s");
}

// Every duration is read, also those that the chosen clock does not use: a bad one is an error.
struct Times {
  SimTime step = 0, draft = 0;
  std::optional<SimTime> fixed, per_layer, per_sequence;
  SimTime prefill_per_layer = 0;
};

absl::StatusOr<Times> ReadTimes(const ReplayConfig& config) {
  Times times;
  KVBLOCKS_ASSIGN_OR_RETURN(times.step, TimeOption("--step-time", config.step_time(), 1, 1));
  KVBLOCKS_ASSIGN_OR_RETURN(times.draft, TimeOption("--draft-time", config.draft_time(), 0, 0));
  KVBLOCKS_ASSIGN_OR_RETURN(times.prefill_per_layer,
                            TimeOption("--prefill-time-per-layer", config.prefill_time_per_layer(),
                                       0, 100 * kMicrosecond));
  for (const auto& [flag, text, out] :
       {std::tuple("--fixed-time", config.fixed_time(), &times.fixed),
        std::tuple("--time-per-layer", config.time_per_layer(), &times.per_layer),
        std::tuple("--time-per-sequence", config.time_per_sequence(), &times.per_sequence)}) {
    KVBLOCKS_ASSIGN_OR_RETURN(const SimTime time, TimeOption(flag, text, 0, 0));
    if (!text.empty()) *out = time;
  }
  return times;
}

class ClockMaker {
 public:
  ClockMaker(const ReplayConfig& config, const ModelOnDevice& hardware, const Times& times,
             double kv_bytes)
      : config_(config), hardware_(hardware), times_(times), kv_bytes_(kv_bytes) {}

  // Once, for the target and the drafter.
  absl::Status LoadTables();

  bool has_tables() const { return tables_.has_value(); }
  const std::string& note() const { return note_; }

  absl::StatusOr<std::unique_ptr<StepTimeModel>> Make(const ModelFacts& model) const;

  // From a pipeline stage of the target to the next.
  absl::StatusOr<SendTime> SendBehind(int64_t stage) const {
    constexpr SimTime kLatency = 5 * kMicrosecond;  // of a message, as of a collective
    const DeviceFacts& device = hardware_.device;
    const int64_t ranks = config_.tensor_parallel();
    const bool leaves = LeavesNode(stage, ranks, device);
    return MakeSendTime(hardware_.model.hidden_size, ranks,
                        leaves ? device.node_gb_per_s : device.link_gb_per_s, kLatency);
  }

 private:
  RooflineOptions RooflineOf(const ModelFacts& model) const;

  const ReplayConfig& config_;
  const ModelOnDevice& hardware_;
  const Times& times_;
  const double kv_bytes_;
  std::optional<KernelTables> tables_;
  std::string note_;
};

absl::Status ClockMaker::LoadTables() {
  const bool must = config_.time() == "table" || !config_.kernel_tables().empty();
  const std::string path =
      config_.kernel_tables().empty() ? FindKernelTablesFile() : config_.kernel_tables();
  if (path.empty()) {
    const std::string missing =
        "no kernel tables beside kvsim (kernel_tables.pb, ../share/kvblocks); name the file with "
        "--kernel-tables";
    if (must) return absl::NotFoundError(absl::StrCat("--time: ", missing));
    note_ = absl::StrCat("step times by the roofline: ", missing);
    return absl::OkStatus();
  }
  auto tables = LoadKernelTables(path, hardware_.device.name);
  if (tables.ok()) {
    tables_ = *std::move(tables);
    return absl::OkStatus();
  }
  // Without being asked for, tables that lack the device are no error; a damaged file always is.
  if (!must && absl::IsNotFound(tables.status())) return absl::OkStatus();
  return absl::Status(tables.status().code(),
                      absl::StrCat("--kernel-tables: ", tables.status().message()));
}

RooflineOptions ClockMaker::RooflineOf(const ModelFacts& model) const {
  return {.device = hardware_.device,
          .model = model,
          .tensor_parallel = config_.tensor_parallel(),
          .data_parallel = IsInLockstep(config_, hardware_.model) ? config_.data_parallel() : 1,
          .decode_context_parallel = config_.decode_context_parallel(),
          .compute_efficiency = config_.compute_efficiency(),
          .memory_efficiency = config_.memory_efficiency(),
          .kv_bytes_per_element = kv_bytes_,
          .kv_cache_dtype = config_.kv_cache_dtype(),
          .fixed_time = times_.fixed.value_or(kMillisecond),
          .time_per_layer = times_.per_layer.value_or(78 * kMicrosecond),
          .time_per_sequence = times_.per_sequence.value_or(0),
          .calibration = config_.calibration()};
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> ClockMaker::Make(const ModelFacts& model) const {
  // Attention was measured with all of a sequence's context on each rank.
  const bool is_spread = config_.decode_context_parallel() > 1;
  if (is_spread && config_.time() == "table") {
    return InvalidArgument(
        "--time: got \"table\", expected roofline or auto next to --decode-context-parallel");
  }
  if (tables_ && !is_spread) {
    TableClockOptions options;
    options.layers.roofline = RooflineOf(model);
    // Ranks divide each expert, or have some of them whole.
    const int64_t all_ranks =
        options.layers.roofline.tensor_parallel * options.layers.roofline.data_parallel;
    if (all_ranks > 1) {
      options.layers.expert_parallel = config_.expert_parallel() ? all_ranks : 1;
      options.layers.expert_tensor_parallel = config_.expert_parallel() ? 1 : all_ranks;
    }
    // Cached rows of one byte are measured as fp8.
    if (kv_bytes_ == 1) options.layers.kv_dtype = "fp8";
    options.layer_overhead = times_.per_layer.value_or(options.layer_overhead);
    options.block_layer_overhead = times_.per_layer.value_or(options.block_layer_overhead);
    options.estimated_layer_overhead = times_.per_layer.value_or(options.estimated_layer_overhead);
    // Given, it is all of it.
    if (times_.per_layer) options.rank_overhead = 0;
    options.mixed_layer_overhead = times_.prefill_per_layer;
    if (!config_.async()) options.sequence_overhead = kSequenceOverheadSync;
    options.sequence_overhead = times_.per_sequence.value_or(options.sequence_overhead);
    options.prefill_factor = config_.prefill_factor();
    options.expert_prefill_factor = config_.expert_prefill_factor();
    options.fixed_time = times_.fixed.value_or(0);
    options.calibration = config_.calibration();
    options.max_num_tokens = config_.max_num_batched_tokens();
    options.max_num_seqs = config_.max_num_seqs();
    options.max_sequence_len = config_.max_model_len();
    auto clock = MakeTableClock(*tables_, options);
    if (clock.ok() || config_.time() == "table" || !absl::IsFailedPrecondition(clock.status())) {
      return clock;
    }
  }
  return MakeRoofline(RooflineOf(model));
}

// Adds what a drafter takes to a clock.
using DraftWrapper = std::function<absl::StatusOr<std::unique_ptr<StepTimeModel>>(
    std::unique_ptr<StepTimeModel>)>;

// The clock of all layers, or of some of them.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeTarget(const ReplayConfig& config,
                                                          const ModelFacts& model,
                                                          const Times& times,
                                                          const ClockMaker& maker) {
  if (config.time() == "fixed") return MakeFixedStepTime(times.step);
  if (config.time() == "recorded") {
    if (IsInLockstep(config, model)) {
      return BadOption("--data-parallel", absl::StrCat(config.data_parallel()),
                       "1 with --time=recorded, of whose steps the experts' part is not known");
    }
    if (config.step_times().empty()) {
      return InvalidArgument("--time=recorded needs --step-times=FILE");
    }
    return LoadRecordedSteps(config.step_times());
  }
  return maker.Make(model);
}

// Clocks that know layers have one per stage; the drafter runs behind the last one. Others are
// divided.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeStages(
    const ReplayConfig& config, const ModelOnDevice& hardware, const Times& times,
    const ClockMaker& maker, const DraftWrapper& with_drafter) {
  const int64_t num_stages = config.pipeline_parallel();
  if (num_stages == 1) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto target, MakeTarget(config, hardware.model, times, maker));
    return with_drafter(std::move(target));
  }
  if (config.time() == "recorded") {
    return InvalidArgument("--pipeline-parallel: got ", num_stages,
                           ", expected 1 with --time=recorded, which knows no stages");
  }
  if (absl::Status status = CheckPipelineStages(hardware.model, num_stages); !status.ok()) {
    return OfOption("--pipeline-parallel", "pipeline_parallel", status);
  }
  std::vector<SendTime> sends;
  for (int64_t stage = 0; stage + 1 < num_stages; ++stage) {
    const auto send = maker.SendBehind(stage);
    if (!send.ok()) {
      return InvalidArgument("device ", hardware.device.name, ": ", send.status().message());
    }
    sends.push_back(*send);
  }
  if (config.time() == "fixed") {
    KVBLOCKS_ASSIGN_OR_RETURN(auto whole, MakeTarget(config, hardware.model, times, maker));
    KVBLOCKS_ASSIGN_OR_RETURN(auto drafted, with_drafter(std::move(whole)));
    return MakeDividedClock(std::move(drafted),
                            PipelineStages(hardware.model.num_layers(), num_stages));
  }
  std::vector<std::unique_ptr<StepTimeModel>> stages;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    auto clock = MakeTarget(config, StageFacts(hardware.model, num_stages, stage), times, maker);
    if (clock.ok() && stage == num_stages - 1) clock = with_drafter(*std::move(clock));
    if (!clock.ok()) return clock.status();
    stages.push_back(*std::move(clock));
  }
  return MakePipeline(std::move(stages), std::move(sends));
}

}  // namespace

absl::StatusOr<StepTimeSetup> MakeStepTime(const ReplayConfig& config,
                                           const ModelOnDevice& hardware) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto times, ReadTimes(config));
  KVBLOCKS_ASSIGN_OR_RETURN(
      const auto dtype, OfOption("--kv-cache-dtype", "cache_dtype",
                                 ParseCacheDtype(config.kv_cache_dtype(), DataType::kBFloat16)));
  ClockMaker maker(config, hardware, times, static_cast<double>(ElementBytes(dtype.storage)));
  const bool by_layers =
      config.time() == "auto" || config.time() == "table" || config.time() == "roofline";
  if (by_layers && config.time() != "roofline") {
    KVBLOCKS_RETURN_IF_ERROR(maker.LoadTables());
  }
  // Recorded steps hold the drafter's time already; other clocks without layers cannot know it.
  KVBLOCKS_ASSIGN_OR_RETURN(const auto drafter, DrafterOf(config, hardware.model));
  const bool drafts = drafter.num_passes > 0 && (by_layers || !config.draft_time().empty());
  absl::StatusOr<std::unique_ptr<StepTimeModel>> pass(nullptr);
  if (drafts && !config.draft_time().empty()) {
    if (times.draft > 0) pass = MakeFixedStepTime(times.draft);
  } else if (drafts && drafter.model) {
    pass = maker.Make(*drafter.model);
  }
  if (!pass.ok()) return pass.status();
  const bool is_unknown = drafts && *pass == nullptr && config.draft_time().empty();
  KVBLOCKS_ASSIGN_OR_RETURN(
      auto clock, MakeStages(config, hardware, times, maker,
                             [&](std::unique_ptr<StepTimeModel> target)
                                 -> absl::StatusOr<std::unique_ptr<StepTimeModel>> {
                               if (*pass == nullptr) return target;
                               return MakeDraftedStepTime(std::move(target), *std::move(pass),
                                                          drafter.num_passes, drafter.description);
                             }));
  StepTimeSetup setup{.model = std::move(clock),
                      .latency_is_meaningful = config.time() != "fixed",
                      .note = maker.note()};
  const auto add_note = [&](const std::string& note) {
    absl::StrAppend(&setup.note, setup.note.empty() || note.empty() ? "" : "; ", note);
  };
  if (by_layers) add_note(NodesNote(config, hardware));
  // Not refused: `kvsim calibrate` wrote it for all models, as large as the other factor.
  const double expert_factor = config.expert_prefill_factor();
  if (by_layers && !hardware.model.experts &&
      expert_factor != TableClockOptions().expert_prefill_factor &&
      expert_factor != config.prefill_factor()) {
    add_note(absl::StrCat("--expert-prefill-factor changes nothing: ", hardware.model.name,
                          " has no experts"));
  }
  if (is_unknown) {
    add_note(absl::StrCat("the drafter's time and memory are not counted: ", drafter.description,
                          " (--draft-model, --draft-time)"));
  }
  return setup;
}

}  // namespace kvblocks::sim
