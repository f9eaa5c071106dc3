// DeviceLayers: the backend CUDA for callers whose layers, tensors and metadata are in host memory:
// each call of a layer runs on copies of all of them in device memory. What suites of layers hold a
// device to their behaviour by. Testonly.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_DEVICE_LAYERS_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_DEVICE_LAYERS_H_

#include <memory>
#include <utility>

#include "attention/cuda/host_tensor_ops.h"
#include "attention/ops/visit_views.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::cuda {

class DeviceLayers final : public AttentionBackend {
 public:
  explicit DeviceLayers(const HostTensorOps::Options& options)
      : on_device_(HostTensorOps::Create(&Cuda(), options).value()) {}

  const char* name() const override { return CudaBackend().name(); }
  const AttentionOps& ops() const override { return *on_device_; }
  const BackendSupport& support() const override { return CudaBackend().support(); }
  BackendFlags flags() const override { return CudaBackend().flags(); }

  absl::StatusOr<std::unique_ptr<AttentionImpl>> MakeImpl(const LayerConfig& layer) const override {
    absl::StatusOr<std::unique_ptr<AttentionImpl>> made = CudaBackend().MakeImpl(layer);
    if (!made.ok()) return made;
    return std::make_unique<Layer>(on_device_.get(), *std::move(made));
  }

 private:
  class Layer final : public AttentionImpl {
   public:
    Layer(const HostTensorOps* on_device, std::unique_ptr<AttentionImpl> on_host)
        : on_device_(on_device), on_host_(std::move(on_host)) {}
    const LayerConfig& config() const override { return on_host_->config(); }

    absl::Status Forward(const ExecContext& context, const LayerTensors& tensors,
                         const CommonAttentionMetadata* metadata) const override {
      LayerConfig layer = config();
      LayerTensors t = tensors;
      CommonAttentionMetadata m;
      if (metadata != nullptr) m = *metadata;
      const auto visit = [&](const HostTensorOps::Visitor& visitor) {
        VisitEach(visitor, layer.alibi_slopes, layer.sinks, layer.scales.k, layer.scales.v,
                  layer.scales.q);
        VisitEach(visitor, t.q, t.k, t.v, t.cache.k, t.cache.v, t.cache.k_scales,
                  t.cache.v_scales, t.out, t.lse, t.q_codes);
        VisitEach(visitor, m.query_start_loc, m.seq_lens, m.block_table, m.slot_mapping,
                  m.positions, m.token_to_req, m.local_context_lens, m.prefill_query_start_loc,
                  m.attn_mask.view, m.swa_mask.view, m.custom_mask.view);
      };
      return on_device_->RunOnDevice(context, visit, [&](const ExecContext& on) -> absl::Status {
        const auto impl = CudaBackend().MakeImpl(layer);
        if (!impl.ok()) return impl.status();
        return (*impl)->Forward(on, t, metadata != nullptr ? &m : nullptr);
      });
    }

   private:
    const HostTensorOps* on_device_;
    std::unique_ptr<AttentionImpl> on_host_;
  };

  std::unique_ptr<HostTensorOps> on_device_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_DEVICE_LAYERS_H_
