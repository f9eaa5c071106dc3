// Indices and scales out of views in host memory, and flags of what is wrong with them.

#ifndef KVBLOCKS_ATTENTION_CPU_HOST_SCALARS_H_
#define KVBLOCKS_ATTENTION_CPU_HOST_SCALARS_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvblocks/attention_args.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// Element i of a view [n] of i32 or i64.
inline int64_t IndexAt(const ConstTensorView& view, int64_t i) {
  if (view.dtype == DType::kI32) {
    int32_t index;
    std::memcpy(&index, view.At(i), sizeof(index));
    return index;
  }
  int64_t index;
  std::memcpy(&index, view.At(i), sizeof(index));
  return index;
}

// All elements of one; none if it is absent.
inline std::vector<int64_t> IntegersOf(const ConstTensorView& view) {
  std::vector<int64_t> values;
  for (int64_t i = 0; !view.absent() && i < view.extent[0]; ++i) values.push_back(IndexAt(view, i));
  return values;
}

// Of float32 scales: one element, [Hkv] or [R, Hkv]; absent is 1.
inline float ScaleAt(const ConstTensorView& scales, int64_t request, int64_t kv_head) {
  if (scales.absent()) return 1;
  int64_t offset = 0;
  if (scales.num_elements() > 1) {
    offset = scales.rank == 2 ? scales.Offset(request, kv_head) : scales.Offset(kv_head);
  }
  float scale;
  std::memcpy(&scale, scales.data + offset * static_cast<int64_t>(sizeof(scale)), sizeof(scale));
  return scale;
}

// What operations on the host find wrong with single values or indices, for those who ask. Any
// thread of the operation may flag.
// Nothing if the context has no flags.
inline void Flag(const ExecContext& context, DeviceErrorBit bit) {
  if (context.error_flags == nullptr || context.error_flags->bits == nullptr) return;
  std::atomic_ref<uint32_t>(*context.error_flags->bits).fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_HOST_SCALARS_H_
