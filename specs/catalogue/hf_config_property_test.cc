// Configurations drawn field by field: the reader never accepts what the rest cannot use.

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/model_facts.h"
#include "rapidcheck/gtest.h"

namespace kvblocks {
namespace {

// A value that fits most numbers, or now and then one that fits nothing.
std::string AnyValue() {
  if (*rc::gen::inRange(0, 8) > 0) return std::to_string(*rc::gen::element(1, 2, 4, 8, 64, 128));
  return *rc::gen::element<std::string>("0", "-1", "null", "true", "\"full_attention\"", "[]", "{}",
                                        "[4, 128, 0, 1]", "9223372036854775807", "1073741824",
                                        "100000", "1.5");
}

std::string AnyConfig() {
  std::map<std::string, std::string> fields;
  for (const char* field :
       {"hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"}) {
    fields[field] = *rc::gen::element<std::string>("64", "128", "4");
  }
  fields["num_key_value_heads"] = "1";
  fields["num_hidden_layers"] = *rc::gen::element<std::string>("4", "4", "4", "10000");
  const std::vector<std::string> others = {"num_key_value_heads",
                                           "head_dim",
                                           "sliding_window",
                                           "use_sliding_window",
                                           "max_window_layers",
                                           "layer_types",
                                           "attention_chunk_size",
                                           "no_rope_layers",
                                           "no_rope_layer_interval",
                                           "interleave_moe_layer_step",
                                           "num_local_experts",
                                           "num_experts_per_tok",
                                           "kv_lora_rank",
                                           "q_lora_rank",
                                           "qk_rope_head_dim",
                                           "qk_nope_head_dim",
                                           "v_head_dim",
                                           "index_n_heads",
                                           "index_head_dim",
                                           "index_topk",
                                           "compress_ratios",
                                           "n_routed_experts",
                                           "moe_intermediate_size",
                                           "n_shared_experts",
                                           "first_k_dense_replace",
                                           "moe_layer_freq",
                                           "num_experts",
                                           "top_k_experts",
                                           "mlp_only_layers",
                                           "decoder_sparse_step",
                                           "linear_num_key_heads",
                                           "linear_conv_kernel_dim",
                                           "num_kv_shared_layers",
                                           "global_head_dim",
                                           "sliding_window_pattern",
                                           "full_attention_interval",
                                           "quantization_config",
                                           "torch_dtype",
                                           "o_groups",
                                           "tie_word_embeddings"};
  const int64_t num_others = *rc::gen::inRange<int64_t>(0, 20);
  for (int64_t i = 0; i < num_others; ++i) {
    fields[*rc::gen::elementOf(others)] = AnyValue();
  }
  fields["model_type"] = '"' +
                         *rc::gen::element<std::string>(
                             "llama", "llama4", "mistral", "mixtral", "qwen2", "qwen3_moe",
                             "qwen3_next", "gemma2", "gemma3", "gemma4", "gpt_oss", "glm4_moe",
                             "deepseek_v3", "deepseek_v32", "deepseek_v4", "deepseek_v41") +
                         '"';
  std::string text;
  for (const auto& [name, value] : fields) {
    text += (text.empty() ? "{\"" : ", \"") + name + "\": " + value;
  }
  return text + "}";
}

RC_GTEST_PROP(HfConfigProperty, AcceptedConfigurationsAreUsableAndOthersSayWhy, ()) {
  const std::string text = AnyConfig();
  const auto facts = ModelFromHfConfig(text, "config.json");
  RC_CLASSIFY(facts.ok(), "accepted");
  if (!facts.ok()) {
    RC_ASSERT(facts.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  RC_ASSERT(Validate(*facts).ok());
  const auto caches = LayerCaches(*facts, {});
  // What remains are pages beyond 63 bits and chunks that blocks do not divide.
  if (!caches.ok()) {
    RC_ASSERT(caches.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  RC_ASSERT(static_cast<int64_t>(caches->size()) >=
            facts->num_layers() - facts->num_kv_shared_layers);
}

}  // namespace
}  // namespace kvblocks
