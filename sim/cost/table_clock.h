// TableClock: a step's time from measured kernel times, summed over the layers of a model, with
// what lies between the kernels added as a few constants.
//
//   step = linear(decode tokens) + head(samples) + attention(decodes, their mean context)
//        + F x [linear(all tokens) - linear(decode tokens) + prompts' attention]
//        + per layer + per layer if there are prompts + per sequence
//
// Experts have a factor F of their own.
//
// A sequence all of whose new tokens are sampled is a decode, drafts included. The attention of a
// chunk of a prompt is that of the whole prompt up to its end less that up to its beginning.
//
// The constants were fitted on measured serving runs of vLLM 0.11 to 0.19 (docs/time.md): they
// belong to the engine more than to device or model. Tables are evaluated once, when the clock is
// made; a step then costs about 20 ns, whole numbers only. Decodes add up by number and sum of
// contexts.

#ifndef KVBLOCKS_SIM_COST_TABLE_CLOCK_H_
#define KVBLOCKS_SIM_COST_TABLE_CLOCK_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/cost/attention_cost.h"
#include "sim/cost/kernel_tables.h"
#include "sim/cost/nodes.h"
#include "sim/cost/roofline.h"
#include "sim/cost/sim_time.h"
#include "sim/cost/step_time_model.h"

namespace kvblocks::sim {

// CountGrid, Curve, Surface: functions of one or two counts, tabulated once and read in a few
// nanoseconds.
//
// Small counts are grid points themselves; above, each octave is cut into equal parts, between
// which a value lies on a straight line. Whole numbers throughout. Beyond the last point the last
// part's line continues.

// Where a count lies: value = (1 - rest / 2^shift) x point `index` + rest / 2^shift x the next.
struct Place {
  size_t index = 0;
  int shift = 0;
  int64_t rest = 0;

  int64_t Between(int64_t a, int64_t b) const {
    return a + static_cast<int64_t>(Wide{b - a} * rest >> shift);
  }
};

class CountGrid {
 public:
  // Counts up to 2^bits are points, and 2^(bits - 1) in each octave above, at least up to `most`.
  CountGrid(int bits, int64_t most)
      : bits_(bits), last_(Find(std::max<int64_t>(most, 1)).index + 1) {}

  size_t size() const { return last_ + 1; }

  int64_t At(size_t index) const {
    const auto i = static_cast<int64_t>(index);
    const int64_t half = int64_t{1} << (bits_ - 1);
    if (i < 2 * half) return i;
    const int shift = static_cast<int>(i / half) - 1;
    return (i - shift * half) << shift;
  }

  // REQUIRES: count >= 0.
  Place Of(int64_t count) const {
    Place place = Find(count);
    if (place.index < last_) return place;
    const int64_t before = At(last_ - 1), last = At(last_);
    return {.index = last_ - 1,
            .shift = static_cast<int>(std::bit_width(static_cast<uint64_t>(last - before))) - 1,
            .rest = count - before};
  }

 private:
  Place Find(int64_t count) const {
    const int width = static_cast<int>(std::bit_width(static_cast<uint64_t>(count)));
    if (width <= bits_) return {.index = static_cast<size_t>(count)};
    const int shift = width - bits_;
    return {.index = static_cast<size_t>((count >> shift) + (int64_t{shift} << (bits_ - 1))),
            .shift = shift,
            .rest = count & ((int64_t{1} << shift) - 1)};
  }

  int bits_;
  size_t last_ = 0;
};

class Curve {
 public:
  // f(count) at each point.
  template <typename F>
  Curve(CountGrid grid, F&& f) : grid_(grid) {
    values_.reserve(grid.size());
    for (size_t i = 0; i < grid.size(); ++i) values_.push_back(f(grid.At(i)));
  }

  int64_t At(int64_t count) const {
    const Place place = grid_.Of(count);
    return place.Between(values_[place.index], values_[place.index + 1]);
  }

