// KV-cache specs: what the layers of a group store for each token.

#ifndef KVBLOCKS_KV_CACHE_SPEC_H_
#define KVBLOCKS_KV_CACHE_SPEC_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

// What one stored element of a KV cache is, and how the stored values were quantised.
//
// A cache is described by the pair (storage type, quantisation mode). Engines name the pair by one
// option string, the "cache dtype"; ParseCacheDtype turns it into the pair. e4m3 and e5m2 have the
// same layout and differ for kernels only.

namespace kvblocks {

enum class DataType { kBFloat16, kFloat16, kFloat32, kUint8, kInt8, kFp8E4m3, kFp8E5m2 };

enum class QuantMode {
  kNone,              // values as the storage type says
  kFp8PerTensor,      // one scale per tensor, kept with the layer
  kInt8PerTokenHead,  // one fp32 scale per (token, head) for K and one for V, inside the page
  kFp8PerTokenHead,   // the same scales
  kInt4PerTokenHead,  // the same scales; two values per byte
  kNvfp4,             // two values per byte and one scale byte per 16 values, inside the row
  kFp8DsMla,          // DeepSeek's own row format, MLA only
  kNvfp4DsMla,        // the same in 4 bits: two values per byte, scale bytes inside the row
};

// Bytes of one stored element.
int64_t ElementBytes(DataType type);

// Whether rows are DeepSeek's own, which MLA kinds alone have.
constexpr bool IsDsMla(QuantMode mode) {
  return mode == QuantMode::kFp8DsMla || mode == QuantMode::kNvfp4DsMla;
}

// Whether fp32 scales per (token, head) are kept inside the page.
bool HasPerTokenHeadScales(QuantMode mode);

// "bf16", "fp16", "fp32", "uint8", "int8", "fp8_e4m3", "fp8_e5m2".
std::string_view DataTypeName(DataType type);
// "none", "fp8_per_tensor", and for the other modes the option string that selects them.
std::string_view QuantModeName(QuantMode mode);

// The reverse of the names; also the long forms "bfloat16", "float16" and "half", "float32" and
// "float".
absl::StatusOr<DataType> ParseDataType(std::string_view name);
absl::StatusOr<QuantMode> ParseQuantMode(std::string_view name);

// The mode that a cache-dtype option string selects. Exact names are matched before the prefix
// "fp8"; every other string selects kNone.
QuantMode QuantModeOfOption(std::string_view option);

struct CacheDtype {
  DataType storage;
  QuantMode mode;

  friend bool operator==(const CacheDtype&, const CacheDtype&) = default;
};

// Storage type and mode for an option string; "auto" stores what the model computes in. A string
// that names neither a mode nor a data type is refused: a typing error must not silently double the
// cache.
absl::StatusOr<CacheDtype> ParseCacheDtype(std::string_view option, DataType model_dtype);

// KvCacheSpec: what one layer wants stored, of any kind.
//
// An immutable value, made by the Create of its kind from plain options that are checked once:
//
//   const auto full = FullAttentionSpec::Create(
//       {.block_size = 16, .num_kv_heads = 8, .head_size = 128});
//   if (!full.ok()) return full.status();
//   full->page_bytes();  // 65536
//
// All kinds have one struct of options. Which fields a kind has, requires and how they print, merge
// and travel in a configuration file is one table (spec_fields.h); a field that the kind does not
// have is refused unless it is left at its default. Compared and hashed over every field; copying
// costs a few words (and a list of states for Mamba), and no accessor computes sizes anew.
//
// A program may add kinds of its own: see kv_cache_kind.h.

struct KvCacheKind;

enum class KvCacheSpecKind {
  kFullAttention,
  // One vector per stored row and one head: multi-head latent attention and sparse-attention
  // indexers.
  kMlaAttention,
  // Full attention whose first sink_length rows are learned, stored once and shared by all
  // requests. Not to be confused with a sink bias, which is a logit and needs no cache.
  kSinkFullAttention,
  // Query i sees tokens [i - W + 1, i], itself included.
  kSlidingWindow,
  // DeepSeek-V4's window caches and compressor states are of this kind, and V4.1's windows.
  kSlidingWindowMla,
  // Query i sees its own chunk of C tokens up to i. C is a multiple of the block size, so that a
  // chunk never starts inside a block.
  kChunkedLocalAttention,
  // State-space layers: one page holds one state, whatever the block size, which says after how
  // many tokens a state may be kept for reuse.
  kMamba,
  // The decoder's view of the encoder: K and V of the encoder's tokens, once per request.
  kCrossAttention,
  // The encoder's view of itself: a page can be computed, but nothing is stored between steps, and
  // no group of a pool may have this kind.
  kEncoderOnlyAttention,
  // Hidden states of some layers, one vector per token, kept for training a drafter on them.
  // Nothing attends to them; blocks are managed as those of full attention.
  kHiddenState,
  // A circular buffer of block_size rows: one block per request for its whole life, in which a new
  // token overwrites the oldest. Never part of a prefix that is reused.
  kRing,
};
inline constexpr int kNumSpecKinds = static_cast<int>(KvCacheSpecKind::kRing) + 1;

// "full_attention", "mla_attention", "sink_full_attention", "sliding_window", "sliding_window_mla",
// "chunked_local_attention", "mamba", "cross_attention", "encoder_only_attention", "hidden_state",
// "ring".
std::string_view KindName(KvCacheSpecKind kind);

// "one of full_attention, mla_attention, ...", for messages about an unknown kind.
std::string SupportedKinds();

// DeepSeek's versions, whose rows differ.
enum class ModelVersion { kNone, kDeepseekV32, kDeepseekV4, kDeepseekV41 };

// "none", "deepseek_v3_2", "deepseek_v4", "deepseek_v4_1".
std::string_view ModelVersionName(ModelVersion version);
absl::StatusOr<ModelVersion> ParseModelVersion(std::string_view name);

enum class MambaCacheMode {
  kNone,   // one state per request, nothing to reuse
  kAlign,  // states at block boundaries where a step ends are kept
  kAll,    // a state at every block boundary
};

// "none", "align", "all".
std::string_view MambaCacheModeName(MambaCacheMode mode);
absl::StatusOr<MambaCacheMode> ParseMambaCacheMode(std::string_view name);

// One tensor of a Mamba layer's state.
struct MambaState {
  std::vector<int64_t> shape = {};  // no dimensions: a single value
  DataType dtype = DataType::kBFloat16;

