// Under ThreadSanitizer (--config=tsan) races of emulated threads are reported, and only races.
// Without it nobody reports, and what remains to be tested is what the kernels compute.

#include <atomic>
#include <vector>

#include "attention/cuda/device/cluster.h"
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/emulation/emulation.h"
#include "attention/cuda/emulation/races.h"
#include "gtest/gtest.h"

namespace {
std::atomic<int> reports{0};
}  // namespace

// ThreadSanitizer's hooks: reports are counted here and do not end the program with an error.
extern "C" void __tsan_on_report(void*) { ++reports; }
extern "C" const char* __tsan_default_options() { return "exitcode=0:suppress_equal_addresses=0"; }

namespace kvblocks::attention::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Reports while a kernel runs on one cluster of `cluster` blocks of kThreads threads, each of which
// writes an element of `out`.
int ReportsOf(void (*kernel)(int*), unsigned cluster, std::vector<int>& out) {
  out.assign(kThreads * cluster, -1);
  const int before = reports;
  EXPECT_EQ(Launch({.grid = dim3(cluster),
                    .block = dim3(kThreads),
                    .shared_bytes = 4096,
                    .cluster = cluster},
                   kernel, out.data()),
            cudaSuccess);
  return reports - before;
}
// Some, where somebody watches.
void ExpectRace(void (*kernel)(int*), unsigned cluster = 1) {
  std::vector<int> out;
  EXPECT_EQ(ReportsOf(kernel, cluster, out) > 0, emulation::races::Watched());
}
// None, and what the kernel is to compute.
template <typename Expected>
void ExpectNoRace(void (*kernel)(int*), const Expected& expected, unsigned cluster = 1) {
  std::vector<int> out;
  EXPECT_EQ(ReportsOf(kernel, cluster, out), 0);
  for (unsigned i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(expected(i))) << i;
}

// Each thread reads what thread x ^ kOther wrote; kOrder() is between.
template <unsigned kOther, void (*kOrder)()>
__global__ void Neighbours(int* out) {
  int* const shared = reinterpret_cast<int*>(DynamicSharedMemory());
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  kOrder();
  out[blockIdx.x * kThreads + threadIdx.x] = shared[threadIdx.x ^ kOther];
}

void Nothing() {}
void BlockBarrier() { __syncthreads(); }
void WarpBarrier() { __syncwarp(); }
void Vote() { __any_sync(kFullWarp, 1); }
void HalfBarriers() { NamedBarrierSync(1 + static_cast<int>(threadIdx.x) / 128, 128); }

TEST(RaceTest, SharedMemoryNeedsABarrierOfAllWhoUseIt) {
  ExpectRace(Neighbours<32, Nothing>);
  ExpectRace(Neighbours<32, WarpBarrier>);
  ExpectRace(Neighbours<128, HalfBarriers>);
  ExpectNoRace(Neighbours<32, BlockBarrier>, [](unsigned i) { return i ^ 32; });
  ExpectNoRace(Neighbours<1, WarpBarrier>, [](unsigned i) { return i ^ 1; });
  ExpectNoRace(Neighbours<64, HalfBarriers>, [](unsigned i) { return i ^ 64; });
}

TEST(RaceTest, VotesDoNotOrderMemory) { ExpectRace(Neighbours<1, Vote>); }

// A barrier at the end of a round is missing or there: the next round overwrites what others read.
template <bool kBarrier>
__global__ void Rounds(int* out) {
  int* const shared = reinterpret_cast<int*>(DynamicSharedMemory());
  int sum = 0;
  for (int round = 0; round < 3; ++round) {
    shared[threadIdx.x] = round;
    __syncthreads();
    sum += shared[threadIdx.x ^ 64];
    if (kBarrier) __syncthreads();
  }
  out[threadIdx.x] = sum;
}
TEST(RaceTest, ReadersOfARoundAreWaitedForBeforeTheNext) {
  ExpectRace(Rounds<false>);
  ExpectNoRace(Rounds<true>, [](unsigned) { return 0 + 1 + 2; });
}

// The first half fills a slot, the second empties it, eight times, by two barriers in shared
// memory.
template <bool kReadBeforeArriving>
__global__ void Pipeline(int* out) {
  int* const slot = reinterpret_cast<int*>(DynamicSharedMemory());
  const uint32_t full = SharedAddress(DynamicSharedMemory() + 2048), empty = full + 8;
  if (threadIdx.x == 0) {
    InitBarrier(full, kThreads / 2);
    InitBarrier(empty, kThreads / 2);
  }
  __syncthreads();
  int sum = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if (threadIdx.x < kThreads / 2) {
      if (i > 0) WaitAtBarrier(empty, (i - 1) & 1);
      slot[threadIdx.x] = static_cast<int>(i);
      ArriveAtBarrier(full);
    } else {
      WaitAtBarrier(full, i & 1);
      if (!kReadBeforeArriving) ArriveAtBarrier(empty);
      sum += slot[kThreads - 1 - threadIdx.x];
      if (kReadBeforeArriving) ArriveAtBarrier(empty);
    }
  }
  out[threadIdx.x] = sum;
}
TEST(RaceTest, BarriersInSharedMemoryOrderArrivalsBeforeTheEndOfTheirPhase) {
  ExpectRace(Pipeline<false>);
  ExpectNoRace(Pipeline<true>, [](unsigned i) { return i < kThreads / 2 ? 0 : 7 * 8 / 2; });
}

// What was copied is there for the thread that waited; for others, behind a barrier, too.
template <bool kBarrier>
__global__ void Copies(int* out) {
  static const int source[4] = {1, 2, 3, 4};
  CopyAsync16(SharedAddress(DynamicSharedMemory() + 16 * threadIdx.x), source);
  CommitCopies();
  WaitCopies<0>();
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = reinterpret_cast<const int*>(DynamicSharedMemory())[4 * (threadIdx.x ^ 32)];
}
TEST(RaceTest, CopiesAreWritesOfTheThreadThatWaits) {
  ExpectRace(Copies<false>);
  ExpectNoRace(Copies<true>, [](unsigned) { return 1; });
}

template <bool kBarrier>
__global__ void OtherBlock(int* out) {
  float4* const shared = reinterpret_cast<float4*>(DynamicSharedMemory());
  const float x = static_cast<float>(threadIdx.x);
  shared[threadIdx.x] = make_float4(x, x, x, x);
  if (kBarrier) ClusterSync();
  const float4 other =
      LoadFromCluster16(SharedAddress(&shared[threadIdx.x]), 1 - static_cast<int>(blockIdx.x));
  out[blockIdx.x * kThreads + threadIdx.x] = static_cast<int>(other.x == x);
  ClusterSync();
}
TEST(RaceTest, BlocksOfAClusterAreOrderedByItsBarrier) {
  ExpectRace(OtherBlock<false>, 2);
  ExpectNoRace(
      OtherBlock<true>, [](unsigned) { return 1; }, 2);
}

// Threads take numbers one after another.
__global__ void Count(int* out) {
  int* const shared = reinterpret_cast<int*>(DynamicSharedMemory());
  if (threadIdx.x == 0) *shared = 0;
  __syncthreads();
  const int number = atomicAdd(shared, 1);
  __syncthreads();
  out[threadIdx.x] = number >= 0 ? *shared : -1;
}
TEST(RaceTest, AtomicsAreNoRaces) {
  ExpectNoRace(Count, [](unsigned) { return kThreads; });
}

}  // namespace
}  // namespace kvblocks::attention::cuda
