#include "kvblocks/attention_cuda.h"

#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "attention/cuda/block_ops.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/index_ops.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/paged_decode_ops.h"

namespace kvblocks::attention {
namespace {

BackendSupport CudaSupport() {
  BackendSupport support;
  for (int op = 0; op < kNumOpKinds; ++op) support.ops.push_back(static_cast<OpKind>(op));
  support.q_dtypes = {DType::kF32, DType::kF16, DType::kBF16};
  support.cache_dtypes = support.q_dtypes;
  for (DType code : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kU8}) {
    support.cache_dtypes.push_back(code);  // kU8: rows that carry their own scales
  }
  support.layouts = {KvLayout::kPagedX,    KvLayout::kNhd,      KvLayout::kHnd,
                     KvLayout::kMlaLatent, KvLayout::kMlaSplit, KvLayout::kMlaFp8_656,
                     KvLayout::kMlaFp8_584};
  support.row_formats.clear();
  for (int format = 0; format < kNumKvRowFormats; ++format) {
    support.row_formats.push_back(static_cast<KvRowFormat>(format));
  }
  support.most_head_size = cuda::kMaxHeadDim;
  support.block_sizes = {.multiple_of = 1};
  support.types = {AttentionType::kDecoder, AttentionType::kEncoder, AttentionType::kEncoderOnly,
                   AttentionType::kEncoderDecoder};
  support.features = FeatureSet::All();
  support.graph_level = GraphLevel::kUniformBatch;
  support.on_cuda = true;
  support.least_compute_capability = 80;
  return support;
}

class Backend final : public AttentionBackend {
 public:
  const char* name() const override { return ops().name(); }
  const AttentionOps& ops() const override { return Cuda(); }
  const BackendSupport& support() const override { return support_; }
  BackendFlags flags() const override { return {.supports_quantized_query = true}; }
  int32_t num_multiprocessors(const ExecContext& context) const override {
    const auto call = cuda::CudaCall::Begin("num_multiprocessors", context);
    return call.ok() ? call->launch().num_multiprocessors : 1;
  }
  absl::Status BuildList(const ExecContext& context, const WindowIndicesArgs& args) const override {
    return cuda::CudaBuildSwaIndices(context, args);
  }
  absl::Status BuildList(const ExecContext& context,
                         const DenseCompressedIndicesArgs& args) const override {
    return cuda::CudaBuildDenseCompressedIndices(context, args);
  }
  absl::Status BuildList(const ExecContext& context, const TopkSlotsArgs& args) const override {
    return cuda::CudaBuildTopkSlots(context, args);
  }
  int64_t DecodePlanBytes(const ExecContext& context, const PagedDecodeArgs& args) const override {
    return cuda::CudaDecodePlanBytes(context, args);
  }
  absl::Status PlanDecode(const ExecContext& context, const PagedDecodeArgs& args,
                          DeviceDecodePlan* plan) const override {
    return cuda::CudaPlanDecode(context, args, plan);
  }
  absl::Status FillZeros(const ExecContext& context, const TensorView& out) const override {
    return cuda::CudaFillTensor(context, out, std::byte{0});
  }

 private:
  const BackendSupport support_ = CudaSupport();
};

}  // namespace

const AttentionBackend& CudaBackend() {
  static const auto* const backend = new Backend();
  return *backend;
}

MaskUpload CudaMaskUpload() {
  return [](DeviceId, const std::byte* host,
            size_t bytes) -> absl::StatusOr<std::shared_ptr<const std::byte>> {
    void* memory = nullptr;
    if (cuda::AllocateDevice(bytes, &memory) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the GPU has no ", bytes, " bytes for a mask"));
    }
    std::shared_ptr<const std::byte> mask(
        static_cast<const std::byte*>(memory),
        [](const std::byte* at) { (void)cuda::FreeDevice(const_cast<std::byte*>(at)); });
    cuda::Error error = cuda::CopyAsync(memory, host, bytes, nullptr);
    if (error == 0) error = cuda::Synchronize(nullptr);
    if (error != 0) return cuda::StatusOf("a mask", error);
    return mask;
  };
}

absl::Status RegisterCudaBackend(BackendRegistry& registry) {
  return registry.Register(&CudaBackend(), kCudaPortablePriority);
}

}  // namespace kvblocks::attention