  friend bool operator==(const MambaState&, const MambaState&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const MambaState& state) {
    return H::combine(std::move(h), state.shape, state.dtype);
  }
};

// kUpstreamCompatible repeats one known error of vLLM for byte-exact comparisons: the
// sliding-window kinds ignore that int4 values are packed two to a byte and so budget twice the
// data bytes.
enum class PageBytesFormula { kExact, kUpstreamCompatible };

struct KvCacheSpecOptions {
  int64_t block_size = 0;    // tokens per block
  int64_t num_kv_heads = 0;  // held by one worker; kinds of one vector per row leave it unset
  int64_t head_size = 0;     // of kinds of one vector per row: its values
  std::optional<int64_t> head_size_v = std::nullopt;  // default: head_size
  int64_t sink_length = 0;                            // tokens, a positive multiple of block_size
  // Tokens, the query included. For full and sink attention a label: the layer computes locally but
  // every token is kept; at most one of the two labels.
  std::optional<int64_t> sliding_window = std::nullopt;
  std::optional<int64_t> attention_chunk_size = std::nullopt;  // tokens; a label as above
  std::vector<MambaState> states = {};
  DataType dtype = DataType::kBFloat16;
  QuantMode quant_mode = QuantMode::kNone;
  std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
  bool indexes_kv_by_block_stride = false;
  std::optional<int64_t> alignment = std::nullopt;  // bytes; the page is rounded up to a multiple
  int64_t compress_ratio = 1;                       // tokens per stored row; divides block_size
  ModelVersion model_version = ModelVersion::kNone;
  PageBytesFormula page_bytes_formula = PageBytesFormula::kExact;
  bool non_causal = false;  // changes scheduling only
  bool is_draft = false;    // changes scheduling only
  MambaCacheMode cache_mode = MambaCacheMode::kNone;
  int64_t num_speculative_blocks = 0;  // further states a request holds for drafted tokens
  // Further states that a request in align mode holds for checkpoints inside a prefill chunk.
  int64_t num_checkpoint_blocks = 0;
  // The window is not kept for reuse: after a hit of h tokens its last sliding_window tokens are
  // computed again, and shorter hits are no use.
  bool bounded_replay = false;
  // Tokens below the window that are kept as well, because a drafter may compute what needs them
  // again: all but one of those that it reads after a prefill's part. Of windows only.
  int64_t extra_retained_tokens = 0;
  // Tokens of the request's output that stay visible, the latest ones, while all of its prompt
  // does; default: all.
  std::optional<int64_t> output_window = std::nullopt;

