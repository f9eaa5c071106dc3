// LayerTimes: what the layers of a model take on a device, from measured kernels where there are
// tables of them and from the roofline where there are none.
//
// Summed are matrix products by shape, attention by head shape (or whole blocks of latent
// attention), routed experts under uneven load, and collectives. Launch gaps, norms and host work
// are not in it (see TableClock).
//
// Not for every step: a look-up walks tables, 1 to 5 us. Whole picoseconds, the same on every
// machine. REQUIRES: options that pass Validate; the tables outlive it.

#ifndef KVBLOCKS_SIM_COST_LAYER_TIMES_H_
#define KVBLOCKS_SIM_COST_LAYER_TIMES_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/sim/cost/attention_cost.h"
#include "kvblocks/sim/cost/kernel_tables.h"
#include "kvblocks/sim/cost/roofline.h"
#include "kvblocks/sim/cost/step_time_model.h"

namespace kvblocks::sim {

struct LayerTimesOptions {
  // Device, model, tensor parallel ranks of attention, groups of them that share the experts, each with as
  // large a step as this one; efficiencies for what the tables lack.
  RooflineOptions roofline;
  // How experts are divided; 0: by tensor, over all ranks.
  int64_t expert_tensor_parallel = 0;
  int64_t expert_parallel = 0;
  // As the tables name them; empty: as bytes per parameter and device say.
  std::string gemm_dtype = "";
  std::string expert_dtype = "";
  std::string kv_dtype = "";
};

// Counts up to which the tables reach; no limit where the roofline stands in.
struct MeasuredRange {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  int64_t num_tokens = kNoLimit;  // of a step
  int64_t num_decodes = kNoLimit;
  int64_t decode_context = kNoLimit;
  int64_t prompt_end = kNoLimit;  // where a chunk of a prompt ends
};

class LayerTimes {
 public:
  LayerTimes(const KernelTables& tables, const LayerTimesOptions& options);

  // Matrix products, experts and collectives of all layers for a step of so many tokens.
  int64_t Linear(int64_t num_tokens) const;
  // The routed experts' part of it.
  int64_t Experts(int64_t num_tokens) const;
  // With it what sending the tokens of all groups to the experts and back takes; of as many tokens each.
  int64_t Shared(int64_t num_tokens) const;
  // The output head at so many positions.
  int64_t Head(int64_t num_samples) const;
  // Attention of all layers for decodes whose mean context, their own token included, is `context`.
  int64_t Decode(int64_t num_sequences, int64_t context) const;
  // Attention of all layers over the first `num_tokens` tokens of one prompt.
  int64_t Context(int64_t num_tokens) const;

  // Layers whose attention is summed from kernels, taken as a whole block, or estimated.
  int64_t num_summed_layers() const { return num_summed_layers_; }
  int64_t num_block_layers() const { return num_block_layers_; }
  int64_t num_estimated_layers() const { return num_estimated_layers_; }
  const MeasuredRange& range() const { return range_; }
  const std::vector<TimePart>& parts() const { return parts_; }
  // Whether anything comes from the tables.
  bool has_measured() const { return has_measured_; }

 private:
  // So many exchanges between ranks per step, of an all-reduce's traffic each.
  struct Collective {
    int64_t count = 0, ranks = 1;
    const KernelGrid* grid = nullptr;  // null: roofline
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
  bool AddLatentBlocks();
  void AddDenseLayers();
  void AddExperts();
  void AddCollectives();
  Collective MakeCollective(std::string_view part, int64_t count, int64_t ranks);
  int64_t TimeOf(const Collective& collective, int64_t num_tokens) const;
  void AddRest();
  void AddProduct(std::string_view part, int64_t count, int64_t n, int64_t k,
                  const std::string& dtype);
  std::string GemmDtype() const;
  std::vector<std::string> ExpertDtypes() const;
  void Say(std::string_view part, std::string source, bool measured = true);
  int64_t ProductTime(const Product& product, int64_t num_tokens) const;
  int64_t EstimateTime(const Estimate& estimate, int64_t num_tokens) const;
  int64_t DispatchTime(int64_t num_tokens) const;
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
  Collective reduce_, dispatch_;
  Estimate rest_;

  double known_params_ = 0;  // that a token uses and a product above stands for
  int64_t num_summed_layers_ = 0, num_block_layers_ = 0, num_estimated_layers_ = 0;
  MeasuredRange range_;
  std::vector<TimePart> parts_;
  bool has_measured_ = false;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_LAYER_TIMES_H_
