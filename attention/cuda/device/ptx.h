// Instructions that C++ has no function for, each with its emulation: asynchronous copies, matrix
// fragments, matrix products, named barriers, fast exponentials. Compute capability 8.0 and later.
//
// Shared memory is addressed as the instructions want it, by 32-bit addresses (SharedAddress); only
// dynamic shared memory may be. Fragment layouts are PTX's for m16n8k16: lane l has group g = l / 4
// and t = l % 4;
//   A (16 x 16): a[0] = rows g, columns 2t, 2t+1; a[1] = row g+8; a[2] = row g, columns 2t+8, 2t+9;
//                a[3] = row g+8, columns 2t+8, 2t+9
//   B (16 x 8):  b0 = rows (k) 2t, 2t+1 of column g; b1 = rows 2t+8, 2t+9
//   C (16 x 8):  c[0], c[1] = row g, columns 2t, 2t+1; c[2], c[3] = row g+8

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_PTX_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_PTX_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"

namespace kvblocks::attention::cuda {

#ifdef KVBLOCKS_CUDA_EMULATION

inline uint32_t SharedAddress(const void* at) {
  const ptrdiff_t offset = static_cast<const unsigned char*>(at) - DynamicSharedMemory();
  return static_cast<uint32_t>(offset);
}
namespace internal {
inline unsigned char* SharedPointer(uint32_t address) { return DynamicSharedMemory() + address; }
template <typename T>
T Copied(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
}  // namespace internal

#else

KVB_DEVICE uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

#endif

// --- Loads past L1 ---

// 16 bytes that nobody writes during the kernel and that are not read again by this multiprocessor.
KVB_DEVICE uint4 LoadStreaming16(const void* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return internal::Copied<uint4>(from);
#else
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
#endif
}

// 16 bytes that this multiprocessor does not read again. Unlike LoadStreaming16, also for what the
// kernel before wrote while this one had begun (WaitForPreviousKernel).
KVB_DEVICE uint4 LoadOnce16(const void* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return internal::Copied<uint4>(from);
#else
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
#endif
}

// Starts bringing the 128 bytes around an address into L2. Changes nothing that can be read.
KVB_DEVICE void PrefetchToL2(const void* address) {
#ifdef KVBLOCKS_CUDA_EMULATION
  static_cast<void>(address);
#else
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// Adds 1 and returns what was there: what this block wrote before its last barrier is seen by who
// finds a larger count, and the other way round.
KVB_DEVICE int CountArrival(int32_t* counter) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
#else
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
#endif
}

// What other blocks of the same kernel wrote before a fence: past L1, which may hold old bytes.
KVB_DEVICE float4 LoadFromOthers16(const void* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return internal::Copied<float4>(from);
#else
  float4 value;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from)
               : "memory");
  return value;
#endif
}
KVB_DEVICE float2 LoadFromOthers8(const void* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return internal::Copied<float2>(from);
#else
  float2 value;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(from)
               : "memory");
  return value;
#endif
}

KVB_DEVICE int32_t LoadFromOthers4(const int32_t* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return __atomic_load_n(from, __ATOMIC_RELAXED);
#else
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#endif
}
// A word of shared memory that others change meanwhile by atomic functions.
KVB_DEVICE uint32_t LoadShared4(uint32_t from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(internal::SharedPointer(from)),
                         __ATOMIC_RELAXED);
#else
  uint32_t value;
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
#endif
}

// What a word may become once WaitForPreviousKernel() is behind: good for a guess, which what is
// read behind it by LoadFromOthers4 must confirm. Leaves nothing in L1. The emulation is wrong now
// and then.
KVB_DEVICE int32_t LoadGuess(const int32_t* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const uint32_t random = emulation::NextRandom();
  return random >> 28 == 0 ? static_cast<int32_t>(random << 3) : *from;
#else
  return LoadFromOthers4(from);
#endif
}

// --- Asynchronous copies from global to shared memory, by thread ---

