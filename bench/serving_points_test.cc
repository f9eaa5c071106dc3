// Which model and which server a serving point means.

#include "bench/serving_points.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

TEST(ServingPointsTest, ModelsAreFoundByLikeSpellings) {
  const std::pair<const char*, const char*> cases[] = {
      {"openai/gpt-oss-120b", "gpt-oss-120b"},
      {"moonshotai/Kimi-K2.5", "kimi-k2.5"},
      {"nvidia/Kimi-K2.5-NVFP4", "kimi-k2.5"},
      {"meta-llama/Llama-3.1-70B", "llama-3.1-70b"},
      {"meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"},
      {"meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"},
      {"nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.1-70b"},
      {"MiniMaxAI/MiniMax-M2.5", "minimax-m2.5"},
      {"nvidia/MiniMax-M2.5-NVFP4", "minimax-m2.5"},
      {"Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"},
      {"Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"}};
  for (const auto& [spelling, name] : cases) {
    const auto model = FindPointModel(spelling);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->name, name) << spelling;
  }
  const auto unknown = FindPointModel("nobody/Model-1B");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.status().message(), HasSubstr("nobody/Model-1B"));
}

TEST(ServingPointsTest, RecipesFollowModelDeviceAndDate) {
  ServingPoint point{.device = "b200", .precision = "fp8", .campaign = "inferencex"};
  point.measured_date = "2026-03-15";
  point.input_tokens = 1024;
  EXPECT_EQ(RecipeOf(point, "minimax_m2").expert_dtype, "fp8_block_triton");
  EXPECT_EQ(RecipeOf(point, "minimax_m2").kv_dtype, "");
  point.measured_date = "2026-04-22";
  EXPECT_EQ(RecipeOf(point, "minimax_m2").expert_dtype, "");
  EXPECT_EQ(RecipeOf(point, "minimax_m2").kv_dtype, "fp8");
  EXPECT_EQ(RecipeOf(point, "minimax_m2").max_num_batched_tokens, 2048);
  EXPECT_EQ(RecipeOf(point, "llama").kv_dtype, "fp8");
  EXPECT_EQ(RecipeOf(point, "gpt_oss").expert_dtype, "w4a8_mxfp4_mxfp8");
  point.device = "h200-sxm";
  EXPECT_EQ(RecipeOf(point, "gpt_oss").expert_dtype, "");
  EXPECT_TRUE(RecipeOf(point, "minimax_m2").has_whole_experts);
  point.campaign = "own_sweep";
  EXPECT_EQ(RecipeOf(point, "llama").kv_dtype, "");
  EXPECT_EQ(RecipeOf(point, "qwen3").max_num_batched_tokens, 8192);
}

// By the campaign's scripts, or because the version does.
TEST(ServingPointsTest, VersionsAndScriptsFuseAllReduces) {
  const auto fuses = [](const char* device, const char* version, const char* family,
                        const char* campaign = "inferencex") {
    const ServingPoint point{
        .engine_version = version, .device = device, .campaign = campaign, .measured_date = "2026"};
    return RecipeOf(point, family).fuses_allreduce;
  };
  EXPECT_FALSE(fuses("h200-sxm", "0.16.0", "gpt_oss"));
  EXPECT_TRUE(fuses("h200-sxm", "0.17.0", "gpt_oss"));
  EXPECT_TRUE(fuses("b200", "0.17.0", "minimax_m2"));
  EXPECT_FALSE(fuses("b300", "0.18.0", "minimax_m2"));
  EXPECT_TRUE(fuses("b300", "0.19.0", "minimax_m2"));
  EXPECT_TRUE(fuses("b300", "nightly-0123", "minimax_m2"));
  EXPECT_TRUE(fuses("h200-sxm", "0.16.0", "kimi_k2"));
  EXPECT_TRUE(fuses("b200", "unknown", "llama"));
  EXPECT_TRUE(fuses("b200", "0.11.0", "gpt_oss"));
  EXPECT_FALSE(fuses("h100-sxm", "unknown", "llama"));
  EXPECT_FALSE(fuses("b200", "0.11.0", "gpt_oss", "own_sweep"));
  EXPECT_TRUE(fuses("h100-sxm", "0.18.0", "qwen3", "own_sweep"));
}

// Rows as other files spell them; one of an unknown model, which the reader accepts.
TEST(ServingPointsTest, EveryRowOfAKnownModelIsPredicted) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/points.csv";
  std::ofstream file(path);
  file << "id,engine_version,model,gpu,precision,mode,isl_tokens,osl_tokens,concurrency,batch_per_"
          "dp_rank,tp,pp,attention_dp,moe_tp,moe_ep,ttft_ms,tpot_ms,campaign,measured_date,flags\n";
  const std::string_view rows[] = {
      "0.15.1,openai/gpt-oss-120b,b200,fp4,agg,256,16,4,4,8,1,1,8,1",
      "0.15.1,openai/gpt-oss-120b,h100-sxm,fp4,agg,256,16,4,4,2,1,1,2,1",
      "0.15.1,moonshotai/Kimi-K2.5,b200,int4,agg,256,16,4,4,8,1,1,8,1",
      ",meta-llama/Llama-3.1-70B-Instruct,b200,fp4,agg,256,16,4,4,1,1,1,1,1",
      "unknown,meta-llama/Llama-3.1-70B-Instruct,b200,fp8,agg,256,16,4,4,4,1,,4,1",
      "0.17.0,MiniMaxAI/MiniMax-M2.5,b200,fp8,agg,256,16,4,4,4,1,1,4,1",
      "0.18.0,MiniMaxAI/MiniMax-M2.5,h100-sxm,fp8,agg,256,16,4,4,8,1,1,8,1",
      "0.12.0,Qwen/Qwen3-235B-A22B,h200-sxm,fp8,agg,256,16,4,4,8,1,,1,8",
      "0.15.1,nobody/Model-1B,b200,fp8,agg,256,16,4,4,1,1,1,1,1",
      "0.15.1,openai/gpt-oss-120b,gb200,fp4,agg,256,16,4,4,1,1,1,1,1"};
  int id = 0;
  for (const std::string_view row : rows) {
    file << "p" << id++ << "," << row << ",100,10,inferencex,2026-03-15,\n";
  }
  file.close();
  int64_t num_left_out = 0;
  const auto points = ReadServingPoints(path, &num_left_out);
  ASSERT_TRUE(points.ok()) << points.status();
  ASSERT_EQ(points->size(), std::size(rows));
  PointPredictor predictor(FindKernelTablesFile(), {});
  for (size_t i = 0; i < points->size(); ++i) {
    const auto prediction = predictor.Predict((*points)[i]);
    if (i < 8) {
      ASSERT_TRUE(prediction.ok()) << rows[i] << ": " << prediction.status();
      EXPECT_GT(prediction->tpot_ms, 1) << rows[i];
      EXPECT_LT(prediction->tpot_ms, 40) << rows[i];
    } else {
      EXPECT_EQ(prediction.status().code(), absl::StatusCode::kNotFound) << rows[i];
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
