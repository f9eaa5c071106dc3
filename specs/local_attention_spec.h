// Specs of the layer caches that keep only the tokens near the end of a request: sliding window,
// sliding-window MLA, and chunked local attention.
//
// Immutable values like those of full_attention_spec.h. Query i of a window layer sees tokens [i -
// W + 1, i], itself included; query i of a chunked layer sees its own chunk of C tokens up to i,
// where C is a multiple of the block size so that a chunk never starts inside a block.

#ifndef KVBLOCKS_SPECS_LOCAL_ATTENTION_SPEC_H_
#define KVBLOCKS_SPECS_LOCAL_ATTENTION_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/full_attention_spec.h"
#include "kvblocks/specs/page_bytes.h"
#include "kvblocks/specs/spec_hash.h"

namespace kvblocks {

class SlidingWindowSpec {
 public:
  struct Options {
    int64_t block_size = 0;    // tokens per block
    int64_t num_kv_heads = 0;  // held by one worker
    int64_t head_size = 0;
    std::optional<int64_t> head_size_v = std::nullopt;  // default: head_size
    int64_t sliding_window = 0;                         // tokens, the query included
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;
    PageBytesFormula page_bytes_formula = PageBytesFormula::kExact;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size, o.sliding_window,
                     o.dtype, o.quant_mode, o.indexes_kv_by_block_stride, o.page_bytes_formula);
      return CombineOptionals(std::move(h), o.head_size_v, o.page_size_padded);
    }
  };

  static absl::StatusOr<SlidingWindowSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const SlidingWindowSpec&, const SlidingWindowSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SlidingWindowSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  SlidingWindowSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

// One vector per stored row and one head, like MlaAttentionSpec, within a window. DeepSeek-V4's
// window caches and compressor states are of this kind.
class SlidingWindowMlaSpec {
 public:
  struct Options {
    int64_t block_size = 0;
    int64_t head_size = 0;
    int64_t sliding_window = 0;  // tokens, the query included
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;
    std::optional<int64_t> alignment = std::nullopt;  // bytes; the page is rounded up to a multiple
    int64_t compress_ratio = 1;
    ModelVersion model_version = ModelVersion::kNone;  // kNone or kDeepseekV4
    PageBytesFormula page_bytes_formula = PageBytesFormula::kExact;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.head_size, o.sliding_window, o.dtype,
                     o.quant_mode, o.indexes_kv_by_block_stride, o.compress_ratio, o.model_version,
                     o.page_bytes_formula);
      return CombineOptionals(std::move(h), o.page_size_padded, o.alignment);
    }
  };

  static absl::StatusOr<SlidingWindowMlaSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t storage_block_size() const { return options_.block_size / options_.compress_ratio; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const SlidingWindowMlaSpec&, const SlidingWindowMlaSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SlidingWindowMlaSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  SlidingWindowMlaSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

class ChunkedLocalAttentionSpec {
 public:
  struct Options {
    int64_t block_size = 0;    // tokens per block
    int64_t num_kv_heads = 0;  // held by one worker
    int64_t head_size = 0;
    int64_t attention_chunk_size = 0;  // tokens, a multiple of block_size
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size,
                     o.attention_chunk_size, o.dtype, o.quant_mode, o.indexes_kv_by_block_stride);
      return CombineOptionals(std::move(h), o.page_size_padded);
    }
  };

  static absl::StatusOr<ChunkedLocalAttentionSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const ChunkedLocalAttentionSpec&,
                         const ChunkedLocalAttentionSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ChunkedLocalAttentionSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  ChunkedLocalAttentionSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_LOCAL_ATTENTION_SPEC_H_
