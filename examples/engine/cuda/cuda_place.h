// CudaPlace: device 0 of an NVIDIA GPU, with a stream of its own, as where caches lie and layers
// attend.
//
// Rows of a call are copied one by one, in order, so a step costs some copies per layer and their
// waits: for models whose products are the host's. CudaRunner, whose rows are on the device, uses
// the same stream, workspace and metadata.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUDA_PLACE_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUDA_PLACE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/cuda/device_metadata.h"
#include "examples/engine/attention_place.h"
#include "examples/engine/cuda/device_array.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/model_facts.h"
#include "sim/simulation_config.h"

namespace kvblocks::engine {

class CudaPlace final : public AttentionPlace {
 public:
  // With a workspace for steps of this configuration. ResourceExhausted names what there is no
  // memory for, Internal the CUDA error.
  static absl::StatusOr<std::unique_ptr<CudaPlace>> Create(const ModelFacts& facts,
                                                           const sim::SimulationConfig& config);
  ~CudaPlace() override;

  const attention::AttentionBackend& backend() const override { return attention::CudaBackend(); }
  attention::AttentionMaskBuilder::Options mask_options() const override {
    return {.device = context_.device, .upload = attention::CudaMaskUpload()};
  }
  absl::StatusOr<Memory> Allocate(const char* what, int64_t bytes) override;
  absl::Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  using AttentionPlace::Copy;
  void BeginCall() override { used_ = 0; }
  absl::Status Bring(attention::ConstTensorView& rows) override;
  absl::Status Reserve(attention::TensorView& rows) override;
  absl::Status Keep(attention::ConstTensorView& values) override;
  absl::Status UseBuilder(const attention::AttentionMetadataBuilder* builder) override;
  absl::Status Upload() override { return metadata_->Upload(context_); }
  attention::CommonAttentionMetadata metadata(int group) const override {
    return metadata_->metadata(group);
  }
  const attention::cuda::DeviceMetadata& device_metadata() const { return *metadata_; }
  absl::Status CheckFlags() override;

  // Where kernels set flags, instead of this place's own.
  void set_flags(uint32_t* bits) { flags_.bits = bits; }
  static absl::Status StatusOfFlags(uint32_t bits);

 private:
  CudaPlace() = default;
  absl::StatusOr<std::byte*> Slot(int64_t bytes);

  attention::Workspace workspace_;
  attention::DeviceErrorFlags flags_;
  DeviceArray workspace_memory_, own_flags_;
  std::unique_ptr<attention::cuda::DeviceMetadata> metadata_;
  std::vector<DeviceArray> slots_;  // of a call's rows, as large as they ever were
  size_t used_ = 0;
  std::vector<Memory> kept_;
};

// Milliseconds that the device takes for what is enqueued; waits.
absl::StatusOr<double> TimeOnDevice(void* stream, absl::FunctionRef<absl::Status()> enqueue);

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUDA_PLACE_H_
