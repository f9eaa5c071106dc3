// RowCodec: how one row of a KV cache is laid out in a storage format, as data.
//
//   page = rows x row bytes + footer, rounded up to the alignment.
//
// A row is what one block stores for one token (or, in a compressed cache, for several): a K and a
// V vector per head, or one latent vector. A format is one entry of the table in row_codec.cc, and
// every spec kind computes its page from that entry, so a new format is a new entry and no kind can
// forget one.
//
// Sizes must have been checked to be positive, and vectors to be packable; answers are
// CheckedInt64, so a page beyond 63 bits is noticed instead of wrapping.

#ifndef KVBLOCKS_SPECS_ROW_CODEC_H_
#define KVBLOCKS_SPECS_ROW_CODEC_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "checks/checked_int64.h"
#include "kvblocks/kv_cache_spec.h"

namespace kvblocks {

// The first ones store the vectors of the quantisation mode of the same number.
enum class RowFormat {
  kPlain,         // values as the storage type says
  kFp8PerTensor,  // one byte per value; the scale is kept with the layer
  kInt8PerTokenHead,
  kFp8PerTokenHead,
  kInt4PerTokenHead,
  kNvfp4,
  kFp8DsMla,       // DeepSeek-V3.2: 512 fp8 latent values, 4 fp32 scales, 64 bf16 rotary values
  kNvfp4DsMla,     // V3.2's geometry: 512 fp4 latent values, 64 fp8 rotary ones, 32 scales of 16
  kFp8DsMlaV4,     // DeepSeek-V4: 448 fp8 values and 64 bf16 rotary ones; scales in the footer
  kFp8DsMlaV41,    // DeepSeek-V4.1: 512 fp8 values and 16 scales of 32 values each
  kNvfp4DsMlaV41,  // V4.1's compressed tokens: 512 fp4 values and 32 scales of 16 values each
};

struct RowCodec {
  std::string_view name;
  // A row that is as long whatever the head size; 0: the head size decides.
  int64_t fixed_row_bytes = 0;
  // Bytes of one stored element; 0: those of the storage type.
  int64_t element_bytes = 0;
  int64_t values_per_element = 1;
  // Scales inside the row: so many bytes for each so many values; 0 values: none.
  int64_t values_per_scale = 0;
  int64_t scale_bytes = 0;
  // Behind the rows, for each row.
  int64_t footer_bytes_per_row = 0;
  // Behind the rows, for each head of each token that the block covers.
  int64_t footer_bytes_per_token_head = 0;
  // The alignment that engines give pages of this format; a spec states its own. 1: none.
  int64_t usual_alignment = 1;

  // Vectors that can be stored have a multiple of so many values.
  int64_t vector_multiple() const;
  // One vector of `num_values`: the K or the V of one (token, head), or one latent row.
  CheckedInt64 VectorBytes(int64_t num_values, DataType dtype) const;
};

const RowCodec& CodecOf(RowFormat format);

// The format that stores vectors of a quantisation mode. kFp8DsMla and kNvfp4DsMla are V3.2's.
constexpr RowFormat FormatOf(QuantMode mode) { return static_cast<RowFormat>(mode); }

// What one block of one layer cache stores.
struct PageRows {
  int64_t num_tokens = 0;  // covered by the block
  int64_t num_rows = 0;    // stored; fewer than num_tokens in a compressed cache
  int64_t num_heads = 1;
  int64_t key_values = 0;                              // in a K vector or the latent vector
  std::optional<int64_t> value_values = std::nullopt;  // in a V vector; none: latent rows
  DataType dtype = DataType::kBFloat16;
};

// Rows and footer, without alignment.
CheckedInt64 UnpaddedPageBytes(const RowCodec& codec, const PageRows& rows);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_ROW_CODEC_H_
