// Bytes of one page: the storage of one block for one layer cache.
//
//   unpadded = data + scales;  page = the explicit padding if there is one, else unpadded rounded
//   up to the alignment.
//
// Every function takes sizes that were checked to be positive and answers in CheckedInt64, so a
// page that does not fit 63 bits is noticed instead of wrapping. The spec classes call these once,
// when they are created.

#ifndef KVBLOCKS_SPECS_PAGE_BYTES_H_
#define KVBLOCKS_SPECS_PAGE_BYTES_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "specs/checked_int64.h"
#include "specs/data_type.h"

namespace kvblocks {

// kUpstreamCompatible repeats one known error of vLLM for byte-exact comparisons: the
// sliding-window kinds ignore that int4 values are packed two to a byte and so budget twice the
// data bytes.
enum class PageBytesFormula { kExact, kUpstreamCompatible };

// DeepSeek-V3.2's and V4's rows of the fp8_ds_mla format.
inline constexpr int64_t kFp8DsMlaRowBytes = 656;
inline constexpr int64_t kFp8DsMlaV4RowBytes = 584;

// Bytes of one stored vector of `head_size` values: one K or one V of one (token, head), or one
// latent row.
CheckedInt64 VectorBytes(int64_t head_size, DataType dtype, QuantMode mode);

// Data bytes of `rows` tokens that store K and V for each head.
CheckedInt64 KeyValueBytes(int64_t rows, int64_t num_kv_heads, int64_t head_size,
                           int64_t head_size_v, DataType dtype, QuantMode mode);

// Scales kept inside the page: 4 bytes for K and 4 for V per (token, head), 0 for modes without
// them.
CheckedInt64 ScaleBytes(int64_t block_size, int64_t num_kv_heads, QuantMode mode);

// The page made of `unpadded` bytes. Refused: a padding below the unpadded size, and a size beyond
// 63 bits.
absl::StatusOr<int64_t> PageBytes(CheckedInt64 unpadded, std::optional<int64_t> page_size_padded,
                                  std::optional<int64_t> alignment);

// Refuses head sizes that the mode cannot pack (odd ones for int4, those that are not multiples of
// 16 for nvfp4).
absl::Status CheckPackable(const char* field, int64_t head_size, QuantMode mode);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PAGE_BYTES_H_
