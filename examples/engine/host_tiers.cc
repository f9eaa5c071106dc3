#include "examples/engine/host_tiers.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "checks/memory_limit.h"

namespace kvblocks::engine {

absl::StatusOr<HostTiers> HostTiers::Create(const sim::TierConnector& tiers, const Plan& plan,
                                            const PlannedMemory& memory) {
  if (plan.layout == PoolLayout::kNative) {
    return absl::UnimplementedError(
        "tiers with the native layout: a block's place follows from its group; choose another one");
  }
  HostTiers host;
  for (const attention::TensorView& tensor : memory.tensors()) {
    if (!tensor.device.on_host()) {
      return absl::UnimplementedError(
          absl::StrCat("tiers behind caches on ", attention::Name(tensor.device),
                       ": blocks are copied by the host; serve without tiers, or on the CPU"));
    }
    const int64_t bytes = tensor.extent[0] / plan.num_blocks();
    host.tensors_.push_back(
        {.data = tensor.data, .block_bytes = bytes, .offset = host.block_bytes_, .pending = {}});
    host.block_bytes_ += bytes;
  }
  for (const LayerMemory& layer : memory.layers()) host.tensor_of_[layer.name] = layer.tensor;
  const offload::OffloadManager& offload = tiers.offload();
  for (offload::TierId t = 0; t < offload.num_tiers(); ++t) {
    // Slot 0 is not used.
    const int64_t blocks =
        (offload.tier_capacity(t).num_slots + 1) * offload.tier_options(t).blocks_per_chunk;
    std::byte* data = nullptr;
    if (blocks <= MemoryLimit() / host.block_bytes_) {
      data = static_cast<std::byte*>(
          std::calloc(static_cast<size_t>(blocks), static_cast<size_t>(host.block_bytes_)));
    }
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("tier ", t, ": no memory for ", blocks,
                                                       " blocks of ", host.block_bytes_,
                                                       " bytes; make it smaller"));
    }
    host.slots_.emplace_back(data);
  }
  return host;
}

std::byte* HostTiers::At(offload::TierId tier, int64_t place, const Tensor& tensor) const {
  if (tier == offload::kDevice) return tensor.data + place * tensor.block_bytes;
  return slots_[static_cast<size_t>(tier)].get() + place * block_bytes_ + tensor.offset;
}

void HostTiers::Copy(absl::Span<const sim::KvCopy> copies) {
  for (Tensor& tensor : tensors_) {
    tensor.pending.insert(tensor.pending.end(), copies.begin(), copies.end());
  }
}

absl::Status HostTiers::WaitForLayer(const std::string& cache, const attention::ExecContext&) {
  const auto found = tensor_of_.find(cache);
  if (found == tensor_of_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan has no cache ", cache, " to load"));
  }
  Tensor& tensor = tensors_[static_cast<size_t>(found->second)];
  for (const sim::KvCopy& copy : tensor.pending) {
    std::memcpy(At(copy.to_tier, copy.to, tensor), At(copy.from_tier, copy.from, tensor),
                static_cast<size_t>(tensor.block_bytes));
  }
  tensor.pending.clear();
  return absl::OkStatus();
}

}  // namespace kvblocks::engine
