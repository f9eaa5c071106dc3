// How many blocks requests of a length need, and how long or how many requests a pool can serve.
//
// One formula for sizing, check, estimate and concurrency. Blocks of one request in one group are a
// staircase in its length: added + min(cap, ceil(L / step)). Requests draw *units* from the pool:
// blocks, or chunks in the native layout. All answers are closed forms, and inverses are solved
// from them.

#ifndef KVBLOCKS_SPECS_PLANNING_CAPACITY_H_
#define KVBLOCKS_SPECS_PLANNING_CAPACITY_H_

#include <cstdint>
#include <vector>

#include "kvblocks/specs/request_footprint.h"

namespace kvblocks {

class PoolCapacity {
 public:
  std::vector<GroupDemand> groups = {};
  // Pages in a unit, per page class. One entry of 1 where every block id serves every group.
  std::vector<int64_t> pages_per_unit = {1};
  int64_t units = 0;             // in the pool, what nobody can have taken out
  bool shared_transient = true;  // false: every request reserves its own, as upstream does

  // For one request of `length`, per group and in all.
  std::vector<int64_t> BlocksPerRequest(int64_t length) const;
  int64_t TotalBlocksPerRequest(int64_t length) const;

  // For `requests` of `length` at once, permanent blocks included. REQUIRES: requests >= 0.
  int64_t UnitsNeeded(int64_t requests, int64_t length) const;

  // The most requests of `length` that fit whatever the scheduler does with the in-flight tokens,
  // and the same with the fraction of a further one.
  int64_t MaxRequests(int64_t length) const;
  double Concurrency(int64_t length) const;

  // The longest request in [0, limit] that fits `num_units`; 0 if none does.
  int64_t LongestLength(int64_t num_units, int64_t limit) const;

  friend bool operator==(const PoolCapacity&, const PoolCapacity&) = default;

 private:
  int64_t LongestLengthOfBlocks(int64_t num_blocks, int64_t limit) const;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_CAPACITY_H_
