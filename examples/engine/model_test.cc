// What a checkpoint can have wrong, and what no golden model has.

#include "examples/engine/model.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "examples/engine/routing.h"
#include "examples/engine/step_runner.h"
#include "examples/engine/weights.h"
#include "gtest/gtest.h"

namespace kvblocks::engine {
namespace {

const char* const kLlama = "examples/engine/testdata/llama";

// Llama's weights beside its configuration, in which `from` is `to`.
std::string Refusal(const std::string& from, const std::string& to,
                    const std::string& configured = kLlama) {
  const std::string folder = ::testing::TempDir() + "model_test";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(std::string(kLlama) + "/model.safetensors",
                             folder + "/model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::stringstream text;
  text << std::ifstream(configured + "/config.json").rdbuf();
  std::string config = text.str();
  const size_t at = config.find(from);
  if (at == std::string::npos) return "no " + from;
  std::ofstream(folder + "/config.json") << config.replace(at, from.size(), to);
  const auto model = Model::Load(folder);
  if (model.ok()) return "";
  const std::string message(model.status().message());
  return message.substr(message.rfind(folder, 0) == 0 ? folder.size() : 0);
}

TEST(ModelTest, RefusesWhatItCannotRun) {
  EXPECT_EQ(
      Refusal("\"hidden_size\": 64", "\"hidden_size\": 32"),
      "/model.safetensors: model.embed_tokens.weight: shape is [128, 64], expected [128, 32]");
  EXPECT_EQ(Refusal("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
            "/model.safetensors: no tensor model.layers.2.input_layernorm.weight among 20");
  EXPECT_EQ(
      Refusal("\"rope_type\": \"llama3\"", "\"rope_type\": \"dynamic\""),
      "/config.json: rope_type: got \"dynamic\", expected one of default, linear, llama3, yarn");
  EXPECT_EQ(Refusal("\"factor\": 8.0", "\"factor\": -1"),
            "/config.json: factor: got -1, expected a number from 1 to 1e+06");
  EXPECT_EQ(Refusal("\"hidden_act\": \"silu\"", "\"hidden_act\": [\"silu\"]"),
            "/config.json: hidden_act: got [\"silu\"], expected one of silu, gelu_pytorch_tanh");
  EXPECT_NE(
      Refusal("\"model_type\": \"llama\"", "\"model_type\": \"glm4_moe\"")
          .find("model_type: got the family glm4_moe, expected one that the engine runs: llama,"),
      std::string::npos);
  for (const auto& [from, to] : {std::pair("\"o_groups\": 2", "\"o_groups\": 3"),
                                 {"\"n_routed_experts\": 4", "\"n_routed_experts\": null"},
                                 {"\"qk_rope_head_dim\": 8", "\"qk_rope_head_dim\": 16"}}) {
    EXPECT_NE(Refusal(from, to, "examples/engine/testdata/deepseek_v4")
                  .find("o_groups, qk_rope_head_dim: got none of one"),
              std::string::npos)
        << to;
  }
  EXPECT_NE(Refusal("{", "[").find("/config.json: JSON: "), std::string::npos);
}

TEST(WeightsTest, DequantisesMxfp4) {
  // One expert, 2 rows of 32 values. Codes 0 to 15 twice, times 2; then all 1 (code 2), times 1/4.
  std::vector<uint8_t> blocks;
  for (int i = 0; i < 16; ++i)
    blocks.push_back(static_cast<uint8_t>((2 * i + 1) % 16 << 4 | 2 * i % 16));
  blocks.resize(32, 0x22);
  const std::vector<float> weights = DequantiseMxfp4(blocks, std::vector<uint8_t>{128, 125}, 32, 2);
  const std::vector<float> values = {0, 1, 2, 3, 4, 6, 8, 12};
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(weights[2 * i], (i % 16 < 8 ? 1.0f : -1.0f) * values[i % 8]) << i;
    EXPECT_EQ(weights[2 * i + 1], 0.25f) << i;
  }
}

TEST(RoutingTest, ChoosesInTheBestGroups) {
  // Groups of 2. The largest is in the first, but the largest sums are those of the last two.
  const std::vector<float> logits = {3, -9, -9, -9, 1, 1.5f, 2, 1};
  const Routing routing{.scores = Routing::Scores::kSigmoid,
                        .per_token = 2,
                        .num_groups = 4,
                        .top_groups = 2,
                        .sums_to_one = true,
                        .scale = 3};
  const auto chosen = Route(routing, {}, logits);
  ASSERT_EQ(chosen.size(), 2);
  EXPECT_EQ(chosen[0].expert, 6);
  EXPECT_EQ(chosen[1].expert, 5);
  EXPECT_NEAR(chosen[0].weight + chosen[1].weight, 3, 1e-6);
  EXPECT_NEAR(chosen[0].weight / chosen[1].weight, (1 + std::exp(-1.5)) / (1 + std::exp(-2.0)),
              1e-6);
  // A bias plays a part in the choice, and none in the weights.
  const auto biased = Route(routing, {0, 0, 0, 0, 1, 0, 0, 0}, logits);
  EXPECT_EQ(biased[0].expert, 4);
  EXPECT_EQ(biased[1].expert, 6);
}

TEST(NgramDraftsTest, ContinuesAsBefore) {
  const std::vector<int32_t> known = {1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3};
  EXPECT_EQ(NgramDrafts(known, 2), (std::vector<int32_t>{9, 2}));  // of 1, 2, 3
  EXPECT_EQ(NgramDrafts({5, 2, 3, 8, 6, 2, 3}, 3), (std::vector<int32_t>{8, 6, 2}));
  EXPECT_EQ(NgramDrafts({4, 4}, 3), (std::vector<int32_t>{4, 4, 4}));
  EXPECT_EQ(NgramDrafts({7}, 2), (std::vector<int32_t>{7, 7}));
}

}  // namespace
}  // namespace kvblocks::engine
