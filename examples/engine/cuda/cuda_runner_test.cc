// Steps on the device, emulated: the CPU's tokens, with kvblocks' own attention kernels and the
// engine's, and products by plain loops.

#include "examples/engine/cuda/cuda_runner.h"

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/engine/cuda/comparison.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/tiers/tier_connector.h"
#include "sim/tiers/tier_text.h"

namespace kvblocks::engine {
namespace {

float ToFloat(Bf16Bits bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Emulated device memory is the host's.
class PlainProducts final : public Products {
 public:
  absl::Status Multiply(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight, void* y,
                        void*) override {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t out = 0; out < shape.out; ++out) {
        float sum = 0;
        for (int64_t i = 0; i < shape.in; ++i) {
          sum += ToFloat(x[row * shape.in + i]) * ToFloat(weight[out * shape.in + i]);
        }
        if (shape.float_out) {
          static_cast<float*>(y)[row * shape.out + out] = sum;
        } else {
          static_cast<Bf16Bits*>(y)[row * shape.out + out] =
              static_cast<Bf16Bits>(std::bit_cast<uint32_t>(RoundToBf16(sum)) >> 16);
        }
      }
    }
    return absl::OkStatus();
  }
};

TEST(CudaRunnerTest, GoldenModelsAnswerAsOnTheCpu) {
  for (const auto& [name, masked] : {std::pair("llama", true), {"qwen3", false}}) {
    SCOPED_TRACE(name);
    const auto model = Model::Load(absl::StrCat("examples/engine/testdata/", name));
    ASSERT_TRUE(model.ok()) << model.status();
    PlainProducts products;
    const auto comparison = CompareWithCpu(*model, products, /*margin=*/0.05, masked);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    EXPECT_EQ(comparison->num_wrong, 0) << comparison->Text();
    EXPECT_LT(comparison->rms_error, 0.02) << comparison->Text();
    EXPECT_GT(comparison->num_tokens, 100);
    EXPECT_GT(comparison->num_graph_steps, 0);
    EXPECT_LT(comparison->num_graph_steps, comparison->num_steps);
  }
}

// The model is the host's, caches and attention the device's: the reference's answers.
class CudaPlaceTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kFew = 8;  // kernels are emulated

  static void ExpectGolden(const Model& model, const Settings& settings, Golden golden) {
    golden.KeepEvery(golden.num_requests() / kFew);
    const auto outcome = ServeGolden(model, settings, golden);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->served.result.num_finished, golden.num_requests());
    EXPECT_EQ(outcome->num_wrong_tokens, 0);
    EXPECT_LT(outcome->max_error, kTolerance);
  }
};

TEST_P(CudaPlaceTest, AnswersAsTheReference) {
  const std::string folder = absl::StrCat("examples/engine/testdata/", GetParam());
  const Model model = Model::Load(folder).value();
  Settings settings = OnGpu();
  settings.caches.block_size = 4;
  settings.scheduler.max_num_batched_tokens = 64;  // cuts prompts
  ExpectGolden(model, settings,
               Golden::HasMasks(folder) ? Golden::ReadMasked(folder) : Golden::Read(folder));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaPlaceTest,
                         ::testing::Values("llama", "qwen2", "qwen3_moe", "gemma3", "gemma2",
                                           "gpt_oss", "deepseek_v2_lite", "deepseek_v3",
                                           "deepseek_v32", "deepseek_v4"),
                         [](const auto& param) { return std::string(param.param); });

TEST(CudaBlendTest, AllComputedAgainIsTheFullPrefill) {
  const std::string folder = "examples/engine/testdata/qwen3";
  const Model model = Model::Load(folder).value();
  Golden golden = Golden::Read(folder);
  golden.KeepEvery(8);
  const Golden blended = golden.Blended();
  int64_t num_recomputed = 0;
  Settings settings = OnGpu();
  settings.runner.blend_ratio = 1;
  settings.runner.on_blend = [&](absl::Span<const attention::BlendLayerReport> layers) {
    num_recomputed += layers.back().recomputed_rows;
  };
  const auto outcome = ServeGolden(model, settings, blended);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->num_wrong_tokens, 0);
  EXPECT_LT(outcome->max_error, kTolerance);
  EXPECT_GT(num_recomputed, 50);
}

TEST(CudaRunnerTest, HeadsOfFastKernelsAnswerAsOnTheCpu) {
  const Model model = RandomModel(/*num_layers=*/2, /*hidden=*/64, /*num_heads=*/2,
                                  /*num_kv_heads=*/1, /*head_size=*/64, /*head_norms=*/true, 3);
  PlainProducts products;
  const auto comparison = CompareWithCpu(model, products, /*margin=*/0.05);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_EQ(comparison->num_wrong, 0) << comparison->Text();
  EXPECT_LT(comparison->rms_error, 0.02) << comparison->Text();
}

// The host copies what tiers hold, and cannot reach a device's memory.
TEST(CudaRunnerTest, TiersBehindDeviceMemoryAreRefused) {
  const Model model = RandomModel(/*num_layers=*/1, /*hidden=*/64, /*num_heads=*/2,
                                  /*num_kv_heads=*/1, /*head_size=*/64, /*head_norms=*/false, 3);
  PlainProducts products;
  const auto weights = DeviceWeights::Upload(model.config(), model.weights());
  ASSERT_TRUE(weights.ok()) << weights.status();
  Settings settings;
  settings.caches.model_dtype = DataType::kBFloat16;
  const auto serving = PlanServing(model.config().facts, settings);
  ASSERT_TRUE(serving.ok()) << serving.status();
  const auto runner =
      CudaRunner::Create(model.config(), *weights, products, serving->plan, serving->config, {});
  ASSERT_TRUE(runner.ok()) << runner.status();
  sim::TierConnector::Options options;
  options.tiers = sim::ParseTiers("host:1MiB:read=free").value();
  options.group_block_bytes.assign(serving->plan.groups.size(), 1024);
  const auto tiers = sim::TierConnector::Create(options).value();
  const auto served =
      ServeBy(**runner, model.config().facts.vocab_size, serving->plan, serving->config,
              TraceOf(RandomPrompts({5}, model.config().facts.vocab_size), 2), {}, tiers.get());
  EXPECT_EQ(served.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(served.status().message()), testing::HasSubstr("caches on cuda:0"));
}

TEST(CudaRunnerTest, ChunksAreRefused) {
  const Model model = RandomModel(/*num_layers=*/1, /*hidden=*/64, /*num_heads=*/2,
                                  /*num_kv_heads=*/1, /*head_size=*/64, /*head_norms=*/false, 3);
  PlainProducts products;
  const auto serving = PlanServing(model.config().facts, {});
  ASSERT_TRUE(serving.ok()) << serving.status();
  RunnerOptions options;
  options.requests["7"].keep = true;
  const auto runner =
      CudaRunner::Create(model.config(), {}, products, serving->plan, serving->config, options);
  EXPECT_EQ(runner.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(runner.status().message()), testing::HasSubstr("request 7: chunks are"));
}

TEST(CudaRunnerTest, OtherModelsAreRefused) {
  for (const char* name : {"gemma3", "deepseek_v4"}) {
    const auto model =
        ReadModelConfig(absl::StrCat("examples/engine/testdata/", name, "/config.json"));
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::Status status = DeviceWeights::Check(*model);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("not one with"));
  }
}

}  // namespace
}  // namespace kvblocks::engine
