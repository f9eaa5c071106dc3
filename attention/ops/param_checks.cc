#include "attention/ops/batch_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace kvblocks::attention {
namespace {

// Far beyond any length, and positions plus or minus it stay within int64.
constexpr int64_t kMaxDistance = int64_t{1} << 40;

constexpr DTypeSet kByteTypes = {DType::kBool, DType::kI8, DType::kU8};

// The largest numbers of query rows and keys of a request; -1 where unknown.
struct Largest {
  int64_t rows = -1, keys = -1;
};

Largest LargestRequest(const BatchLengths& batch) {
  Largest largest;
  for (int64_t b = 0; b < batch.num_requests; ++b) {
    const int64_t queries = batch.queries_readable() ? batch.query_len(b) : -1;
    if (queries == 0) continue;
    largest.rows = std::max(largest.rows, queries);
    if (batch.keys_readable()) largest.keys = std::max(largest.keys, batch.key_len(b));
  }
  return largest;
}

DTypeSet MaskTypes(MaskEncoding encoding) {
  switch (encoding) {
    case MaskEncoding::kAdditive:
      return kComputeTypes;
    case MaskEncoding::kAdditiveFinite:
      return DType::kF16;
    case MaskEncoding::kMarker:
      break;
  }
  return kComputeTypes | kByteTypes;
}

bool CheckMaskForm(ArgChecker& check, const ExplicitMask& mask, const BatchLengths& batch) {
  const ConstTensorView& tensor = mask.tensor;
  const DTypeSet types = MaskTypes(mask.encoding);
  Dim rows{"S1"}, keys{"S2"}, bytes{"bytes"}, side{"N"};
  Dim requests{"R", batch.num_requests, "the batch"};
  switch (mask.form) {
    case MaskForm::kNone:
      return true;
    case MaskForm::kShared:
      if (!check.In("params.mask", tensor, types, {&rows, &keys})) return false;
      break;
    case MaskForm::kPerRequest:
      if (!check.In("params.mask", tensor, types, {&requests, &rows, &keys})) return false;
      break;
    case MaskForm::kPerHead: {
      Dim b{"R or 1"}, h{"H or 1"};
      if (!check.In("params.mask", tensor, types, {&b, &h, &rows, &keys})) return false;
      if ((b.size != 1 && b.size != batch.num_requests) ||
          (h.size != 1 && h.size != batch.num_heads)) {
        return check.Invalid("params.mask is for ", b.size, " requests and ", h.size,
                             " heads; R = ", batch.num_requests, " or 1 and H = ", batch.num_heads,
                             " or 1");
      }
      break;
    }
    case MaskForm::kRaggedBits: {
      if (mask.encoding != MaskEncoding::kMarker) {
        return check.Invalid("params.mask of ragged bits cannot be added to scores; use kMarker");
      }
      if (mask.rows_are_absolute) {
        return check.Invalid(
            "params.mask of ragged bits has rows of new tokens only; clear "
            "rows_are_absolute");
      }
      if (!check.In("params.mask", tensor, DType::kU8, {&bytes})) return false;
      if (!batch.queries_readable() || !batch.keys_readable()) return true;
      int64_t bits = 0;
      for (int64_t b = 0; b < batch.num_requests; ++b) {
        int64_t product;
        if (__builtin_mul_overflow(batch.query_len(b), batch.key_len(b), &product) ||
            __builtin_add_overflow(bits, product, &bits)) {
          return check.Invalid("params.mask would need more than 2^63 bits");
        }
      }
      const int64_t needed = bits / 8 + (bits % 8 != 0);
      return bytes.size >= needed ||
             check.Invalid("params.mask has ", bytes.size, " bytes; ", bits, " bits take ", needed);
    }
    case MaskForm::kTemplate:
      if (!check.In("params.mask", tensor, types, {&side, &side})) return false;
      return side.size >= 1 || check.Invalid("params.mask is an empty template");
  }
  const Largest largest = LargestRequest(batch);
  const int64_t needed_rows = mask.rows_are_absolute ? largest.keys : largest.rows;
  if (rows.size < needed_rows || keys.size < largest.keys) {
    return check.Invalid("params.mask is ", tensor.DebugString(), "; its S1 must be at least ",
                         std::max<int64_t>(needed_rows, 0), " and its S2 at least ",
                         std::max<int64_t>(largest.keys, 0));
  }
  return true;
}

bool CheckMask(ArgChecker& check, const ExplicitMask& mask, const BatchLengths& batch) {
  if (static_cast<int>(mask.form) > static_cast<int>(MaskForm::kTemplate)) {
    return check.Invalid("params.mask.form is number ", static_cast<int>(mask.form));
  }
  if (static_cast<int>(mask.encoding) > static_cast<int>(MaskEncoding::kMarker)) {
    return check.Invalid("params.mask.encoding is number ", static_cast<int>(mask.encoding));
  }
  if (mask.sparse_mode < 0 || mask.sparse_mode > 4) {
    return check.Invalid("params.mask.sparse_mode is ", mask.sparse_mode, "; 0 to 4");
  }
  const bool is_template = mask.form == MaskForm::kTemplate;
  if (mask.sparse_mode >= 2 && !is_template) {
    return check.Invalid("params.mask.sparse_mode ", mask.sparse_mode,
                         " needs a mask of form kTemplate");
  }
  if (mask.sparse_mode <= 1 && is_template) {
    return check.Invalid("params.mask is a template; sparse_mode ", mask.sparse_mode,
                         " takes full masks, 2 to 4 take templates");
  }
  if (!mask.enabled()) return true;
  if (mask.form == MaskForm::kNone && !mask.tensor.absent()) {
    return check.Invalid("params.mask.tensor is given with form kNone; say its form");
  }
  if (!CheckMaskForm(check, mask, batch)) return false;
  if (mask.sparse_mode != 0 && mask.sparse_mode != 4) return true;
  for (const int64_t distance : {mask.pre_tokens, mask.next_tokens}) {
    if (distance < -kMaxDistance || distance > kMaxDistance) {
      return check.Invalid("params.mask.pre_tokens or next_tokens is ", distance,
                           "; within 2^40, and 2^31 - 1 for unlimited");
    }
  }
  if (mask.pre_tokens + mask.next_tokens < 0) {
    return check.Invalid("params.mask.pre_tokens + next_tokens is ", mask.pre_tokens, " + ",
                         mask.next_tokens, "; at least 0");
  }
  const Largest largest = LargestRequest(batch);
  if (mask.pre_tokens < 0 && largest.rows >= 0 && -mask.pre_tokens >= largest.rows) {
    return check.Invalid("params.mask.pre_tokens is ", mask.pre_tokens,
                         "; if negative, above -S1 = ", -largest.rows);
  }
  if (mask.next_tokens < 0 && largest.keys >= 0 && -mask.next_tokens >= largest.keys) {
    return check.Invalid("params.mask.next_tokens is ", mask.next_tokens,
                         "; if negative, above -S2 = ", -largest.keys);
  }
  return true;
}

// Whether the offsets by which heads slide stay within int64, added to any key's block.
bool SlideFits(const BlockSparse& sparse, int64_t num_heads) {
  const int64_t step = std::abs(int64_t{sparse.head_sliding_step});
  int64_t offset;
  return !__builtin_mul_overflow(int64_t{sparse.tp_rank} + 1, num_heads, &offset) &&
         !__builtin_mul_overflow(offset, step, &offset) && offset <= INT64_MAX / 2;
}

bool CheckVisibility(ArgChecker& check, const AttnParams& params, int64_t num_heads,
                     int64_t block_size) {
  if (params.window_left < -1 || params.window_right < -1) {
    return check.Invalid("params.window_left and window_right are ", params.window_left, " and ",
                         params.window_right,
                         "; at least -1, and a window of W >= 1 tokens is window_left = W - 1");
  }
  if (std::max(params.window_left, params.window_right) > kMaxDistance) {
    return check.Invalid("params.window_left and window_right are ", params.window_left, " and ",
                         params.window_right, "; at most 2^40, or -1 for unlimited");
  }
  if (params.causal && params.window_right > 0) {
    return check.Invalid("params.window_right is ", params.window_right,
                         " under causal, which sees nothing to the right; use 0 or -1");
  }
  if (params.chunk < 0 || params.chunk > kMaxDistance ||
      (block_size > 0 && params.chunk % block_size != 0)) {
    return check.Invalid("params.chunk is ", params.chunk, "; 0 or a multiple of the block size ",
                         block_size, ", at most 2^40");
  }
  const BlockSparse& sparse = params.block_sparse;
  if (!sparse.enabled()) return true;
  if (sparse.block_size < 1 || (block_size > 0 && sparse.block_size % block_size != 0 &&
                                block_size % sparse.block_size != 0)) {
    return check.Invalid("params.block_sparse.block_size is ", sparse.block_size,
                         "; a multiple or divisor of the block size ", block_size);
  }
  if (sparse.local_blocks < 0 || sparse.tp_rank < 0) {
    return check.Invalid("params.block_sparse has local_blocks ", sparse.local_blocks,
                         " and tp_rank ", sparse.tp_rank, "; at least 0");
  }
  if (!SlideFits(sparse, num_heads)) {
    return check.Invalid("params.block_sparse has head_sliding_step ", sparse.head_sliding_step,
                         " for tp_rank ", sparse.tp_rank, " of H = ", num_heads,
                         " heads: slides beyond 2^62 blocks");
  }
  return true;
}

bool CheckSplit(ArgChecker& check, const SplitPolicy& split, int64_t block_size) {
  if (split.value > kMaxDistance) {
    return check.Invalid("params.split.value is ", split.value, "; at most 2^40");
  }
  switch (split.kind) {
    case SplitPolicy::Kind::kAuto:
    case SplitPolicy::Kind::kNone:
      return true;
    case SplitPolicy::Kind::kFixed:
      return (split.value >= 1 && (block_size == 0 || split.value % block_size == 0)) ||
             check.Invalid("params.split is Fixed(", split.value,
                           "); a positive multiple of the block size ", block_size);
    case SplitPolicy::Kind::kCount:
      return split.value >= 1 ||
             check.Invalid("params.split is Count(", split.value, "); at least 1");
  }
  return check.Invalid("params.split.kind is number ", static_cast<int>(split.kind));
}

}  // namespace

bool CheckParams(ArgChecker& check, const AttnParams& params, const BatchLengths& batch,
                 int64_t block_size) {
  if (!check.Positive("params.scale", params.scale)) return false;
  if (!(params.soft_cap >= 0) || !std::isfinite(params.soft_cap)) {
    return check.Invalid("params.soft_cap is ", params.soft_cap,
                         "; finite and above 0, or 0 for none");
  }
  Dim heads{"H", batch.num_heads, "q"};
  return CheckVisibility(check, params, batch.num_heads, block_size) &&
         check.InIf("params.alibi_slopes", params.alibi_slopes, DType::kF32, {&heads}) &&
         CheckSinks(check, params.sinks, batch.num_heads) &&
         CheckSplit(check, params.split, block_size) && CheckMask(check, params.mask, batch);
}

}  // namespace kvblocks::attention
