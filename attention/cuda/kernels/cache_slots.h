// Slots of a cache as kernels that write it read them. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_SLOTS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_SLOTS_H_

#include <cstdint>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {

// The slot of a token, or a negative number if it is to be skipped; without slots its own number.
KVB_DEVICE int64_t SlotOf(const int64_t* slots, int64_t stride, int64_t token, int64_t num_slots,
                          uint32_t* flags) {
  const int64_t slot = slots == nullptr ? token : slots[token * stride];
  if (slot < num_slots) return slot;
  Flag(flags, kBadSlot);
  return -1;
}
KVB_DEVICE int64_t SlotOf(const SlotMapping& mapping, int64_t token, uint32_t* flags) {
  return SlotOf(mapping.slots, mapping.stride, token, mapping.num_slots, flags);
}

// Slots are block * block_size + offset.
struct BlockAndOffset {
  int64_t block;
  int32_t offset;
};
class SlotDivision {
 public:
  SlotDivision() = default;
  SlotDivision(int32_t block_size, int64_t num_slots)
      : divisor_(block_size), is_small_(num_slots <= INT32_MAX) {}
  explicit SlotDivision(const SlotMapping& mapping)
      : SlotDivision(mapping.block_size, mapping.num_slots) {}

  KVB_DEVICE BlockAndOffset Of(int64_t slot) const {
    const uint32_t size = divisor_.divisor();
    const int64_t block = is_small_ ? divisor_.Quotient(static_cast<uint32_t>(slot)) : slot / size;
    return {block, static_cast<int32_t>(slot - block * size)};
  }

 private:
  FastDivisor divisor_;
  bool is_small_ = true;
};

// Where a token goes; false: nowhere, because there is no such token or it is skipped.
KVB_DEVICE bool FindPlace(const SlotMapping& mapping, const SlotDivision& division, int64_t token,
                          uint32_t* flags, BlockAndOffset* place) {
  if (token >= mapping.num_tokens) return false;
  const int64_t slot = SlotOf(mapping, token, flags);
  if (slot < 0) return false;
  *place = division.Of(slot);
  return true;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_SLOTS_H_
