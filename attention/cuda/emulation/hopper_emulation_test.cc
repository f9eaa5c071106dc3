// What the emulation of compute capability 9.0 finds: products, boxes and stores that nobody waited
// for; and what boxes are.

#include <cmath>
#include <cstring>
#include <vector>

#include "attention/cuda/device/bulk.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

// Where element `column` of a row of 64 is, permuted.
uint32_t Permuted(uint32_t row, uint32_t column) {
  return row * 128 + ((column / 8 ^ row % 8) << 4) + column % 8 * 2;
}
float ElementOfA(int row, int k) { return static_cast<float>((row + k) % 3); }
float ElementOfB(int k, int column) { return static_cast<float>((2 * column + k) % 5); }

enum class Mistake { kNone, kReadsEarly, kReusesEarly, kNeverWaits };

// How B lies, by how many bytes of a column are together along k.
int PlaceInB(int bytes, int column, int k) {
  if (bytes == 16) return column / 8 * 256 + k / 8 * 128 + column % 8 * 16 + k % 8 * 2;
  if (bytes == 32) return column * 32 + ((k / 8 ^ column / 4 % 2) << 4) + k % 8 * 2;
  return Permuted(column, k);
}
uint64_t MatrixB(int bytes, uint32_t at) {
  return bytes == 16   ? BricksAlongK(at, 128, 256)
         : bytes == 32 ? ShortRowsAlongK(at)
                       : RowsAlongK(at);
}

