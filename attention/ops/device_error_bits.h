// What kernels report about indices that only the device sees. Plain C++, for kernels, too.

#ifndef KVBLOCKS_ATTENTION_OPS_DEVICE_ERROR_BITS_H_
#define KVBLOCKS_ATTENTION_OPS_DEVICE_ERROR_BITS_H_

#include <cstdint>

namespace kvblocks::attention {

// What a launch found wrong with indices that only the device sees. Bits are OR-ed, never cleared
// by operations.
enum DeviceErrorBit : uint32_t {
  kBadSlot = 1u << 0,          // a slot outside the cache: the store was skipped
  kBadBlock = 1u << 1,         // a block id outside the cache: its keys were invisible
  kBadIndex = 1u << 2,         // a sparse index outside the capacity: ignored
  kBadScale = 1u << 3,         // a scale that is not finite and positive
  kMergeOfInfinity = 1u << 4,  // a state with an LSE of +infinity: taken as empty
  kNonFiniteInput = 1u << 5,   // left out of a maximum, or a NaN ranked in a selection
  kLengthClamped = 1u << 6,    // a length beyond what the block table covers
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_DEVICE_ERROR_BITS_H_
