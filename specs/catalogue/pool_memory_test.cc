#include "kvblocks/specs/catalogue/pool_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/specs/catalogue/catalogue.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

PoolMemory Llama8bPool() {
  PoolMemory memory;
  memory.device = *Catalogue::BuiltIn().FindDevice("h100-sxm");
  memory.model = *Catalogue::BuiltIn().FindModel("llama-3.1-8b");
  return memory;
}

constexpr int64_t kBlockBytes = 16 * 131072;

TEST(PoolMemoryTest, IsWhatWeightsAndReservesLeave) {
  // 72 - 16.06 - 2 - 1 = 52.94 GB; 72 - 8.03 - 2 - 1 = 60.97 GB.
  PoolMemory one = Llama8bPool();
  one.device.measured_memory_gb = 0;
  EXPECT_EQ(*CacheBytesInMemory(one) / kBlockBytes, 25243);
  PoolMemory two = one;
  two.tensor_parallel = 2;
  EXPECT_EQ(*CacheBytesInMemory(two) / (kBlockBytes / 2), 58145);
  // A drafter of 4 GB on two ranks.
  two.draft_weights_gb = 4;
  EXPECT_EQ(*CacheBytesInMemory(two) / (kBlockBytes / 2), 56238);
}

// D-6: ranks divide the experts, and each has all other weights.
TEST(PoolMemoryTest, DataParallelRanksDivideTheExperts) {
  PoolMemory memory = {.device = *Catalogue::BuiltIn().FindDevice("h200-sxm"),
                       .model = *Catalogue::BuiltIn().FindModel("deepseek-v3"),
                       .data_parallel = 8};
  const double routed = 58 * 256 * 3 * 7168.0 * 2048 / 1e9;
  EXPECT_NEAR(WeightGbPerDevice(memory), 671.03 - routed * 7 / 8, 1e-9);
  memory.tensor_parallel = 2;
  EXPECT_NEAR(WeightGbPerDevice(memory), (671.03 - routed * 7 / 8) / 2, 1e-9);
  memory.data_parallel = 1;
  EXPECT_NEAR(WeightGbPerDevice(memory), 671.03 / 2, 1e-9);
  // Without experts each has all.
  PoolMemory dense = Llama8bPool();
  dense.data_parallel = 4;
  EXPECT_EQ(*CacheBytesInMemory(dense), *CacheBytesInMemory(Llama8bPool()));
  dense.data_parallel = 0;
  EXPECT_THAT(CacheBytesInMemory(dense).status().message(), HasSubstr("data_parallel is 0"));
}

TEST(PoolMemoryTest, WhatADeviceReportsCounts) {
  // 79.19 GiB of the 80 GB: 0.9 x 85.03 - 16.06 - 2 - 1 = 57.47 GB.
  EXPECT_EQ(*CacheBytesInMemory(Llama8bPool()) / kBlockBytes, 27402);
}

TEST(PoolMemoryTest, MeasuredReservesFollowArchitectureAndRanks) {
  constexpr double kGib = 1.073741824;
  PoolMemory memory = Llama8bPool();
  SetMeasuredReserves(&memory);
  EXPECT_DOUBLE_EQ(memory.activation_gb, 1.89 * kGib);
  EXPECT_DOUBLE_EQ(memory.graph_gb, 0.27 * kGib);
  EXPECT_EQ(MeasuredReservesOf(memory.model, 1).source, "vLLM 0.19 on H100, llama");
  memory.tensor_parallel = 4;
  SetMeasuredReserves(&memory);
  EXPECT_DOUBLE_EQ(memory.activation_gb, 1.89 * kGib);
  EXPECT_DOUBLE_EQ(memory.graph_gb, 2.1 * kGib);
  // Not measured: as others of their kind.
  const ModelFacts glm = *Catalogue::BuiltIn().FindModel("glm-4.5");
  EXPECT_DOUBLE_EQ(MeasuredReservesOf(glm, 1).activation_gb, 2.5 * kGib);
  EXPECT_EQ(MeasuredReservesOf(glm, 1).source, "vLLM 0.19 on H100, any with experts");
}

TEST(PoolMemoryTest, NoRoomIsSaidWithTheSums) {
  PoolMemory memory = Llama8bPool();
  memory.model = *Catalogue::BuiltIn().FindModel("llama-3.1-70b");
  const auto bytes = CacheBytesInMemory(memory);
  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(bytes.status().message(), HasSubstr("weights 141.1 GB"));
}

TEST(PoolMemoryTest, BadFieldsAreRefused) {
  PoolMemory memory = Llama8bPool();
  memory.tensor_parallel = 0;
  EXPECT_THAT(CacheBytesInMemory(memory).status().message(), HasSubstr("tensor_parallel is 0"));
  memory = Llama8bPool();
  memory.utilization = 1.5;
  EXPECT_THAT(CacheBytesInMemory(memory).status().message(), HasSubstr("utilization is 1.5"));
  memory = Llama8bPool();
  memory.activation_gb = -1;
  EXPECT_THAT(CacheBytesInMemory(memory).status().message(), HasSubstr("activation_gb is -1"));
}

}  // namespace
}  // namespace kvblocks
