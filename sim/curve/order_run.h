// An order-mode curve of a whole workload, with the bound beside it.
//
// Requests come from a feed, so that one decoded trace can serve several runs at once.

#ifndef KVBLOCKS_SIM_CURVE_ORDER_RUN_H_
#define KVBLOCKS_SIM_CURVE_ORDER_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/curve/belady_bound.h"
#include "kvblocks/sim/curve/hit_curve.h"
#include "kvblocks/sim/curve/order_curve.h"
#include "kvblocks/sim/curve/request_blocks.h"
#include "kvblocks/sim/curve/static_bound.h"
#include "kvblocks/sim/trace/trace_reader.h"

namespace kvblocks::sim {

// The next request, valid until the next call, or null at the end.
using RequestFeed = std::function<absl::StatusOr<TraceRequest*>()>;

// As they come. `progress` is called for each request.
RequestFeed FeedFrom(TraceReader* reader, std::function<void()> progress = nullptr);
// Copies of the requests, in their order.
RequestFeed FeedFrom(const std::vector<TraceRequest>* requests);
// In random order; only the turns of a session keep theirs.
RequestFeed ShuffledFeedFrom(const std::vector<TraceRequest>* requests, uint64_t seed);

// With the reader that feeds it, ResourceExhausted as CheckHeldBytes says.
absl::StatusOr<std::vector<TraceRequest>> ReadAll(const RequestFeed& feed,
                                                  const TraceReader* reader = nullptr);

struct OrderRunOptions {
  RequestBlocksOptions blocks;
  FreeOrder free_order = FreeOrder::kUnhashedFirst;
  bool with_bound = false;
};

struct OrderRun {
  HitCurve curve;
  std::unique_ptr<BeladyBound> bound;         // with_bound
  std::unique_ptr<StaticBound> static_bound;  // with_bound
  int64_t num_requests = 0;
  int64_t num_left_out = 0;  // that never run, whatever the pool
  int64_t num_prompt_tokens = 0;
  int64_t num_prompt_blocks = 0;
  int64_t num_references = 0;
  int64_t num_distinct = 0;
  int64_t smallest_pool = 0;
  int64_t num_requests_with_hit = 0;
  int64_t num_without_arrival =
      0;  // requests that only wait for others, and have no time of their own
};

absl::StatusOr<OrderRun> RunOrder(const TraceInfo& info, const RequestFeed& feed,
                                  const OrderRunOptions& options);

// What whole blocks lose of the prompt tokens that any earlier prompt shares, the last token's
// block included.
struct RoundingLoss {
  int64_t shared_tokens = 0;
  int64_t lost_tokens = 0;
  int64_t short_tokens = 0;  // of these, in prompts that share less than one block
  int64_t short_requests = 0;
};
RoundingLoss LossByRounding(const TraceInfo& info, const std::vector<TraceRequest>& requests,
                            int64_t block_tokens);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_ORDER_RUN_H_
