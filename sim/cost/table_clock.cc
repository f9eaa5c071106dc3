#include "sim/cost/table_clock.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checks/status_macros.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kThousand = 1000;

int64_t InThousandths(double factor) {
  return static_cast<int64_t>(std::llround(factor * double{kThousand}));
}

// Of the ranks that meet in a layer.
int64_t Doublings(const LayerTimesOptions& layers) {
  const int64_t ranks = layers.roofline.tensor_parallel * layers.roofline.data_parallel;
  return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(ranks))) - 1;
}

// Of tools/leave_out.py: errors in per cent on measured servers that half and nine of ten of the
// points stay within.
struct ErrorBand {
  absl::string_view kind, generation;
  int tpot_half, tpot_most, ttft_half, ttft_most;
};
constexpr ErrorBand kErrorBands[] = {
    {"dense models", "Hopper", 3, 8, 7, 25},
    {"models with experts", "Hopper", 9, 16, 19, 29},
    {"models with experts", "Blackwell", 6, 13, 10, 30},
    {"models with experts and latent attention", "Hopper", 6, 12, 12, 26},
    {"models with experts and latent attention", "Blackwell", 7, 14, 17, 50},
};

absl::string_view GenerationOf(absl::string_view device) {
  if (device == "h100-sxm" || device == "h200-sxm") return "Hopper";
  return device == "b200" || device == "b300" ? "Blackwell" : "";
}

// The constants that the bands were measured with.
bool HasFittedConstants(const TableClockOptions& options) {
  const TableClockOptions fitted;
  return options.calibration.empty() && options.fixed_time == fitted.fixed_time &&
         options.layer_overhead == fitted.layer_overhead &&
         options.block_layer_overhead == fitted.block_layer_overhead &&
         options.rank_overhead == fitted.rank_overhead &&
         options.mixed_layer_overhead == fitted.mixed_layer_overhead &&
         (options.sequence_overhead == fitted.sequence_overhead ||
          options.sequence_overhead == kSequenceOverheadSync) &&
         options.prefill_factor == fitted.prefill_factor &&
         options.expert_prefill_factor == fitted.expert_prefill_factor;
}

std::string MeasuredError(const TableClockOptions& options) {
  const RooflineOptions& roofline = options.layers.roofline;
  const ModelFacts& model = roofline.model;
  if (PlaceRanks(roofline.tensor_parallel * roofline.data_parallel, 1, roofline.device)
          .are_several()) {
    return "not known: no ranks on several nodes were measured";
  }
  const absl::string_view kind = !model.experts ? "dense models"
                                 : model.latent ? "models with experts and latent attention"
                                                : "models with experts";
  const std::string& device = roofline.device.name;
  const absl::string_view generation = GenerationOf(device);
  for (const ErrorBand& band : kErrorBands) {
    if (band.kind != kind || band.generation != generation) continue;
    return absl::StrCat("TPOT within ", band.tpot_half, " % on half of the runs and ",
                        band.tpot_most, " % on nine of ten, mean TTFT ", band.ttft_half, " % and ",
                        band.ttft_most, " % (", kind, " on ", generation, ")");
  }
  return absl::StrCat("not known: no ", kind, " were measured on ",
                      generation.empty() ? absl::string_view(device) : generation);
}

// What a step has of each kind.
struct StepCounts {
  int64_t num_sequences = 0, num_samples = 0;
  int64_t num_decodes = 0, mean_context = 0;
  int64_t decode_tokens = 0, prompt_tokens = 0;
  int64_t longest_prompt = 0;
  // As many tokens as each rank has on average, whose experts they share.
  bool has_peers = false;
  int64_t shared_tokens = 0, shared_decodes = 0;

  int64_t num_tokens() const { return decode_tokens + prompt_tokens; }
  bool has_prompts() const { return prompt_tokens > 0 || shared_tokens > shared_decodes; }
};

// Of a prompt, or of a chunk of one: not each of its tokens is followed by one that is drawn.
bool IsPrompt(const SequenceWork& sequence) { return sequence.num_sampled != sequence.num_new; }

StepCounts CountsOf(absl::Span<const SequenceWork> work, const Decodes& decodes,
                    const StepPeers& peers, int64_t data_parallel) {
  StepCounts counts{.num_sequences = static_cast<int64_t>(work.size()) + decodes.num_sequences,
                    .num_samples = decodes.num_sequences,
                    .num_decodes = decodes.num_sequences,
                    .decode_tokens = decodes.num_sequences,
                    .has_peers = peers.num_tokens > 0};
  Wide sum_context = Wide{decodes.sum_context} + decodes.num_sequences;
  for (const SequenceWork& sequence : work) {
    counts.num_samples += sequence.num_sampled;
    const int64_t end = sequence.num_context + sequence.num_new;
    if (IsPrompt(sequence)) {
      counts.prompt_tokens += sequence.num_new;
      counts.longest_prompt = std::max(counts.longest_prompt, end);
    } else {
      ++counts.num_decodes;
      counts.decode_tokens += sequence.num_new;
      sum_context += end;
    }
  }
  if (counts.num_decodes > 0) {
    counts.mean_context = static_cast<int64_t>(sum_context / counts.num_decodes);
  }
  if (!counts.has_peers) {
    counts.shared_tokens = counts.num_tokens();
    counts.shared_decodes = counts.decode_tokens;
    return counts;
  }
  counts.decode_tokens += std::max<int64_t>(peers.padded_tokens - counts.num_tokens(), 0);
  counts.shared_tokens = (peers.num_tokens + data_parallel - 1) / data_parallel;
  counts.shared_decodes = (peers.num_decode_tokens + data_parallel - 1) / data_parallel;
  return counts;
}

