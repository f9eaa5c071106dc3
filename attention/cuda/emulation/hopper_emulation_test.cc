// What the emulation of compute capability 9.0 finds: products that nobody waited for.

#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/hopper.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"

namespace kvblocks::attention::cuda {
namespace {

// Where element `column` of a row of 64 is, permuted.
uint32_t Permuted(uint32_t row, uint32_t column) {
  return row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2;
}
float ElementOfA(int row, int k) { return static_cast<float>((row + k) % 3); }
float ElementOfB(int k, int column) { return static_cast<float>((2 * column + k) % 5); }

enum class Mistake { kNone, kReadsEarly, kReusesEarly, kNeverWaits };

// A B for A 64 x 16, B 16 x 128 to c; by one warpgroup.
__global__ void ProductKernel(Mistake mistake, float* c) {
  unsigned char* const shared = DynamicSharedMemory();
  unsigned char* const b = shared + 64 * 128;
  const int thread = static_cast<int>(threadIdx.x);
  const auto store = [](unsigned char* at, float value) {
    const uint16_t bits = Bf16::FromFloat(value);
    std::memcpy(at, &bits, 2);
  };
  for (int k = 0; k < 16; ++k) {
    if (thread < 64) store(shared + Permuted(thread, k), ElementOfA(thread, k));
    store(b + Permuted(thread, k), ElementOfB(k, thread));
  }
  __syncthreads();
  float d[16][4] = {};
  BeginProducts();
  MultiplyGroupShared<Bf16>(d, RowsAlongK(SharedAddress(shared)), RowsAlongK(SharedAddress(b)),
                            false);
  CommitProducts();
  if (mistake == Mistake::kReusesEarly) {
    __syncthreads();
    store(b + Permuted(thread, 0), 100);
    __syncthreads();
  }
  if (mistake == Mistake::kNeverWaits) return;
  if (mistake != Mistake::kReadsEarly) WaitProducts<0>();
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 4; ++i) c[(row + i / 2 * 8) * 128 + 8 * j + column + i % 2] = d[j][i];
  }
  WaitProducts<0>();
}

std::vector<float> Multiply(Mistake mistake) {
  std::vector<float> c(64 * 128, -1);
  EXPECT_EQ(Launch({.block = dim3(128), .shared_bytes = (64 + 128) * 128}, ProductKernel, mistake,
                   c.data()),
            cudaSuccess);
  return c;
}

TEST(HopperEmulationTest, ProductsAreThereAfterTheWait) {
  const std::vector<float> c = Multiply(Mistake::kNone);
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 128; ++column) {
      float expected = 0;
      for (int k = 0; k < 16; ++k) expected += ElementOfA(row, k) * ElementOfB(k, column);
      ASSERT_EQ(c[row * 128 + column], expected) << row << ", " << column;
    }
  }
}

TEST(HopperEmulationTest, AccumulatorsReadBeforeTheWaitAreNan) {
  for (const float value : Multiply(Mistake::kReadsEarly)) ASSERT_TRUE(std::isnan(value));
}

TEST(HopperEmulationTest, OperandsOverwrittenBeforeTheWaitAreSeen) {
  EXPECT_NE(Multiply(Mistake::kReusesEarly), Multiply(Mistake::kNone));
}

TEST(HopperEmulationTest, FourCodesAreInTheOrderOfTheirBytes) {
  // 1, -448, the smallest, NaN.
  float2 values[2];
  E4m3FourToFloat(0x7f01fe38u, values);
  EXPECT_EQ(values[0].x, 1.0f);
  EXPECT_EQ(values[0].y, -448.0f);
  EXPECT_EQ(values[1].x, 0x1p-9f);
  EXPECT_TRUE(std::isnan(values[1].y));
}

TEST(HopperEmulationTest, PairsOfBfloat16AreMultipliedEach) {
  const auto product = [](float a, float b, float c, float d) {
    return Bf16::Unpack(MultiplyBf16Pairs(Bf16::Pack(a, b), Bf16::Pack(c, d)));
  };
  EXPECT_EQ(product(3, -5, 0.5f, 7).x, 1.5f);
  EXPECT_EQ(product(3, -5, 0.5f, 7).y, -35.0f);
  // Subnormal factors and products, rounded to even; what is too large.
  EXPECT_EQ(product(448, 1.75f, 0x1p-127f, 0x1p-127f).x, 1.75f * 0x1p-119f);
  EXPECT_EQ(product(448, 1.75f, 0x1p-127f, 0x1p-127f).y, 1.75f * 0x1p-127f);
  EXPECT_EQ(product(1.5f, 0x1p-9f, 0x1p-133f, 0x1p-127f).x, 0x1p-132f);
  EXPECT_EQ(product(1.5f, 0x1p-9f, 0x1p-133f, 0x1p-127f).y, 0.0f);
  EXPECT_TRUE(std::isinf(product(448, 1, 0x1p127f, 1).x));
}

TEST(HopperEmulationDeathTest, AThreadThatNeverWaitsIsReported) {
  EXPECT_DEATH(Multiply(Mistake::kNeverWaits), "ended with products that it did not wait for");
}

}  // namespace
}  // namespace kvblocks::attention::cuda
