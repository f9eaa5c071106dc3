// Specs of the layers of encoder-decoder models that attend to the encoder: cross attention, and
// the encoder's own layers.
//
// Immutable values like those of full_attention_spec.h. A cross-attention layer stores K and V of
// the encoder's tokens, once per request and independent of the decoder's length. An encoder's own
// layer stores nothing between steps: a page can be computed for it, but a request needs none, and
// no group of a pool may have this kind.

#ifndef KVBLOCKS_SPECS_ENCODER_ATTENTION_SPEC_H_
#define KVBLOCKS_SPECS_ENCODER_ATTENTION_SPEC_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/spec_hash.h"

namespace kvblocks {

// The decoder's view of the encoder.
class CrossAttentionSpec {
 public:
  struct Options {
    int64_t block_size = 0;    // tokens per block
    int64_t num_kv_heads = 0;  // held by one worker
    int64_t head_size = 0;
    std::optional<int64_t> head_size_v = std::nullopt;  // default: head_size
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size, o.dtype, o.quant_mode,
                     o.indexes_kv_by_block_stride);
      return CombineOptionals(std::move(h), o.head_size_v, o.page_size_padded);
    }
  };

  static absl::StatusOr<CrossAttentionSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const CrossAttentionSpec&, const CrossAttentionSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const CrossAttentionSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  CrossAttentionSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

// The encoder's view of itself.
class EncoderOnlyAttentionSpec {
 public:
  struct Options {
    int64_t block_size = 0;    // tokens per block
    int64_t num_kv_heads = 0;  // held by one worker
    int64_t head_size = 0;
    std::optional<int64_t> head_size_v = std::nullopt;  // default: head_size
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size, o.dtype, o.quant_mode,
                     o.indexes_kv_by_block_stride);
      return CombineOptionals(std::move(h), o.head_size_v, o.page_size_padded);
    }
  };

  static absl::StatusOr<EncoderOnlyAttentionSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const EncoderOnlyAttentionSpec&,
                         const EncoderOnlyAttentionSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const EncoderOnlyAttentionSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  EncoderOnlyAttentionSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_ENCODER_ATTENTION_SPEC_H_
