// PossiblePoolsObserver: for which pools a replay's own requests would hit 50, 90 and 99 % of what
// is possible. One pass of OrderCurve beside the replay, over the requests as they arrive, so that
// the answers are those of `kvsim curve`.
//
// Cost: 25 ns per full block of prompts and outputs, 4 bytes per distinct one. After kMaxReferences
// blocks it gives up, says so, and frees what it has: at most half a second and 80 MB.

#ifndef KVBLOCKS_SIM_CURVE_POSSIBLE_POOLS_H_
#define KVBLOCKS_SIM_CURVE_POSSIBLE_POOLS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "sim/curve/order_curve.h"
#include "sim/engine/engine_observer.h"
#include "sim/report/report.pb.h"

namespace kvblocks::sim {

// One group of full attention: one pass has every size.
bool HasOnePass(const KvCacheConfig& config);

// How a replay with this configuration counts and frees blocks.
OrderRunOptions OrderRunOptionsOf(const SimulationConfig& simulation);

class PossiblePoolsObserver final : public EngineObserver {
 public:
  static constexpr int64_t kMaxReferences = 20'000'000;

  // `block_bytes`: on each device; 0: unknown.
  PossiblePoolsObserver(const SimulationConfig& simulation, int64_t block_bytes,
                        int64_t max_references = kMaxReferences);

  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override;
  void OnArrival(const SimRequest& request, SimTime now) override;

  // Ends the counting.
  void Fill(::kvblocks::report::v1::PossiblePools* out);

 private:
  struct Pass {
    RequestBlocks blocks;
    OrderCurve curve;
  };

  const int64_t block_bytes_, max_references_;
  OrderRunOptions options_;
  std::optional<Pass> pass_;
  std::string not_known_;  // why there is none
  TraceRequest request_;   // scratch
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_POSSIBLE_POOLS_H_
