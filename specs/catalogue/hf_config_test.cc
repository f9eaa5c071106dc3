#include "kvblocks/model_facts.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ModelFacts Published(const std::string& name) {
  const auto facts =
      ModelFromHfConfig(ReadFile("specs/catalogue/testdata/hf_configs/" + name + ".json"), name);
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts.value_or(ModelFacts());
}

// Without what a configuration does not say.
ModelFacts Described(ModelFacts model) {
  model.hf_id = model.notes = "";
  model.aliases.clear();
  model.published_cache = {};
  model.params_b = model.active_params_b = 0;
  model.rounded_params = false;
  return model;
}

TEST(HfConfigTest, EveryCataloguedModelsConfigurationGivesItsEntry) {
  for (const auto& [name, entry] : Catalogue::BuiltIn().models()) {
    const ModelFacts read = Published(name);
    EXPECT_EQ(read.layer_pattern, entry.layer_pattern) << name;
    EXPECT_EQ(read.latent, entry.latent) << name;
    EXPECT_EQ(read.indexer, entry.indexer) << name;
    EXPECT_EQ(read.compressed, entry.compressed) << name;
    EXPECT_EQ(read.experts, entry.experts) << name;
    EXPECT_EQ(read.states, entry.states) << name;
    EXPECT_EQ(Described(read), Described(entry)) << name;
    for (const char* dtype : {"auto", "fp8"}) {
      EXPECT_EQ(*LayerCaches(read, {.cache_dtype = dtype}),
                *LayerCaches(entry, {.cache_dtype = dtype}))
          << name;
    }
  }
}

TEST(HfConfigTest, ParametersAreCountedFromTheShapes) {
  for (const auto& [name, entry] : Catalogue::BuiltIn().models()) {
    const ModelFacts read = Published(name);
    EXPECT_NEAR(read.params_b, entry.params_b, 0.03 * entry.params_b) << name;
    if (entry.rounded_params) continue;
    EXPECT_NEAR(read.params_b, entry.params_b, 0.01 * entry.params_b) << name;
    // The entry of deepseek-v3.2 is without its indexers.
    EXPECT_NEAR(read.active_params_b, entry.active_params_b, 0.03 * entry.active_params_b) << name;
  }
}

// A configuration as a map from field to JSON text.
using Fields = std::map<std::string, std::string>;

Fields Tiny(const std::string& model_type) {
  return {{"model_type", '"' + model_type + '"'},
          {"hidden_size", "64"},
          {"num_attention_heads", "4"},
          {"num_key_value_heads", "2"},
          {"num_hidden_layers", "4"},
          {"vocab_size", "100"},
          {"intermediate_size", "128"}};
}

Fields TinyLatent(const std::string& model_type) {
  Fields fields = Tiny(model_type);
  for (const auto& [name, value] : Fields{{"kv_lora_rank", "512"},
                                          {"q_lora_rank", "null"},
                                          {"qk_rope_head_dim", "64"},
                                          {"qk_nope_head_dim", "128"},
                                          {"v_head_dim", "128"}}) {
    fields[name] = value;
  }
  return fields;
}

std::string Json(const Fields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    text += (text.empty() ? "{\"" : ", \"") + name + "\": " + value;
  }
  return text + "}";
}

Fields operator+(Fields fields, const Fields& more) {
  for (const auto& [name, value] : more) fields[name] = value;
  return fields;
}

ModelFacts Read(const Fields& fields) {
  const auto facts = ModelFromHfConfig(Json(fields), "tiny");
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts.value_or(ModelFacts());
}

std::string Pattern(const Fields& fields) { return Read(fields).layer_pattern; }