// A B for A 64 x 16, B 16 x 128 to c; by one warpgroup.
__global__ void ProductKernel(Mistake mistake, int bytes, float* c) {
  unsigned char* const shared = DynamicSharedMemory();
  unsigned char* const b = shared + 64 * 128;
  const int thread = static_cast<int>(threadIdx.x);
  const auto store = [](unsigned char* at, float value) {
    const uint16_t bits = Bf16::FromFloat(value);
    std::memcpy(at, &bits, 2);
  };
  for (int k = 0; k < 16; ++k) {
    if (thread < 64) store(shared + Permuted(thread, k), ElementOfA(thread, k));
    store(b + PlaceInB(bytes, thread, k), ElementOfB(k, thread));
  }
  __syncthreads();
  float d[16][4] = {};
  BeginProducts();
  MultiplyGroupShared<Bf16>(d, RowsAlongK(SharedAddress(shared)), MatrixB(bytes, SharedAddress(b)),
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

std::vector<float> Multiply(Mistake mistake, int bytes = 128) {
  std::vector<float> c(64 * 128, -1);
  EXPECT_EQ(Launch({.block = dim3(128), .shared_bytes = (64 + 128) * 128}, ProductKernel, mistake,
                   bytes, c.data()),
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

TEST(HopperEmulationTest, RowsAlongKLieInSeveralWays) {
  for (const int bytes : {16, 32}) {
    EXPECT_EQ(Multiply(Mistake::kNone, bytes), Multiply(Mistake::kNone));
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

// --- Boxes ---

enum class BoxMistake { kNone, kReadsEarly, kExpectsMore, kExpectsLess, kArrivesAgain };

// A warp copies the box at (x0, x1, x2, x3) of a tensor, 64 x 1 x 8 x 1 elements, and leaves its
// bytes in `out`. The barrier waits for its bytes and for two arrivals.
__global__ void BoxKernel(const TensorMap map, int x0, int x1, int x2, int x3, BoxMistake mistake,
                          uint16_t* out) {
  unsigned char* const shared = DynamicSharedMemory();
  const uint32_t barrier = SharedAddress(shared) + 1024;
  const auto read = [&] {
    for (int i = static_cast<int>(threadIdx.x); i < 512; i += 32) {
      std::memcpy(out + i, shared + 2 * i, 2);
    }
    __syncwarp();
  };
  if (threadIdx.x == 0) InitBarrier(barrier, 2);
  __syncwarp();
  if (ElectOne()) {
    const bool more = mistake == BoxMistake::kExpectsMore || mistake == BoxMistake::kArrivesAgain;
    const uint32_t bytes = more ? 1040 : mistake == BoxMistake::kExpectsLess ? 1008 : 1024;
    ArriveExpecting(barrier, bytes);
    CopyBox(SharedAddress(shared), map, x0, x1, x2, x3, barrier);
  }
  __syncwarp();
  if (mistake == BoxMistake::kReadsEarly) read();
  if (threadIdx.x == 0) {
    ArriveAtBarrier(barrier);
    if (mistake == BoxMistake::kArrivesAgain) ArriveAtBarrier(barrier);
  }
  if (mistake == BoxMistake::kReadsEarly) return;
  WaitAtBarrier(barrier, 0);
  read();
}

// 3 blocks of 16 rows of 2 heads of 72 elements, rows and blocks with gaps.
struct Boxes {
  std::vector<uint16_t> data;
  BoxedTensor tensor;
  Boxes() : data(3 * 3000) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint16_t>(i + 1);
    tensor.data = data.data();
    tensor.extents = {72, 2, 16, 3};
    tensor.strides = {80, 176, 3000};
    tensor.box = {64, 1, 8, 1};
  }
  std::vector<uint16_t> Copy(int x0, int x1, int x2, int x3,
                             BoxMistake mistake = BoxMistake::kNone) const {
    std::vector<uint16_t> out(512, 7);
    EXPECT_TRUE(FitsTensorMap(tensor));
    TensorMap map;
    std::memcpy(map.opaque, &tensor, sizeof(tensor));
    EXPECT_EQ(Launch({.block = dim3(32), .shared_bytes = 2048}, BoxKernel, map, x0, x1, x2, x3,
                     mistake, out.data()),
              cudaSuccess);
    std::vector<uint16_t> rows;
    for (int i = 0; i < 512; ++i) {
      rows.push_back(out[i ^ (i >> 6 & (tensor.permuted / 16 - 1)) << 3]);
    }
    return rows;
  }
  uint16_t At(int x0, int x1, int x2, int x3) const {
    const bool inside =
        x0 >= 0 && x0 < 72 && x1 >= 0 && x1 < 2 && x2 >= 0 && x2 < 16 && x3 >= 0 && x3 < 3;
    return inside ? data[x0 + 80 * x1 + 176 * x2 + 3000 * x3] : 0;
  }
};

TEST(HopperEmulationTest, BoxesAreCopiedWithZerosForWhatIsOutside) {
  Boxes boxes;
  const int places[][4] = {{0, 0, 0, 0},  {64, 1, 8, 2}, {-8, 1, 12, 1}, {0, 2, 0, 0},
                           {0, -1, 0, 0}, {0, 0, 0, 3},  {0, 0, 0, -1},  {0, 1, -3, 2}};
  for (const int32_t permuted : {128, 32, 16}) {
    boxes.tensor.permuted = permuted;
    // Of shorter rows there are more.
    const int row = permuted == 32 ? 16 : 64;
    boxes.tensor.box = {row, 1, 512 / row, 1};
    for (const auto& [x0, x1, x2, x3] : places) {
      const std::vector<uint16_t> rows = boxes.Copy(x0, x1, x2, x3);
      for (int i = 0; i < 512; ++i) {
        ASSERT_EQ(rows[i], boxes.At(x0 + i % row, x1, x2 + i / row, x3))
            << permuted << " " << x0 << " " << x3 << " " << i;
      }
    }
  }
}

TEST(HopperEmulationTest, ABoxIsNotThereBeforeItsPhaseIsOver) {
  const Boxes boxes;
  EXPECT_EQ(boxes.Copy(0, 0, 0, 0, BoxMistake::kReadsEarly), std::vector<uint16_t>(512, 0xffff));
}

TEST(HopperEmulationDeathTest, BytesAreAsManyAsBarriersExpect) {
  const Boxes boxes;
  const auto copy = [&](BoxMistake mistake) { boxes.Copy(0, 0, 0, 0, mistake); };
  EXPECT_DEATH(copy(BoxMistake::kExpectsMore), "deadlock");
  EXPECT_DEATH(copy(BoxMistake::kExpectsLess), "expects 1008 bytes and gets 1024");
  EXPECT_DEATH(copy(BoxMistake::kArrivesAgain), "more arrivals than the phase of a barrier has");
}

TEST(HopperEmulationTest, WhatTheCopyEngineDoesNotTake) {
  const auto fits = [](auto change) {
    Boxes boxes;
    change(boxes.tensor);
    return FitsTensorMap(boxes.tensor);
  };
  EXPECT_TRUE(fits([](BoxedTensor&) {}));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.data = nullptr; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.data = static_cast<const char*>(t.data) + 8; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.extents[3] = 0; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.extents[2] = int64_t{1} << 31; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.strides[0] = 0; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.strides[1] = -176; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.strides[1] = 4; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.strides[2] = int64_t{1} << 39; }));
  EXPECT_TRUE(fits([](BoxedTensor& t) { t.strides[2] = (int64_t{1} << 39) - 8; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.box[0] = 72; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.permuted = 32; }));
  EXPECT_TRUE(fits([](BoxedTensor& t) { t.permuted = 32, t.box[0] = 16; }));
  EXPECT_TRUE(fits([](BoxedTensor& t) { t.permuted = 16; }));
  EXPECT_FALSE(fits([](BoxedTensor& t) { t.box[2] = 0; }));
}

// --- Bulk stores ---

enum class StoreMistake { kNone, kOverwritesEarly, kNeverWaits, kNeverCommits };

__global__ void StoreKernel(StoreMistake mistake, int* out) {
  int* const shared = reinterpret_cast<int*>(DynamicSharedMemory());
  for (int i = 0; i < 4; ++i) shared[4 * threadIdx.x + i] = static_cast<int>(threadIdx.x);
  FenceForAsyncProxy();
  StoreBulk(out + 4 * threadIdx.x, SharedAddress(shared + 4 * threadIdx.x), 16);
  if (mistake != StoreMistake::kNeverCommits) CommitStores();
  if (mistake == StoreMistake::kOverwritesEarly) shared[4 * threadIdx.x] = -1;
  if (mistake != StoreMistake::kNeverWaits) WaitStoresHaveRead();
  shared[4 * threadIdx.x + 1] = -2;
}

std::vector<int> Store(StoreMistake mistake) {
  std::vector<int> out(128, 7);
  EXPECT_EQ(Launch({.block = dim3(32), .shared_bytes = 512}, StoreKernel, mistake, out.data()),
            cudaSuccess);
  return out;
}

TEST(HopperEmulationTest, BulkStoresReadWhatIsThereUntilTheyAreWaitedFor) {
  const std::vector<int> out = Store(StoreMistake::kNone);
  const std::vector<int> early = Store(StoreMistake::kOverwritesEarly);
  for (int i = 0; i < 128; ++i) {
    EXPECT_EQ(out[i], i / 4);
    EXPECT_EQ(early[i], i % 4 == 0 ? -1 : i / 4);
  }
}

TEST(HopperEmulationDeathTest, StoresThatNobodyWaitsForAreReported) {
  for (const StoreMistake mistake : {StoreMistake::kNeverWaits, StoreMistake::kNeverCommits}) {
    EXPECT_DEATH(Store(mistake), "ended with stores that it did not wait for");
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
