// Serving points: measured runs of servers - model, device, ranks, lengths, requests in flight -
// and what the simulator says of each.
//
// A point is replayed as the run was driven: a closed loop of `concurrency` requests, ten times as
// many in all, lengths drawn uniformly from 80 % of the nominal ones up to these. Nothing that was
// measured goes into the prediction.

#ifndef KVBLOCKS_BENCH_SERVING_POINTS_H_
#define KVBLOCKS_BENCH_SERVING_POINTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/model_facts.h"
#include "sim/cost/table_clock.h"

namespace kvblocks::sim {

// As the catalogue finds it, behind whose name may be the format of the weights ("-FP8").
absl::StatusOr<ModelFacts> FindPointModel(const std::string& spelling);

struct ServingPoint {
  std::string id = "", engine_version = "", model = "", device = "", precision = "";
  std::string campaign = "", flags = "", measured_date = "";
  int64_t input_tokens = 0, output_tokens = 0;
  int64_t concurrency = 0;
  int64_t tensor_parallel = 1, data_parallel = 1;
  int64_t expert_tensor_parallel = 0, expert_parallel = 0;
  double ttft_ms = 0, tpot_ms = 0;
};

// Options given to a run's server; otherwise the engine's defaults count.
struct ServingRecipe {
  static constexpr int64_t kTwoPrompts = -1;  // as many tokens as two prompts

  std::string kv_dtype = "", expert_dtype = "";  // as the kernel tables name them
  bool has_whole_experts = false;                // ranks share experts out, none is divided
  bool fuses_allreduce = false;                  // with norms
  int64_t max_num_batched_tokens = 8192;
  int64_t max_num_seqs = 1024;
};
// Of "0.17.0"; what stands for a version that has no number is the caller's to say.
std::optional<int> MinorVersionOf(const ServingPoint& point);

ServingRecipe RecipeOf(const ServingPoint& point, const std::string& family);

// From the columns of a silicon_*.csv[.gz] file; rows that are no single pool of one engine, or are
// marked as useless, are left out and counted in `num_left_out`.
absl::StatusOr<std::vector<ServingPoint>> ReadServingPoints(const std::string& path,
                                                            int64_t* num_left_out);

enum class PointClock { kTables, kRoofline, kRooflineWithOverhead };

struct PointOptions {
  PointClock clock = PointClock::kTables;
  TableClockOptions constants;  // its constants only
  SimTime sequence_overhead_in_turn = kSequenceOverheadSync;
  double client_latency_ms = 6;
  double client_latency_ms_per_1k_tokens = 1;  // of the prompt
  int64_t max_num_batched_tokens = 0;           // 0: as the run's recipe says
};

struct PointPrediction {
  double ttft_ms = 0, tpot_ms = 0;
  int64_t num_steps = 0, num_outside = 0;
};

class PointPredictor {
 public:
  PointPredictor(std::string tables_path, const PointOptions& options)
      : tables_path_(std::move(tables_path)), options_(options) {}

  absl::StatusOr<PointPrediction> Predict(const ServingPoint& point);

 private:
  absl::StatusOr<const KernelTables*> TablesOf(const std::string& device);

  std::string tables_path_;
  PointOptions options_;
  std::map<std::string, KernelTables> tables_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_BENCH_SERVING_POINTS_H_
