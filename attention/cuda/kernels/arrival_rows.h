// Which row of counters in device memory belongs to a workspace.
//
// Blocks that count each other's arrivals need words that are zero before the launch. Such words are kept
// in arrays of kArrivalRows rows and left as they were found; no two launches use a workspace at a time,
// so none use a row at a time. Thread-safe, O(1) as long as workspaces are few.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ARRIVAL_ROWS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ARRIVAL_ROWS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvblocks::attention::cuda {

inline constexpr int kArrivalRows = 256;

// -1 if there are too many workspaces.
inline int ArrivalRowOf(const void* workspace) {
  static std::atomic<const void*> owners[kArrivalRows];
  constexpr size_t kAlignment = 256;
  const size_t hash =
      reinterpret_cast<uintptr_t>(workspace) / kAlignment * 0x9e3779b97f4a7c15u >> 32;
  for (size_t i = 0; i < kArrivalRows; ++i) {
    std::atomic<const void*>& owner = owners[(hash + i) % kArrivalRows];
    const void* seen = owner.load(std::memory_order_relaxed);
    if (seen == nullptr && owner.compare_exchange_strong(seen, workspace)) seen = workspace;
    if (seen == workspace) return static_cast<int>((hash + i) % kArrivalRows);
  }
  return -1;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ARRIVAL_ROWS_H_
