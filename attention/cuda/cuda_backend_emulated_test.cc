// When the backend CUDA is chosen, and when not. (Its layers: device_layers_test.cc.)

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention {
namespace {

using testing::HasSubstr;

constexpr DeviceId kDevice = {DeviceKind::kCuda, 0};

class CudaBackendTest : public testing::Test {
 protected:
  CudaBackendTest() {
    EXPECT_EQ(RegisterCpuBackends(registry_), absl::OkStatus());
    EXPECT_EQ(RegisterCudaBackend(registry_), absl::OkStatus());
  }
  static BackendConfig OnGpu() {
    BackendConfig config;
    config.device = kDevice;
    config.compute_capability = 90;
    return config;
  }
  std::string Selected(const BackendConfig& config) {
    const auto selected = SelectBackend(registry_, config);
    return selected.ok() ? (*selected)->name() : std::string(selected.status().message());
  }
  BackendRegistry registry_;
};

TEST_F(CudaBackendTest, TensorsOnGpusAndOnlyThoseAreItsOwn) {
  EXPECT_EQ(Selected(OnGpu()), "CUDA");
  EXPECT_EQ(Selected(BackendConfig()), "CPU");
  EXPECT_EQ(registry_.backends().front(), &CudaBackend());
  EXPECT_TRUE(absl::IsAlreadyExists(RegisterCudaBackend(registry_)));
}

TEST_F(CudaBackendTest, AllLayoutsWithTheirTypesAreServed) {
  for (const KvLayout layout :
       {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd, KvLayout::kMlaLatent,
        KvLayout::kMlaSplit, KvLayout::kMlaFp8_656, KvLayout::kMlaFp8_584}) {
    BackendConfig config = OnGpu();
    config.layout = layout;
    config.compute_capability = 80;
    config.head_size = IsMla(layout) ? 576 : 128;
    config.value_head_size = IsMla(layout) ? 512 : 0;
    config.graph_level = GraphLevel::kUniformBatch;
    if (IsMla(layout)) config.features = {Feature::kMla, Feature::kSparse};
    if (layout >= KvLayout::kMlaFp8_656) config.cache_dtype = DType::kU8;
    EXPECT_EQ(Selected(config), "CUDA");
  }
}

TEST_F(CudaBackendTest, WhatItHasNotIsNamed) {
  const auto refuse = [&](auto change, const char* words) {
    BackendConfig config = OnGpu();
    change(config);
    EXPECT_THAT(Selected(config), HasSubstr(words));
  };
  refuse([](auto& c) { c.compute_capability = 75; },
         "CUDA: [sm_75 not in sm_80 and later]; CPU: [tensors are on cuda:0]");
  refuse([](auto& c) { c.q_dtype = DType::kF64; }, "CUDA: [q dtype f64 not in {f32, f16, bf16}]");
  refuse([](auto& c) { c.cache_dtype = DType::kF64; }, "cache dtype f64");
  refuse([](auto& c) { c.head_size = 640; }, "CUDA: [head size 640 above 576]");
  refuse([](auto& c) { c.value_head_size = 577; }, "CUDA: [head size 128/577 above 576]");
  refuse([](auto& c) { c.graph_level = GraphLevel::kAlways; }, "CUDA: [graph level");
}

}  // namespace
}  // namespace kvblocks::attention
