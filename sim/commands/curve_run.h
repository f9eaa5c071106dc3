// A curve from its options: which mode, which sizes, and what stands in the report.

#ifndef KVBLOCKS_SIM_COMMANDS_CURVE_RUN_H_
#define KVBLOCKS_SIM_COMMANDS_CURVE_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_setup.h"
#include "sim/config.pb.h"
#include "sim/curve/curve.pb.h"
#include "sim/curve/order_curve.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

// What `kvsim curve` takes beside the options of a replay.
struct CurveOptions {
  std::string mode = "order";
  std::string blocks = "engine";
  std::vector<int64_t> sizes;        // of the table; none: chosen
  int64_t num_points = 100;          // further ones, in JSON and CSV
  std::vector<int64_t> block_sizes;  // what-if
  std::vector<std::string> what_if;
  std::vector<int64_t> tiers;  // blocks of the second tier behind the pool
  int64_t refine = 0;
  double sample_paths = 0;  // 0: all
  int64_t hot = 64;
  bool bounds = true;
  int64_t threads = 0;
};

// Options that say nothing in this mode are refused, never ignored. `given`: what the command line
// says.
absl::Status CheckCurveOptions(const CurveOptions& options, const ReplayConfig& given);

// Runs it all and fills the report. Warnings of the reader go to standard error.
absl::Status RunCurve(const ReplayConfig& config, const CurveOptions& options,
                      ProgressLine* progress, ::kvblocks::report::v1::CurveReport* report);

// What a curve is made from, and where it goes.
struct CurveRun {
  const ReplayConfig& config;
  const CurveOptions& options;
  ProgressLine* progress;
  ::kvblocks::report::v1::CurveReport* report;

  ReplaySetup replay = {};  // its pool is of no account
  int64_t block_tokens = 0;
  int64_t device_blocks = 0;  // usable ones that the device holds; 0: the model does not fit
  int64_t asked_blocks = 0;   // usable ones of --num-blocks; 0: not given
  // One group of full attention: one pass has every size. Otherwise sizes are replayed.
  bool has_one_pass = false;
  int num_threads = 1;

  void InParallel(const std::vector<std::function<void()>>& tasks, const char* noun) const;
};

// --- The sizes of the table and the files, and what stands beside them ---

struct CurveSize {
  int64_t num_blocks;
  bool is_row;
  std::string label;
};

// Those asked for, or 1, 2, 5, 10, ... from the smallest pool that takes every request to the one
// that hits all; with them the device's pool, twice that, and the one asked for; and --points more.
// Ascending, each once. The report has smallest_pool, full_pool and device_blocks.
std::vector<CurveSize> ChooseSizes(const CurveOptions& options, int64_t asked_blocks,
                                   const ::kvblocks::report::v1::CurveReport& report);

// A number by another: hits by blocks, or the smallest pool by hits.
using CurveFunction = std::function<int64_t(int64_t)>;

// The smallest pool with so many hits, of those that take every request. The curve must outlive it.
CurveFunction SmallestPoolOf(const HitCurve& curve, int64_t smallest);

// Ascending, each once.
std::vector<int64_t> Ascending(std::vector<int64_t> sizes);

// What an infinite cache hits, and the pool that hits as much.
void SetPossible(int64_t hits, int64_t full_pool, ::kvblocks::report::v1::CurveReport* report);

// One point per size, with hits from `hits`.
void AddPoints(const std::vector<CurveSize>& sizes, const CurveFunction& hits,
               ::kvblocks::report::v1::CurveReport* report);

// Hits and rates of one point whose num_blocks is set.
void FillPoint(int64_t hits, const ::kvblocks::report::v1::CurveReport& report,
               ::kvblocks::report::v1::CurvePoint* point);

// A further entry of the report's two tiers, with sizes alone.
::kvblocks::report::v1::CurveTiers* AddTierSizes(int64_t first_blocks, int64_t second_blocks,
                                                 ::kvblocks::report::v1::CurveReport* report);

// The smallest pools for 50, 90, 95, 99 and 100 % of the possible hits.
void AddAnswers(int64_t possible_hits, int64_t block_tokens, int64_t block_bytes,
                int64_t device_blocks, const CurveFunction& smallest_pool,
                google::protobuf::RepeatedPtrField<::kvblocks::report::v1::CurveAnswer>* answers);

// --- Further kinds of runs ---

// The curve of a hybrid model: no single pass is exact where several groups, windows or states
// decide together what a hit is. Each size is replayed, as `kvsim replay --num-blocks` would.
absl::Status RunCurveOfReplays(const CurveRun& run);

// Runs the replay whose pool never evicts, and fills the report from it. `order` is the order-mode
// run of the same workload, which says how large that pool must be.
absl::Status RunScheduleCurve(CurveRun& run, const OrderRun& order);

// Reads the trace twice, first for the hot paths; standard input cannot be. Points are means over 8
// hash seeds, with the lowest and the highest.
absl::Status RunSampledCurve(const CurveRun& run, const RequestBlocksOptions& blocks,
                             TraceReader* reader);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_CURVE_RUN_H_
