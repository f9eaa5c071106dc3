#include "kvblocks/attention/blend/blend_work.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "kvblocks/checks/ceil_div.h"
#include "kvblocks/checks/status_macros.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kAlignment = 256;

// Calls visit(view, dtype, extents) for all tensors, in the order in which they lie.
template <typename Visit>
void VisitWork(const BlendConfig& config, const BlendBounds& bounds, BlendWork& work,
               const Visit& visit) {
  const int64_t tokens = bounds.max_num_tokens;
  const DType dtype = config.dtype;
  for (BlendRowTensors& rows : work.rows) {
    visit(rows.hidden, dtype, {tokens, config.hidden_size});
    visit(rows.q, dtype, {tokens, config.num_heads, config.head_dim});
    visit(rows.positions, DType::kI32, {tokens});
    visit(rows.slots, DType::kI64, {tokens});
    visit(rows.origins, DType::kI32, {tokens});
  }
  for (TensorView* view : {&work.k_new, &work.v_new, &work.k_old, &work.v_old, &work.picked}) {
    visit(*view, dtype, {tokens, config.num_kv_heads, config.head_dim});
  }
  visit(work.attention, dtype, {tokens, config.num_heads, config.head_dim});
  visit(work.selected, DType::kI32, {tokens});
  visit(work.limits, DType::kI32, {tokens});
  // Numbers from 0, positions, origins and what chunks are rotated for; where requests begin, before
  // any selection and behind that of every layer.
  visit(work.integers, DType::kI32,
        {std::max(tokens, bounds.max_seq_len) + 3 * tokens +
         (int64_t{config.num_layers} + 1) * (bounds.max_num_reqs + 1)});
}

}  // namespace

absl::StatusOr<int64_t> BlendWorkBytes(const BlendConfig& config, const BlendBounds& bounds) {
  KVBLOCKS_RETURN_IF_ERROR(CheckBlendModel(config));
  for (const int64_t bound : {bounds.max_num_reqs, bounds.max_num_tokens, bounds.max_seq_len}) {
    if (bound < 0 || bound > INT32_MAX) {
      return InvalidArgument("BlendWorkBytes: a bound is ", bound, "; 0 to 2^31 - 1");
    }
  }
  BlendWork work;
  int64_t bytes = 0;
  bool fits = true;
  VisitWork(config, bounds, work,
            [&](TensorView&, DType dtype, std::initializer_list<int64_t> extents) {
              int64_t size = ElementBytes(dtype);
              for (const int64_t extent : extents) {
                fits = fits && !__builtin_mul_overflow(size, extent, &size);
              }
              fits = fits && size <= INT64_MAX - kAlignment &&
                     !__builtin_add_overflow(bytes, RoundUp(size, kAlignment), &bytes);
            });
  if (!fits) return InvalidArgument("BlendWorkBytes: more than 2^63 bytes; lower the bounds");
  return bytes;
}

absl::StatusOr<BlendWork> MakeBlendWork(const BlendConfig& config, const BlendBounds& bounds,
                                        const TensorView& memory) {
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t needed, BlendWorkBytes(config, bounds));
  if (memory.dtype != DType::kU8 || memory.rank != 1 || !memory.contiguous() ||
      reinterpret_cast<uintptr_t>(memory.data) % 16 != 0) {
    return InvalidArgument("MakeBlendWork: the memory to work in is ", memory.DebugString(),
                           "; dense u8[n], aligned to 16 bytes");
  }
  if (memory.extent[0] < needed) {
    return ResourceExhausted("MakeBlendWork: a batch of ", bounds.max_num_tokens,
                             " new tokens works in ", needed, " bytes; the memory has ",
                             memory.extent[0], "; provide BlendWorkBytes");
  }
  BlendWork work;
  std::byte* at = memory.data;
  VisitWork(config, bounds, work,
            [&](TensorView& view, DType dtype, std::initializer_list<int64_t> extents) {
              view = TensorView::Contiguous(at, dtype, extents, memory.device);
              at += RoundUp(view.num_elements() * ElementBytes(dtype), kAlignment);
            });
  return work;
}

}  // namespace kvblocks::attention
