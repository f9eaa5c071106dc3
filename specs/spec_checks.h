// Checks that several spec kinds share. For the factories of this folder only.

#ifndef KVBLOCKS_SPECS_SPEC_CHECKS_H_
#define KVBLOCKS_SPECS_SPEC_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "specs/data_type.h"
#include "specs/field_error.h"

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

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_SPEC_CHECKS_H_
