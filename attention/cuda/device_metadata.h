// DeviceMetadata: a step's metadata in device memory, by one asynchronous copy.
//
// The builder keeps all arrays of all groups in one stretch of memory; Upload copies it into pinned
// memory and enqueues its copy to a buffer of the same size, whose addresses stay the same from
// step to step: what a captured graph reads. Nothing else is enqueued and nothing waits, but for
// the copy of the upload before the last, whose pinned memory it takes. Metadata has a StepPlans,
// so that layers share the plans of a step.
//
// Masks go along: ragged bits that the builder has room for (max_mask_bytes) are arrays like the
// others; whole masks on the host are copied when they are first seen, which allocates and waits,
// and stay as long as this.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_METADATA_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {

class DeviceMetadata {
 public:
  // Takes device and pinned memory of the builder's size on the context's device. ResourceExhausted
  // if there is none. The builder must outlive this.
  static absl::StatusOr<std::unique_ptr<DeviceMetadata>> Create(
      const ExecContext& context, const AttentionMetadataBuilder* builder);
  ~DeviceMetadata();
  DeviceMetadata(const DeviceMetadata&) = delete;
  DeviceMetadata& operator=(const DeviceMetadata&) = delete;

  // The builder's arrays as they are now. Internal for CUDA errors.
  absl::Status Upload(const ExecContext& context);

  // The builder's metadata of a group with views of device memory; host arrays stay the host's.
  // Good on the stream behind Upload.
  CommonAttentionMetadata metadata(int group = 0) const {
    return OnDevice(builder_->metadata(group));
  }
  const StepPlans& plans() const { return *plans_; }
  // Any metadata of the builder's arrays with views of device memory: that of a GraphParameterSet,
  // which a graph is captured with. Masks that the device has no memory for stay on the host, where
  // layers refuse them.
  CommonAttentionMetadata OnDevice(CommonAttentionMetadata metadata) const;

 private:
  explicit DeviceMetadata(const AttentionMetadataBuilder* builder) : builder_(builder) {}

  const AttentionMetadataBuilder* builder_;
  DeviceId device_;
  std::byte* plan_memory_ = nullptr;
  std::unique_ptr<StepPlans> plans_;
  std::byte* memory_ = nullptr;
  std::byte* pinned_[2] = {nullptr, nullptr};
  void* copied_[2] = {nullptr, nullptr};  // events: the copies from `pinned_` are done
  bool used_[2] = {false, false};
  int next_ = 0;

  // Whole masks, with those of the host that they are copies of.
  struct Mask {
    MaskRef host;
    std::shared_ptr<const std::byte> device;
    int64_t bytes = 0;
  };
  void PlaceMask(MaskRef& mask) const;
  mutable std::vector<Mask> masks_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_METADATA_H_
