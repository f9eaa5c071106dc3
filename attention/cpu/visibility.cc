#include "attention/cpu/visibility.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

}  // namespace

Visibility::Visibility(const AttnParams& params, int64_t num_heads, int64_t num_kv_heads)
    : params_(params),
      num_heads_(num_heads),
      num_kv_heads_(num_kv_heads),
      additive_(params.mask.encoding != MaskEncoding::kMarker &&
                params.mask.form != MaskForm::kRaggedBits),
      has_tensor_(params.mask.enabled() && params.mask.form != MaskForm::kNone) {}

Visibility::Row Visibility::RowOf(const Request& request, int64_t i, int64_t p,
                                  int64_t head) const {
  Row row;
  row.p = p;
  row.hi = request.kv_len;
  if (params_.causal) row.hi = std::min(row.hi, p + 1);
  if (params_.window_left >= 0) row.lo = std::max(row.lo, p - params_.window_left);
  if (params_.window_right >= 0) row.hi = std::min(row.hi, p + params_.window_right + 1);
  if (params_.chunk > 0) row.lo = std::max(row.lo, params_.chunk * FloorDiv(p, params_.chunk));

  if (params_.block_sparse.enabled()) {
    const BlockSparse& sparse = params_.block_sparse;
    const int64_t stride = sparse.vert_stride, step = sparse.head_sliding_step;
    const int64_t kv_head = head / (num_heads_ / num_kv_heads_);
    const int64_t shifts =
        step >= 0 ? sparse.tp_rank * num_heads_ + head : sparse.tp_rank * num_kv_heads_ + kv_head;
    // Only its remainder counts, which keeps products within int64.
    row.sparse_offset = (shifts % stride) * (std::abs(step) % stride) % stride + 1;
    row.needs_test = true;
  }

  const ExplicitMask& mask = params_.mask;
  if (!has_tensor_) return row;
  row.needs_test = true;
  row.has_bias = additive_;
  row.mask_row = mask.rows_are_absolute ? p : i;
  const bool bottom_right = mask.sparse_mode == 3 || mask.sparse_mode == 4;
  row.diagonal = mask.form != MaskForm::kTemplate ? row.mask_row
                 : bottom_right                   ? i + request.kv_len - request.q_len
                                                  : i;
  if (mask.sparse_mode == 0 || mask.sparse_mode == 4) {
    if (mask.pre_tokens != kUnlimitedTokens) {
      row.lo = std::max(row.lo, row.diagonal - mask.pre_tokens);
    }
    if (mask.next_tokens != kUnlimitedTokens) {
      row.hi = std::min(row.hi, row.diagonal + mask.next_tokens + 1);
    }
  }
  switch (mask.form) {
    case MaskForm::kShared:
      row.mask = mask.tensor.At(row.mask_row);
      break;
    case MaskForm::kPerRequest:
      row.mask = mask.tensor.At(request.index, row.mask_row);
      break;
    case MaskForm::kPerHead:
      row.mask = mask.tensor.At(mask.tensor.extent[0] == 1 ? 0 : request.index,
                                mask.tensor.extent[1] == 1 ? 0 : head, row.mask_row);
      break;
    case MaskForm::kRaggedBits:
      row.mask_row = request.mask_bits_before + i * request.kv_len;
      break;
    case MaskForm::kTemplate:
    case MaskForm::kNone:
      break;
  }
  return row;
}

double Visibility::MaskValue(const Row& row, int64_t j) const {
  const ConstTensorView& tensor = params_.mask.tensor;
  switch (params_.mask.form) {
    case MaskForm::kRaggedBits: {
      const int64_t bit = row.mask_row + j;
      return (static_cast<unsigned>(*tensor.At(bit / 8)) >> (bit % 8)) & 1;
    }
    case MaskForm::kTemplate: {
      const int64_t t = j - row.diagonal;
      return LoadElement(tensor.dtype,
                         tensor.At(std::min(std::max<int64_t>(0, -t), tensor.extent[0] - 1),
                                   std::min(std::max<int64_t>(0, t), tensor.extent[1] - 1)));
    }
    default:
      return LoadElement(tensor.dtype, row.mask + j * tensor.stride[tensor.rank - 1] *
                                                      ElementBytes(tensor.dtype));
  }
}

bool Visibility::Visible(const Row& row, int64_t j) const {
  if (params_.block_sparse.enabled()) {
    const BlockSparse& sparse = params_.block_sparse;
    const int64_t q_block = FloorDiv(row.p, sparse.block_size);
    const int64_t k_block = j / sparse.block_size;
    if (k_block <= q_block - sparse.local_blocks &&
        (k_block + row.sparse_offset) % sparse.vert_stride != 0) {
      return false;
    }
  }
  if (!has_tensor_) return true;
  const double value = MaskValue(row, j);
  return additive_ ? value != -std::numeric_limits<double>::infinity() : value == 0;
}

double Visibility::Bias(const Row& row, int64_t j) const {
  return row.has_bias ? MaskValue(row, j) : 0;
}

}  // namespace kvblocks::attention