TEST(HfConfigTest, LayersFollowFromTheArchitecturesOwnFields) {
  EXPECT_EQ(Pattern(Tiny("llama")), "FFFF");
  EXPECT_EQ(Pattern(Tiny("mistral")), "FFFF");
  EXPECT_EQ(Pattern(Tiny("mistral") + Fields{{"sliding_window", "9"}}), "SSSS");
  EXPECT_EQ(Pattern(Tiny("gemma2")), "SFSF");
  EXPECT_EQ(Pattern(Tiny("gemma3_text") + Fields{{"sliding_window_pattern", "3"}}), "SSFS");
  EXPECT_EQ(Pattern(Tiny("qwen3") + Fields{{"sliding_window", "9"}}), "FFFF");
  const Fields sliding =
      Tiny("qwen2") +
      Fields{{"sliding_window", "9"}, {"use_sliding_window", "true"}, {"max_window_layers", "3"}};
  EXPECT_EQ(Pattern(sliding), "FFFS");
  EXPECT_EQ(Pattern(sliding + Fields{{"layer_types",
                                      R"(["full_attention", "sliding_attention",
                                          "full_attention", "full_attention"])"}}),
            "FSFF");
  EXPECT_EQ(Pattern(Tiny("qwen3_5_text")), "LLLF");
  EXPECT_EQ(Pattern(Tiny("qwen3_next") + Fields{{"full_attention_interval", "2"}}), "LFLF");
  const Fields chunked = Tiny("llama4_text") + Fields{{"attention_chunk_size", "8"},
                                                      {"interleave_moe_layer_step", "2"},
                                                      {"num_local_experts", "4"},
                                                      {"num_experts_per_tok", "1"}};
  EXPECT_EQ(Pattern(chunked), "CCCF");
  EXPECT_EQ(Pattern(chunked + Fields{{"no_rope_layers", "[1, 0, 1, 0]"}}), "CFCF");
  EXPECT_EQ(Pattern(chunked + Fields{{"attention_chunk_size", "null"}}), "FFFF");
  EXPECT_EQ(Read(chunked).experts->num_layers, 2);
}

TEST(HfConfigTest, ExpertsOfQwenHaveTwoNames) {
  for (const char* name : {"num_experts", "num_local_experts"}) {
    const Fields own = {{name, "6"}, {"num_experts_per_tok", "2"}, {"moe_intermediate_size", "16"}};
    EXPECT_EQ(Read(Tiny("qwen3_moe") + own).experts->num_experts, 6) << name;
  }
}

TEST(HfConfigTest, SharedLayersStoreNothing) {
  const ModelFacts model = Read(Tiny("gemma4_text") + Fields{{"num_kv_shared_layers", "3"}});
  EXPECT_EQ(LayerCaches(model, {})->size(), 1);
}

TEST(HfConfigTest, TheTextModelIsReadOutOfOneWithOtherParts) {
  Fields outer;
  outer["text_config"] = Json(Tiny("mistral"));
  outer["model_type"] = "\"mistral3\"";  // not itself known
  outer["tie_word_embeddings"] = "true";
  outer["torch_dtype"] = "\"float32\"";
  const ModelFacts model = Read(outer);
  EXPECT_EQ(model.family, "mistral");
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_EQ(model.bytes_per_param, 4);
  EXPECT_EQ(LayerCaches(model, {})->front().spec.dtype(), DataType::kFloat32);
}

TEST(HfConfigTest, TheArchitectureNamesTheFamilyWhereTheTypeIsMissing) {
  Fields fields = Tiny("x");
  fields.erase("model_type");
  fields["architectures"] = R"(["Qwen3ForCausalLM"])";
  EXPECT_EQ(Read(fields).family, "qwen3");
  EXPECT_EQ(Read(fields).head_size, 128);
}

TEST(HfConfigTest, QuantisedWeightsAreSmaller) {
  const Fields fp8 = {{"quantization_config", R"({"quant_method": "fp8"})"}};
  EXPECT_EQ(Read(Tiny("llama") + fp8).bytes_per_param, 1);
  const Fields awq = {{"quantization_config", R"({"quant_method": "awq", "bits": 4})"}};
  EXPECT_EQ(Read(Tiny("llama") + awq).bytes_per_param, 0.5);
}

struct Refusal {
  Fields fields;
  std::vector<const char*> parts;
};

void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const auto& [fields, parts] : refusals) {
    const auto facts = ModelFromHfConfig(Json(fields), "dir/config.json");
    ASSERT_EQ(facts.status().code(), absl::StatusCode::kInvalidArgument) << Json(fields);
    EXPECT_THAT(facts.status().message(), HasSubstr("dir/config.json: "));
    for (const char* part : parts) {
      EXPECT_THAT(facts.status().message(), HasSubstr(part)) << Json(fields);
    }
  }
}