// LayerTimes, tabulated.
class LayerCurves {
 public:
  LayerCurves(const LayerTimes& times, const TableClockOptions& options, LayerTimes::Which which)
      : linear_(CountGrid(9, options.max_num_tokens),
                [&](int64_t n) { return times.Linear(n, which); }),
        experts_(CountGrid(9, options.max_num_tokens),
                 [&](int64_t n) { return times.Experts(n, which); }),
        shared_(CountGrid(9, options.max_num_tokens),
                [&](int64_t n) { return times.Shared(n, which); }),
        head_(CountGrid(5, options.max_num_tokens),
              [&](int64_t n) { return times.Head(n, which); }),
        decode_(CountGrid(4, options.max_num_seqs), CountGrid(3, options.max_sequence_len),
                [&](int64_t n, int64_t context) { return times.Decode(n, context, which); }),
        context_(CountGrid(5, options.max_sequence_len),
                 [&](int64_t n) { return times.Context(n, which); }),
        prefill_thousandths_(InThousandths(options.prefill_factor)),
        expert_thousandths_(InThousandths(options.expert_prefill_factor)) {}

  // A step without the constants.
  Wide TimeOf(const StepCounts& counts, absl::Span<const SequenceWork> work) const;

 private:
  // Tile sizes of matrix products make steps, so that small counts are taken one by one.
  const Curve linear_;
  const Curve experts_;
  // Of the experts and the way to them; of as many tokens on each rank.
  const Curve shared_;
  const Curve head_;
  const Surface decode_;
  const Curve context_;
  const int64_t prefill_thousandths_, expert_thousandths_;
};

Wide LayerCurves::TimeOf(const StepCounts& counts, absl::Span<const SequenceWork> work) const {
  int64_t decode_linear = linear_.At(counts.decode_tokens);
  int64_t linear = counts.prompt_tokens > 0 ? linear_.At(counts.num_tokens()) : decode_linear;
  if (counts.has_peers) {
    decode_linear += shared_.At(counts.shared_decodes) - shared_.At(counts.decode_tokens);
    linear += shared_.At(counts.shared_tokens) - shared_.At(counts.num_tokens());
  }
  Wide total = Wide{head_.At(counts.num_samples)} + decode_linear;
  if (counts.num_decodes > 0) total += decode_.At(counts.num_decodes, counts.mean_context);
  if (!counts.has_prompts()) return total;
  Wide prompts = 0;
  for (const SequenceWork& sequence : work) {
    if (!IsPrompt(sequence)) continue;
    prompts +=
        context_.At(sequence.num_context + sequence.num_new) - context_.At(sequence.num_context);
  }
  const int64_t experts = experts_.At(counts.shared_tokens) - experts_.At(counts.shared_decodes);
  const Wide others = prompts + linear - decode_linear - experts;
  return total +
         std::max<Wide>(others * prefill_thousandths_ + Wide{experts} * expert_thousandths_, 0) /
             kThousand;
}

class TableClock final : public StepTimeModel {
 public:
  TableClock(const LayerTimes& times, const TableClockOptions& options);

  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                        const StepPeers& peers) const override;
  void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes, const StepPeers& peers,
             StepTally* tally) const override;
  SimTime CopyTime(int64_t bytes) const override { return copy_rate_.TimeOf(bytes); }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return source_; }
  std::vector<TimePart> parts() const override { return parts_; }

 private:
  Wide Constants(const StepCounts& counts) const {
    return per_step_ + Wide{per_sequence_} * counts.num_sequences +
           (counts.has_prompts() ? per_mixed_step_ : 0);
  }

  const std::string source_;
  const int64_t data_parallel_;
  const CopyRate copy_rate_;
  const MeasuredRange range_;
  std::vector<TimePart> parts_;
  const LayerCurves layers_;
  std::optional<LayerCurves> estimated_;  // the roofline's part of them
  SimTime per_step_, per_mixed_step_, per_sequence_;
};

