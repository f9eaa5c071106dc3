#include "attention/cuda/device_metadata.h"

#include <algorithm>
#include <array>
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

// Ranges that lie closer are copied as one: a copy costs more than so many bytes.
constexpr size_t kGapBytes = 8192;

std::array<ConstTensorView*, 9> ViewsOf(CommonAttentionMetadata& metadata) {
  return {&metadata.query_start_loc,         &metadata.seq_lens,
          &metadata.block_table,             &metadata.slot_mapping,
          &metadata.positions,               &metadata.token_to_req,
          &metadata.prefill_query_start_loc, &metadata.local_context_lens,
          &metadata.custom_mask.view};
}

bool LiesIn(absl::Span<const std::byte> storage, const ConstTensorView& view) {
  return !view.absent() && view.data >= storage.data() &&
         view.data < storage.data() + storage.size();
}

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

// Of the last batch, and of what decode views, prefill views and cross attention take from it.
void DeviceMetadata::FindRanges() {
  ranges_.clear();
  const absl::Span<const std::byte> storage = builder_->storage();
  if (!used_[0]) {
    ranges_.push_back({0, storage.size()});
    return;
  }
  const auto add = [&](const ConstTensorView& view) {
    if (!LiesIn(storage, view)) return;
    const auto begin = static_cast<size_t>(view.data - storage.data());
    const auto bytes = static_cast<size_t>(view.num_elements() * ElementBytes(view.dtype));
    ranges_.push_back({begin, begin + bytes});
  };
  for (int group = 0; group < builder_->num_groups(); ++group) {
    CommonAttentionMetadata metadata = builder_->metadata(group);
    for (const ConstTensorView* view : ViewsOf(metadata)) add(*view);
  }
  add(builder_->cross_metadata().seq_lens);
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t num = 0;
  for (const Range& range : ranges_) {
    if (num > 0 && range.begin <= ranges_[num - 1].end + kGapBytes) {
      ranges_[num - 1].end = std::max(ranges_[num - 1].end, range.end);
    } else {
      ranges_[num++] = range;
    }
  }
  ranges_.resize(num);
}

absl::Status DeviceMetadata::Upload(const ExecContext& context) {
  plans_->BeginStep();
  FindRanges();
  const int i = next_;
  Error error = used_[i] ? WaitForEvent(copied_[i]) : 0;
  for (const Range& range : ranges_) {
    if (error != 0) break;
    std::byte* const from = pinned_[i] + range.begin;
    const size_t bytes = range.end - range.begin;
    std::memcpy(from, builder_->storage().data() + range.begin, bytes);
    error = CopyAsync(memory_ + range.begin, from, bytes, context.stream);
  }
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
  for (ConstTensorView* view : ViewsOf(metadata)) {
    if (!LiesIn(storage, *view)) continue;
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
