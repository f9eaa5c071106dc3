#include "attention/cuda/emulation/emulation.h"

#include <cmath>
#include <vector>

#include "attention/cuda/device/cluster.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/tensor/small_floats.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

__global__ void IndexKernel(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  const unsigned threads = blockDim.x * blockDim.y;
  const unsigned thread = threadIdx.x + blockDim.x * threadIdx.y;
  out[block * threads + thread] += static_cast<int>(block * 1000 + thread);
}

TEST(EmulationTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> out(6 * 96, 0);
  ASSERT_EQ(Launch({.grid = dim3(3, 2), .block = dim3(48, 2)}, IndexKernel, out.data()),
            cudaSuccess);
  for (int i = 0; i < 6 * 96; ++i) EXPECT_EQ(out[i], i / 96 * 1000 + i % 96);
}

__global__ void ReduceKernel(const float* in, int n, float* out) {
  __shared__ float partial[8];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += in[i];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) all += partial[w];
    *out = all;
  }
}

TEST(EmulationTest, ShufflesAndBarriersReduceABlock) {
  std::vector<float> in(1000);
  for (int i = 0; i < 1000; ++i) in[i] = static_cast<float>(i);
  float out = 0;
  ASSERT_EQ(Launch({.block = dim3(256)}, ReduceKernel, in.data(), 1000, &out), cudaSuccess);
  EXPECT_EQ(out, 499500.0f);
}

__global__ void LaneKernel(unsigned* out) {
  const unsigned lane = threadIdx.x;
  out[lane] = __ballot_sync(kFullWarp, lane % 3 == 0);
  out[32 + lane] = __shfl_up_sync(kFullWarp, lane, 1);
  out[64 + lane] = __shfl_down_sync(kFullWarp, lane, 4, 8);
  // The two halves meet separately, in different operations.
  if (lane < 16) {
    out[96 + lane] = __shfl_xor_sync(0x0000ffffu, lane, 1);
  } else {
    out[96 + lane] = __ballot_sync(0xffff0000u, 1);
  }
}

TEST(EmulationTest, WarpOperationsFollowTheirMasksAndWidths) {
  std::vector<unsigned> out(128);
  ASSERT_EQ(Launch({}, LaneKernel, out.data()), cudaSuccess);
  for (unsigned lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane], 0x49249249u);
    EXPECT_EQ(out[32 + lane], lane == 0 ? 0 : lane - 1);
    EXPECT_EQ(out[64 + lane], lane % 8 + 4 < 8 ? lane + 4 : lane);
    EXPECT_EQ(out[96 + lane], lane < 16 ? lane ^ 1 : 0xffff0000u);
  }
}

// One 16 x 8 x 16 product through shared memory, by the instructions that kernels use.
__global__ void DotKernel(const uint16_t* a, const uint16_t* b, float* c) {
  unsigned char* shared = DynamicSharedMemory();
  const unsigned lane = threadIdx.x;
  const uint32_t a_at = SharedAddress(shared), b_at = SharedAddress(shared + 512);
  CopyAsync16(a_at + 16 * lane, a + 8 * lane);
  if (lane < 16) CopyAsync16(b_at + 16 * lane, b + 8 * lane);
  CommitCopies();
  WaitCopies<0>();
  __syncwarp();
  uint32_t fa[4], fb[4];
  // A [16][16]: matrices in the order rows 0-7, rows 8-15, then the upper columns.
  LoadMatrices(fa, a_at + 32 * (lane % 16) + 16 * (lane / 16));
  // B [16][8], row-major by k: transposed loads give pairs along k.
  LoadMatricesTransposed(fb, b_at + 16 * (lane % 16));
  float d[4] = {0, 0, 0, 0};
  MultiplyM16N8K16<Bf16>(d, fa, fb[0], fb[1]);
  const unsigned g = lane / 4, t = lane % 4;
  c[g * 8 + 2 * t] = d[0];
  c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2];
  c[(g + 8) * 8 + 2 * t + 1] = d[3];
}

