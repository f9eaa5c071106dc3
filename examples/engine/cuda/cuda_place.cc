#include "examples/engine/cuda/cuda_place.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/backends/workspace.h"
#include "attention/cuda/cuda_call.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {

namespace cuda = attention::cuda;
using attention::ConstTensorView;
using attention::OpKind;
using cuda::StatusOf;

absl::StatusOr<std::unique_ptr<CudaPlace>> CudaPlace::Create(const ModelFacts& facts,
                                                             const sim::SimulationConfig& config) {
  std::unique_ptr<CudaPlace> place(new CudaPlace());
  place->context_.device = {attention::DeviceKind::kCuda, 0};
  cuda::DeviceProperties device;
  KVBLOCKS_RETURN_IF_ERROR(StatusOf("the device", cuda::PropertiesOf(0, &device)));
  KVBLOCKS_RETURN_IF_ERROR(StatusOf("a stream", cuda::CreateStream(&place->context_.stream)));
  const int64_t max_tokens = config.scheduler.max_num_batched_tokens;
  attention::WorkspaceBounds bounds{.max_reqs = config.scheduler.max_num_seqs,
                                    .max_tokens = max_tokens,
                                    .num_heads = facts.num_heads,
                                    .num_kv_heads = facts.num_kv_heads,
                                    .value_head_size = facts.head_size,
                                    .max_parts = 2 * device.num_multiprocessors,
                                    .max_rows = config.manager.max_model_len};
  std::vector<OpKind> ops = {OpKind::kPagedDecode, OpKind::kPagedPrefill, OpKind::kSelectHkvd};
  if (facts.latent || facts.compressed) {
    ops = {OpKind::kMlaDecode, OpKind::kSparseMlaDecode};
    bounds.max_reqs = max_tokens;  // a row of a list is a request to it
    if (facts.latent) bounds.value_head_size = facts.latent->kv_lora_rank;
  }
  if (facts.indexer) ops.push_back(OpKind::kIndexTopk);
  int64_t bytes = 0;
  for (const OpKind op : ops) {
    KVBLOCKS_ASSIGN_OR_RETURN(const attention::WorkspaceSize size,
                              attention::WorkspaceBytes(op, bounds));
    bytes = std::max(bytes, size.device);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(place->workspace_memory_, DeviceArray::Create("workspace", bytes));
  KVBLOCKS_ASSIGN_OR_RETURN(place->own_flags_, DeviceArray::Create("flags", sizeof(uint32_t)));
  place->workspace_.device =
      absl::MakeSpan(place->workspace_memory_.as<std::byte>(), static_cast<size_t>(bytes));
  place->flags_.bits = place->own_flags_.as<uint32_t>();
  place->context_.workspace = &place->workspace_;
  place->context_.error_flags = &place->flags_;
  return place;
}

CudaPlace::~CudaPlace() {
  if (context_.stream == nullptr) return;
  (void)cuda::Synchronize(context_.stream);
  metadata_.reset();
  (void)cuda::DestroyStream(context_.stream);
}

absl::StatusOr<AttentionPlace::Memory> CudaPlace::Allocate(const char* what, int64_t bytes) {
  KVBLOCKS_ASSIGN_OR_RETURN(DeviceArray array, DeviceArray::Create(what, bytes));
  const auto owner = std::make_shared<DeviceArray>(std::move(array));
  return Memory(owner, owner->as<std::byte>());
}

absl::Status CudaPlace::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  cuda::Error error = cuda::CopyAsync(to, from, static_cast<size_t>(bytes), context_.stream);
  if (error == 0) error = cuda::Synchronize(context_.stream);
  return StatusOf("a copy", error);
}

absl::StatusOr<std::byte*> CudaPlace::Slot(int64_t bytes) {
  if (used_ == slots_.size()) slots_.emplace_back();
  DeviceArray& slot = slots_[used_++];
  if (slot.bytes() < bytes) {
    KVBLOCKS_ASSIGN_OR_RETURN(slot, DeviceArray::Create("rows of a layer", bytes));
  }
  return slot.as<std::byte>();
}

absl::Status CudaPlace::Bring(ConstTensorView& rows) {
  if (rows.absent()) return absl::OkStatus();
  const int64_t bytes = rows.num_elements() * attention::ElementBytes(rows.dtype);
  KVBLOCKS_ASSIGN_OR_RETURN(std::byte* const at, Slot(bytes));
  KVBLOCKS_RETURN_IF_ERROR(Copy(at, rows.data, bytes));
  rows.data = at;
  rows.device = context_.device;
  return absl::OkStatus();
}

absl::Status CudaPlace::Reserve(attention::TensorView& rows) {
  KVBLOCKS_ASSIGN_OR_RETURN(rows.data,
                            Slot(rows.num_elements() * attention::ElementBytes(rows.dtype)));
  rows.device = context_.device;
  return absl::OkStatus();
}

absl::Status CudaPlace::Keep(ConstTensorView& values) {
  if (values.absent()) return absl::OkStatus();
  const int64_t bytes = values.num_elements() * attention::ElementBytes(values.dtype);
  KVBLOCKS_ASSIGN_OR_RETURN(kept_.emplace_back(), Allocate("parameters of attention", bytes));
  KVBLOCKS_RETURN_IF_ERROR(Copy(kept_.back().get(), values.data, bytes));
  values.data = kept_.back().get();
  values.device = context_.device;
  return absl::OkStatus();
}

absl::Status CudaPlace::UseBuilder(const attention::AttentionMetadataBuilder* builder) {
  builder_ = builder;
  KVBLOCKS_ASSIGN_OR_RETURN(metadata_, cuda::DeviceMetadata::Create(context_, builder));
  return absl::OkStatus();
}

absl::Status CudaPlace::CheckFlags() {
  uint32_t bits = 0;
  KVBLOCKS_RETURN_IF_ERROR(Copy(reinterpret_cast<std::byte*>(&bits),
                                reinterpret_cast<const std::byte*>(flags_.bits), sizeof(bits)));
  return StatusOfFlags(bits);
}

absl::Status CudaPlace::StatusOfFlags(uint32_t bits) {
  if (bits == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a kernel found bad indices or lengths: flags ", bits,
                                          " (kvblocks/device_types.h has the bits)"));
}

absl::StatusOr<double> TimeOnDevice(void* stream, absl::FunctionRef<absl::Status()> enqueue) {
  void* events[2] = {};
  float ms = 0;
  absl::Status status;
  for (void*& event : events) status.Update(StatusOf("an event", cuda::CreateEvent(&event)));
  if (status.ok()) status = StatusOf("timing", cuda::RecordEvent(events[0], stream));
  if (status.ok()) status = enqueue();
  if (status.ok()) status = StatusOf("timing", cuda::RecordEvent(events[1], stream));
  if (status.ok()) status = StatusOf("timing", cuda::Synchronize(stream));
  if (status.ok()) status = StatusOf("timing", cuda::ElapsedMs(events[0], events[1], &ms));
  for (void* event : events) {
    if (event != nullptr) (void)cuda::DestroyEvent(event);
  }
  KVBLOCKS_RETURN_IF_ERROR(status);
  return ms;
}

}  // namespace kvblocks::engine