TEST(HfConfigTest, UnknownArchitecturesAreRefusedWithTheKnownOnes) {
  Fields none = Tiny("x");
  none.erase("model_type");
  ExpectRefused({
      {Tiny("falcon"), {"model_type: got \"falcon\"", "llama4", "deepseek_v32", "layer pattern"}},
      {none, {"model_type: got nothing", "architectures"}},
      {none + Fields{{"architectures", R"(["FalconForCausalLM"])"}}, {"got nothing", "gpt_oss"}},
      {none + Fields{{"architectures", "7"}}, {"architectures: got 7", "a list of strings"}},
      {none + Fields{{"model_type", "7"}}, {"model_type: got 7", "a string"}},
      {none + Fields{{"text_config", "7"}}, {"text_config: got 7", "an object"}},
  });
}

TEST(HfConfigTest, WrongTypesAndNumbersAreRefused) {
  std::vector<Refusal> refusals;
  for (const char* field : {"hidden_size", "num_attention_heads", "num_key_value_heads",
                            "num_hidden_layers", "vocab_size"}) {
    for (const char* value : {"0", "-1", "1.5", "\"8\"", "true", "[8]", "{}", "1e3",
                              "9223372036854775807", "18446744073709551615"}) {
      refusals.push_back(
          {Tiny("llama") + Fields{{field, value}}, {field, "a whole number from 1"}});
    }
  }
  refusals.push_back(
      {Tiny("llama") + Fields{{"hidden_size", "null"}}, {"hidden_size: got nothing"}});
  refusals.push_back({Tiny("llama") + Fields{{"tie_word_embeddings", "1"}},
                      {"tie_word_embeddings: got 1, expected true or false"}});
  refusals.push_back({Tiny("llama") + Fields{{"torch_dtype", "\"int3\""}},
                      {"torch_dtype: got \"int3\"", "float16"}});
  refusals.push_back({Tiny("llama") + Fields{{"num_hidden_layers", "10001"}}, {"1 to 10000"}});
  Fields nested = {{"model_type", "\"gemma3\""}};
  nested["text_config"] = Json(Tiny("gemma3_text") + Fields{{"num_hidden_layers", "-2"}});
  refusals.push_back({nested, {"text_config.num_hidden_layers: got -2"}});
  ExpectRefused(refusals);
}

