// AttentionPlace: where the caches lie and the layers attend, beside a model on the host.
//
// This one is the host itself: rows stay where the model made them. On a device (cuda/cuda_place.h)
// a layer's rows are brought there before it attends, and its output back; caches, masks, plans and
// all that the layers work in stay there. Single-threaded; must outlive what it allocated.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_ATTENTION_PLACE_H_
#define KVBLOCKS_EXAMPLES_ENGINE_ATTENTION_PLACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention.h"

namespace kvblocks::engine {

class AttentionPlace {
 public:
  using Memory = std::shared_ptr<std::byte>;

  virtual ~AttentionPlace() = default;

  const attention::ExecContext& context() const { return context_; }
  void set_threads(attention::ThreadPool* threads) { context_.threads = threads; }
  virtual const attention::AttentionBackend& backend() const { return attention::CpuBackend(); }
  virtual attention::AttentionMaskBuilder::Options mask_options() const { return {}; }

  // Zeroed. ResourceExhausted names `what` and the bytes.
  virtual absl::StatusOr<Memory> Allocate(const char* what, int64_t bytes);
  // The same as a tensor u8[bytes].
  absl::StatusOr<attention::TensorView> AllocateBytes(const char* what, int64_t bytes,
                                                      Memory* memory);
  // To the place or from it, behind what was enqueued; waits.
  virtual absl::Status Copy(std::byte* to, const std::byte* from, int64_t bytes);
  absl::Status Copy(const attention::TensorView& to, const attention::ConstTensorView& from);

  // A layer's call: rows of the host become rows of the place, good until the next call begins.
  virtual void BeginCall() {}
  virtual absl::Status Bring(attention::ConstTensorView&) { return absl::OkStatus(); }
  virtual absl::Status Reserve(attention::TensorView&) { return absl::OkStatus(); }
  // The same of what layers keep, such as sinks: good as long as the place.
  virtual absl::Status Keep(attention::ConstTensorView&) { return absl::OkStatus(); }

  // Metadata of the builder's last batch, good behind Upload.
  virtual absl::Status UseBuilder(const attention::AttentionMetadataBuilder* builder) {
    builder_ = builder;
    return absl::OkStatus();
  }
  virtual absl::Status Upload() { return absl::OkStatus(); }
  virtual attention::CommonAttentionMetadata metadata(int group) const {
    return builder_->metadata(group);
  }
  // Internal if kernels found indices or lengths that they cannot take.
  virtual absl::Status CheckFlags() { return absl::OkStatus(); }

 protected:
  attention::ExecContext context_;
  const attention::AttentionMetadataBuilder* builder_ = nullptr;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_ATTENTION_PLACE_H_
