// How many requests of a length fit the memory of an H100: a model of the catalogue on two of them,
// and one from a Hugging Face config.json on one.
#include <cstdio>
#include <string>

#include "kvblocks/planning.h"

using namespace kvblocks;

// Prints the plan of one rank of a model, or why there is none.
bool Show(const ModelFacts& model, const DeviceFacts& device, int64_t tensor_parallel) {
  // What weights and reserves leave for the cache.
  const auto bytes =
      CacheBytesInMemory({.device = device, .model = model, .tensor_parallel = tensor_parallel});
  // What each layer stores on one rank.
  const auto layers = LayerCaches(model, {.tensor_parallel = tensor_parallel});
  if (!bytes.ok() || !layers.ok()) {
    std::printf("%s\n", (bytes.ok() ? layers.status() : bytes.status()).ToString().c_str());
    return false;
  }
  const PlanResult result =
      MakePlan(*layers, {.limits = {.max_model_len = 32768, .max_in_flight_tokens = 8192},
                        .available_bytes = {*bytes}});
  for (const PlanError& error : result.errors) std::printf("%s\n", error.message.c_str());
  if (!result.ok()) return false;

  const Plan& plan = *result.plan;
  std::printf("%s on %d rank(s): %d blocks\n", model.name.c_str(),
              static_cast<int>(tensor_parallel), static_cast<int>(plan.num_blocks()));
  for (const KvCacheGroup& group : plan.config.groups) {  // plan.config makes a KvCacheManager
    std::printf("  %2zu layers: %s\n", group.layer_names.size(), group.spec.ToString().c_str());
    // The tensor of each of its layers, as flash attention asks for it.
    const auto shape = ShapeOf(BackendFamily::kFlash, group.spec, plan.num_blocks());
    if (!shape.ok()) continue;
    std::printf("             tensors of");
    for (size_t d = 0; d < shape->dims.size(); ++d) {
      std::printf(" %s=%d", std::string(shape->names[d]).c_str(), static_cast<int>(shape->dims[d]));
    }
    std::printf("\n");
  }
  for (const int64_t length : {4096, 32768}) {
    std::printf("  %6.1f requests of %d tokens\n", plan.Concurrency(length),
                static_cast<int>(length));
  }
  return true;
}

int main() {
  const auto device = Catalogue::BuiltIn().FindDevice("h100");
  const auto gemma = Catalogue::BuiltIn().FindModel("gemma-3-27b");
  const auto from_file = ModelFromHfConfig(R"({
      "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096,
      "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
      "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
      "torch_dtype": "bfloat16", "tie_word_embeddings": false})",
                                           "config.json");
  for (const absl::Status& status : {device.status(), gemma.status(), from_file.status()}) {
    if (status.ok()) continue;
    std::printf("%s\n", status.ToString().c_str());
    return 1;
  }
  return Show(*gemma, *device, 2) && Show(*from_file, *device, 1) ? 0 : 1;
}
