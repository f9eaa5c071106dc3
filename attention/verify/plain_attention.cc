#include "attention/verify/plain_attention.h"

#include <cstddef>

#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

void AttendPlainly(const RowShape& shape, float scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out) {
  const int64_t kv_heads = shape.num_kv_heads;
  const auto columns = [&](int64_t first, int64_t size) {
    return *ConstTensorView::Make(reinterpret_cast<const std::byte*>(rows + first), DType::kF32,
                                  {num_rows, kv_heads, size}, {shape.floats(), size, 1});
  };
  const int32_t starts[] = {0, 1, 0, static_cast<int32_t>(num_rows)};
  VarlenSelfAttentionArgs args;
  args.q = ViewOf(query, {1, shape.num_heads, shape.key_size});
  args.k = columns(0, shape.key_size);
  args.v = columns(shape.is_mla ? 0 : kv_heads * shape.key_size, shape.value_size);
  args.query_start_loc = ViewOf(absl::MakeConstSpan(starts, 2));
  args.kv_start_loc = ViewOf(absl::MakeConstSpan(starts + 2, 2));
  args.params.scale = scale;
  args.params.causal = false;
  if (!sinks.empty()) args.params.sinks = ViewOf(sinks);
  args.out = ViewOf(out, {1, shape.num_heads, shape.value_size});
  const absl::Status status = CpuReference().VarlenSelfAttention(ExecContext(), args);
  KVBLOCKS_CHECK(status.ok(), status.ToString());
}

}  // namespace kvblocks::attention
