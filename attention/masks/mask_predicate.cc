#include "attention/masks/mask_predicate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

absl::Status Refuse(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("explicit mask: ", what));
}

bool IsFull(MaskForm form) {
  return form == MaskForm::kShared || form == MaskForm::kPerRequest || form == MaskForm::kPerHead;
}

absl::Status CheckType(const ExplicitMask& mask) {
  const DType dtype = mask.tensor.dtype;
  if (mask.form == MaskForm::kRaggedBits) {
    if (dtype != DType::kU8) {
      return Refuse(absl::StrCat("ragged bits are ", Name(dtype), "; give u8, 8 bits each"));
    }
    return absl::OkStatus();
  }
  switch (mask.encoding) {
    case MaskEncoding::kMarker:
      if (IsComputeType(dtype) || dtype == DType::kBool || dtype == DType::kI8 ||
          dtype == DType::kU8) {
        return absl::OkStatus();
      }
      return Refuse(
          absl::StrCat("markers are ", Name(dtype), "; give bool, i8, u8, f16, bf16, f32 or f64"));
    case MaskEncoding::kAdditive:
      if (IsComputeType(dtype)) return absl::OkStatus();
      return Refuse(absl::StrCat("an additive mask is ", Name(dtype),
                                 "; give f16, bf16, f32 or f64, or encode markers"));
    case MaskEncoding::kAdditiveFinite:
      if (dtype == DType::kF16) return absl::OkStatus();
      return Refuse(absl::StrCat("a finite additive mask is ", Name(dtype), "; it must be f16"));
  }
  return Refuse(absl::StrCat("encoding ", static_cast<int>(mask.encoding), " is unknown"));
}

absl::Status CheckForm(const ExplicitMask& mask) {
  const int mode = mask.sparse_mode;
  if (mode < 0 || mode > 4) {
    return Refuse(absl::StrCat("sparse_mode is ", mode, "; it must be 0 to 4"));
  }
  if (mask.form == MaskForm::kNone) {
    if (mode == 0) return absl::OkStatus();
    return Refuse(absl::StrCat("sparse_mode ", mode, " needs a tensor; only mode 0 goes without"));
  }
  const bool wants_template = mode >= 2;
  if (wants_template != (mask.form == MaskForm::kTemplate)) {
    return Refuse(absl::StrCat("sparse_mode ", mode, " takes ",
                               wants_template ? "a template, but the mask is a full one"
                                              : "a full mask, but the mask is a template"));
  }
  const int rank = mask.tensor.rank;
  const int wanted = mask.form == MaskForm::kRaggedBits   ? 1
                     : mask.form == MaskForm::kPerRequest ? 3
                     : mask.form == MaskForm::kPerHead    ? 4
                                                          : 2;
  if (rank != wanted) {
    return Refuse(absl::StrCat("the tensor has rank ", rank, "; its form has rank ", wanted));
  }
  if (mask.form == MaskForm::kTemplate &&
      (mask.tensor.extent[0] != mask.tensor.extent[1] || mask.tensor.extent[0] < 1)) {
    return Refuse(absl::StrCat("a template is [", mask.tensor.extent[0], ", ",
                               mask.tensor.extent[1], "]; it must be square and not empty"));
  }
  if (mask.rows_are_absolute && !IsFull(mask.form)) {
    return Refuse(
        "rows_are_absolute is for full masks; templates and ragged bits have no such rows");
  }
  return CheckType(mask);
}

// Whether the mode reads pre_tokens and next_tokens.
bool HasBand(const ExplicitMask& mask) {
  return mask.sparse_mode == 4 || (mask.sparse_mode == 0 && mask.form != MaskForm::kNone);
}

absl::Status CheckBand(const ExplicitMask& mask) {
  for (const int64_t tokens : {mask.pre_tokens, mask.next_tokens}) {
    if (tokens > kUnlimitedTokens || tokens < -kUnlimitedTokens) {
      return Refuse(absl::StrCat("pre_tokens or next_tokens is ", tokens, "; the limit is ",
                                 kUnlimitedTokens, ", which means unlimited"));
    }
  }
  if (mask.pre_tokens + mask.next_tokens < 0) {
    return Refuse(absl::StrCat("pre_tokens ", mask.pre_tokens, " + next_tokens ", mask.next_tokens,
                               " is negative: the band is empty"));
  }
  return absl::OkStatus();
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

absl::Status CheckMask(const ExplicitMask& mask, int64_t num_heads,
                       absl::Span<const int64_t> num_queries, absl::Span<const int64_t> num_keys) {
  if (absl::Status status = CheckForm(mask); !status.ok()) return status;
  if (HasBand(mask)) {
    if (absl::Status status = CheckBand(mask); !status.ok()) return status;
  }
  const ConstTensorView& tensor = mask.tensor;
  const int64_t batch = static_cast<int64_t>(num_queries.size());
  const bool per_request = mask.form == MaskForm::kPerRequest;
  if ((per_request || mask.form == MaskForm::kPerHead) && tensor.extent[0] != batch &&
      (per_request || tensor.extent[0] != 1)) {
    return Refuse(
        absl::StrCat("the tensor has ", tensor.extent[0], " requests; the batch has ", batch));
  }
  if (mask.form == MaskForm::kPerHead && tensor.extent[1] != num_heads && tensor.extent[1] != 1) {
    return Refuse(
        absl::StrCat("the tensor has ", tensor.extent[1], " heads; the queries have ", num_heads));
  }
  int64_t bits = 0;
  for (size_t b = 0; b < num_queries.size(); ++b) {
    const int64_t s1 = num_queries[b], s2 = num_keys[b];
    if (s1 == 0) continue;
    if (IsFull(mask.form)) {
      const int64_t rows = tensor.extent[tensor.rank - 2], columns = tensor.extent[tensor.rank - 1];
      const int64_t rows_needed = mask.rows_are_absolute ? s2 : s1;
      if (rows < rows_needed || columns < s2) {
        return Refuse(absl::StrCat("the tensor covers ", rows, " queries and ", columns,
                                   " keys; request ", b, " needs ", rows_needed, " and ", s2));
      }
    }
    if (HasBand(mask) && mask.next_tokens <= -s2) {
      return Refuse(absl::StrCat("next_tokens is ", mask.next_tokens, "; request ", b, " has ", s2,
                                 " keys, so it must be above ", -s2));
    }
    if (HasBand(mask) && mask.pre_tokens <= -s1) {
      return Refuse(absl::StrCat("pre_tokens is ", mask.pre_tokens, "; request ", b, " has ", s1,
                                 " query rows, so it must be above ", -s1));
    }
    int64_t pairs = 0;
    if (__builtin_mul_overflow(s1, s2, &pairs) || __builtin_add_overflow(bits, pairs, &bits)) {
      return Refuse(absl::StrCat("request ", b, " has ", s1, " x ", s2, " pairs: beyond int64"));
    }
  }
  if (mask.form == MaskForm::kRaggedBits && tensor.extent[0] < (bits + 7) / 8) {
    return Refuse(absl::StrCat("the tensor has ", tensor.extent[0], " bytes; the batch has ", bits,
                               " bits and needs ", (bits + 7) / 8));
  }
  return absl::OkStatus();
}

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
  const int64_t distance = j - (mask.sparse_mode == 0 ? i : i + offset);
  return (mask.pre_tokens < kUnlimitedTokens && distance < -mask.pre_tokens) ||
         (mask.next_tokens < kUnlimitedTokens && distance > mask.next_tokens);
}

}  // namespace kvblocks::attention
