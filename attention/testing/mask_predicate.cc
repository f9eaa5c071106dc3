#include "attention/testing/mask_predicate.h"

#include <algorithm>
#include <cmath>

#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

// Whether the mode reads pre_tokens and next_tokens.
bool HasBand(const ExplicitMask& mask) {
  return mask.sparse_mode == 4 || (mask.sparse_mode == 0 && mask.form != MaskForm::kNone);
}

// Whether one element of the tensor hides.
bool ElementHides(const ExplicitMask& mask, const std::byte* element) {
  const double value = LoadElement(mask.tensor.dtype, element);
  switch (mask.encoding) {
    case MaskEncoding::kMarker:
      return value != 0;
    case MaskEncoding::kAdditive:
      return std::isinf(value) && value < 0;
    case MaskEncoding::kAdditiveFinite:
      return value <= -10000;
  }
  return false;
}

}  // namespace

bool MaskHides(const ExplicitMask& mask, const MaskedRequest& request, int64_t head, int64_t i,
               int64_t j) {
  if (mask.form == MaskForm::kNone) return false;
  const ConstTensorView& tensor = mask.tensor;
  const int64_t offset = request.num_keys - request.num_queries;
  const int64_t row = mask.rows_are_absolute ? i + offset : i;
  const int64_t b = tensor.extent[0] == 1 ? 0 : request.index;

  bool hidden = false;
  switch (mask.form) {
    case MaskForm::kNone:
      break;
    case MaskForm::kShared:
      hidden = ElementHides(mask, tensor.At(row, j));
      break;
    case MaskForm::kPerRequest:
      hidden = ElementHides(mask, tensor.At(b, row, j));
      break;
    case MaskForm::kPerHead:
      hidden = ElementHides(mask, tensor.At(b, tensor.extent[1] == 1 ? 0 : head, row, j));
      break;
    case MaskForm::kRaggedBits: {
      const int64_t bit = request.first_bit + i * request.num_keys + j;
      hidden = (std::to_integer<int>(*tensor.At(bit / 8)) >> (bit % 8) & 1) != 0;
      break;
    }
    case MaskForm::kTemplate: {
      const int64_t last = tensor.extent[0] - 1;
      const int64_t t = j - (mask.sparse_mode == 2 ? i : i + offset);
      hidden = ElementHides(mask, tensor.At(std::min(std::max<int64_t>(0, -t), last),
                                            std::min(std::max<int64_t>(0, t), last)));
      break;
    }
  }
  if (hidden || !HasBand(mask)) return hidden;

  // Mode 0 counts from the upper left corner, mode 4 from the lower right one.
  const int64_t distance = j - (mask.sparse_mode == 0 ? row : i + offset);
  return (mask.pre_tokens < kUnlimitedTokens && distance < -mask.pre_tokens) ||
         (mask.next_tokens < kUnlimitedTokens && distance > mask.next_tokens);
}

}  // namespace kvblocks::attention
