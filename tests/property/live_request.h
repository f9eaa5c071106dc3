// LiveRequest: the same request on both sides of a comparison.

#ifndef KVBLOCKS_TESTS_PROPERTY_LIVE_REQUEST_H_
#define KVBLOCKS_TESTS_PROPERTY_LIVE_REQUEST_H_

#include <cstdint>
#include <memory>

#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/tests/oracle/manager.h"

namespace kvblocks::property {

struct LiveRequest {
  std::unique_ptr<Request> real;
  oracle::Request model;

  // The latest look-up.
  ComputedBlocks real_hits;
  oracle::Hits model_hits;

  // Since the request last got its first blocks: the largest number of tokens counted as processed,
  // and of slots asked for.
  int64_t max_processed = 0;
  int64_t max_slots = 0;

  void SetComputed(int64_t computed, int64_t inflight) {
    model.num_computed = computed;
    model.num_inflight = inflight;
    real->set_num_computed_tokens(computed);
    real->set_num_inflight_tokens(inflight);
  }
  void SetSharedBoundary(int64_t num_tokens) {
    model.shared_boundary = num_tokens;
    real->set_shared_prefix_boundary(num_tokens);
  }
  void SetStatus(oracle::Status status) {
    model.status = status;
    real->set_status(static_cast<RequestStatus>(status));
  }
};
static_assert(static_cast<int>(oracle::Status::kFinished) ==
              static_cast<int>(RequestStatus::kFinished));

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_LIVE_REQUEST_H_