// 16 bytes, or zeros if not valid (then `from` is not read). Both aligned.
KVB_DEVICE void CopyAsync16(uint32_t to, const void* from, bool valid = true) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::QueueCopy(internal::SharedPointer(to), from, valid ? 16 : 0, valid ? 0 : 16);
#else
  asm volatile(
      "{\n"
      ".reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored;\n"
      "}" ::"r"(to),
      "l"(from), "r"(static_cast<uint32_t>(valid))
      : "memory");
#endif
}
// 8 bytes, as CopyAsync16.
KVB_DEVICE void CopyAsync8(uint32_t to, const void* from, bool valid = true) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::QueueCopy(internal::SharedPointer(to), from, valid ? 8 : 0, valid ? 0 : 8);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
#endif
}
// 4 bytes, which are there: a float beside others that are not wanted.
KVB_DEVICE void CopyAsync4(uint32_t to, const void* from) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::QueueCopy(internal::SharedPointer(to), from, 4, 0);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#endif
}
// The same of bytes that are read once: L2 keeps others rather than these. `policy` is OnceInL2().
KVB_DEVICE uint64_t OnceInL2() {
#ifdef KVBLOCKS_CUDA_EMULATION
  return 0;
#else
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
#endif
}
KVB_DEVICE void CopyAsync16Once(uint32_t to, const void* from, bool valid, uint64_t policy) {
#ifdef KVBLOCKS_CUDA_EMULATION
  static_cast<void>(policy);
  CopyAsync16(to, from, valid);
#else
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(from), "r"(valid ? 16 : 0), "l"(policy)
      : "memory");
#endif
}
// Closes a group of the copies made since the last.
KVB_DEVICE void CommitCopies() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::CommitCopies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until at most kPending groups of this thread are under way. Others' copies need a barrier, too.
template <int kPending>
KVB_DEVICE void WaitCopies() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::FinishCopies(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// --- Barriers ---

// Barrier 1 to 15 for a multiple of 32 threads of the block (0 is __syncthreads).
KVB_DEVICE void NamedBarrierSync(int id, int threads) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::BarrierSync(id, static_cast<unsigned>(threads));
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
KVB_DEVICE void NamedBarrierArrive(int id, int threads) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::BarrierArrive(id, static_cast<unsigned>(threads));
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// --- Overlap with neighbouring kernels of the stream (LaunchConfig::overlap_previous) ---

KVB_DEVICE void WaitForPreviousKernel() {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
KVB_DEVICE void AllowNextKernel() {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Both at once, where a kernel has nothing to do before.
KVB_DEVICE void OverlapNeighbours() {
  AllowNextKernel();
  WaitForPreviousKernel();
}

// --- Fast arithmetic ---

// 2^x, 2 ulp; 2^-infinity = 0.
KVB_DEVICE float Exp2(float x) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return std::exp2(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The larger of x and 0; a NaN stays one.
KVB_DEVICE float PositiveOrNan(float x) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return x < 0 ? 0.0f : x;
#else
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The larger of each of two unsigned 16-bit numbers.
KVB_DEVICE uint32_t MaxOfPairs(uint32_t a, uint32_t b) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const uint32_t low = (a & 0xffffu) > (b & 0xffffu) ? a : b;
  const uint32_t high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
#else
  return __vmaxu2(a, b);
#endif
}

// --- Bytes and codes ---

// Byte i of the result is byte (selector >> 4 i & 7) of the eight that a (0 to 3) and b (4 to 7)
// are.
KVB_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const uint64_t bytes = a | uint64_t{b} << 32;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
#else
  return __byte_perm(a, b, selector);
#endif
}
// Two e4m3 codes in the lower half, the first in the lowest byte.
KVB_DEVICE float2 E4m3PairToFloat(uint32_t codes) {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
  return F16::Unpack(pair);
#else
  return make_float2(E4m3::ToFloat(static_cast<uint8_t>(codes)),
                     E4m3::ToFloat(static_cast<uint8_t>(codes >> 8)));
#endif
}
// The same as a pair of T (Bf16 or F16), which hold every value of a code.
template <typename T>
KVB_DEVICE uint32_t E4m3PairTo(uint32_t codes) {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (!T::kIsBf16) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
    return pair;
  }
#endif
  const float2 values = E4m3PairToFloat(codes);
  return T::Pack(values.x, values.y);
}

// Four codes, the first in the lowest byte, as two pairs.
template <typename T>
KVB_DEVICE void E4m3FourTo(uint32_t codes, uint32_t& first, uint32_t& second) {
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (!T::kIsBf16) {
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n"
        "}"
        : "=r"(first), "=r"(second)
        : "r"(codes));
    return;
  }
#endif
  first = E4m3PairTo<T>(codes & 0xffff), second = E4m3PairTo<T>(codes >> 16);
}

