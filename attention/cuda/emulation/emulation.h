// A GPU on the host: runs kernels written for CUDA, one block after another, each thread a fiber.
//
// What it is for: every kernel's logic is tested where there is no GPU, under AddressSanitizer, and
// deterministically. What it finds beyond wrong results: reads and writes outside of allocations
// and of dynamic shared memory, asynchronous copies and products that are used before they were
// waited for (they happen at the wait), boxes whose bytes are not what their barrier expects, lanes
// that meet in different operations, deadlocks (reported with where each warp waits), and, with
// KVBLOCKS_EMULATION_SEED=n in the environment, missing barriers: warps then run in random order.
// Dynamic shared memory starts as 0xFF bytes, NaN in every floating type.
//
// Races: under ThreadSanitizer (--config=tsan) each thread of a cluster is a thread to it, ordered
// with others by barriers, __syncwarp and barriers in shared memory alone, so that it reports two
// threads that use the same memory, one of them writing, with nothing of these between, in whatever
// order they ran. Other operations of warps order nothing, as PTX has it. Clusters of a grid count
// as ordered, and so do kernels.
//
// What it does not know: time, occupancy, bank conflicts, order between proxies (generic and
// asynchronous), alignment beyond what the host checks, rounding inside a matrix instruction (here:
// float32 sums).
//
// A fiber runs until it waits. Threads of a warp are not in lockstep between warp operations. One
// cluster at a time per host thread, its blocks in turn; clusters must not wait for each other.

#ifndef KVBLOCKS_ATTENTION_CUDA_EMULATION_EMULATION_H_
#define KVBLOCKS_ATTENTION_CUDA_EMULATION_EMULATION_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "absl/functional/function_ref.h"

// --- CUDA's words ---

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static thread_local

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned the_x = 1, unsigned the_y = 1, unsigned the_z = 1)
      : x(the_x), y(the_y), z(the_z) {}
};

#define KVB_VECTOR_TYPES(T, name)                                              \
  struct alignas(2 * sizeof(T)) name##2 {                                      \
    T x, y;                                                                    \
  };                                                                           \
  struct alignas(4 * sizeof(T)) name##4 {                                      \
    T x, y, z, w;                                                              \
  };                                                                           \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                   \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
KVB_VECTOR_TYPES(float, float)
KVB_VECTOR_TYPES(int, int)
KVB_VECTOR_TYPES(unsigned, uint)
#undef KVB_VECTOR_TYPES

using cudaError_t = int;
using cudaStream_t = void*;
inline constexpr cudaError_t cudaSuccess = 0;
inline constexpr cudaError_t cudaErrorInvalidConfiguration = 9;

namespace kvblocks::attention::cuda::emulation {

// The largest grid is bounded by patience; a block has at most 1024 threads, a cluster 16 blocks.
cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes, absl::FunctionRef<void()> thread,
                    unsigned cluster = 1);

// --- What a running thread sees ---

struct ThreadIndices {
  dim3 thread, block;
};
const ThreadIndices& Indices();
dim3 BlockDim();
dim3 GridDim();
unsigned char* DynamicShared();
size_t DynamicSharedBytes();
// Position in the block and in the warp.
unsigned LinearThread();
inline unsigned Lane() { return LinearThread() % 32; }

// --- Meeting other threads ---

inline constexpr size_t kMaxPayload = 256;
// Leaves `bytes` of this lane and waits until all lanes of `mask` that still run have left theirs,
// for the same operation. Returns an array of 32 payloads with a stride of kMaxPayload, valid until
// this lane's next meeting but one.
const unsigned char* MeetWarp(unsigned mask, const char* operation, const void* payload,
                              size_t bytes);
// The same among the 128 threads of a warpgroup (4 warps from a multiple of 4): 128 payloads.
const unsigned char* MeetWarpgroup(const char* operation, const void* payload, size_t bytes);

template <typename T>
class Payloads {
 public:
  explicit Payloads(const unsigned char* data) : data_(data) {}
  T operator[](unsigned lane) const {
    T value;
    std::memcpy(&value, data_ + lane * kMaxPayload, sizeof(T));
    return value;
  }

 private:
  const unsigned char* data_;
};
template <typename T>
Payloads<T> Exchange(unsigned mask, const char* operation, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxPayload);
  return Payloads<T>(MeetWarp(mask, operation, &value, sizeof(T)));
}

// Barrier `id` of the block (0 to 15) for `threads` arrivals; 0: all threads that still run.
void BarrierSync(int id, unsigned threads);
void BarrierArrive(int id, unsigned threads);

// All threads of the cluster; one that has returned is missed, which ends in a deadlock's report.
void ClusterSync();
// Dynamic shared memory of block `rank` of the cluster, which must not have ended.
const unsigned char* ClusterShared(int rank, size_t offset, size_t bytes);

