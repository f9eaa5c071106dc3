// KvCacheSpec: what one layer wants stored, of any kind.
//
// A value that holds one of the nine spec kinds. Converts from each of them, and answers the
// questions that block managers and planners ask of all kinds alike; get_if<T>() gives the kind's
// own options.
//
//   const auto full = FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size =
//   128}); if (!full.ok()) return full.status(); const KvCacheSpec spec = *full;   //
//   spec.page_bytes() == 65536
//
// Immutable, compared and hashed over every field; copying costs a few words (and a list of states
// for Mamba) and no accessor computes sizes anew.

#ifndef KVBLOCKS_SPECS_KV_CACHE_SPEC_H_
#define KVBLOCKS_SPECS_KV_CACHE_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/encoder_attention_spec.h"
#include "kvblocks/specs/full_attention_spec.h"
#include "kvblocks/specs/local_attention_spec.h"
#include "kvblocks/specs/mamba_spec.h"

namespace kvblocks {

enum class KvCacheSpecKind {
  kFullAttention,
  kMlaAttention,
  kSinkFullAttention,
  kSlidingWindow,
  kSlidingWindowMla,
  kChunkedLocalAttention,
  kMamba,
  kCrossAttention,
  kEncoderOnlyAttention,
};

// "full_attention", "mla_attention", "sink_full_attention", "sliding_window", "sliding_window_mla",
// "chunked_local_attention", "mamba", "cross_attention", "encoder_only_attention".
std::string_view KindName(KvCacheSpecKind kind);

// "one of full_attention, mla_attention, ...", for messages about an unknown kind.
std::string SupportedKinds();

class KvCacheSpec {
 public:
  // Implicit on purpose: every kind of spec is a KvCacheSpec.
  KvCacheSpec(FullAttentionSpec spec) : spec_(std::move(spec)) {}          // NOLINT
  KvCacheSpec(MlaAttentionSpec spec) : spec_(std::move(spec)) {}           // NOLINT
  KvCacheSpec(SinkFullAttentionSpec spec) : spec_(std::move(spec)) {}      // NOLINT
  KvCacheSpec(SlidingWindowSpec spec) : spec_(std::move(spec)) {}          // NOLINT
  KvCacheSpec(SlidingWindowMlaSpec spec) : spec_(std::move(spec)) {}       // NOLINT
  KvCacheSpec(ChunkedLocalAttentionSpec spec) : spec_(std::move(spec)) {}  // NOLINT
  KvCacheSpec(MambaSpec spec) : spec_(std::move(spec)) {}                  // NOLINT
  KvCacheSpec(CrossAttentionSpec spec) : spec_(std::move(spec)) {}         // NOLINT
  KvCacheSpec(EncoderOnlyAttentionSpec spec) : spec_(std::move(spec)) {}   // NOLINT

  KvCacheSpecKind kind() const { return static_cast<KvCacheSpecKind>(spec_.index()); }

  int64_t block_size() const;
  int64_t num_kv_heads() const;  // 1 for the MLA kinds, 0 for Mamba
  int64_t head_size() const;     // 0 for Mamba
  int64_t head_size_v() const;   // head_size() where the kind has no V size of its own
  DataType dtype() const;        // that of the first state for Mamba
  QuantMode quant_mode() const;  // kNone for Mamba
  int64_t page_bytes() const;

  // The window of the two window kinds. The label that a full spec may carry is not one: such a
  // layer keeps every token.
  std::optional<int64_t> sliding_window() const;
  // Chunked local attention only; here, too, labels of full specs do not count.
  std::optional<int64_t> attention_chunk_size() const;
  // Tokens of permanent sink storage; 0 for other kinds.
  int64_t sink_length() const;
  // 1 where the kind does not compress.
  int64_t compress_ratio() const;
  // Rows really stored by one block; 1, the state, for Mamba.
  int64_t storage_block_size() const;

  // The same spec with another block size. Alignment padding follows from the new data size; an
  // explicit page_size_padded is kept, and refused if the new page is larger.
  absl::StatusOr<KvCacheSpec> WithBlockSize(int64_t block_size) const;
  // The same spec with its page padded to `page_size_padded` bytes, or without explicit padding.
  absl::StatusOr<KvCacheSpec> WithPageSizePadded(std::optional<int64_t> page_size_padded) const;

  // Null if the spec is of another kind. T is one of the nine spec classes.
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&spec_);
  }
  template <typename Visitor>
  decltype(auto) Visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), spec_);
  }

  // "sliding_window(block_size=16, num_kv_heads=8, ..., page_bytes=65536)"; fields at their default
  // are left out.
  std::string ToString() const;

  friend bool operator==(const KvCacheSpec&, const KvCacheSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const KvCacheSpec& spec) {
    h = H::combine(std::move(h), spec.spec_.index());
    return std::visit([&h](const auto& s) { return H::combine(std::move(h), s); }, spec.spec_);
  }

 private:
  // In the order of KvCacheSpecKind.
  std::variant<FullAttentionSpec, MlaAttentionSpec, SinkFullAttentionSpec, SlidingWindowSpec,
               SlidingWindowMlaSpec, ChunkedLocalAttentionSpec, MambaSpec, CrossAttentionSpec,
               EncoderOnlyAttentionSpec>
      spec_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_KV_CACHE_SPEC_H_
