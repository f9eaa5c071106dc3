#include "kvblocks/model_facts.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simdjson.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

TEST(CatalogueTest, BuiltInKnowsDevicesAndModels) {
  const Catalogue& catalogue = Catalogue::BuiltIn();
  EXPECT_EQ(catalogue.devices().size(), 11);
  EXPECT_EQ(catalogue.FindDevice("gb200")->devices_per_node, 72);
  const auto h100 = catalogue.FindDevice("h100-sxm");
  ASSERT_TRUE(h100.ok());
  EXPECT_EQ(h100->bf16_tflops, 989);
  EXPECT_EQ(h100->memory_gb_per_s, 3350);
  EXPECT_EQ(h100->memory_gb, 80);
  EXPECT_EQ(h100->link_gb_per_s, 450);
  const auto llama = catalogue.FindModel("llama-3.1-8b");
  ASSERT_TRUE(llama.ok());
  EXPECT_EQ(llama->layer_pattern, std::string(32, 'F'));
  EXPECT_EQ(llama->active_params_b, llama->params_b);
  EXPECT_DOUBLE_EQ(llama->weight_bytes(), 16.06e9);
  EXPECT_NEAR(llama->embedding_params_b(), 1.0507, 1e-4);
}

// The parts of the published totals that the configurations give must fit together.
TEST(CatalogueTest, EveryModelIsConsistent) {
  for (const auto& [name, model] : Catalogue::BuiltIn().models()) {
    EXPECT_TRUE(Validate(model).ok()) << name;
    if (!model.experts || model.rounded_params) continue;
    const double active_experts = model.routed_params_b() *
                                  static_cast<double>(model.experts->experts_per_token) /
                                  static_cast<double>(model.experts->num_experts);
    const double shared = model.params_b - model.routed_params_b();
    EXPECT_NEAR(shared + active_experts, model.active_params_b, 0.02 * model.active_params_b)
        << name;
  }
}

TEST(CatalogueTest, UnknownNamesListTheNearestThree) {
  const Catalogue& catalogue = Catalogue::BuiltIn();
  const auto device = catalogue.FindDevice("h1000");
  EXPECT_EQ(device.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(device.status().message(),
            "device \"h1000\" is none of the 11 known; the nearest are h100-sxm, a100-sxm-80gb, "
            "h200-sxm");
  EXPECT_THAT(catalogue.FindDevice("h2000").status().message(),
              HasSubstr("the nearest are h200-sxm, "));
  EXPECT_THAT(catalogue.FindModel("qwen4-8b").status().message(),
              HasSubstr("the nearest are qwen3-8b, qwen3-32b, "));
  EXPECT_FALSE(catalogue.FindModel("").ok());
  EXPECT_FALSE(catalogue.FindModel("Qwen/").ok());
  EXPECT_FALSE(Catalogue().FindModel("qwen3-8b").ok());
}

// Each name that is found, and the entry. A name is cut short between words only: h20 is no h200.
TEST(CatalogueTest, NamesAreFoundInTheWaysPeopleWriteThem) {
  const Catalogue& catalogue = Catalogue::BuiltIn();
  const std::pair<const char*, const char*> devices[] = {
      {"h200", "h200-sxm"},           {"H200", "h200-sxm"},
      {"NVIDIA H200", "h200-sxm"},    {"h20", "h20"},
      {"rtx_4090", "rtx-4090"},       {"NVIDIA GeForce RTX 4090", "rtx-4090"},
      {"a100", "a100-sxm-80gb"},      {"NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"},
      {"h100-80gb", "h100-sxm"},      {"NVIDIA H100 80GB HBM3", "h100-sxm"},
  };
  for (const auto& [name, entry] : devices) {
    const auto found = catalogue.FindDevice(name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->name, entry) << name;
  }
  const std::pair<const char*, const char*> models[] = {
      {"deepseek-v3", "deepseek-v3"},  // not deepseek-v3.2
      {"deepseek-r1", "deepseek-v3"},
      {"deepseek-ai/DeepSeek-R1", "deepseek-v3"},
      {"gpt-oss", ""},
      {"gpt-oss-1", ""},
      {"llama-3.1", ""},
      {"gemma-3", "gemma-3-27b"},
      {"gemma-3-27b-it", "gemma-3-27b"},
      {"llama-3.3-70b", "llama-3.1-70b"},
      {"meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"},
      {"meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"},
      {"meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"},
      {"mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"},
      {"Qwen/Qwen3-8B", "qwen3-8b"},
      {"qwen/qwen3-8b", "qwen3-8b"},
  };
  for (const auto& [name, entry] : models) {
    const auto found = catalogue.FindModel(name);
    EXPECT_EQ(found.ok() ? found->name : "", entry) << name;
  }
  const absl::Status several = catalogue.FindModel("llama-3.1").status();
  EXPECT_EQ(several.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(several.message(),
            "model \"llama-3.1\" is the beginning of several, expected one of llama-3.1-405b, "
            "llama-3.1-70b, llama-3.1-8b");
}

TEST(CatalogueTest, PatternsMayBeCounts) {
  const std::string sizes =
      "hidden_size: 8 num_heads: 2 num_kv_heads: 1 head_size: 8 vocab_size: 10 params_b: 1 } ";
  Catalogue catalogue;
  ASSERT_TRUE(catalogue
                  .Merge("model { name: \"a\" full_layers: 2 window_layers: 1 window: 4 " + sizes +
                             "model { name: \"b\" layer_pattern: \"(SF)*2 S\" window: 4 " + sizes,
                         "mine")
                  .ok());
  EXPECT_EQ(catalogue.FindModel("a")->layer_pattern, "FFS");
  EXPECT_EQ(catalogue.FindModel("b")->layer_pattern, "SFSFS");
}

TEST(CatalogueTest, MergedEntriesReplaceThoseOfTheSameName) {
  Catalogue catalogue = Catalogue::BuiltIn();
  ASSERT_TRUE(catalogue
                  .Merge(R"(device { name: "b200" bf16_tflops: 2000 memory_gb_per_s: 7000
                                     memory_gb: 170 link_gb_per_s: 800 }
                            device { name: "mine" bf16_tflops: 1 memory_gb_per_s: 1
                                     memory_gb: 1 })",
                         "my.textproto")
                  .ok());
  EXPECT_EQ(catalogue.FindDevice("b200")->bf16_tflops, 2000);
  EXPECT_EQ(catalogue.FindDevice("mine")->link_gb_per_s, 0);
  EXPECT_EQ(catalogue.devices().size(), 12);
  EXPECT_EQ(Catalogue::BuiltIn().FindDevice("b200")->bf16_tflops, 2250);
}