TEST(HfConfigTest, ContradictionsAreRefused) {
  const char* const kSliding = R"(["sliding_attention", "sliding_attention", "full_attention",
                                   "full_attention"])";
  const Fields experts = {
      {"n_routed_experts", "8"}, {"num_experts_per_tok", "9"}, {"moe_intermediate_size", "32"}};
  const Fields indexer = {{"index_n_heads", "4"}, {"index_topk", "16"}};
  Fields sparse_without_latent = Tiny("deepseek_v32") + indexer;
  const Fields v4 = Tiny("deepseek_v4") + indexer +
                    Fields{{"sliding_window", "128"},
                           {"qk_rope_head_dim", "64"},
                           {"compress_ratios", "[0, 4, 128, 4]"}};
  Read(v4);
  const Fields v41 = Tiny("deepseek_v41") + indexer +
                     Fields{{"sliding_window", "128"},
                            {"qk_rope_head_dim", "64"},
                            {"compress_ratios", "[0, 2, 2, 1]"},
                            {"kv_source_layer_ids", "[1, 3]"},
                            {"index_source_layer_ids", "[1, 2, 3]"}};
  EXPECT_EQ(Read(v41).layer_pattern, "W2I1");
  ExpectRefused({
      {v41 + Fields{{"compress_ratios", "[0, 2, 1, 1]"}},
       {"compress_ratios: got 1 of layer 2", "kv_source_layer_ids in front"}},
      {v41 + Fields{{"compress_ratios", "[0, 4, 4, 1]"}},
       {"compress_ratios: got 4 of layer 1", "0, 1 or 2"}},
      {v41 + Fields{{"compress_ratios", "[0, 0, 2, 1]"}}, {"compress_ratios: got 0 of layer 1"}},
      {v41 + Fields{{"index_source_layer_ids", "[2, 3]"}}, {"index_source_layer_ids: got no 1"}},
      {v41 + Fields{{"kv_source_layer_ids", "[9]"}}, {"kv_source_layer_ids"}},
      {v41 + Fields{{"kv_source_layer_ids", "null"}}, {"kv_source_layer_ids: got nothing"}},
      {Tiny("llama") + Fields{{"hidden_size", "66"}}, {"hidden_size: got 66", "or give head_dim"}},
      {Tiny("llama") + Fields{{"num_key_value_heads", "3"}},
       {"num_key_value_heads: got 3", "a divisor of num_attention_heads, which is 4"}},
      {Tiny("llama") + Fields{{"kv_lora_rank", "512"}, {"head_dim", "8"}},
       {"kv_lora_rank: got 512"}},
      {Tiny("qwen3") + Fields{{"layer_types", kSliding}},
       {"layer_types: got sliding_attention", "use_sliding_window: false"}},
      {Tiny("qwen3") + Fields{{"layer_types", R"(["full_attention"])"}},
       {"layer_types: got 1 entries", "which is 4"}},
      {Tiny("gemma2") + Fields{{"layer_types", R"(["a", "b", "c", "d"])"}},
       {"layer_types: got \"a\"", "full_attention or sliding_attention"}},
      {Tiny("mistral") + Fields{{"layer_types", kSliding}}, {"sliding_window: got nothing"}},
      {Tiny("qwen2") + Fields{{"use_sliding_window", "true"}, {"max_window_layers", "0"}},
       {"sliding_window: got nothing"}},
      {Tiny("qwen3_5") + Fields{{"layer_types", kSliding}},
       {"got \"sliding_attention\"", "full_attention or linear_attention"}},
      {Tiny("mistral") + Fields{{"layer_types", "7"}}, {"layer_types: got 7", "list of strings"}},
      {Tiny("llama4") + Fields{{"no_rope_layers", "[1, 0]"}}, {"no_rope_layers: got 2 entries"}},
      {TinyLatent("deepseek_v3") + experts, {"num_experts_per_tok: got 9", "from 1 to 8"}},
      {TinyLatent("deepseek_v3") + indexer, {"index_topk: got 16", "deepseek_v32"}},
      {Tiny("deepseek_v3"), {"kv_lora_rank: got nothing"}},
      {sparse_without_latent, {"kv_lora_rank: got nothing"}},
      {TinyLatent("deepseek_v32"), {"index_n_heads: got nothing"}},
      {v4 + Fields{{"compress_ratios", "[0, 4, 128]"}}, {"compress_ratios: got 3 entries"}},
      {v4 + Fields{{"compress_ratios", "[0, 4, 128, 5]"}}, {"compress_ratios: got 5"}},
      {v4 + Fields{{"compress_ratios", "[0, 4, 128, 4, 0]"}}, {"got 5 entries"}},
      {v4 + Fields{{"compress_ratios", "null"}}, {"compress_ratios: got nothing"}},
      {v4 + Fields{{"qk_rope_head_dim", "1000"}}, {"qk_rope_head_dim: got 1000", "to 512"}},
      {Tiny("qwen3_5") + Fields{{"linear_num_key_heads", "5"}}, {"linear_num_value_heads: got 32"}},
      {Tiny("qwen3_5") + Fields{{"mamba_ssm_dtype", "\"x\""}}, {"mamba_ssm_dtype: got \"x\""}},
  });
}

TEST(HfConfigTest, TextsThatAreNotOneObjectAreRefused) {
  const std::pair<std::string, const char*> bad[] = {
      {"", "JSON: got nothing"},
      {"{", "JSON: got "},
      {"[]", "JSON: got []"},
      {"7", "JSON: got 7"},
      {"{} {}", "JSON: got "},
      {"{\"a\": NaN}", "JSON: got "},
      {"{\"a\": \"\xff\"}", "JSON: got "},
      {R"({"model_type": "llama", "model_type": "qwen2"})", "model_type: got the key twice"},
      {R"({"a": [{"deep": 1, "deep": 1}]})", "deep: got the key twice"},
      {"{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}", "at most 32 levels"},
      {std::string((4 << 20) + 1, ' '), "4194305 bytes, expected at most 4194304"},
  };
  for (const auto& [text, message] : bad) {
    const auto facts = ModelFromHfConfig(text, "x");
    ASSERT_EQ(facts.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
    EXPECT_THAT(facts.status().message(), HasSubstr("x: "));
    EXPECT_THAT(facts.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace kvblocks