TEST(EmulationTest, MatrixInstructionsMultiply) {
  std::vector<uint16_t> a(256), b(128);
  for (int i = 0; i < 256; ++i) a[i] = DoubleToBF16(std::sin(i));
  for (int i = 0; i < 128; ++i) b[i] = DoubleToBF16(std::cos(3 * i));
  std::vector<float> c(128);
  ASSERT_EQ(Launch({.shared_bytes = 768}, DotKernel, a.data(), b.data(), c.data()),
            cudaSuccess);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      double sum = 0;
      for (int k = 0; k < 16; ++k) {
        sum += BF16ToDouble(a[row * 16 + k]) * BF16ToDouble(b[k * 8 + column]);
      }
      EXPECT_NEAR(c[row * 8 + column], sum, 1e-5) << row << ", " << column;
    }
  }
}

__global__ void UnwaitedCopyKernel(const float4* from, float* before, float* after) {
  unsigned char* shared = DynamicSharedMemory();
  CopyAsync16(SharedAddress(shared), from);
  CommitCopies();
  CopyAsync16(SharedAddress(shared + 16), from, false);
  CommitCopies();
  WaitCopies<1>();
  before[0] = reinterpret_cast<float*>(shared)[0];
  before[1] = reinterpret_cast<float*>(shared)[4];
  WaitCopies<0>();
  after[0] = reinterpret_cast<float*>(shared)[4];
}

TEST(EmulationTest, CopiesArriveWhenTheyAreWaitedFor) {
  const float4 from = make_float4(7, 8, 9, 10);
  float before[2], after[1];
  ASSERT_EQ(Launch({.block = dim3(1), .shared_bytes = 32}, UnwaitedCopyKernel, &from, &before[0],
                   &after[0]),
            cudaSuccess);
  EXPECT_EQ(before[0], 7);
  EXPECT_TRUE(std::isnan(before[1]));  // not waited for: still what shared memory starts with
  EXPECT_EQ(after[0], 0);              // not valid: zeros
}