  friend bool operator==(const KvCacheSpecOptions&, const KvCacheSpecOptions&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const KvCacheSpecOptions& o) {
    h = H::combine(std::move(h), o.block_size, o.num_kv_heads, o.head_size, o.sink_length, o.states,
                   o.dtype, o.quant_mode, o.indexes_kv_by_block_stride, o.compress_ratio,
                   o.model_version, o.page_bytes_formula, o.non_causal, o.is_draft, o.cache_mode,
                   o.num_speculative_blocks, o.num_checkpoint_blocks, o.bounded_replay,
                   o.extra_retained_tokens);
    for (const auto* field : {&o.head_size_v, &o.sliding_window, &o.attention_chunk_size,
                              &o.page_size_padded, &o.alignment, &o.output_window}) {
      h = H::combine(std::move(h), field->has_value(), field->value_or(0));
    }
    return h;
  }
};

class KvCacheSpec {
 public:
  static absl::StatusOr<KvCacheSpec> Create(KvCacheSpecKind kind,
                                            const KvCacheSpecOptions& options);
  // Of a kind that the program registered.
  static absl::StatusOr<KvCacheSpec> Create(const KvCacheKind& kind,
                                            const KvCacheSpecOptions& options);

  // Of a registered kind: the one that it is managed like.
  KvCacheSpecKind kind() const { return kind_; }
  // Null for the kinds above.
  const KvCacheKind* registered_kind() const { return registered_kind_; }
  std::string_view kind_name() const;
  // With defaults filled in (head_size_v), so that two ways to write one spec compare equal.
  const KvCacheSpecOptions& options() const { return options_; }

  int64_t block_size() const { return options_.block_size; }
  int64_t num_kv_heads() const;                             // 1 for one vector per row, 0 for Mamba
  int64_t head_size() const { return options_.head_size; }  // 0 for Mamba
  // head_size() where the kind has no V size of its own
  int64_t head_size_v() const { return options_.head_size_v.value_or(options_.head_size); }
  DataType dtype() const;  // that of the first state for Mamba
  QuantMode quant_mode() const { return options_.quant_mode; }
  int64_t page_bytes() const { return page_bytes_; }
  // Without alignment and padding.
  int64_t unpadded_page_bytes() const { return unpadded_page_bytes_; }

  // The window of the two window kinds. The label that a full spec may carry is not one: such a
  // layer keeps every token.
  std::optional<int64_t> sliding_window() const;
  // Chunked local attention only; here, too, labels of full specs do not count.
  std::optional<int64_t> attention_chunk_size() const;
  // Of the two window kinds: tokens below the window that are kept, too.
  int64_t extra_retained_tokens() const { return options_.extra_retained_tokens; }
  // Of full attention and MLA: tokens of a request's output that are kept, besides its prompt.
  std::optional<int64_t> output_window() const { return options_.output_window; }
  // Tokens of permanent sink storage; 0 for other kinds.
  int64_t sink_length() const { return options_.sink_length; }
  // One vector per stored row instead of K and V of heads: the MLA kinds, hidden states and rings.
  bool has_one_vector_per_row() const;
  // Whether blocks can serve another request with the same prefix: not those of an encoder's
  // tokens, of rings, and of windows that are computed again. Groups of such specs are left out of
  // look-ups, and of what hash and scheduler block sizes are derived from.
  bool is_prefix_cacheable() const {
    return kind_ != KvCacheSpecKind::kRing && kind_ != KvCacheSpecKind::kCrossAttention &&
           !options_.bounded_replay;
  }
  // Tokens at the end of a hit that must be computed again before the layer can be read; 0 where
  // the cache itself is reused, and for rings, which the tokens after a hit fill.
  int64_t replay_tokens() const {
    return options_.bounded_replay ? options_.sliding_window.value_or(0) : 0;
  }
  // 1 where the kind does not compress.
  int64_t compress_ratio() const { return options_.compress_ratio; }
  // Rows really stored by one block; 1, the state, for Mamba.
  int64_t storage_block_size() const;

  // A spec of the same kind.
  absl::StatusOr<KvCacheSpec> WithOptions(const KvCacheSpecOptions& options) const;
  // The same spec with another block size. Alignment padding follows from the new data size; an
  // explicit page_size_padded is kept, and refused if the new page is larger.
  absl::StatusOr<KvCacheSpec> WithBlockSize(int64_t block_size) const;
  // The same spec with its page padded to `page_size_padded` bytes, or without explicit padding.
  absl::StatusOr<KvCacheSpec> WithPageSizePadded(std::optional<int64_t> page_size_padded) const;

  // Null if the spec is of another kind. T is one of those below.
  template <typename T>
  const KvCacheSpec* get_if() const {
    return kind_ == T::kKind ? this : nullptr;
  }

  // "sliding_window(block_size=16, num_kv_heads=8, ..., page_bytes=65536)"; optional fields at
  // their default are left out.
  std::string ToString() const;

