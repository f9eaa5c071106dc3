#include "kvblocks/attention/backends/backend_config.h"

#include "absl/strings/str_cat.h"

namespace kvblocks::attention {
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
  switch (type) {
    case AttentionType::kDecoder:
      return "decoder";
    case AttentionType::kEncoder:
      return "encoder";
    case AttentionType::kEncoderOnly:
      return "encoder_only";
    case AttentionType::kEncoderDecoder:
      return "encoder_decoder";
  }
  return "?";
}

const char* Name(GraphLevel level) {
  switch (level) {
    case GraphLevel::kNever:
      return "never";
    case GraphLevel::kUniformSingleTokenDecode:
      return "uniform_single_token_decode";
    case GraphLevel::kUniformBatch:
      return "uniform_batch";
    case GraphLevel::kAlways:
      return "always";
  }
  return "?";
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
