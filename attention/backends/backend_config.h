// BackendConfig: what a layer wants of an attention backend, in a form that can be compared,
// hashed, printed and checked; and Reason: why a backend cannot.
//
// Members left at their defaults are not asked for and not printed. Cost: text only on demand.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_BACKEND_CONFIG_H_
#define KVBLOCKS_ATTENTION_BACKENDS_BACKEND_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/tensor/dtype.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

// The operations of AttentionOps.
enum class OpKind : uint8_t {
  kReshapeAndCache,
  kConcatAndCacheMla,
  kComputeKvScales,
  kPagedDecode,
  kPagedDecodePartial,
  kReduceSplits,
  kPagedPrefill,
  kVarlenSelfAttention,
  kCascade,
  kMlaDecode,
  kSparseMlaDecode,
  kSparseMlaPrefill,
  kMergeStates,
  kGatherCache,
  kSelectHkvd,
  kFuseKv,
  kRotateKeys,
  kIndexTopk,
  kCacheIndexKeys,
  kCompressTokens,
  kGatherRows,
  kQuantizeQueries,
  kScaleAndCache,
};
inline constexpr int kNumOpKinds = 23;
const char* Name(OpKind op);  // "decode", "prefill", "mla_decode", ...

enum class AttentionType : uint8_t {
  kDecoder,
  kEncoder,         // of an encoder-decoder model: bidirectional, no cache
  kEncoderOnly,     // bidirectional, no cache
  kEncoderDecoder,  // keys of the encoder, not causal
};
const char* Name(AttentionType type);  // "decoder", ...

// What of a batch can be captured into a graph and replayed.
enum class GraphLevel : uint8_t {
  kNever,
  kUniformSingleTokenDecode,  // one new token each
  kUniformBatch,              // the same number of new tokens each
  kAlways,
};
const char* Name(GraphLevel level);

// What a layer may need besides plain causal attention.
enum class Feature : uint8_t {
  kMla,
  kSparse,  // keys by lists of slots
  kSinks,
  kWindow,
  kChunk,
  kAlibi,
  kSoftCap,
  kBlockSparse,
  kExplicitMask,
  kNonCausal,
  kLse,
  kBatchInvariant,
  kKvConnector,
};
inline constexpr int kNumFeatures = 13;
const char* Name(Feature feature);  // "mla", "sinks", "soft_cap", ...

class FeatureSet {
 public:
  constexpr FeatureSet() = default;
  constexpr FeatureSet(std::initializer_list<Feature> features) {
    for (Feature feature : features) Add(feature);
  }
  static constexpr FeatureSet All() {
    FeatureSet all;
    all.bits_ = (1u << kNumFeatures) - 1;
    return all;
  }
  constexpr void Add(Feature feature) { bits_ |= 1u << static_cast<int>(feature); }
  constexpr void Remove(Feature feature) { bits_ &= ~(1u << static_cast<int>(feature)); }
  constexpr bool contains(Feature feature) const { return bits_ >> static_cast<int>(feature) & 1; }
  friend bool operator==(const FeatureSet&, const FeatureSet&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const FeatureSet& set) {
    return H::combine(std::move(h), set.bits_);
  }

 private:
  uint32_t bits_ = 0;
};

struct BackendConfig {
  OpKind op = OpKind::kPagedDecode;
  DType q_dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  std::optional<KvLayout> layout = {};  // absent: whichever the backend likes
  // What the cache's vectors are; of formats with scales cache_dtype is that of the codes, of packed ones
  // and of latent records kU8.
  KvRowFormat row_format = KvRowFormat::kElements;
  int64_t head_size = 128;
  int64_t value_head_size = 0;              // 0: as head_size
  int64_t num_heads = 0, num_kv_heads = 0;  // 0: any
  int64_t block_size = 16;
  AttentionType type = AttentionType::kDecoder;
  FeatureSet features = {};
  GraphLevel graph_level = GraphLevel::kNever;  // at least
  DeviceId device = {};
  int32_t compute_capability = 0;  // of a CUDA device: 10 * major + minor

  friend bool operator==(const BackendConfig&, const BackendConfig&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BackendConfig& c) {
    return H::combine(std::move(h), c.op, c.q_dtype, c.cache_dtype, c.layout, c.row_format, c.head_size,
                      c.value_head_size, c.num_heads, c.num_kv_heads, c.block_size, c.type,
                      c.features, c.graph_level, c.device.kind, c.device.ordinal,
                      c.compute_capability);
  }
};
// "{op=decode, q=bf16, kv=int8, D=72, BS=16, sinks, sm_90}".
std::string DebugString(const BackendConfig& config);

enum class ReasonKind : uint8_t {
  kDType,
  kCacheDType,
  kRowFormat,
  kHeadSize,
  kBlockSize,
  kLayout,
  kDevice,
  kOp,
  kFeature,
  kAlignment,
  kCombination,
};
struct Reason {
  ReasonKind kind;
  std::string text;  // "head size 72 not in {64, 128}"
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_BACKEND_CONFIG_H_
