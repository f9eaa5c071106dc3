#include "sim/cost/roofline.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/field_error.h"
#include "kvblocks/model_facts.h"
#include "sim/cost/attention_cost.h"
#include "sim/cost/nodes.h"

namespace kvblocks::sim {
namespace {

constexpr double kPicosecondsPerSecond = 1e12;
constexpr int64_t kBytesPerMib = int64_t{1} << 20;

AttentionRates RatesOf(const RooflineOptions& options) {
  AttentionRates rates{
      .flops_per_s = options.device.bf16_tflops * 1e12 * options.compute_efficiency,
      .bytes_per_s = options.device.memory_gb_per_s * 1e9 * options.memory_efficiency,
      .ranks = static_cast<double>(options.tensor_parallel),
      .context_ranks = static_cast<double>(options.decode_context_parallel),
      .bytes_per_element = options.kv_bytes_per_element};
  if (!options.kv_cache_dtype.empty()) {
    const auto format = ResolveCacheDtype(options.model, {.cache_dtype = options.kv_cache_dtype});
    if (format.ok()) rates.format = *format;
  }
  return rates;
}

// A collective of an all-reduce's traffic, `count` times in a step.
class Exchange {
 public:
  Exchange(const RanksOnNodes& ranks, const RooflineOptions& options)
      : ranks_(ranks), options_(options) {}

  int64_t Latency(double count) const {
    const double each = static_cast<double>(options_.allreduce_latency) / kPicosecondsPerSecond;
    const bool is_only_between = ranks_.are_several() && ranks_.inside == 1;
    return RoundToPicoseconds(count * each) *
           ((is_only_between ? 0 : 1) + (ranks_.are_several() ? 1 : 0));
  }
  // Of one token's activations.
  int64_t TimeOf(double count, double hidden) const {
    const double inside = static_cast<double>(ranks_.inside);
    const int64_t time = RoundToPicoseconds(count * 2 * (inside - 1) / inside * hidden * 2 /
                                            (options_.device.link_gb_per_s * 1e9));
    return time + RoundToPicoseconds(
                      count * SecondsBetweenNodes(ranks_, hidden * 2, options_.device));
  }

 private:
  const RanksOnNodes ranks_;
  const RooflineOptions& options_;
};

class Roofline final : public StepTimeModel {
 public:
  explicit Roofline(const RooflineOptions& options);

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override {
    return StepTimeAmong(work, decodes, StepPeers());
  }
  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                        const StepPeers& peers) const override;
  void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes, const StepPeers& peers,
             StepTally* tally) const override;
  SimTime CopyTime(int64_t bytes) const override { return copy_rate_.TimeOf(bytes); }
  bool adds_up_decodes() const override { return attention_.adds_up(); }
  std::string_view source() const override { return source_; }

 private:
  Wide Constants(int64_t num_sequences) const {
    return fixed_time_ + Wide{time_per_sequence_} * num_sequences;
  }
  int64_t WeightTime(int64_t num_tokens) const {
    return num_tokens < static_cast<int64_t>(weight_times_.size())
               ? weight_times_[static_cast<size_t>(num_tokens)]
               : all_weights_time_;
  }

  const std::string source_;
  const AttentionCost attention_;
  // Picoseconds per unit.
  int64_t linear_per_token_, head_per_sample_;
  const CopyRate copy_rate_;
  int64_t comm_per_step_ = 0, comm_per_token_ = 0;
  // With data parallelism, per token of all ranks: what the experts compute and what is sent to
  // them.
  const int64_t data_parallel_;
  int64_t routed_per_token_ = 0, dispatch_per_token_ = 0;
  int64_t fixed_time_, time_per_sequence_;
  int64_t all_weights_time_;
  // Reading the weights for t tokens while not all experts are expected to be hit.
  std::vector<int64_t> weight_times_;
};

