#include "attention/cuda/device_metadata.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/runtime.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

// Of plans: some tens of them for hundreds of requests, a few that cut long ones into many pieces.
constexpr int64_t kPlanBytes = int64_t{4} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMetadata>> DeviceMetadata::Create(
    const ExecContext& context, const AttentionMetadataBuilder* builder) {
  std::unique_ptr<DeviceMetadata> made(new DeviceMetadata(builder));
  made->device_ = context.device;
  const size_t bytes = builder->storage().size();
  const auto short_of = [bytes](const char* memory) {
    return absl::ResourceExhaustedError(
        absl::StrCat("metadata: no ", bytes, " bytes of ", memory, " memory for its arrays"));
  };
  void* allocated = nullptr;
  if (AllocateDevice(bytes, &allocated) != 0) return short_of("device");
  made->memory_ = static_cast<std::byte*>(allocated);
  if (AllocateDevice(kPlanBytes, &allocated) != 0) return short_of("device");
  made->plan_memory_ = static_cast<std::byte*>(allocated);
  made->plans_ = std::make_unique<StepPlans>(
      TensorView::Contiguous(made->plan_memory_, DType::kU8, {kPlanBytes}, context.device));
  for (int i = 0; i < 2; ++i) {
    if (AllocatePinned(bytes, &allocated) != 0) return short_of("pinned");
    made->pinned_[i] = static_cast<std::byte*>(allocated);
    if (const Error error = CreateEvent(&made->copied_[i]); error != 0) {
      return StatusOf("metadata", error);
    }
  }
  return made;
}

DeviceMetadata::~DeviceMetadata() {
  (void)FreeDevice(memory_);
  (void)FreeDevice(plan_memory_);
  for (int i = 0; i < 2; ++i) {
    if (used_[i]) (void)WaitForEvent(copied_[i]);
    if (copied_[i] != nullptr) (void)DestroyEvent(copied_[i]);
    if (pinned_[i] != nullptr) (void)FreePinned(pinned_[i]);
  }
}

absl::Status DeviceMetadata::Upload(const ExecContext& context) {
  plans_->BeginStep();
  const int i = next_;
  if (used_[i]) {
    if (const Error error = WaitForEvent(copied_[i]); error != 0)
      return StatusOf("metadata", error);
  }
  const absl::Span<const std::byte> storage = builder_->filled_storage();
  std::memcpy(pinned_[i], storage.data(), storage.size());
  Error error = CopyAsync(memory_, pinned_[i], storage.size(), context.stream);
  if (error == 0) error = RecordEvent(copied_[i], context.stream);
  if (error != 0) return StatusOf("metadata", error);
  used_[i] = true;
  next_ = 1 - i;
  return absl::OkStatus();
}

void DeviceMetadata::PlaceMask(MaskRef& mask) const {
  const absl::StatusOr<int64_t> bytes = mask.view.SpanBytes();
  if (!bytes.ok()) return;
  auto at = std::find_if(masks_.begin(), masks_.end(), [&](const Mask& one) {
    return one.host.view.data == mask.view.data && one.bytes >= *bytes;
  });
  if (at == masks_.end()) {
    auto copy = CudaMaskUpload()(device_, mask.view.data, static_cast<size_t>(*bytes));
    if (!copy.ok()) return;
    at = masks_.insert(at, {mask, *std::move(copy), *bytes});
  }
  mask.view.data = at->device.get();
  mask.view.device = device_;
  mask.storage = at->device;
}

CommonAttentionMetadata DeviceMetadata::OnDevice(CommonAttentionMetadata metadata) const {
  const absl::Span<const std::byte> storage = builder_->storage();
  for (ConstTensorView* view :
       {&metadata.query_start_loc, &metadata.seq_lens, &metadata.block_table,
        &metadata.slot_mapping, &metadata.positions, &metadata.token_to_req,
        &metadata.prefill_query_start_loc, &metadata.local_context_lens,
        &metadata.custom_mask.view}) {
    if (view->absent() || view->data < storage.data() ||
        view->data >= storage.data() + storage.size()) {
      continue;
    }
    view->data = memory_ + (view->data - storage.data());
    view->device = device_;
  }
  for (MaskRef* mask : {&metadata.attn_mask, &metadata.swa_mask, &metadata.custom_mask}) {
    if (!mask->null() && mask->view.device.on_host()) PlaceMask(*mask);
  }
  metadata.plans = plans_.get();
  return metadata;
}

}  // namespace kvblocks::attention::cuda
