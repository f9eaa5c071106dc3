#include "kvblocks/attention_backend.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblocks::attention {

namespace {

template <typename T>
bool Contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <typename T>
std::string Names(const std::vector<T>& list) {
  return absl::StrCat(
      "{",
      absl::StrJoin(list, ", ",
                    [](std::string* out, const T& value) { absl::StrAppend(out, Name(value)); }),
      "}");
}

std::string HeadSize(int64_t head_size, int64_t value_head_size) {
  return head_size == value_head_size ? absl::StrCat(head_size)
                                      : absl::StrCat(head_size, "/", value_head_size);
}

std::string Describe(const BlockSizes& sizes) {
  std::string text =
      sizes.exact.empty() ? "" : absl::StrCat("{", absl::StrJoin(sizes.exact, ", "), "}");
  if (sizes.multiple_of > 0) {
    absl::StrAppend(&text, text.empty() ? "" : " or ", "multiples of ", sizes.multiple_of);
  }
  return text;
}

}  // namespace

bool BlockSizes::contains(int64_t block_size) const {
  if (block_size < 1) return false;
  return Contains(exact, block_size) || (multiple_of > 0 && block_size % multiple_of == 0);
}

std::vector<Reason> CheckRowFormat(const BackendSupport& support, const BackendConfig& config) {
  std::vector<Reason> reasons;
  const auto refuse = [&](ReasonKind kind, auto... text) {
    reasons.push_back({kind, absl::StrCat(text...)});
  };
  const KvRowFormat format = config.row_format;
  if (!Contains(support.row_formats, format)) {
    refuse(ReasonKind::kRowFormat, "rows of ", Name(format), " not in ",
           Names(support.row_formats));
  }
  if (format == KvRowFormat::kElements) return reasons;
  const bool record = IsMlaRecord(format), mla = config.features.contains(Feature::kMla);
  const DType dtype = config.cache_dtype;
  const bool codes = format == KvRowFormat::kPerTokenHead
                         ? dtype == DType::kI8 || dtype == DType::kF8E4M3
                         : dtype == DType::kU8;
  if (!codes) {
    refuse(ReasonKind::kCombination, "rows of ", Name(format), " with cache dtype ", Name(dtype));
  }
  if (record != mla) {
    refuse(ReasonKind::kCombination, "rows of ", Name(format), mla ? " with mla" : " without mla");
  }
  if (config.layout.has_value() && (record ? config.layout != KvLayout::kMlaLatent
                                           : !IsStrided(*config.layout))) {
    refuse(ReasonKind::kCombination, "rows of ", Name(format), " with layout ",
           Name(*config.layout));
  }
  const int64_t dim = config.head_size;
  const int64_t value_dim = config.value_head_size == 0 ? dim : config.value_head_size;
  if (record) {
    const MlaRecordShape shape = ShapeOf(format);
    if (dim != shape.key_dim || value_dim != shape.value_dim) {
      refuse(ReasonKind::kHeadSize, "head size ", HeadSize(dim, value_dim), " not the ",
             HeadSize(shape.key_dim, shape.value_dim), " of ", Name(format));
    }
    return reasons;
  }
  const int64_t multiple =
      format == KvRowFormat::kNvfp4 ? kNvfp4GroupValues : ValuesPerElement(format);
  if (dim % multiple != 0 || value_dim % multiple != 0) {
    refuse(ReasonKind::kAlignment, "head size ", HeadSize(dim, value_dim), " no multiple of ",
           multiple, " for rows of ", Name(format));
  }
  return reasons;
}

