#include "kvblocks/model_facts.h"

#include <cmath>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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

// 40 requests of 128k fit in eight H200s: 0.9 x 150.11 - 17.64 - 2.03 - 2.25 = 113.18 GB of each.
TEST(PoolMemoryTest, EightH200HoldFortyLongRequests) {
  PoolMemory memory = {.device = *Catalogue::BuiltIn().FindDevice("h200"),
                       .model = *Catalogue::BuiltIn().FindModel("llama-3.1-70b"),
                       .tensor_parallel = 8};
  EXPECT_EQ(std::llround(memory.device.usable_gb() * 1e9), 150'109'880'320);
  const MeasuredReserves measured = MeasuredReservesOf(memory.model, 8);
  memory.activation_gb = measured.activation_gb;
  memory.graph_gb = measured.other_gb;
  const int64_t bytes = *CacheBytesInMemory(memory);
  constexpr int64_t kBytesPerToken = 80 * 2 * 128;  // FP8, one head of each rank
  EXPECT_GE(bytes / kBytesPerToken, 40 * 131072);
}

TEST(PoolMemoryTest, MeasuredReservesFollowArchitectureAndRanks) {
  constexpr double kGib = 1.073741824;
  const ModelFacts llama = Llama8bPool().model;
  for (const int64_t ranks : {1, 4}) {
    const MeasuredReserves measured = MeasuredReservesOf(llama, ranks);
    EXPECT_DOUBLE_EQ(measured.activation_gb, 1.89 * kGib);
    EXPECT_DOUBLE_EQ(measured.other_gb, (ranks == 1 ? 0.27 : 2.1) * kGib);
    EXPECT_EQ(measured.source, "vLLM 0.19 on H100, llama");
  }
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

constexpr int64_t kGib = int64_t{1} << 30;

SchedulerLimits Of(int64_t bytes, std::string_view name = "some device",
                   EntryPoint entry_point = EntryPoint::kServer,
                   EngineVersion version = EngineVersion::kVllm033) {
  return DefaultSchedulerLimits({.device_memory_bytes = bytes,
                                 .device_name = name,
                                 .entry_point = entry_point,
                                 .version = version});
}

constexpr SchedulerLimits kSmallServer = {2048, 256};
constexpr SchedulerLimits kLargeServer = {8192, 1024};
constexpr SchedulerLimits kLargest = {16384, 1024};

TEST(DefaultSchedulerLimitsTest, GrowWithTheMemoryOfTheDevice) {
  // V-79
  EXPECT_EQ(Of(0), kSmallServer);
  EXPECT_EQ(Of(70 * kGib - 1), kSmallServer);
  EXPECT_EQ(Of(70 * kGib), kLargeServer);
  EXPECT_EQ(Of(160 * kGib - 1), kLargeServer);
  EXPECT_EQ(Of(160 * kGib), kLargest);
}

TEST(DefaultSchedulerLimitsTest, OfflineStepsAreLarger) {
  // V-79
  EXPECT_EQ(Of(24 * kGib, "", EntryPoint::kOffline), (SchedulerLimits{8192, 256}));
  EXPECT_EQ(Of(80 * kGib, "", EntryPoint::kOffline), (SchedulerLimits{16384, 1024}));
  EXPECT_EQ(Of(180 * kGib, "", EntryPoint::kOffline), kLargest);
}

TEST(DefaultSchedulerLimitsTest, SomeDevicesCountAsSmallWhateverTheirMemory) {
  // V-79
  EXPECT_EQ(Of(80 * kGib, "NVIDIA A100-SXM4-80GB"), kSmallServer);
  EXPECT_EQ(Of(80 * kGib, "a100-sxm-80g"), kSmallServer);
  EXPECT_EQ(Of(120 * kGib, "NVIDIA GB10"), kSmallServer);
  EXPECT_EQ(Of(80 * kGib, "a100", EntryPoint::kOffline), (SchedulerLimits{8192, 256}));
  EXPECT_EQ(Of(80 * kGib, "NVIDIA H100 80GB HBM3"), kLargeServer);
}

TEST(DefaultSchedulerLimitsTest, ThroughputModeDoublesBoth) {
  // V-79
  EXPECT_EQ(DefaultSchedulerLimits({.device_memory_bytes = 80 * kGib, .throughput_mode = true}),
            (SchedulerLimits{16384, 2048}));
  EXPECT_EQ(DefaultSchedulerLimits({.throughput_mode = true}), (SchedulerLimits{4096, 512}));
}

TEST(DefaultSchedulerLimitsTest, Version025KnowsTwoSizesOfDevices) {
  // V-79: the largest size came with 0.28.
  EXPECT_EQ(Of(180 * kGib, "b200", EntryPoint::kServer, EngineVersion::kVllm025), kLargeServer);
  EXPECT_EQ(Of(180 * kGib, "b200", EntryPoint::kOffline, EngineVersion::kVllm025), kLargest);
  EXPECT_EQ(Of(24 * kGib, "l4", EntryPoint::kServer, EngineVersion::kVllm025), kSmallServer);
}

TEST(DefaultSchedulerLimitsTest, DevicesOfTheCatalogueHaveTheirs) {
  // V-79
  const auto of = [](std::string_view name) {
    const absl::StatusOr<DeviceFacts> device = Catalogue::BuiltIn().FindDevice(name);
    EXPECT_TRUE(device.ok()) << name;
    return Of(device->memory_bytes(), device->name);
  };
  EXPECT_EQ(of("h100-sxm"), kLargeServer);
  EXPECT_EQ(of("h200-sxm"), kLargeServer);
  EXPECT_EQ(of("a100-sxm-80gb"), kSmallServer);
  EXPECT_EQ(of("b200"), kLargest);
  EXPECT_EQ(of("l40s"), kSmallServer);
}

TEST(LayerPatternTest, RepetitionsAreWrittenOut) {
  EXPECT_EQ(*ExpandLayerPattern("FSF"), "FSF");
  EXPECT_EQ(*ExpandLayerPattern("F*3"), "FFF");
  EXPECT_EQ(*ExpandLayerPattern("(SSF)*2 S"), "SSFSSFS");
  EXPECT_EQ(*ExpandLayerPattern("WW4 (H4)*2"), "WW4H4H4");
  EXPECT_EQ(*ExpandLayerPattern("(4H)*2 4"), "4H4H4");
  EXPECT_EQ(*ExpandLayerPattern("(FS) L"), "FSL");
  EXPECT_EQ(*ExpandLayerPattern(""), "");
  EXPECT_EQ(ExpandLayerPattern("F*10000")->size(), 10000);
}

TEST(LayerPatternTest, BadPatternsAreRefusedWithThePlace) {
  const std::pair<const char*, const char*> bad[] = {
      {"FX", "'X' at character 2"},
      {"F*", "the end at character 3"},
      {"F*0", "a number above 0"},
      {"(F", "the end at character 3"},
      {"()*2", "')' at character 2"},
      {"(F(S))*2", "'(' at character 3"},
      {"F*10001", "at most 10000"},
      {"F*9999 SS", "at most 10000"},
      {"(FS)*99999999999999999999", "at most 10000"},
      {"*3", "'*' at character 1"},
      {"f", "FSCMNW4H21RIL"},
  };
  for (const auto& [text, message] : bad) {
    const auto pattern = ExpandLayerPattern(text);
    ASSERT_EQ(pattern.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(pattern.status().message(), HasSubstr("layer_pattern: got "));
    EXPECT_THAT(pattern.status().message(), HasSubstr(message)) << text;
  }
}

TEST(LayerPatternTest, LettersAreCounted) {
  EXPECT_EQ(CountLetters("WW4H4", "4H"), 3);
  EXPECT_EQ(CountLetters("WW4H4", "F"), 0);
}

}  // namespace
}  // namespace kvblocks
