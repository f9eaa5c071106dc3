// Bytes of one page: the storage of one block for one layer cache.
//
//   unpadded = what the row codec (row_codec.h) says;  page = the explicit padding if there is one,
//   else unpadded rounded up to the alignment.
//
// The spec classes call these once, when they are created.

#ifndef KVBLOCKS_SPECS_PAGE_BYTES_H_
#define KVBLOCKS_SPECS_PAGE_BYTES_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/specs/checked_int64.h"
#include "kvblocks/specs/data_type.h"

namespace kvblocks {

// kUpstreamCompatible repeats one known error of vLLM for byte-exact comparisons: the
// sliding-window kinds ignore that int4 values are packed two to a byte and so budget twice the
// data bytes.
enum class PageBytesFormula { kExact, kUpstreamCompatible };

// The page made of `unpadded` bytes. Refused: a padding below the unpadded size, and a size beyond
// 63 bits.
absl::StatusOr<int64_t> PageBytes(CheckedInt64 unpadded, std::optional<int64_t> page_size_padded,
                                  std::optional<int64_t> alignment);

// Refuses head sizes that the mode cannot pack (odd ones for int4, those that are not multiples of
// 16 for nvfp4).
absl::Status CheckPackable(const char* field, int64_t head_size, QuantMode mode);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PAGE_BYTES_H_