 private:
  CountGrid grid_;
  std::vector<int64_t> values_;
};

class Surface {
 public:
  template <typename F>
  Surface(CountGrid x, CountGrid y, F&& f) : x_(x), y_(y) {
    values_.reserve(x.size() * y.size());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < y.size(); ++j) values_.push_back(f(x.At(i), y.At(j)));
    }
  }

  int64_t At(int64_t x, int64_t y) const {
    const Place at_x = x_.Of(x), at_y = y_.Of(y);
    const int64_t* low = &values_[at_x.index * y_.size() + at_y.index];
    const int64_t* high = low + y_.size();
    return at_x.Between(at_y.Between(low[0], low[1]), at_y.Between(high[0], high[1]));
  }

 private:
  CountGrid x_, y_;
  std::vector<int64_t> values_;
};

// LayerTimes: what the layers of a model take on a device, from measured kernels where there are
// tables of them and from the roofline where there are none.
//
// Summed are matrix products by shape, attention by head shape (or whole blocks of latent
// attention), routed experts under uneven load, and collectives. Launch gaps, norms and host work
// are not in it (see TableClock).
//
// Not for every step: a look-up walks tables, 1 to 5 us. Whole picoseconds, the same on every
// machine. REQUIRES: options that pass Validate; the tables outlive it.

struct LayerTimesOptions {
  // Device, model, tensor parallel ranks of attention, groups of them that share the experts, each
  // with as large a step as this one; efficiencies for what the tables lack.
  RooflineOptions roofline;
  // How experts are divided; 0: by tensor, over all ranks.
  int64_t expert_tensor_parallel = 0;
  int64_t expert_parallel = 0;
  // As the tables name them; empty: as bytes per parameter and device say.
  std::string gemm_dtype = "";
  std::string expert_dtype = "";
  std::string kv_dtype = "";
  // The engine fuses the all-reduces of a layer with the norms after them, up to the size of
  // messages that the tables have: vLLM since 0.17, on Blackwell Ultra since 0.19.
  bool fuses_allreduce = true;
};

// Counts up to which the tables reach; no limit where the roofline is used instead.
struct MeasuredRange {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  int64_t num_tokens = kNoLimit;  // of a step
  int64_t num_decodes = kNoLimit;
  int64_t decode_context = kNoLimit;
  int64_t prompt_end = kNoLimit;  // where a chunk of a prompt ends
};

class LayerTimes {
 public:
  // All of a time, or what of it comes from the roofline.
  enum class Which { kAll, kEstimated };

  LayerTimes(const KernelTables& tables, const LayerTimesOptions& options);

  // Matrix products, experts and collectives of all layers for a step of so many tokens.
  int64_t Linear(int64_t num_tokens, Which which = Which::kAll) const;
  // The routed experts' part of it.
  int64_t Experts(int64_t num_tokens, Which which = Which::kAll) const;
  // With it what sending the tokens of all groups to the experts and back takes; of as many tokens
  // each.
  int64_t Shared(int64_t num_tokens, Which which = Which::kAll) const;
  // The output head at so many positions.
  int64_t Head(int64_t num_samples, Which which = Which::kAll) const;
  // Attention of all layers for decodes whose mean context, their own token included, is `context`.
  int64_t Decode(int64_t num_sequences, int64_t context, Which which = Which::kAll) const;
  // Attention of all layers over the first `num_tokens` tokens of one prompt.
  int64_t Context(int64_t num_tokens, Which which = Which::kAll) const;

  // Layers whose attention is summed from kernels, taken as a whole block, or estimated.
  int64_t num_summed_layers() const { return num_summed_layers_; }
  int64_t num_block_layers() const { return num_block_layers_; }
  int64_t num_estimated_layers() const { return num_estimated_layers_; }
  const MeasuredRange& range() const { return range_; }
  const std::vector<TimePart>& parts() const { return parts_; }
  // Whether anything comes from the tables, and whether anything from the roofline.
  bool has_measured() const { return has_measured_; }
  bool has_estimated() const { return has_estimated_; }

 private:
  // So many exchanges between ranks per step, of an all-reduce's traffic each.
  struct Collective {
    int64_t count = 0;
    RanksOnNodes ranks;                 // measured between nodes, too: all on one
    const KernelGrid* grid = nullptr;   // null: roofline
    const KernelGrid* fused = nullptr;  // up to its last size, where it is faster
  };
  // So many products of tokens x k with k x n.
  struct Product {
    int64_t count = 0;
    int64_t n = 0, k = 0;
    const KernelGrid* grid = nullptr;  // null: roofline
    double bytes_per_param = 2;
    // Up to so many tokens it runs beside the routed experts and takes no time of its own.
    int64_t hidden_tokens = 0;
  };
  struct Attention {
    int64_t count = 0;
    const KernelGrid* context = nullptr;
    const KernelGrid* decode = nullptr;
    // Of a head shape that is not in the table: times of the nearest one by heads.
    int64_t heads = 1, table_heads = 1;
    // Of tables that were not measured in captured graphs.
    int64_t host_time = 0, floor = 0;
  };
  struct Estimate {
    double params = 0;
    double bytes_per_param = 2;
  };