TEST(CatalogueTest, BadTextIsRefusedAndChangesNothing) {
  const std::pair<const char*, std::vector<const char*>> bad[] = {
      {"device { name: \"a\"\n  speed: 3 }", {"my.textproto:2:", "speed"}},
      {"device {", {"my.textproto:1:"}},
      {"device { bf16_tflops: 1 }", {"my.textproto:1:69: error: device[1].name: got nothing"}},
      {"device { name: \"a\" bf16_tflops: -1 }", {"device a", "bf16_tflops: got -1", "expected"}},
      {"device { name: \"a\" bf16_tflops: nan }", {"bf16_tflops: got nan"}},
      {"device { name: \"a\" bf16_tflops: 1e30 }", {"bf16_tflops: got 1e+30"}},
      {"device { name: \"a\" bf16_tflops: 1 memory_gb: 1 }", {"memory_gb_per_s: got 0"}},
      {"model { name: \"m\" }",
       {"model m",
        "my.textproto:1:69: error: model[0].layer_pattern: got nothing, expected a letter per "
        "layer"}},
      {"model { name: \"m\" full_layers: -3 }", {"full_layers: got -3"}},
      {"model { name: \"m\" window_layers: 3 }", {"window: got 0"}},
      {"model { name: \"m\" full_layers: 3 layer_pattern: \"F\" }", {"next to layer_pattern"}},
      {"model { name: \"m\" full_layers: 999999999 }",
       {"full_layers: got 999999999", "0 to 10000"}},
      {"model { name: \"m\" layer_pattern: \"FX\" }", {"model[0].layer_pattern", "'X'"}},
      {"model { name: \"m\" layer_pattern: \"C\" }", {"chunk: got 0"}},
      {"model { name: \"m\" layer_pattern: \"F\" dtype: \"half of it\" }", {"model[0].dtype: got"}},
      {"model { name: \"m\" layer_pattern: \"F\" num_kv_shared_layers: 1 }",
       {"num_kv_shared_layers: got 1, expected 0 to 0"}},
      {"model { name: \"m\" layer_pattern: \"F\" num_heads: 3 num_kv_heads: 2 head_size: 1 }",
       {"num_heads: got 3, expected a multiple of the 2 KV heads"}},
      {"model { name: \"m\" layer_pattern: \"M\" num_heads: 1 num_kv_heads: 1 }",
       {"mla: got nothing, expected a value next to layers of MN"}},
      {"model { name: \"m\" layer_pattern: \"F\" num_heads: 1 num_kv_heads: 1 head_size: 1 "
       "indexer { } }",
       {"indexer: got a value, expected none without layers of N4"}},
      {"model { name: \"m\" layer_pattern: \"L\" num_heads: 1 num_kv_heads: 1 }",
       {"state: got nothing, expected a value next to layers of L"}},
      {"model { name: \"m\" layer_pattern: \"L\" num_heads: 1 num_kv_heads: 1 "
       "state { shape: [4, 0] dtype: \"fp32\" } }",
       {"state.shape: got 0"}},
      {"model { name: \"m\" layer_pattern: \"L\" state { shape: 4 dtype: \"x\" } }",
       {"model[0].state.dtype", "\"x\""}},
      {"model { name: \"m\" layer_pattern: \"H\" window: 1 num_heads: 1 num_kv_heads: 1 head_size: "
       "8 "
       "compressed_attention { row_bytes_fp8_ds_mla: 1 sliding_block_size: 1 main_block_size: 64 } "
       "}",
       {"compressed_attention.main_block_size: got 64, expected a multiple of 128"}},
      {"model { name: \"m\" full_layers: 3 hidden_size: 8 num_heads: 1 num_kv_heads: 1 "
       "head_size: 8 vocab_size: 10 params_b: 1 active_params_b: 2 }",
       {"active_params_b: got 2", "to 1"}},
      {"model { name: \"m\" full_layers: 3 hidden_size: 8 num_heads: 1 num_kv_heads: 1 "
       "head_size: 8 vocab_size: 10 params_b: 1 moe { num_experts: 2 experts_per_token: 3 "
       "intermediate_size: 4 num_layers: 3 } }",
       {"moe.experts_per_token: got 3", "1 to 2"}},
  };
  for (const auto& [text, parts] : bad) {
    Catalogue catalogue;
    ASSERT_TRUE(
        catalogue
            .Merge("device { name: \"z\" bf16_tflops: 1 memory_gb_per_s: 1 memory_gb: 1 }", "first")
            .ok());
    const absl::Status status =
        catalogue.Merge(std::string("device { name: \"z\" bf16_tflops: 2 memory_gb_per_s: 1 "
                                    "memory_gb: 1 } ") +
                            text,
                        "my.textproto");
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    for (const char* part : parts) EXPECT_THAT(status.message(), HasSubstr(part)) << text;
    EXPECT_EQ(catalogue.FindDevice("z")->bf16_tflops, 1);
  }
}