__global__ void PingPongKernel(int* out) {
  __shared__ int value;
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int turn = 0; turn < 4; ++turn) {
    if (turn % 2 == warp) {
      if (turn > 0) NamedBarrierSync(1 + (turn - 1) % 2, 64);
      if (threadIdx.x % 32 == 0) value = turn == 0 ? 1 : value * 10 + turn;
      __syncwarp();
      NamedBarrierArrive(1 + turn % 2, 64);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *out = value;
}

TEST(EmulationTest, NamedBarriersOrderWarps) {
  int out = 0;
  ASSERT_EQ(Launch({.block = dim3(64)}, PingPongKernel, &out), cudaSuccess);
  EXPECT_EQ(out, 1123);
}

__global__ void EarlyExitKernel(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  const unsigned mask = __ballot_sync(kFullWarp, 1);
  if (threadIdx.x == 32) *out = __popc(mask & 0xffu);
}

TEST(EmulationTest, ThreadsThatReturnedAreNotWaitedFor) {
  int out = 0;
  ASSERT_EQ(Launch({.block = dim3(64)}, EarlyExitKernel, &out), cudaSuccess);
  EXPECT_EQ(out, 8);
}

__global__ void DeadlockKernel() {
  if (threadIdx.x < 32) NamedBarrierSync(3, 64);
}

TEST(EmulationDeathTest, ADeadlockIsReported) {
  EXPECT_DEATH((void)Launch({.block = dim3(64)}, DeadlockKernel), "deadlock.*\n.*a barrier");
}

// Leaves a number per thread, and adds up what the blocks of the cluster left.
__global__ void ClusterKernel(float* out, int early) {
  float4* own = reinterpret_cast<float4*>(DynamicSharedMemory()) + threadIdx.x;
  const float value = static_cast<float>(100 * blockIdx.x + threadIdx.x);
  *own = make_float4(value, 0, 0, 1);
  if (static_cast<int>(blockIdx.x) == early) return;
  ClusterSync();
  float4 sum = make_float4(0, 0, 0, 0);
  for (int rank = 0; rank < 4; ++rank) {
    const float4 there = LoadFromCluster16(SharedAddress(own), rank);
    sum.x += there.x, sum.w += there.w;
    sum.y += LoadFromCluster8(SharedAddress(own), rank).x;
  }
  if (early != -2) ClusterSync();
  out[blockIdx.x * 64 + threadIdx.x] = sum.x + sum.y + sum.w;
}

TEST(EmulationTest, BlocksOfAClusterReadEachOther) {
  std::vector<float> out(8 * 64, 0);
  const LaunchConfig config = {
      .grid = dim3(8), .block = dim3(64), .shared_bytes = 1024, .cluster = 4};
  ASSERT_EQ(Launch(config, ClusterKernel, out.data(), -1), cudaSuccess);
  for (int i = 0; i < 8 * 64; ++i) {
    EXPECT_EQ(out[i], 2 * (i < 256 ? 600 : 2200) + 8 * (i % 64) + 4) << i;
  }
}

TEST(EmulationDeathTest, ClustersAreWatched) {
  std::vector<float> out(8 * 64, 0);
  LaunchConfig config = {.grid = dim3(8), .block = dim3(64), .shared_bytes = 1024, .cluster = 4};
  EXPECT_DEATH((void)Launch(config, ClusterKernel, out.data(), 1),
               "deadlock.*\n.*a barrier of the cluster");
  EXPECT_DEATH((void)Launch(config, ClusterKernel, out.data(), -2), "a block that has ended");
  config.cluster = 2;
  EXPECT_DEATH((void)Launch(config, ClusterKernel, out.data(), -1), "no block 2 in the cluster");
  config.cluster = 3;
  EXPECT_NE(Launch(config, ClusterKernel, out.data(), -1), cudaSuccess);
}

TEST(EmulationTest, ImpossibleLaunchesAreRefused) {
  int out = 0;
  EXPECT_NE(Launch({.block = dim3(2048)}, PingPongKernel, &out), cudaSuccess);
  EXPECT_NE(Launch({.shared_bytes = 1 << 20}, PingPongKernel, &out), cudaSuccess);
}

TEST(NumbersTest, CodesAgreeWithTheReferenceConversions) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    const double e4m3 = E4M3ToDouble(bits), e5m2 = E5M2ToDouble(bits);
    if (std::isnan(e4m3)) {
      EXPECT_TRUE(std::isnan(E4m3::ToFloat(bits)));
    } else {
      EXPECT_EQ(E4m3::ToFloat(bits), e4m3) << code;
    }
    if (std::isnan(e5m2)) {
      EXPECT_TRUE(std::isnan(E5m2::ToFloat(bits)));
    } else {
      EXPECT_EQ(E5m2::ToFloat(bits), e5m2) << code;
    }
    if (code != 255) {
      EXPECT_EQ(E8m0ToFloat(bits), E8M0ToDouble(bits)) << code;
    }
  }
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

TEST(NumbersTest, EncodingAgreesWithTheReferenceConversions) {
  // Every float with a zero lower half, and its neighbours: all ties of all narrower types.
  for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0xffffu, 0x8000u, 0x8001u}) {
      const float value = __uint_as_float(upper << 16 | lower);
      if (std::isnan(value)) {
        EXPECT_EQ(E4m3::FromFloat(value) & 0x7f, 0x7f);
        EXPECT_TRUE(std::isnan(E5M2ToDouble(E5m2::FromFloat(value))));
        EXPECT_EQ(Int8::FromFloat(value), 0);
        continue;
      }
      ASSERT_EQ(E4m3::FromFloat(value), DoubleToE4M3(value)) << value;
      ASSERT_EQ(E5m2::FromFloat(value), DoubleToE5M2(value)) << value;
      ASSERT_EQ(static_cast<int8_t>(Int8::FromFloat(value)), DoubleToInt8Code(value)) << value;
      ASSERT_EQ(Bf16::FromFloat(value), DoubleToBF16(value)) << value;
      ASSERT_EQ(F16::FromFloat(value), DoubleToF16(value)) << value;
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
