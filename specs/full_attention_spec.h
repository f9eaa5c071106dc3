// Specs of the layer caches that keep every token of a request: full attention, MLA, and full
// attention with sink tokens.
//
// A spec is an immutable value: made by Create from plain options that are checked once, compared
// and hashed over every option. options() gives the options back with defaults filled in
// (head_size_v), so two ways to write the same spec compare equal. Copying costs a few words;
// nothing is computed after creation.

#ifndef KVBLOCKS_SPECS_FULL_ATTENTION_SPEC_H_
#define KVBLOCKS_SPECS_FULL_ATTENTION_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/spec_hash.h"

namespace kvblocks {

class FullAttentionSpec {
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
    // Labels: the layer computes locally but every token is kept. At most one of the two.
    std::optional<int64_t> sliding_window = std::nullopt;
    std::optional<int64_t> attention_chunk_size = std::nullopt;
    bool non_causal = false;  // changes scheduling only

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size, o.dtype, o.quant_mode,
                     o.indexes_kv_by_block_stride, o.non_causal);
      return CombineOptionals(std::move(h), o.head_size_v, o.page_size_padded, o.sliding_window,
                              o.attention_chunk_size);
    }
  };

  static absl::StatusOr<FullAttentionSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const FullAttentionSpec&, const FullAttentionSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const FullAttentionSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  FullAttentionSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

// A model version whose rows differ from the general formulas.
enum class ModelVersion { kNone, kDeepseekV32, kDeepseekV4 };

// "none", "deepseek_v3_2", "deepseek_v4".
std::string_view ModelVersionName(ModelVersion version);
absl::StatusOr<ModelVersion> ParseModelVersion(std::string_view name);

// One latent vector per stored row and one head, replicated on every worker. A block covers
// block_size tokens and stores block_size / compress_ratio rows.
class MlaAttentionSpec {
 public:
  struct Options {
    int64_t block_size = 0;
    int64_t head_size = 0;  // latent rank plus rotary part, 512 + 64 for DeepSeek-V3
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;
    std::optional<int64_t> alignment = std::nullopt;  // bytes; the page is rounded up to a multiple
    int64_t compress_ratio = 1;
    ModelVersion model_version = ModelVersion::kNone;
    bool non_causal = false;
    bool is_draft = false;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.head_size, o.dtype, o.quant_mode,
                     o.indexes_kv_by_block_stride, o.compress_ratio, o.model_version, o.non_causal,
                     o.is_draft);
      return CombineOptionals(std::move(h), o.page_size_padded, o.alignment);
    }
  };

  static absl::StatusOr<MlaAttentionSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t storage_block_size() const { return options_.block_size / options_.compress_ratio; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const MlaAttentionSpec&, const MlaAttentionSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const MlaAttentionSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  MlaAttentionSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

// Full attention whose first sink_length rows are learned, stored once and shared by all requests.
// Not to be confused with a sink bias, which is a logit and needs no cache.
class SinkFullAttentionSpec {
 public:
  struct Options {
    int64_t block_size = 0;
    int64_t num_kv_heads = 0;
    int64_t head_size = 0;
    std::optional<int64_t> head_size_v = std::nullopt;  // default: head_size
    int64_t sink_length = 0;                            // tokens, a positive multiple of block_size
    DataType dtype = DataType::kBFloat16;
    QuantMode quant_mode = QuantMode::kNone;
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    bool indexes_kv_by_block_stride = false;
    std::optional<int64_t> sliding_window = std::nullopt;        // label
    std::optional<int64_t> attention_chunk_size = std::nullopt;  // label
    bool non_causal = false;

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size, o.sink_length,
                     o.dtype, o.quant_mode, o.indexes_kv_by_block_stride, o.non_causal);
      return CombineOptionals(std::move(h), o.head_size_v, o.page_size_padded, o.sliding_window,
                              o.attention_chunk_size);
    }
  };

  static absl::StatusOr<SinkFullAttentionSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const SinkFullAttentionSpec&, const SinkFullAttentionSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SinkFullAttentionSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  SinkFullAttentionSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_FULL_ATTENTION_SPEC_H_