TableClock::TableClock(const LayerTimes& times, const TableClockOptions& options)
    : source_(options.calibration.empty()
                  ? "measured kernels, uncalibrated"
                  : absl::StrCat("measured kernels, calibrated: ", options.calibration)),
      data_parallel_(options.layers.roofline.data_parallel),
      copy_rate_(options.layers.roofline),
      range_(times.range()),
      parts_(times.parts()),
      layers_(times, options, LayerTimes::Which::kAll),
      per_step_(options.fixed_time +
                options.rank_overhead * Doublings(options.layers) *
                    (times.num_summed_layers() + times.num_block_layers()) +
                options.layer_overhead * times.num_summed_layers() +
                options.block_layer_overhead * times.num_block_layers() +
                options.estimated_layer_overhead * times.num_estimated_layers()),
      per_mixed_step_(options.mixed_layer_overhead * options.layers.roofline.model.num_layers()),
      per_sequence_(options.sequence_overhead) {
  if (times.has_estimated()) estimated_.emplace(times, options, LayerTimes::Which::kEstimated);
  const auto us = [](SimTime time) { return FormatDuration(time); };
  parts_.push_back(
      {"between kernels", absl::StrCat(us(per_step_), " per step and ", us(per_sequence_),
                                       " per sequence, constants")});
  parts_.push_back({"prompts", absl::StrCat("x ", options.prefill_factor, ", experts x ",
                                            options.expert_prefill_factor, ", and ",
                                            us(per_mixed_step_), " per step with any, constants")});
  if (HasFittedConstants(options)) {
    parts_.push_back({std::string(kMeasuredErrorPart), MeasuredError(options)});
  }
}

absl::StatusOr<SimTime> TableClock::StepTimeAmong(absl::Span<const SequenceWork> work,
                                                  const Decodes& decodes,
                                                  const StepPeers& peers) const {
  const StepCounts counts = CountsOf(work, decodes, peers, data_parallel_);
  const Wide total = Constants(counts) + layers_.TimeOf(counts, work);
  if (total > kMaxSimTime) {
    return absl::OutOfRangeError(absl::StrCat("a step of ", counts.num_tokens(),
                                              " tokens takes longer than the clock's 106 days"));
  }
  return static_cast<SimTime>(std::max<Wide>(total, 1));
}

void TableClock::Tally(absl::Span<const SequenceWork> work, const Decodes& decodes,
                       const StepPeers& peers, StepTally* tally) const {
  const StepCounts counts = CountsOf(work, decodes, peers, data_parallel_);
  const Wide estimated = estimated_ ? estimated_->TimeOf(counts, work) : 0;
  tally->constants += Constants(counts);
  tally->estimated += estimated;
  tally->measured += layers_.TimeOf(counts, work) - estimated;
  tally->num_outside +=
      counts.num_tokens() > range_.num_tokens || counts.num_decodes > range_.num_decodes ||
      counts.mean_context > range_.decode_context || counts.longest_prompt > range_.prompt_end;
}

}  // namespace

absl::Status Validate(const TableClockOptions& options) {
  KVBLOCKS_RETURN_IF_ERROR(Validate(options.layers.roofline));
  constexpr SimTime kLongest = 60 * kSecond;
  constexpr int64_t kMost = int64_t{1} << 31;
  absl::Status status = CheckTimes(
      "table_clock", {{"layer_overhead", options.layer_overhead, 0, kLongest},
                      {"block_layer_overhead", options.block_layer_overhead, 0, kLongest},
                      {"estimated_layer_overhead", options.estimated_layer_overhead, 0, kLongest},
                      {"rank_overhead", options.rank_overhead, 0, kLongest},
                      {"mixed_layer_overhead", options.mixed_layer_overhead, 0, kLongest},
                      {"sequence_overhead", options.sequence_overhead, 0, kLongest},
                      {"fixed_time", options.fixed_time, 0, kLongest}});
  if (!status.ok()) return status;
  status = CheckCounts(
      "table_clock", {{"expert_tensor_parallel", options.layers.expert_tensor_parallel, 0, 1024},
                      {"expert_parallel", options.layers.expert_parallel, 0, 1 << 20},
                      {"max_num_tokens", options.max_num_tokens, 1, kMost},
                      {"max_num_seqs", options.max_num_seqs, 1, 1 << 20},
                      {"max_sequence_len", options.max_sequence_len, 1, kMost}});
  if (!status.ok()) return status;
  return CheckNumbers("table_clock",
                      {{"prefill_factor", options.prefill_factor, 0.1, 100},
                       {"expert_prefill_factor", options.expert_prefill_factor, 0.1, 100}});
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeTableClock(const KernelTables& tables,
                                                              const TableClockOptions& options) {
  KVBLOCKS_RETURN_IF_ERROR(Validate(options));
  const LayerTimes times(tables, options.layers);
  if (!times.has_measured()) {
    return absl::FailedPreconditionError(absl::StrCat("the kernel tables of ", tables.device(),
                                                      " have nothing for ",
                                                      options.layers.roofline.model.name));
  }
  return std::unique_ptr<StepTimeModel>(std::make_unique<TableClock>(times, options));
}

}  // namespace kvblocks::sim