  friend bool operator==(const KvCacheSpec&, const KvCacheSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const KvCacheSpec& spec) {
    return H::combine(std::move(h), spec.kind_, spec.registered_kind_, spec.options_);
  }

 private:
  KvCacheSpec(KvCacheSpecKind kind, const KvCacheKind* registered_kind, KvCacheSpecOptions options,
              int64_t unpadded_page_bytes, int64_t page_bytes)
      : kind_(kind),
        registered_kind_(registered_kind),
        options_(std::move(options)),
        unpadded_page_bytes_(unpadded_page_bytes),
        page_bytes_(page_bytes) {}
  static absl::StatusOr<KvCacheSpec> Create(KvCacheSpecKind kind,
                                            const KvCacheKind* registered_kind,
                                            const KvCacheSpecOptions& options);

  KvCacheSpecKind kind_;
  const KvCacheKind* registered_kind_;
  KvCacheSpecOptions options_;
  int64_t unpadded_page_bytes_;
  int64_t page_bytes_;
};

// FullAttentionSpec::Create({...}) and its like.
template <KvCacheSpecKind kind>
struct SpecOfKind {
  using Options = KvCacheSpecOptions;
  static constexpr KvCacheSpecKind kKind = kind;
  static absl::StatusOr<KvCacheSpec> Create(const Options& options) {
    return KvCacheSpec::Create(kind, options);
  }
};
using FullAttentionSpec = SpecOfKind<KvCacheSpecKind::kFullAttention>;
using MlaAttentionSpec = SpecOfKind<KvCacheSpecKind::kMlaAttention>;
using SinkFullAttentionSpec = SpecOfKind<KvCacheSpecKind::kSinkFullAttention>;
using SlidingWindowSpec = SpecOfKind<KvCacheSpecKind::kSlidingWindow>;
using SlidingWindowMlaSpec = SpecOfKind<KvCacheSpecKind::kSlidingWindowMla>;
using ChunkedLocalAttentionSpec = SpecOfKind<KvCacheSpecKind::kChunkedLocalAttention>;
using MambaSpec = SpecOfKind<KvCacheSpecKind::kMamba>;
using CrossAttentionSpec = SpecOfKind<KvCacheSpecKind::kCrossAttention>;
using EncoderOnlyAttentionSpec = SpecOfKind<KvCacheSpecKind::kEncoderOnlyAttention>;
using HiddenStateSpec = SpecOfKind<KvCacheSpecKind::kHiddenState>;
using RingSpec = SpecOfKind<KvCacheSpecKind::kRing>;

// Kinds of layer caches that a program adds to those of kv_cache_spec.h.
//
// Such a kind has a name, says which of them it is managed like (which tokens a request must
// keep, and what part of a prefix can be reused) and, where its pages have a size of their own, how
// many bytes one has:
//
//   const auto dilated = RegisterKvCacheKind(
//       {.name = "dilated_attention", .managed_like = KvCacheSpecKind::kSlidingWindow});
//   const auto spec = KvCacheSpec::Create(**dilated, {..., .sliding_window = taps * dilation});
//
// How many tokens back a query sees is the spec's sliding_window (or attention_chunk_size). Pool,
// planner, simulator and configuration files (spec { custom_kind: "dilated_attention"
// sliding_window { ... } }) then take specs of the kind. A rule that none of them has takes a
// manager of its own: SingleTypeManager::RegisterFactory.
// examples/custom_attention_kind.cc shows both.
//
// Kinds are registered for the life of the process; any thread may register and look up.

struct KvCacheKind {
  std::string name = {};  // of a-z, 0-9 and _; beginning with a letter; unlike the built-in ones
  KvCacheSpecKind managed_like = KvCacheSpecKind::kFullAttention;
  // Bytes of one block's page before alignment and padding, at least 1. Default: as many as the
  // kind that it is managed like has.
  std::function<absl::StatusOr<int64_t>(const KvCacheSpecOptions&)> page_bytes = nullptr;
};

// Refuses a name that is malformed or taken. The kind is never moved or freed.
absl::StatusOr<const KvCacheKind*> RegisterKvCacheKind(KvCacheKind kind);

// Null if there is none of this name.
const KvCacheKind* FindKvCacheKind(std::string_view name);

// "one of a, b" or "none is registered", for messages about an unknown kind.
std::string RegisteredKinds();

// BlockCountFormula: which formula counts the blocks of windowed kinds (see request_footprint.h).

// kExact is the true worst case; kUpstream repeats vLLM's formulas for comparisons, which are at
// most one block higher.
enum class BlockCountFormula { kExact, kUpstream };

}  // namespace kvblocks

#endif  // KVBLOCKS_KV_CACHE_SPEC_H_
