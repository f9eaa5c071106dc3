// RequestStore: the live requests of a simulation, in reused objects, so that memory follows the
// number of live requests and slots stay small.
//
// Always: slots are 0 .. peak_live() - 1, and no two live requests share one. Cost: O(1); allocates
// only when more requests are alive than ever before.

#ifndef KVBLOCKS_SIM_ENGINE_REQUEST_STORE_H_
#define KVBLOCKS_SIM_ENGINE_REQUEST_STORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

class RequestStore {
 public:
  RequestStore() = default;
  RequestStore(const RequestStore&) = delete;
  RequestStore& operator=(const RequestStore&) = delete;

  // A fresh request with the lengths that `spec` asks for.
  SimRequest* Add(TraceRequest spec);
  // Makes a live request what Add made of it, its arrival and lengths kept; it holds no blocks any
  // more.
  void Restart(SimRequest* request);
  // Gives its blocks back if it holds any, and invalidates the pointer.
  void Remove(SimRequest* request);

  int64_t num_live() const { return num_live_; }
  // About what the specs of the live ones take.
  int64_t spec_bytes() const { return spec_bytes_; }
  int64_t peak_live() const { return static_cast<int64_t>(requests_.size()); }

 private:
  std::vector<std::unique_ptr<SimRequest>> requests_;  // by slot, live or spare
  std::vector<int32_t> spare_slots_;
  int64_t num_live_ = 0;
  int64_t spec_bytes_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_REQUEST_STORE_H_