// The catalogue next to the table that it was made from, field by field. The table is found through
// KVBLOCKS_SHARED.

namespace dom = simdjson::dom;

class ModelsJsonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const folder = std::getenv("KVBLOCKS_SHARED");
    if (folder == nullptr) GTEST_SKIP() << "set KVBLOCKS_SHARED to the folder of spec/models.json";
    const auto error = parser_.load(std::string(folder) + "/spec/models.json").get(document_);
    if (error == simdjson::IO_ERROR) GTEST_SKIP() << folder << " has no spec/models.json";
    ASSERT_FALSE(error) << simdjson::error_message(error);
    ASSERT_FALSE(document_["models"].get(models_));
  }

  dom::parser parser_;
  dom::element document_;
  dom::array models_;
};

// null and a missing field are 0.
double Number(const dom::element& object, const char* field) {
  double value = 0;
  if (object[field].get(value)) return 0;
  return value;
}

std::string Text(const dom::element& object, const char* field) {
  std::string_view value;
  if (object[field].get(value)) return "";
  return std::string(value);
}

std::optional<dom::element> Part(const dom::element& object, const char* field) {
  dom::element part;
  if (object[field].get(part) || part.is_null()) return std::nullopt;
  return part;
}

// The parameters: recomputed from the configuration where that was possible, else published.
std::pair<double, double> Params(const dom::element& model) {
  dom::element value;
  dom::array pair;
  if (model["params_recomputed_from_config_b"].get(value) || value.is_null()) {
    return {Number(model, "params_total_b"), Number(model, "params_active_b")};
  }
  double both = 0;
  if (value.get(pair)) {
    EXPECT_FALSE(value.get(both));
    return {both, both};
  }
  double total = 0, active = 0;
  EXPECT_FALSE(pair.at(0).get(total));
  EXPECT_FALSE(pair.at(1).get(active));
  return {total, active};
}

