#include "kvblocks/specs/catalogue/default_scheduler_limits.h"

#include "gtest/gtest.h"
#include "kvblocks/specs/catalogue/catalogue.h"

namespace kvblocks {
namespace {

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

}  // namespace
}  // namespace kvblocks
