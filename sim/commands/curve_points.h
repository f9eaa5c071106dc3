// The sizes of a curve's table and files, and what stands beside them.

#ifndef KVBLOCKS_SIM_COMMANDS_CURVE_POINTS_H_
#define KVBLOCKS_SIM_COMMANDS_CURVE_POINTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvblocks/sim/commands/curve_options.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/curve/belady_bound.h"
#include "kvblocks/sim/curve/curve.pb.h"
#include "kvblocks/sim/curve/static_bound.h"

namespace kvblocks::sim {

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

// What stands beside the curve; null: nothing.
struct CurveBounds {
  const BeladyBound* belady = nullptr;
  const StaticBound* fixed = nullptr;
};

// One point per size, with hits from `hits`, and the bounds on `num_threads`, which `progress` shows.
void AddPoints(const std::vector<CurveSize>& sizes, const std::function<int64_t(int64_t)>& hits,
               const CurveBounds& bounds, int num_threads, ProgressLine* progress,
               ::kvblocks::report::v1::CurveReport* report);

// Hits and rates of one point whose num_blocks is set.
void FillPoint(int64_t hits, const ::kvblocks::report::v1::CurveReport& report,
               ::kvblocks::report::v1::CurvePoint* point);

// Ascending, each once.
std::vector<int64_t> Ascending(std::vector<int64_t> sizes);

// A further entry of the report's two tiers, with sizes alone.
::kvblocks::report::v1::CurveTiers* AddTierSizes(int64_t first_blocks, int64_t second_blocks,
                                                 ::kvblocks::report::v1::CurveReport* report);

// The smallest pools for 50, 90, 95, 99 and 100 % of the possible hits.
void AddAnswers(int64_t possible_hits, int64_t block_tokens, int64_t block_bytes,
                int64_t device_blocks, const std::function<int64_t(int64_t)>& smallest_pool,
                google::protobuf::RepeatedPtrField<::kvblocks::report::v1::CurveAnswer>* answers);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_CURVE_POINTS_H_