void ExpectShapes(const dom::element& model, const ModelFacts& facts) {
  EXPECT_EQ(facts.hf_id, Text(model, "hf_id"));
  EXPECT_EQ(facts.family, Text(model, "family"));
  EXPECT_EQ(facts.layer_pattern, Text(model, "layer_pattern"));
  EXPECT_EQ(facts.num_layers(), Number(model, "num_layers"));
  EXPECT_EQ(facts.window, Number(model, "sliding_window"));
  EXPECT_EQ(facts.chunk, Number(model, "attention_chunk_size"));
  EXPECT_EQ(facts.hidden_size, Number(model, "hidden_size"));
  EXPECT_EQ(facts.intermediate_size, Number(model, "intermediate_size"));
  EXPECT_EQ(facts.num_heads, Number(model, "num_attention_heads"));
  EXPECT_EQ(facts.num_kv_heads, Number(model, "num_kv_heads"));
  EXPECT_EQ(facts.head_size, Number(model, "head_dim"));
  EXPECT_EQ(facts.num_global_kv_heads, Number(model, "num_global_kv_heads"));
  EXPECT_EQ(facts.global_head_size, Number(model, "global_head_dim"));
  EXPECT_EQ(facts.vocab_size, Number(model, "vocab_size"));
  EXPECT_EQ(facts.max_position_embeddings, Number(model, "max_position_embeddings"));
  bool tied = false;
  EXPECT_FALSE(model["tie_word_embeddings"].get(tied));
  EXPECT_EQ(facts.tied_embeddings, tied);
  EXPECT_EQ(facts.sink_bias, Text(model, "attention_sinks") == "per_head_bias");
  EXPECT_EQ(facts.notes, Text(model, "notes"));
  const auto [params, active] = Params(model);
  EXPECT_EQ(facts.params_b, params);
  EXPECT_EQ(facts.active_params_b, active);
}

void ExpectLatent(const dom::element& model, const ModelFacts& facts) {
  const auto mla = Part(model, "mla");
  ASSERT_EQ(facts.latent.has_value(), mla.has_value());
  if (mla) {
    EXPECT_EQ(facts.latent->kv_lora_rank, Number(*mla, "kv_lora_rank"));
    EXPECT_EQ(facts.latent->q_lora_rank, Number(*mla, "q_lora_rank"));
    EXPECT_EQ(facts.latent->qk_rope_head_dim, Number(*mla, "qk_rope_head_dim"));
    EXPECT_EQ(facts.latent->qk_nope_head_dim, Number(*mla, "qk_nope_head_dim"));
    EXPECT_EQ(facts.latent->v_head_dim, Number(*mla, "v_head_dim"));
    EXPECT_EQ(facts.latent->row_elements(), Number(*mla, "cache_row_elements"));
  }
  const auto indexer = Part(model, "indexer");
  ASSERT_EQ(facts.indexer.has_value(), indexer.has_value());
  if (indexer) {
    EXPECT_EQ(facts.indexer->num_heads, Number(*indexer, "index_n_heads"));
    EXPECT_EQ(facts.indexer->head_dim, Number(*indexer, "index_head_dim"));
    EXPECT_EQ(facts.indexer->top_k, Number(*indexer, "index_topk"));
    EXPECT_EQ(facts.indexer->row_bytes, Number(*indexer, "bytes_per_token"));
  }
}

void ExpectState(const dom::element& state, const CompressorStateFacts& facts) {
  EXPECT_EQ(facts.block_size, Number(state, "block_size"));
  EXPECT_EQ(facts.window, Number(state, "window"));
  EXPECT_EQ(facts.row_elements, Number(state, "row_fp32"));
  EXPECT_EQ(facts.indexer_elements, Number(state, "indexer_row_fp32"));
}

