#include "attention/verify/plain_attention.h"

#include <algorithm>
#include <cmath>

#include "attention/cpu/reference_engine.h"

namespace kvblocks::attention {
namespace {

class PlainRows final : public KeyRows {
 public:
  PlainRows(const RowShape& shape, const float* rows) : shape_(shape), rows_(rows) {}

  void Key(int64_t, int64_t kv_head, int64_t j, double* out) const override {
    std::copy_n(rows_ + j * shape_.floats() + kv_head * shape_.key_size, shape_.key_size, out);
  }
  void Value(int64_t, int64_t kv_head, int64_t j, double* out) const override {
    const int64_t keys = shape_.is_mla ? 0 : shape_.num_kv_heads * shape_.key_size;
    std::copy_n(rows_ + j * shape_.floats() + keys + kv_head * shape_.value_size,
                shape_.value_size, out);
  }

 private:
  const RowShape& shape_;
  const float* rows_;
};

}  // namespace

void AttendPlainly(const RowShape& shape, float scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out) {
  const PlainRows keys(shape, rows);
  AttnParams params;
  params.scale = scale;
  params.causal = false;
  AttendBatch batch;
  batch.num_heads = shape.num_heads;
  batch.num_kv_heads = shape.num_kv_heads;
  batch.key_dim = shape.key_size;
  batch.value_dim = shape.value_size;
  batch.requests.resize(1);
  batch.requests[0].q_len = 1;
  batch.requests[0].kv_len = num_rows;
  batch.keys = &keys;
  batch.params = &params;
  Attend(
      ExecContext(), batch,
      [&](int64_t, int64_t head, double* to) {
        std::copy_n(query.data() + head * shape.key_size, shape.key_size, to);
      },
      [&](int64_t, int64_t head, absl::Span<PieceState> pieces) {
        const double lse = MergePieces(pieces);
        const double factor =
            sinks.empty() ? 1 : 1 + std::exp(sinks[static_cast<size_t>(head)] - lse);
        for (int64_t d = 0; d < shape.value_size; ++d) {
          out[static_cast<size_t>(head * shape.value_size + d)] = pieces[0].values[d] / factor;
        }
      });
}

}  // namespace kvblocks::attention