std::vector<Reason> CheckSupport(const BackendSupport& support, const BackendConfig& config) {
  std::vector<Reason> reasons;
  const auto refuse = [&](ReasonKind kind, auto... text) {
    reasons.push_back({kind, absl::StrCat(text...)});
  };
  if (support.on_cuda == config.device.on_host()) {
    refuse(ReasonKind::kDevice, "tensors are on ", Name(config.device));
  } else if (support.on_cuda && (config.compute_capability < support.least_compute_capability ||
                                 config.compute_capability >= support.end_compute_capability)) {
    refuse(ReasonKind::kDevice, "sm_", config.compute_capability, " not in sm_",
           support.least_compute_capability,
           support.end_compute_capability == INT32_MAX
               ? std::string(" and later")
               : absl::StrCat(" to before sm_", support.end_compute_capability));
  }
  if (!Contains(support.ops, config.op)) {
    refuse(ReasonKind::kOp, "op ", Name(config.op), " not built");
  }
  const auto one_of = [&](ReasonKind kind, const char* what, const auto& value, const auto& list) {
    if (!Contains(list, value)) refuse(kind, what, " ", Name(value), " not in ", Names(list));
  };
  one_of(ReasonKind::kDType, "q dtype", config.q_dtype, support.q_dtypes);
  one_of(ReasonKind::kCacheDType, "cache dtype", config.cache_dtype, support.cache_dtypes);
  for (Reason& reason : CheckRowFormat(support, config)) reasons.push_back(std::move(reason));
  if (config.layout.has_value()) {
    const KvLayout layout = *config.layout;
    one_of(ReasonKind::kLayout, "layout", layout, support.layouts);
    if (IsMla(layout) != config.features.contains(Feature::kMla)) {
      refuse(ReasonKind::kCombination, "layout ", Name(layout),
             IsMla(layout) ? " without mla" : " with mla");
    }
    // Rows that carry their own scales are bytes, and no others are.
    const bool bytes = layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
    if (config.row_format == KvRowFormat::kElements &&
        bytes != (config.cache_dtype == DType::kU8)) {
      refuse(ReasonKind::kCombination, "layout ", Name(layout), " with cache dtype ",
             Name(config.cache_dtype));
    }
    const int64_t x = 16 / ElementBytes(config.cache_dtype);
    if (layout == KvLayout::kPagedX && config.head_size % x != 0) {
      refuse(ReasonKind::kAlignment, "head size ", config.head_size,
             " no multiple of 16 bytes for layout paged_x");
    }
  }
  const int64_t value_head_size =
      config.value_head_size == 0 ? config.head_size : config.value_head_size;
  if (config.head_size < 1 || value_head_size < 1) {
    refuse(ReasonKind::kHeadSize, "head size ", HeadSize(config.head_size, value_head_size),
           " below 1");
  } else if (!support.head_sizes.empty() &&
             !Contains(support.head_sizes, {config.head_size, value_head_size})) {
    refuse(ReasonKind::kHeadSize, "head size ", HeadSize(config.head_size, value_head_size),
           " not in {",
           absl::StrJoin(support.head_sizes, ", ",
                         [](std::string* out, const std::pair<int64_t, int64_t>& size) {
                           absl::StrAppend(out, HeadSize(size.first, size.second));
                         }),
           "}");
  } else if (std::max(config.head_size, value_head_size) > support.most_head_size) {
    refuse(ReasonKind::kHeadSize, "head size ", HeadSize(config.head_size, value_head_size),
           " above ", support.most_head_size);
  }
  if (config.num_heads < 0 || config.num_kv_heads < 0 ||
      (config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads != 0)) {
    refuse(ReasonKind::kCombination, config.num_heads, " heads no multiple of ",
           config.num_kv_heads, " KV heads");
  }
  if (!support.block_sizes.contains(config.block_size)) {
    refuse(ReasonKind::kBlockSize, "block size ", config.block_size, " not in ",
           Describe(support.block_sizes));
  }
  one_of(ReasonKind::kFeature, "attention type", config.type, support.types);
  for (int i = 0; i < kNumFeatures; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (config.features.contains(feature) && !support.features.contains(feature)) {
      refuse(ReasonKind::kFeature, Name(feature), " not supported");
    }
  }
  for (const auto& [a, b] : support.exclusive) {
    if (config.features.contains(a) && config.features.contains(b)) {
      refuse(ReasonKind::kCombination, Name(a), " not together with ", Name(b));
    }
  }
  if (config.graph_level > support.graph_level) {
    refuse(ReasonKind::kFeature, "graph level ", Name(config.graph_level), " above ",
           Name(support.graph_level));
  }
  return reasons;
}

