// One pass against the real block pool, run once per size, on random workloads.

#include <algorithm>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/curve/order_curve.h"
#include "sim/curve/schedule_curve.h"
#include "sim/curve/testing/random_workload.h"

namespace kvblocks::sim {
namespace {

constexpr uint64_t kCasesPerSeed = 3;

// Blocks of the request added last that a pool of `size` hits.
int64_t HitsAt(const OrderCurve& curve, int64_t size) {
  int64_t hits = 0;
  for (const OrderCurve::FoundRun& run : curve.found()) {
    const int64_t fitting = std::clamp<int64_t>(size - run.first_size + 1, 0, run.end - run.begin);
    hits += fitting;
    if (fitting < run.end - run.begin) break;
  }
  return hits;
}

void CompareWithRealPools(uint64_t seed, FreeOrder free_order,
                          const RandomWorkloadOptions& options) {
  RandomWorkload workload = MakeRandomWorkload(seed, options);
  int64_t smallest = 0, all = 0;
  {
    RequestBlocks blocks(workload.info, {.block_tokens = workload.block_tokens});
    CurveRequest request;
    for (TraceRequest& row : workload.requests) {
      RC_ASSERT(blocks.Make(row, &request));
      smallest = std::max(smallest, request.smallest_pool);
      all += request.num_blocks();
    }
  }
  for (int64_t size = smallest; size <= all + 1; ++size) {
    const RealHits real =
        HitsOfRealPool(workload, ConfigOfPool(workload, size, free_order, /*max_num_seqs=*/1));
    RC_ASSERT(real.status.ok());
    RequestBlocks blocks(workload.info, {.block_tokens = workload.block_tokens});
    OrderCurve curve({.free_order = free_order});
    CurveRequest request;
    int64_t sum = 0;
    for (TraceRequest& row : workload.requests) {
      RC_ASSERT(blocks.Make(row, &request));
      curve.Add(request);
      const int64_t hits = HitsAt(curve, size);
      if (hits != real.hits[static_cast<size_t>(row.row)]) {
        RC_LOG() << "seed " << seed << ", pool of " << size << ", row " << row.row << "\n";
      }
      RC_ASSERT(hits == real.hits[static_cast<size_t>(row.row)]);
      sum += hits;
    }
    RC_ASSERT(curve.sums().smallest_pool == smallest);
    RC_ASSERT(curve.Finish().Hits(size) == sum);
  }
}

RC_GTEST_PROP(OrderCurveProperty, HitsAreThoseOfRealPoolsOfEverySize, (uint64_t first_seed)) {
  for (const FreeOrder order : {FreeOrder::kUnhashedFirst, FreeOrder::kAppendAll}) {
    for (uint64_t seed = first_seed; seed - first_seed < kCasesPerSeed; ++seed) {
      CompareWithRealPools(seed, order, {});
    }
  }
}

// One replay with a pool that never evicts against replays with real pools of every size, on random
// workloads whose schedule does not depend on hits.

// Keeps the look-ups of the curve by row.
class Recorder final : public EngineObserver {
 public:
  Recorder(const ScheduleCurve* curve, size_t num_rows) : found(num_rows), curve_(curve) {}
  void OnAdmission(const AdmissionRecord& record, SimTime) override {
    const auto runs = curve_->found();
    found[static_cast<size_t>(record.request->spec.row)].assign(runs.begin(), runs.end());
  }
  int64_t HitsAt(size_t row, int64_t size) const {
    int64_t hits = 0;
    for (const ScheduleCurve::FoundRun& run : found[row]) {
      const int64_t count = run.end - run.begin;
      const int64_t fitting =
          run.first_size == 0 ? count : std::clamp<int64_t>(size - run.first_size + 1, 0, count);
      hits += fitting;
      if (fitting < count) break;
    }
    return hits;
  }
  std::vector<std::vector<ScheduleCurve::FoundRun>> found;

 private:
  const ScheduleCurve* curve_;
};

void CompareWithRealPools(uint64_t seed, FreeOrder free_order, int64_t* num_exact) {
  const RandomWorkload workload =
      MakeRandomWorkload(seed, {.with_full_blocks = seed % 2 == 0, .seconds_between = 6});
  const int64_t all = 40 * static_cast<int64_t>(workload.requests.size()) + 10;
  const int64_t running = 1 + static_cast<int64_t>(seed % 5);
  ScheduleCurve curve({.free_order = free_order, .has_fixed_step_time = true});
  Recorder recorder(&curve, workload.requests.size());
  // The replay's own free order makes no difference.
  const SimulationConfig config = ConfigOfPool(
      workload, all, seed % 3 == 0 ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst, running);
  const RealHits whole = HitsOfRealPool(workload, config, {&curve, &recorder});
  RC_ASSERT(whole.status.ok());
  RC_ASSERT(!curve.was_pool_too_small());
  const bool is_exact = curve.is_exact();
  *num_exact += is_exact;
  const HitCurve hits = curve.Finish();
  RC_ASSERT(hits.max_hits() == std::accumulate(whole.hits.begin(), whole.hits.end(), int64_t{0}));
  if (!is_exact) return;
  int64_t smallest = 0;
  for (const TraceRequest& request : workload.requests) {
    const int64_t tokens = request.input_length + request.output_length;
    smallest = std::max(smallest, (tokens + workload.block_tokens - 1) / workload.block_tokens);
  }
  smallest = std::max(smallest, curve.peak_referenced());
  const int64_t largest = hits.SmallestPool(hits.max_hits());
  for (int64_t size = smallest; size < largest + 60; ++size) {
    const RealHits real =
        HitsOfRealPool(workload, ConfigOfPool(workload, size, free_order, running));
    RC_ASSERT(real.status.ok());
    RC_ASSERT(real.result.scheduler.num_preemptions == 0);
    for (size_t row = 0; row < real.hits.size(); ++row) {
      if (recorder.HitsAt(row, size) != real.hits[row]) {
        RC_LOG() << "seed " << seed << ", pool of " << size << ", row " << row << ": "
                 << recorder.HitsAt(row, size) << " expected, " << real.hits[row] << "\n";
      }
      RC_ASSERT(recorder.HitsAt(row, size) == real.hits[row]);
    }
    RC_ASSERT(hits.Hits(size) == std::accumulate(real.hits.begin(), real.hits.end(), int64_t{0}));
  }
}

RC_GTEST_PROP(ScheduleCurveProperty, HitsAreThoseOfRealPoolsOfEverySize, (uint64_t first_seed)) {
  for (const FreeOrder order : {FreeOrder::kUnhashedFirst, FreeOrder::kAppendAll}) {
    int64_t num_exact = 0;
    for (uint64_t seed = first_seed; num_exact < int64_t{kCasesPerSeed}; ++seed) {
      CompareWithRealPools(seed, order, &num_exact);
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