// --- Matrix fragments ---

// Four 8 x 8 matrices of 16-bit elements; lane 8i + r gives the address of row r of matrix i (16
// bytes, aligned). Lane l gets elements 2 (l % 4), + 1 of row l / 4 of each; transposed: of column.
KVB_DEVICE void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto rows = emulation::Exchange(kFullWarp, "LoadMatrices", address);
  const unsigned lane = emulation::Lane();
  for (unsigned i = 0; i < 4; ++i) {
    std::memcpy(&r[i], internal::SharedPointer(rows[8 * i + lane / 4]) + 4 * (lane % 4), 4);
  }
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}
KVB_DEVICE void LoadMatricesTransposed(uint32_t (&r)[4], uint32_t address) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto rows = emulation::Exchange(kFullWarp, "LoadMatricesTransposed", address);
  const unsigned lane = emulation::Lane();
  for (unsigned i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned row = 2 * (lane % 4) + half;
      std::memcpy(&pair[half], internal::SharedPointer(rows[8 * i + row]) + 2 * (lane / 4), 2);
    }
    std::memcpy(&r[i], pair, 4);
  }
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

// An 8 x 8 matrix of 16-bit elements as LoadMatrices gives it, as LoadMatricesTransposed would
// have.
KVB_DEVICE uint32_t TransposeMatrix(uint32_t matrix) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto all = emulation::Exchange(kFullWarp, "TransposeMatrix", matrix);
  const unsigned row = emulation::Lane() / 4, column = emulation::Lane() % 4 * 2;
  // Element (column, row), then (column + 1, row).
  const uint32_t low = all[4 * column + row / 2] >> 16 * (row % 2) & 0xffffu;
  const uint32_t high = all[4 * (column + 1) + row / 2] >> 16 * (row % 2) & 0xffffu;
  return low | high << 16;
#else
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
#endif
}

// c += A B for elements of type T (Bf16 or F16), accumulated in float32; by the whole warp.
template <typename T>
KVB_DEVICE void MultiplyM16N8K16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef KVBLOCKS_CUDA_EMULATION
  // Each lane unpacks what it has, so that a value is unpacked once.
  struct Operands {
    float2 a[4], b[2];
  };
  const auto all = emulation::Exchange(
      kFullWarp, "MultiplyM16N8K16",
      Operands{{T::Unpack(a[0]), T::Unpack(a[1]), T::Unpack(a[2]), T::Unpack(a[3])},
               {T::Unpack(b0), T::Unpack(b1)}});
  const unsigned g = emulation::Lane() / 4, t = emulation::Lane() % 4;
  for (unsigned k4 = 0; k4 < 4; ++k4) {
    const Operands rows = all[4 * g + k4];
    for (unsigned column = 0; column < 2; ++column) {
      const Operands columns = all[4 * (2 * t + column) + k4];
      for (unsigned half = 0; half < 2; ++half) {
        const float2 a_low = rows.a[2 * half], a_high = rows.a[2 * half + 1];
        const float2 b = columns.b[half];
        c[column] += a_low.x * b.x + a_low.y * b.y;
        c[2 + column] += a_high.x * b.x + a_high.y * b.y;
      }
    }
  }
#else
  if constexpr (T::kIsBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_PTX_H_
