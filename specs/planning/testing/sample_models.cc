#include "specs/planning/testing/sample_models.h"

#include <cstdio>
#include <cstdlib>

namespace kvblocks {
namespace {

template <typename Spec>
KvCacheSpec Make(const typename Spec::Options& options) {
  const absl::StatusOr<KvCacheSpec> spec = Spec::Create(options);
  if (!spec.ok()) {
    std::fprintf(stderr, "%s\n", std::string(spec.status().message()).c_str());
    std::abort();
  }
  return *spec;
}

DataType StorageOf(QuantMode mode) {
  return mode == QuantMode::kNone ? DataType::kBFloat16 : DataType::kUint8;
}

std::string Repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// Rows of the compressed caches and of the sliding cache.
KvCacheSpec V4Main(int64_t ratio, bool fp8) {
  return Make<MlaAttentionSpec>({.block_size = 256,
                                 .head_size = 512,
                                 .dtype = fp8 ? DataType::kUint8 : DataType::kBFloat16,
                                 .quant_mode = fp8 ? QuantMode::kFp8DsMla : QuantMode::kNone,
                                 .alignment = fp8 ? 576 : 512,
                                 .compress_ratio = ratio,
                                 .model_version = ModelVersion::kDeepseekV4});
}
KvCacheSpec V4Sliding(bool fp8) {
  return Make<SlidingWindowMlaSpec>({.block_size = 64,
                                     .head_size = 512,
                                     .sliding_window = 128,
                                     .dtype = fp8 ? DataType::kUint8 : DataType::kBFloat16,
                                     .quant_mode = fp8 ? QuantMode::kFp8DsMla : QuantMode::kNone,
                                     .alignment = fp8 ? 576 : 512,
                                     .model_version = ModelVersion::kDeepseekV4});
}
KvCacheSpec V4Indexer(bool fp8) {
  return Make<MlaAttentionSpec>({.block_size = 256,
                                 .head_size = 132,
                                 .dtype = DataType::kUint8,
                                 .alignment = fp8 ? 576 : 512,
                                 .compress_ratio = 4,
                                 .model_version = ModelVersion::kDeepseekV4});
}
KvCacheSpec V4State(int64_t block_size, int64_t window, int64_t values, bool fp8) {
  SlidingWindowMlaSpec::Options options = {.block_size = block_size,
                                           .head_size = values,
                                           .sliding_window = window,
                                           .dtype = DataType::kFloat32,
                                           .model_version = ModelVersion::kDeepseekV4};
  if (fp8) options.alignment = 576;
  return Make<SlidingWindowMlaSpec>(options);
}

}  // namespace

KvCacheSpec FullSpec(int64_t block_size, int64_t heads, int64_t head_size, QuantMode mode) {
  return Make<FullAttentionSpec>({.block_size = block_size,
                                  .num_kv_heads = heads,
                                  .head_size = head_size,
                                  .dtype = StorageOf(mode),
                                  .quant_mode = mode});
}

KvCacheSpec WindowSpec(int64_t block_size, int64_t heads, int64_t head_size, int64_t window,
                       QuantMode mode) {
  return Make<SlidingWindowSpec>({.block_size = block_size,
                                  .num_kv_heads = heads,
                                  .head_size = head_size,
                                  .sliding_window = window,
                                  .dtype = StorageOf(mode),
                                  .quant_mode = mode});
}

KvCacheSpec ChunkedSpec(int64_t block_size, int64_t heads, int64_t head_size, int64_t chunk) {
  return Make<ChunkedLocalAttentionSpec>({.block_size = block_size,
                                          .num_kv_heads = heads,
                                          .head_size = head_size,
                                          .attention_chunk_size = chunk});
}

KvCacheSpec LatentSpec(int64_t block_size, QuantMode mode) {
  return Make<MlaAttentionSpec>({.block_size = block_size,
                                 .head_size = 576,
                                 .dtype = StorageOf(mode),
                                 .quant_mode = mode,
                                 .model_version = mode == QuantMode::kFp8DsMla
                                                      ? ModelVersion::kDeepseekV32
                                                      : ModelVersion::kNone});
}

KvCacheSpec StateSpec(int64_t block_size, int64_t conv_bytes, int64_t ssm_bytes,
                      MambaCacheMode mode) {
  return Make<MambaSpec>({.block_size = block_size,
                          .states = {{.shape = {conv_bytes / 2}, .dtype = DataType::kBFloat16},
                                     {.shape = {ssm_bytes / 2}, .dtype = DataType::kBFloat16}},
                          .cache_mode = mode});
}

std::vector<LayerCache> LayersOf(std::string_view pattern, std::string_view letters,
                                 const std::vector<KvCacheSpec>& specs) {
  std::vector<LayerCache> caches;
  for (size_t i = 0; i < pattern.size(); ++i) {
    caches.push_back(
        {.name = "layers." + std::to_string(i), .spec = specs[letters.find(pattern[i])]});
  }
  return caches;
}

std::vector<LayerCache> Caches(const std::vector<LikeCaches>& all) {
  std::vector<LayerCache> caches;
  for (const auto& [prefix, count, spec] : all) {
    for (int64_t i = 0; i < count; ++i) {
      caches.push_back({.name = prefix + "." + std::to_string(i), .spec = spec});
    }
  }
  return caches;
}

std::vector<LayerCache> Llama31_8b() {
  return LayersOf(Repeated("F", 32), "F", {FullSpec(16, 8, 128)});
}

std::vector<LayerCache> Mistral7b() {
  return LayersOf(Repeated("S", 32), "S", {WindowSpec(16, 8, 128, 4096)});
}

std::vector<LayerCache> Gemma3_27b(int64_t block_size) {
  return LayersOf(Repeated("SSSSSF", 10) + "SS", "FS",
                  {FullSpec(block_size, 16, 128), WindowSpec(block_size, 16, 128, 1024)});
}

std::vector<LayerCache> GptOss120b() {
  return LayersOf(Repeated("SF", 18), "FS", {FullSpec(16, 8, 64), WindowSpec(16, 8, 64, 128)});
}

std::vector<LayerCache> Llama4Scout() {
  return LayersOf(Repeated("CCCF", 12), "FC",
                  {FullSpec(16, 8, 128), ChunkedSpec(16, 8, 128, 8192)});
}

std::vector<LayerCache> DeepseekV3() { return LayersOf(Repeated("M", 61), "M", {LatentSpec(64)}); }

std::vector<LayerCache> DeepseekV32(bool fp8) {
  std::vector<LayerCache> caches;
  const KvCacheSpec indexer =
      Make<MlaAttentionSpec>({.block_size = 64, .head_size = 132, .dtype = DataType::kUint8});
  const KvCacheSpec latent = LatentSpec(64, fp8 ? QuantMode::kFp8DsMla : QuantMode::kNone);
  for (int i = 0; i < 61; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    caches.push_back({.name = layer + ".attn", .spec = latent});
    caches.push_back({.name = layer + ".indexer", .spec = indexer});
  }
  return caches;
}

std::vector<LayerCache> Gemma4(QuantMode mode) {
  return LayersOf(Repeated("SSSSSF", 5), "FS",
                  {FullSpec(16, 2, 512, mode), WindowSpec(16, 8, 256, 1024, mode)});
}

std::vector<LayerCache> DeepseekV4(std::string_view pattern, bool fp8) {
  std::vector<LayerCache> caches;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    caches.push_back({.name = layer + "swa", .spec = V4Sliding(fp8)});
    if (pattern[i] == '4') {
      caches.push_back({.name = layer + "main", .spec = V4Main(4, fp8)});
      caches.push_back({.name = layer + "indexer", .spec = V4Indexer(fp8)});
      caches.push_back({.name = layer + "state", .spec = V4State(4, 8, 2048, fp8)});
      caches.push_back({.name = layer + "indexer_state", .spec = V4State(4, 8, 512, fp8)});
    } else if (pattern[i] == 'H') {
      caches.push_back({.name = layer + "main", .spec = V4Main(128, fp8)});
      caches.push_back({.name = layer + "state", .spec = V4State(8, 128, 1024, fp8)});
    }
  }
  return caches;
}