Roofline::Roofline(const RooflineOptions& options)
    : source_(options.calibration.empty()
                  ? "roofline, uncalibrated"
                  : absl::StrCat("roofline, calibrated: ", options.calibration)),
      attention_(options.model, RatesOf(options)),
      copy_rate_(options),
      data_parallel_(options.data_parallel),
      fixed_time_(options.fixed_time + options.time_per_layer * options.model.num_layers()),
      time_per_sequence_(options.time_per_sequence) {
  const ModelFacts& model = options.model;
  const DeviceFacts& device = options.device;
  const double ranks = static_cast<double>(options.tensor_parallel);
  const double flops = ranks * device.bf16_tflops * 1e12 * options.compute_efficiency;
  const double bytes = ranks * device.memory_gb_per_s * 1e9 * options.memory_efficiency;
  const double hidden = static_cast<double>(model.hidden_size);

  linear_per_token_ =
      RoundToPicoseconds(2e9 * (model.active_params_b - model.embedding_params_b()) / flops);
  head_per_sample_ = RoundToPicoseconds(2 * hidden * static_cast<double>(model.vocab_size) / flops);
  if (options.tensor_parallel > 1) {
    const double allreduces = 2.0 * static_cast<double>(model.num_layers());
    const Exchange exchange(PlaceRanks(options.tensor_parallel, 1, device), options);
    comm_per_step_ = exchange.Latency(allreduces);
    comm_per_token_ = exchange.TimeOf(allreduces, hidden);
  }

  const double groups = static_cast<double>(options.data_parallel);
  const bool shares_experts = options.data_parallel > 1 && model.experts;
  if (shares_experts) {
    const ExpertFacts& experts = *model.experts;
    const double active_routed = model.routed_params_b() *
                                 static_cast<double>(experts.experts_per_token) /
                                 static_cast<double>(experts.num_experts);
    linear_per_token_ = RoundToPicoseconds(
        2e9 * std::max(model.active_params_b - model.embedding_params_b() - active_routed, 0.0) /
        flops);
    routed_per_token_ = RoundToPicoseconds(2e9 * active_routed / (flops * groups));
    // All-gather and reduce-scatter around the experts: half an all-reduce each.
    const double exchanges = static_cast<double>(experts.num_layers);
    const Exchange exchange(
        PlaceRanks(options.data_parallel, options.tensor_parallel, device), options);
    comm_per_step_ += exchange.Latency(exchanges);
    dispatch_per_token_ = exchange.TimeOf(exchanges, hidden);
  }

  const double routed =
      model.experts ? model.routed_params_b() * model.experts->bytes_per_param * 1e9 : 0;
  const double shared = model.weight_bytes() - routed;
  const double divided = shares_experts ? routed / groups : routed;  // each has its part of them
  all_weights_time_ = RoundToPicoseconds((shared + divided) / bytes);
  if (routed > 0) {
    const double miss = 1.0 - static_cast<double>(model.experts->experts_per_token) /
                                  static_cast<double>(model.experts->num_experts);
    // The share of experts that none of t tokens goes to, until it no longer matters. Repeated
    // products, unlike pow, give the same bits everywhere.
    constexpr double kNegligible = 1e-9;
    constexpr size_t kMostEntries = 1 << 20;
    double unread = 1.0;
    while (unread > kNegligible && weight_times_.size() < kMostEntries) {
      const double read = divided * (1.0 - unread);
      weight_times_.push_back(RoundToPicoseconds((shared + read) / bytes));
      unread *= miss;
    }
  }
}

absl::StatusOr<SimTime> Roofline::StepTimeAmong(absl::Span<const SequenceWork> work,
                                                const Decodes& decodes,
                                                const StepPeers& peers) const {
  const bool has_peers = peers.num_tokens > 0;
  int64_t num_tokens = decodes.num_sequences;
  int64_t num_sampled = decodes.num_sequences;
  AttentionTime attention;
  attention_.Add(decodes, &attention);
  for (const SequenceWork& sequence : work) {
    num_tokens += sequence.num_new;
    num_sampled += sequence.num_sampled;
    attention_.Add(sequence, &attention);
  }
  if (has_peers) num_tokens = std::max(num_tokens, peers.padded_tokens);
  const int64_t all_tokens = has_peers ? peers.num_tokens : num_tokens * data_parallel_;
  const Wide linear_compute = Wide{linear_per_token_} * num_tokens +
                              Wide{routed_per_token_} * all_tokens +
                              Wide{head_per_sample_} * num_sampled;
  const Wide weights = WeightTime(all_tokens);
  const Wide device =
      std::max(linear_compute + attention.compute, weights + attention.traffic);
  const Wide total = device + comm_per_step_ + Wide{comm_per_token_} * num_tokens +
                     Wide{dispatch_per_token_} * all_tokens +
                     Constants(static_cast<int64_t>(work.size()) + decodes.num_sequences);
  if (total > kMaxSimTime) {
    return absl::OutOfRangeError(
        absl::StrCat("a step of ", num_tokens, " tokens takes longer than the clock's 106 days"));
  }
  return static_cast<SimTime>(total);
}

