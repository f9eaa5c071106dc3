// One pass against the real block pool, run once per size, on random workloads.

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/curve/order_curve.h"
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

}  // namespace
}  // namespace kvblocks::sim