// A barrier in 8 bytes of shared memory: phases of a fixed number of arrivals, each of which may
// let its phase last until so many more bytes of boxes have come.
struct Phases {
  uint16_t expected, pending;
  uint32_t phase;
};
void InitPhases(Phases* at, unsigned arrivals);
void ArriveAtPhase(Phases* at);
void ArriveExpecting(Phases* at, unsigned bytes);
// Whether phase number n is over, given n's lowest bit; the other waits until it is.
bool PhaseIsOver(const Phases* at, uint32_t parity);
void WaitForPhase(const Phases* at, uint32_t parity);

// For guesses.
uint32_t NextRandom();

// --- Asynchronous copies of this thread: they happen when they are waited for ---

void QueueCopy(unsigned char* to, const void* from, size_t copied, size_t zeroed);
void CommitCopies();
// Until at most `pending` groups are left.
void FinishCopies(unsigned pending);

// --- Boxes of tensors: they are copied when the phase ends that waits for their bytes ---

// Of a tensor of 16-bit elements, the first of its four dimensions contiguous; coordinates of the
// first element, which may be outside.
struct Box {
  const void* data;
  std::array<int64_t, 4> extents;
  std::array<int64_t, 3> strides;
  std::array<int32_t, 4> box, at;
  int32_t permuted;  // bytes
};
// To shared memory, 16-byte pieces permuted by bits of their addresses from bit 7 on, as many as
// choose among the pieces of `permuted` bytes; until the phase is over there are 0xFF bytes. It
// ends once all arrivals and as many bytes as they expect have come.
void QueueBox(const Box& box, unsigned char* to, Phases* barrier);

// --- Stores of this thread by the copy engine: shared memory is read when they are waited for ---

void QueueStore(void* to, const unsigned char* from, size_t bytes);
void CommitStores();
void FinishStores();  // of all groups

// --- Products of this thread's warpgroup: they happen when they are waited for ---

// `multiply` changes `count` accumulators, which are NaN until all products on them are done.
void QueueProduct(float* accumulators, size_t count, std::function<void(float*)> multiply);
void CommitProducts();
void FinishProducts(unsigned pending);

}  // namespace kvblocks::attention::cuda::emulation

// --- CUDA's functions ---

#define threadIdx (::kvblocks::attention::cuda::emulation::Indices().thread)
#define blockIdx (::kvblocks::attention::cuda::emulation::Indices().block)
#define blockDim (::kvblocks::attention::cuda::emulation::BlockDim())
#define gridDim (::kvblocks::attention::cuda::emulation::GridDim())

inline void __syncthreads() { ::kvblocks::attention::cuda::emulation::BarrierSync(0, 0); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  ::kvblocks::attention::cuda::emulation::Exchange(mask, "__syncwarp", 0);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = ::kvblocks::attention::cuda::emulation::Lane();
  const unsigned base = lane & ~(width - 1u);
  return ::kvblocks::attention::cuda::emulation::Exchange(mask, "__shfl_sync",
                                                          value)[base + (source & (width - 1))];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const unsigned lane = ::kvblocks::attention::cuda::emulation::Lane();
  const unsigned other = lane ^ lanes;
  const bool inside = (other & ~(width - 1u)) <= (lane & ~(width - 1u));
  return ::kvblocks::attention::cuda::emulation::Exchange(mask, "__shfl_xor_sync",
                                                          value)[inside ? other : lane];
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = ::kvblocks::attention::cuda::emulation::Lane();
  const bool inside = (lane & (width - 1u)) >= delta;
  return ::kvblocks::attention::cuda::emulation::Exchange(mask, "__shfl_up_sync",
                                                          value)[inside ? lane - delta : lane];
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = ::kvblocks::attention::cuda::emulation::Lane();
  const bool inside = (lane & (width - 1u)) + delta < static_cast<unsigned>(width);
  return ::kvblocks::attention::cuda::emulation::Exchange(mask, "__shfl_down_sync",
                                                          value)[inside ? lane + delta : lane];
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const auto all = ::kvblocks::attention::cuda::emulation::Exchange(mask, "__ballot_sync",
                                                                    predicate != 0 ? 1 : 0);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && all[lane] != 0) bits |= 1u << lane;
  }
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) {
  return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline int __float_as_int(float value) { return static_cast<int>(__float_as_uint(value)); }
inline float __expf(float value) { return std::exp(value); }
inline float __logf(float value) { return std::log(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Fibers of one host thread run one at a time; these are atomic for ThreadSanitizer's sake.
// Integers.
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}
template <typename T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}

#endif  // KVBLOCKS_ATTENTION_CUDA_EMULATION_EMULATION_H_