std::vector<LayerCache> DeepseekV41Flash() {
  const auto fp8 = [](auto options, int64_t block_size, int64_t head_size) {
    options.block_size = block_size;
    options.head_size = head_size;
    options.dtype = DataType::kUint8;
    options.alignment = 576;
    options.model_version = ModelVersion::kDeepseekV4;
    return options;
  };
  const KvCacheSpec window = Make<SlidingWindowMlaSpec>(fp8(
      SlidingWindowMlaSpec::Options{
          .sliding_window = 128, .quant_mode = QuantMode::kFp8DsMla, .bounded_replay = true},
      32, 512));
  const KvCacheSpec ring =
      Make<RingSpec>({.block_size = 8, .head_size = 1024, .dtype = DataType::kFloat32});
  std::vector<LayerCache> caches;
  for (int i = 0; i < 40; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    caches.push_back({.name = layer + "swa", .spec = window});
    if (i != 2 && i != 8 && i != 14 && i != 20) continue;
    const int64_t ratio = i == 20 ? 1 : 2;
    const MlaAttentionSpec::Options rows = {.compress_ratio = ratio};
    MlaAttentionSpec::Options main = fp8(rows, 64 * ratio, 512);
    main.quant_mode = QuantMode::kFp8DsMla;
    caches.push_back({.name = layer + "main", .spec = Make<MlaAttentionSpec>(main)});
    caches.push_back(
        {.name = layer + "indexer", .spec = Make<MlaAttentionSpec>(fp8(rows, 64 * ratio, 132))});
    if (ratio == 2) caches.push_back({.name = layer + "ring", .spec = ring});
  }
  return caches;
}

std::string DeepseekV4FlashPattern() { return "WW" + Repeated("4H", 20) + "4"; }
std::string DeepseekV4ProPattern() { return "HH" + Repeated("4H", 29) + "4"; }

}  // namespace kvblocks
