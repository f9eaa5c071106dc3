// What operations on the host find wrong with single values or indices, for those who ask.
//
// Any thread of the operation may flag. Cost: an atomic or, only when there is something to flag.

#ifndef KVBLOCKS_ATTENTION_CPU_ERROR_FLAGS_H_
#define KVBLOCKS_ATTENTION_CPU_ERROR_FLAGS_H_

#include <atomic>
#include <cstdint>

#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

// Nothing if the context has no flags.
inline void Flag(const ExecContext& context, DeviceErrorBit bit) {
  if (context.error_flags == nullptr || context.error_flags->bits == nullptr) return;
  std::atomic_ref<uint32_t>(*context.error_flags->bits).fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_ERROR_FLAGS_H_
