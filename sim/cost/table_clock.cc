#include "sim/cost/table_clock.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

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
    {"models with experts", "Blackwell", 5, 13, 12, 30},
    {"models with experts and latent attention", "Hopper", 6, 12, 12, 26},
    {"models with experts and latent attention", "Blackwell", 8, 14, 17, 50},
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
  const ModelFacts& model = options.layers.roofline.model;
  const absl::string_view kind = !model.experts ? "dense models"
                                 : model.latent ? "models with experts and latent attention"
                                                : "models with experts";
  const std::string& device = options.layers.roofline.device.name;
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

class TableClock final : public StepTimeModel {
 public:
  TableClock(const LayerTimes& times, const TableClockOptions& options);

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override {
    return StepTimeAmong(work, decodes, StepPeers());
  }
  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                        const StepPeers& peers) const override;
  SimTime CopyTime(int64_t bytes) const override { return copy_rate_.TimeOf(bytes); }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return source_; }
  std::vector<TimePart> parts() const override { return parts_; }
  int64_t num_outside() const override { return num_outside_.load(std::memory_order_relaxed); }

 private:
  const std::string source_;
  const int64_t data_parallel_;
  const CopyRate copy_rate_;
  const MeasuredRange range_;
  std::vector<TimePart> parts_;
  // Tile sizes of matrix products make steps, so that small counts are taken one by one.
  const Curve linear_;
  const Curve experts_;
  // Of the experts and the way to them; of as many tokens on each rank.
  const Curve shared_;
  const Curve head_;
  const Surface decode_;
  const Curve context_;
  SimTime per_step_, per_mixed_step_, per_sequence_;
  int64_t prefill_thousandths_, expert_thousandths_;
  mutable std::atomic<int64_t> num_outside_ = 0;
};

TableClock::TableClock(const LayerTimes& times, const TableClockOptions& options)
    : source_(options.calibration.empty()
                  ? "measured kernels, uncalibrated"
                  : absl::StrCat("measured kernels, calibrated: ", options.calibration)),
      data_parallel_(options.layers.roofline.data_parallel),
      copy_rate_(options.layers.roofline),
      range_(times.range()),
      parts_(times.parts()),
      linear_(CountGrid(9, options.max_num_tokens), [&](int64_t n) { return times.Linear(n); }),
      experts_(CountGrid(9, options.max_num_tokens), [&](int64_t n) { return times.Experts(n); }),
      shared_(CountGrid(9, options.max_num_tokens), [&](int64_t n) { return times.Shared(n); }),
      head_(CountGrid(5, options.max_num_tokens), [&](int64_t n) { return times.Head(n); }),
      decode_(CountGrid(4, options.max_num_seqs), CountGrid(3, options.max_sequence_len),
              [&](int64_t n, int64_t context) { return times.Decode(n, context); }),
      context_(CountGrid(5, options.max_sequence_len), [&](int64_t n) { return times.Context(n); }),
      per_step_(options.fixed_time +
                options.rank_overhead * Doublings(options.layers) *
                    (times.num_summed_layers() + times.num_block_layers()) +
                options.layer_overhead * times.num_summed_layers() +
                options.block_layer_overhead * times.num_block_layers() +
                options.estimated_layer_overhead * times.num_estimated_layers()),
      per_mixed_step_(options.mixed_layer_overhead * options.layers.roofline.model.num_layers()),
      per_sequence_(options.sequence_overhead),
      prefill_thousandths_(InThousandths(options.prefill_factor)),
      expert_thousandths_(InThousandths(options.expert_prefill_factor)) {
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
  const bool has_peers = peers.num_tokens > 0;
  int64_t num_decodes = decodes.num_sequences;
  int64_t decode_tokens = num_decodes;
  int64_t num_samples = num_decodes;
  int64_t prompt_tokens = 0, longest_prompt = 0;
  Wide sum_context = Wide{decodes.sum_context} + num_decodes;
  Wide prompts = 0;
  for (const SequenceWork& sequence : work) {
    num_samples += sequence.num_sampled;
    const int64_t end = sequence.num_context + sequence.num_new;
    if (sequence.num_sampled == sequence.num_new) {
      ++num_decodes;
      decode_tokens += sequence.num_new;
      sum_context += end;
      continue;
    }
    prompt_tokens += sequence.num_new;
    prompts += context_.At(end) - context_.At(sequence.num_context);
    longest_prompt = std::max(longest_prompt, end);
  }
  if (has_peers) {
    decode_tokens += std::max<int64_t>(peers.padded_tokens - decode_tokens - prompt_tokens, 0);
  }
  const int64_t num_tokens = decode_tokens + prompt_tokens;
  // The experts' part is that of as many tokens as a rank has on average.
  int64_t shared_tokens = num_tokens, shared_decodes = decode_tokens;
  if (has_peers) {
    shared_tokens = (peers.num_tokens + data_parallel_ - 1) / data_parallel_;
    shared_decodes = (peers.num_decode_tokens + data_parallel_ - 1) / data_parallel_;
  }
  Wide total = Wide{per_step_} + head_.At(num_samples) +
               Wide{per_sequence_} * (static_cast<int64_t>(work.size()) + decodes.num_sequences);
  int64_t decode_linear = linear_.At(decode_tokens);
  int64_t linear = prompt_tokens > 0 ? linear_.At(num_tokens) : decode_linear;
  if (has_peers) {
    decode_linear += shared_.At(shared_decodes) - shared_.At(decode_tokens);
    linear += shared_.At(shared_tokens) - shared_.At(num_tokens);
  }
  total += decode_linear;
  int64_t mean_context = 0;
  if (num_decodes > 0) {
    mean_context = static_cast<int64_t>(sum_context / num_decodes);
    total += decode_.At(num_decodes, mean_context);
  }
  if (prompt_tokens > 0 || shared_tokens > shared_decodes) {
    const int64_t experts = experts_.At(shared_tokens) - experts_.At(shared_decodes);
    const Wide others = prompts + linear - decode_linear - experts;
    total +=
        per_mixed_step_ +
        std::max<Wide>(others * prefill_thousandths_ + Wide{experts} * expert_thousandths_, 0) /
            kThousand;
  }
  if (num_tokens > range_.num_tokens || num_decodes > range_.num_decodes ||
      mean_context > range_.decode_context || longest_prompt > range_.prompt_end) {
    num_outside_.fetch_add(1, std::memory_order_relaxed);
  }
  if (total > kMaxSimTime) {
    return absl::OutOfRangeError(
        absl::StrCat("a step of ", num_tokens, " tokens takes longer than the clock's 106 days"));
  }
  return static_cast<SimTime>(std::max<Wide>(total, 1));
}

}  // namespace

absl::Status Validate(const TableClockOptions& options) {
  if (absl::Status bad = Validate(options.layers.roofline); !bad.ok()) return bad;
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
  if (absl::Status status = Validate(options); !status.ok()) return status;
  const LayerTimes times(tables, options.layers);
  if (!times.has_measured()) {
    return absl::FailedPreconditionError(absl::StrCat("the kernel tables of ", tables.device(),
                                                      " have nothing for ",
                                                      options.layers.roofline.model.name));
  }
  return std::unique_ptr<StepTimeModel>(std::make_unique<TableClock>(times, options));
}

}  // namespace kvblocks::sim