  void AddAttention();
  bool AddTabledAttention(char letter, int64_t num_kv_heads, int64_t head_size, int64_t window);
  bool AddLatentBlocks(char letter, const std::string& operation);
  void AddDenseLayers();
  void AddExperts();
  void AddCollectives();
  Collective MakeCollective(std::string_view part, int64_t count, int64_t ranks,
                            int64_t stride = 1);
  int64_t TimeOf(const Collective& collective, int64_t bytes, Which which) const;
  int64_t TimeInside(const Collective& collective, int64_t bytes) const;
  void AddRest();
  void AddProduct(std::string_view part, int64_t count, int64_t n, int64_t k,
                  const std::string& dtype);
  std::string GemmDtype() const;
  std::vector<std::string> ExpertDtypes() const;
  void Say(std::string_view part, std::string source, bool measured = true);
  int64_t ProductTime(const Product& product, int64_t num_tokens) const;
  int64_t EstimateTime(const Estimate& estimate, int64_t num_tokens) const;
  int64_t DispatchTime(int64_t num_tokens, Which which) const;
  int64_t AttentionTimeOf(const Attention& attention, int64_t table_time) const;

  const KernelTables& tables_;
  const LayerTimesOptions options_;
  const ModelFacts& model_;  // in options_
  const int64_t ranks_, data_parallel_;
  double flops_, bytes_per_s_;  // of one rank, at the efficiencies

  std::vector<Product> products_;
  Product head_;
  std::vector<Attention> attention_;
  std::optional<AttentionCost> estimated_attention_;
  int64_t num_expert_layers_ = 0;
  const KernelGrid* experts_ = nullptr;
  Collective reduce_, norm_, dispatch_;
  Estimate rest_;

  double known_params_ = 0;  // that a token uses and a product above stands for
  int64_t num_summed_layers_ = 0, num_block_layers_ = 0, num_estimated_layers_ = 0;
  MeasuredRange range_;
  std::vector<TimePart> parts_;
  bool has_measured_ = false, has_estimated_ = false;
};

// Per scheduled sequence and step, in an engine that schedules a step when the one before it has
// ended: the host's work for each sequence then lies between the steps.
inline constexpr SimTime kSequenceOverheadSync = 50 * kMicrosecond;

struct TableClockOptions {
  LayerTimesOptions layers;
  // Per layer and step: of layers summed from kernels, of whole measured blocks, of estimated ones.
  SimTime layer_overhead = 11 * kMicrosecond;
  SimTime block_layer_overhead = 1 * kMicrosecond;
  SimTime estimated_layer_overhead = 25 * kMicrosecond;
  // The same for each doubling of the ranks that meet in a layer: they wait for each other.
  SimTime rank_overhead = 3 * kMicrosecond;
  // Per layer and step with tokens of prompts, which no captured graph covers as a whole.
  SimTime mixed_layer_overhead = 100 * kMicrosecond;
  // Per scheduled sequence and step, in an engine that schedules a step while another one runs.
  SimTime sequence_overhead = 9 * kMicrosecond;
  double prefill_factor = 1.15;                  // on what prompts add, experts aside
  double expert_prefill_factor = 1.5;            // on what they add to routed experts
  SimTime fixed_time = 0;                        // per step
  std::string calibration = "";  // what the constants were fitted on; empty: as above
  // The range of the curves; beyond it their last line continues.
  int64_t max_num_tokens = 16384;
  int64_t max_num_seqs = 1024;
  int64_t max_sequence_len = 1 << 20;
};

absl::Status Validate(const TableClockOptions& options);

// FailedPrecondition if the tables have nothing for the model. The tables are not needed
// afterwards.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeTableClock(const KernelTables& tables,
                                                              const TableClockOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_TABLE_CLOCK_H_
