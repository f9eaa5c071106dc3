// Layer caches of published models, for tests and the benchmark.

#ifndef KVBLOCKS_SPECS_PLANNING_TESTING_SAMPLE_MODELS_H_
#define KVBLOCKS_SPECS_PLANNING_TESTING_SAMPLE_MODELS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"

namespace kvblocks {

// Specs of one kind; each stops the test if the values are refused.
KvCacheSpec FullSpec(int64_t block_size, int64_t heads, int64_t head_size,
                     QuantMode mode = QuantMode::kNone);
KvCacheSpec WindowSpec(int64_t block_size, int64_t heads, int64_t head_size, int64_t window,
                       QuantMode mode = QuantMode::kNone);
KvCacheSpec ChunkedSpec(int64_t block_size, int64_t heads, int64_t head_size, int64_t chunk);
KvCacheSpec LatentSpec(int64_t block_size, QuantMode mode = QuantMode::kNone);  // DeepSeek-V3's
KvCacheSpec StateSpec(int64_t block_size, int64_t conv_bytes, int64_t ssm_bytes,
                      MambaCacheMode mode = MambaCacheMode::kNone);

// One cache per letter of the pattern, named "layers.N"; specs[i] is that of letters[i].
std::vector<LayerCache> LayersOf(std::string_view pattern, std::string_view letters,
                                 const std::vector<KvCacheSpec>& specs);
// `count` caches of one spec, named "PREFIX.N".
struct LikeCaches {
  std::string prefix;
  int64_t count;
  KvCacheSpec spec;
};
std::vector<LayerCache> Caches(const std::vector<LikeCaches>& all);

std::vector<LayerCache> Llama31_8b();
std::vector<LayerCache> Mistral7b();
std::vector<LayerCache> Gemma3_27b(int64_t block_size = 16);
std::vector<LayerCache> GptOss120b();
std::vector<LayerCache> Llama4Scout();
std::vector<LayerCache> DeepseekV3();
std::vector<LayerCache> DeepseekV32(bool fp8);
std::vector<LayerCache> Gemma4(QuantMode mode = QuantMode::kNone);

// DeepSeek-V4: W sliding only, 4 and H with compressed caches of ratio 4 and 128; every layer has a
// sliding cache. fp8 rows aligned to 576 bytes, or bf16 rows aligned to 512.
std::vector<LayerCache> DeepseekV4(std::string_view pattern, bool fp8 = true);
// DeepSeek-V4.1-Flash in fp8: 40 windows that are replayed, rows of 2 tokens in layers 2, 8 and 14
// and of 1 in layer 20.
std::vector<LayerCache> DeepseekV41Flash();

std::string DeepseekV4FlashPattern();  // 43 layers
std::string DeepseekV4ProPattern();    // 61 layers

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_TESTING_SAMPLE_MODELS_H_