namespace {

const char* CacheTypeName(DType dtype) { return dtype == DType::kI8 ? "int8" : Name(dtype); }

}  // namespace

const char* Name(OpKind op) {
  static constexpr const char* kNames[kNumOpKinds] = {
      "cache_write",    "mla_cache_write", "kv_scales",         "decode",
      "decode_partial", "reduce_splits",   "prefill",           "varlen",
      "cascade",        "mla_decode",      "sparse_mla_decode", "sparse_mla_prefill",
      "merge_states",   "gather_cache",    "select_hkvd",       "fuse_kv",
      "rotate_keys",    "index_topk",      "cache_index_keys",  "compress_tokens",
      "gather_rows",    "quantize_queries", "scale_and_cache"};
  return static_cast<int>(op) < kNumOpKinds ? kNames[static_cast<int>(op)] : "?";
}

const char* Name(AttentionType type) {
  static constexpr const char* kNames[] = {"decoder", "encoder", "encoder_only", "encoder_decoder"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "?";
}

const char* Name(GraphLevel level) {
  static constexpr const char* kNames[] = {"never", "uniform_single_token_decode", "uniform_batch",
                                           "always"};
  const auto index = static_cast<size_t>(level);
  return index < std::size(kNames) ? kNames[index] : "?";
}

const char* Name(Feature feature) {
  static constexpr const char* kNames[kNumFeatures] = {
      "mla",   "sparse",          "sinks",        "window",        "chunk",
      "alibi", "soft_cap",        "block_sparse", "explicit_mask", "non_causal",
      "lse",   "batch_invariant", "kv_connector"};
  return static_cast<int>(feature) < kNumFeatures ? kNames[static_cast<int>(feature)] : "?";
}

std::string DebugString(const BackendConfig& config) {
  std::string text =
      absl::StrCat("{op=", Name(config.op), ", q=", Name(config.q_dtype),
                   ", kv=", CacheTypeName(config.cache_dtype), ", D=", config.head_size);
  if (config.value_head_size != 0 && config.value_head_size != config.head_size) {
    absl::StrAppend(&text, ", Dv=", config.value_head_size);
  }
  if (config.num_heads != 0) absl::StrAppend(&text, ", H=", config.num_heads);
  if (config.num_kv_heads != 0) absl::StrAppend(&text, ", Hkv=", config.num_kv_heads);
  absl::StrAppend(&text, ", BS=", config.block_size);
  if (config.layout.has_value()) absl::StrAppend(&text, ", layout=", Name(*config.layout));
  if (config.row_format != KvRowFormat::kElements) {
    absl::StrAppend(&text, ", rows=", Name(config.row_format));
  }
  if (config.type != AttentionType::kDecoder) absl::StrAppend(&text, ", ", Name(config.type));
  for (int i = 0; i < kNumFeatures; ++i) {
    const auto feature = static_cast<Feature>(i);
    if (config.features.contains(feature)) absl::StrAppend(&text, ", ", Name(feature));
  }
  if (config.graph_level != GraphLevel::kNever) {
    absl::StrAppend(&text, ", graph=", Name(config.graph_level));
  }
  if (!config.device.on_host() && config.compute_capability > 0) {
    absl::StrAppend(&text, ", sm_", config.compute_capability, "}");
  } else {
    absl::StrAppend(&text, ", ", Name(config.device), "}");
  }
  return text;
}

}  // namespace kvblocks::attention
