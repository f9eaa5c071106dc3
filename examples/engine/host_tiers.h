// HostTiers: the memory of tiers behind the pool. A TierConnector decides what each tier holds and
// when; here are the bytes, which its copies move.
//
// Copies are made layer by layer, as hooks of the layers: before the next step that reads or writes
// a layer's tensor, in the order in which they were asked for. So a layer's blocks come while those
// behind it are still in the tier, and blocks that the step reuses have been read before. A block
// is copied with all layers of its group, as what lies at its place in each tensor of the plan,
// whichever group has it: so plans whose pages have places by group (native) are refused.
// Cost: a memcpy per block and tensor. Memory: the tiers' slots, taken when they are first written.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_HOST_TIERS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_HOST_TIERS_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention.h"
#include "kvblocks/plan.h"
#include "kvblocks/planned_memory.h"
#include "sim/tiers/tier_connector.h"

namespace kvblocks::engine {

class HostTiers final : public attention::LayerHooks {
 public:
  // `tiers` must be attached; the memory must outlive this. ResourceExhausted for slots that this
  // machine has no memory for.
  static absl::StatusOr<HostTiers> Create(const sim::TierConnector& tiers, const Plan& plan,
                                          const PlannedMemory& memory);
  // Before the next step.
  void Copy(absl::Span<const sim::KvCopy> copies);

  absl::Status WaitForLayer(const std::string& cache,
                            const attention::ExecContext& context) override;
  // Which blocks a tier takes is known when the step has ended.
  absl::Status SaveLayer(const std::string&, const attention::ConstKvCacheView&,
                         const attention::CommonAttentionMetadata&,
                         const attention::ExecContext&) override {
    return absl::OkStatus();
  }
  absl::Status SaveBlocks(const std::string&, const attention::ConstTensorView&,
                          const attention::CommonAttentionMetadata&,
                          const attention::ExecContext&) override {
    return absl::OkStatus();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Tensor {
    std::byte* data = nullptr;
    int64_t block_bytes = 0;
    int64_t offset = 0;  // of its part of a slot
    std::vector<sim::KvCopy> pending;
  };
  std::byte* At(offload::TierId tier, int64_t place, const Tensor& tensor) const;

  std::vector<Tensor> tensors_;                            // of the device
  int64_t block_bytes_ = 0;                                // of all of them
  std::map<std::string, int> tensor_of_;                   // by cache
  std::vector<std::unique_ptr<std::byte[], Free>> slots_;  // by tier
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_HOST_TIERS_H_
