// HostTiers: the memory of tiers behind the pool. A TierConnector decides what each tier holds and
// when; here are the bytes, which its copies move.
//
// A block is copied with all layers of its group, as what lies at its place in each tensor of the
// plan, whichever group has it: so plans whose pages have places by group (native) are refused.
// Cost: a memcpy per block and tensor. Memory: the tiers' slots, taken when they are first written.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_HOST_TIERS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_HOST_TIERS_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"
#include "sim/tiers/tier_connector.h"

namespace kvblocks::engine {

class HostTiers {
 public:
  // `tiers` must be attached; the memory must outlive this. ResourceExhausted for slots that this
  // machine has no memory for.
  static absl::StatusOr<HostTiers> Create(const sim::TierConnector& tiers, const Plan& plan,
                                          const PlannedMemory& memory);
  void Copy(absl::Span<const sim::KvCopy> copies);

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Tensor {
    std::byte* data = nullptr;
    int64_t block_bytes = 0;
  };
  std::byte* At(offload::TierId tier, int64_t place, size_t tensor, int64_t offset) const;

  std::vector<Tensor> tensors_;                            // of the device
  int64_t block_bytes_ = 0;                                // of all of them
  std::vector<std::unique_ptr<std::byte[], Free>> slots_;  // by tier
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_HOST_TIERS_H_