void Roofline::Tally(absl::Span<const SequenceWork> work, const Decodes& decodes,
                     const StepPeers& peers, StepTally* tally) const {
  const auto time = StepTimeAmong(work, decodes, peers);
  if (!time.ok()) return;
  const Wide constants = Constants(static_cast<int64_t>(work.size()) + decodes.num_sequences);
  tally->constants += constants;
  tally->estimated += *time - constants;
}

// "PREFIX.FIELD is VALUE, expected LOW to HIGH".
template <typename T, typename Text>
absl::Status CheckAll(absl::string_view prefix, std::initializer_list<Bounded<T>> fields,
                      Text text) {
  for (const Bounded<T>& f : fields) {
    if (f.value >= f.low && f.value <= f.high) continue;
    return absl::InvalidArgumentError(absl::StrCat(prefix, ".", f.field, " is ", text(f.value),
                                                   ", expected ", text(f.low), " to ",
                                                   text(f.high)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCounts(absl::string_view prefix,
                         std::initializer_list<Bounded<int64_t>> counts) {
  return CheckAll(prefix, counts, [](int64_t count) { return count; });
}
absl::Status CheckNumbers(absl::string_view prefix,
                          std::initializer_list<Bounded<double>> numbers) {
  return CheckAll(prefix, numbers, [](double number) { return number; });
}
absl::Status CheckTimes(absl::string_view prefix, std::initializer_list<Bounded<SimTime>> times) {
  return CheckAll(prefix, times, FormatDuration);
}

CopyRate::CopyRate(const RooflineOptions& options)
    : per_mib_(RoundToPicoseconds(
          2.0 * kBytesPerMib /
          (options.device.memory_gb_per_s * 1e9 * options.memory_efficiency))) {}

SimTime CopyRate::TimeOf(int64_t bytes) const {
  return static_cast<SimTime>(std::min<Wide>(Wide{per_mib_} * bytes / kBytesPerMib, kMaxSimTime));
}

absl::Status Validate(const RooflineOptions& options) {
  if (absl::Status status = Validate(options.device); !status.ok()) return status;
  if (absl::Status status = Validate(options.model); !status.ok()) return status;
  if (!options.kv_cache_dtype.empty()) {
    const auto format = ResolveCacheDtype(options.model, {.cache_dtype = options.kv_cache_dtype});
    if (!format.ok()) return WithFieldPrefix(format.status(), "roofline");
  }
  absl::Status status =
      CheckCounts("roofline", {{"tensor_parallel", options.tensor_parallel, 1, 1024}});
  if (!status.ok()) return status;
  if (options.decode_context_parallel < 1 ||
      options.tensor_parallel % options.decode_context_parallel != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "roofline.decode_context_parallel is ", options.decode_context_parallel,
        ", expected a divisor of tensor_parallel ", options.tensor_parallel));
  }
  status = CheckCounts("roofline", {{"data_parallel", options.data_parallel, 1, 1024}});
  if (!status.ok()) return status;
  const bool is_divided = options.tensor_parallel > 1;
  if ((is_divided || (options.data_parallel > 1 && options.model.experts)) &&
      !(options.device.link_gb_per_s > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "device ", options.device.name, ": link_gb_per_s is ", options.device.link_gb_per_s,
        ", expected more than 0 with ", is_divided ? "tensor_parallel " : "data_parallel ",
        is_divided ? options.tensor_parallel : options.data_parallel));
  }
  status = CheckNumbers("roofline",
                        {{"compute_efficiency", options.compute_efficiency, 1e-3, 1.0},
                         {"memory_efficiency", options.memory_efficiency, 1e-3, 1.0},
                         {"kv_bytes_per_element", options.kv_bytes_per_element, 0.125, 8.0}});
  if (!status.ok()) return status;
  constexpr SimTime kLongest = 3600 * kSecond;
  return CheckTimes("roofline", {{"fixed_time", options.fixed_time, 0, kLongest},
                                 {"time_per_sequence", options.time_per_sequence, 0, kLongest},
                                 {"allreduce_latency", options.allreduce_latency, 0, kLongest},
                                 {"time_per_layer", options.time_per_layer, 0, kSecond}});
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeRoofline(const RooflineOptions& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  return std::unique_ptr<StepTimeModel>(std::make_unique<Roofline>(options));
}

}  // namespace kvblocks::sim
