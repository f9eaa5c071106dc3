// Checks and page sizes that several spec kinds share. For the factories of this folder only.

#ifndef KVBLOCKS_SPECS_SPEC_CHECKS_H_
#define KVBLOCKS_SPECS_SPEC_CHECKS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/field_error.h"
#include "kvblocks/specs/page_bytes.h"
#include "kvblocks/specs/row_codec.h"

namespace kvblocks {

// Quantised values take one byte, so a mode other than kNone needs a one-byte storage type. `mla`
// says whether the kind may use the fp8_ds_mla rows.
absl::Status CheckStorage(DataType dtype, QuantMode mode, bool mla);

// block_size and compress_ratio are positive, and the ratio divides the block size.
absl::Status CheckCompression(int64_t block_size, int64_t compress_ratio);

// What every options struct of a kind with K and V has.
template <typename Options>
absl::Status CheckKeyValueOptions(const Options& o) {
  absl::Status status = CheckPositive("block_size", o.block_size);
  status.Update(CheckPositive("num_kv_heads", o.num_kv_heads));
  status.Update(CheckPositive("head_size", o.head_size));
  status.Update(CheckPositive("page_size_padded", o.page_size_padded));
  status.Update(CheckStorage(o.dtype, o.quant_mode, /*mla=*/false));
  return status;
}

// What every options struct of a kind with one latent vector has.
template <typename Options>
absl::Status CheckLatentOptions(const Options& o) {
  absl::Status status = CheckCompression(o.block_size, o.compress_ratio);
  status.Update(CheckPositive("head_size", o.head_size));
  status.Update(CheckPositive("page_size_padded", o.page_size_padded));
  status.Update(CheckPositive("alignment", o.alignment));
  status.Update(CheckStorage(o.dtype, o.quant_mode, /*mla=*/true));
  return status;
}

// The page of a kind with K and V, of a mode that may be counted as another.
template <typename Options>
absl::StatusOr<int64_t> KeyValuePageBytes(const Options& o, int64_t head_size_v,
                                          QuantMode counted_mode) {
  return PageBytes(UnpaddedPageBytes(CodecOf(FormatOf(counted_mode)), {.num_tokens = o.block_size,
                                                                       .num_rows = o.block_size,
                                                                       .num_heads = o.num_kv_heads,
                                                                       .key_values = o.head_size,
                                                                       .value_values = head_size_v,
                                                                       .dtype = o.dtype}),
                   o.page_size_padded, /*alignment=*/std::nullopt);
}

// The page of a kind with one latent vector per row.
template <typename Options>
absl::StatusOr<int64_t> LatentPageBytes(const Options& o, const RowCodec& codec) {
  return PageBytes(UnpaddedPageBytes(codec, {.num_tokens = o.block_size,
                                             .num_rows = o.block_size / o.compress_ratio,
                                             .key_values = o.head_size,
                                             .dtype = o.dtype}),
                   o.page_size_padded, o.alignment);
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_SPEC_CHECKS_H_