void ExpectCompressed(const dom::element& model, const ModelFacts& facts) {
  const auto c = Part(model, "compressed_attention");
  ASSERT_EQ(facts.compressed.has_value(), c.has_value());
  if (!c) return;
  EXPECT_EQ(facts.compressed->qk_rope_head_dim, Number(*c, "qk_rope_head_dim"));
  EXPECT_EQ(facts.head_size, Number(*c, "head_dim"));
  EXPECT_EQ(facts.compressed->q_lora_rank, Number(*c, "q_lora_rank"));
  EXPECT_EQ(facts.compressed->o_lora_rank, Number(*c, "o_lora_rank"));
  EXPECT_EQ(facts.compressed->o_groups, Number(*c, "o_groups"));
  EXPECT_EQ(facts.compressed->row_bytes_fp8_ds_mla, Number(*c, "row_bytes_fp8_ds_mla"));
  EXPECT_EQ(facts.compressed->main_block_size, Number(*c, "main_block_size"));
  EXPECT_EQ(facts.compressed->sliding_block_size, Number(*c, "sliding_block_size"));
  dom::element states, state;
  ASSERT_FALSE((*c)["compressor_state"].get(states));
  ASSERT_FALSE(states["4"].get(state));
  ExpectState(state, facts.compressed->state4);
  ASSERT_FALSE(states["H"].get(state));
  ExpectState(state, facts.compressed->state128);
}

void ExpectExperts(const dom::element& model, const ModelFacts& facts) {
  const auto moe = Part(model, "moe");
  ASSERT_EQ(facts.experts.has_value(), moe.has_value());
  if (!moe) return;
  EXPECT_EQ(facts.experts->num_experts, Number(*moe, "num_experts"));
  EXPECT_EQ(facts.experts->experts_per_token, Number(*moe, "experts_per_token"));
  EXPECT_EQ(facts.experts->intermediate_size, Number(*moe, "moe_intermediate_size"));
  EXPECT_EQ(facts.experts->num_shared_experts, Number(*moe, "num_shared_experts"));
  EXPECT_EQ(facts.experts->shared_intermediate_size,
            Number(*moe, "shared_expert_intermediate_size"));
  EXPECT_EQ(facts.experts->num_layers, Number(*moe, "num_moe_layers"));
  EXPECT_EQ(facts.num_layers() - facts.experts->num_layers, Number(*moe, "num_dense_layers"));
}

void ExpectCaches(const dom::element& model, const ModelFacts& facts) {
  const auto kv = Part(model, "kv");
  ASSERT_TRUE(kv);
  const PublishedCacheFacts& cache = facts.published_cache;
  EXPECT_EQ(cache.bf16_all_layers.value_or(0), Number(*kv, "bytes_per_token_bf16_all_layers"));
  EXPECT_EQ(cache.bf16_unbounded_layers.value_or(0),
            Number(*kv, "bytes_per_token_bf16_unbounded_layers") +
                Number(*kv, "bytes_per_token_unbounded_bf16"));
  EXPECT_EQ(cache.fp8_ds_mla_unbounded_layers.value_or(0),
            Number(*kv, "bytes_per_token_fp8_ds_mla") +
                Number(*kv, "bytes_per_token_unbounded_fp8_ds_mla"));
  double state_bytes = 0;
  if (const auto state = Part(*kv, "linear_state_bytes_per_layer_per_request")) {
    state_bytes = Number(*state, "total");
  }
  const auto caches = LayerCaches(facts, {});
  ASSERT_TRUE(caches.ok()) << caches.status();
  for (const LayerCache& named : *caches) {
    if (named.spec.get_if<MambaSpec>() == nullptr) continue;
    EXPECT_EQ(named.spec.page_bytes(), state_bytes);
  }
  EXPECT_EQ(!facts.states.empty(), state_bytes > 0);
}

TEST_F(ModelsJsonTest, EveryEntryIsInTheCatalogueFieldByField) {
  // The catalogue has more: deepseek-v4.1-flash, whose caches layer_caches_test.cc checks,
  // kimi-k2.5 and minimax-m2.5, which hf_config_test.cc compares with their configurations.
  EXPECT_EQ(models_.size() + 3, Catalogue::BuiltIn().models().size());
  for (const dom::element model : models_) {
    SCOPED_TRACE(Text(model, "id"));
    const auto facts = Catalogue::BuiltIn().FindModel(Text(model, "id"));
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(Catalogue::BuiltIn().FindModel(Text(model, "hf_id"))->name, facts->name);
    ExpectShapes(model, *facts);
    ExpectLatent(model, *facts);
    ExpectCompressed(model, *facts);
    ExpectExperts(model, *facts);
    ExpectCaches(model, *facts);
  }
}

}  // namespace
}  // namespace kvblocks
