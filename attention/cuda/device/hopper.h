// Instructions of compute capability 9.0 (sm_90a), each with its emulation: barriers in shared
// memory, products of warpgroups, registers moved between warpgroups, pairs of bfloat16.
//
// A warpgroup is 4 warps from a multiple of 4; its instructions are executed by all of its 128
// threads together. Accumulators of a product with N columns are N / 8 tiles of 8 columns, each as
// in MultiplyM16N8K16, warp w having rows 16 w to 16 w + 15 of 64. The emulation multiplies when a
// thread waits: until then accumulators are NaN, and operands in shared memory are read as they are
// at the wait. Include only in sources built for sm_90a.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_HOPPER_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_HOPPER_H_

#ifdef KVBLOCKS_CUDA_EMULATION
#include <array>
#endif

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"

namespace kvblocks::attention::cuda {

// --- Barriers in shared memory (8 bytes): phases of a fixed number of arrivals ---

#ifdef KVBLOCKS_CUDA_EMULATION
namespace internal {
inline emulation::Phases* PhasesAt(uint32_t address) {
  return reinterpret_cast<emulation::Phases*>(SharedPointer(address));
}
}  // namespace internal
#endif

KVB_DEVICE void InitBarrier(uint32_t barrier, int arrivals) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::InitPhases(internal::PhasesAt(barrier), static_cast<unsigned>(arrivals));
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}
KVB_DEVICE void ArriveAtBarrier(uint32_t barrier) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::ArriveAtPhase(internal::PhasesAt(barrier));
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// Arrives once all asynchronous copies of this thread so far are done; does not wait for them.
KVB_DEVICE void ArriveAfterCopies(uint32_t barrier) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::CommitCopies();
  emulation::FinishCopies(0);
  ArriveAtBarrier(barrier);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
// Until phase number n is over, given n's lowest bit. No thread may be two phases behind.
KVB_DEVICE void WaitAtBarrier(uint32_t barrier, uint32_t parity) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::WaitForPhase(internal::PhasesAt(barrier), parity);
#else
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// Whether phase number n is over, without waiting for it: a hint, except that true stays true until
// the phase after n is over, too.
KVB_DEVICE bool TestBarrier(uint32_t barrier, uint32_t parity) {
#ifdef KVBLOCKS_CUDA_EMULATION
  return emulation::PhaseIsOver(internal::PhasesAt(barrier), parity);
#else
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.b32 %0, 1, 0, over;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
#endif
}

// Shared memory written before by plain stores and copies of threads is seen by products after.
KVB_DEVICE void FenceForAsyncProxy() {
#ifndef KVBLOCKS_CUDA_EMULATION
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// --- Registers: a warpgroup gives some back, another takes them ---

template <int kRegisters>
KVB_DEVICE void ShrinkRegisters() {
#ifndef KVBLOCKS_CUDA_EMULATION
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
KVB_DEVICE void GrowRegisters() {
#ifndef KVBLOCKS_CUDA_EMULATION
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// --- Codes and pairs of bfloat16 ---

// Four e4m3 codes, the first in the lowest byte.
KVB_DEVICE void E4m3FourToFloat(uint32_t codes, float2 (&values)[2]) {
#ifndef KVBLOCKS_CUDA_EMULATION
  uint32_t low, high;
  asm("{\n"
      ".reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\n"
      "cvt.rn.f16x2.e4m3x2 %1, second;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
  values[0] = F16::Unpack(low), values[1] = F16::Unpack(high);
#else
  values[0] = E4m3PairToFloat(codes & 0xffff), values[1] = E4m3PairToFloat(codes >> 16);
#endif
}

// Products of two pairs of bfloat16, each rounded once; subnormal numbers count.
KVB_DEVICE uint32_t MultiplyBf16Pairs(uint32_t a, uint32_t b) {
#ifndef KVBLOCKS_CUDA_EMULATION
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#else
  const float2 x = Bf16::Unpack(a), y = Bf16::Unpack(b);
  return Bf16::Pack(x.x * y.x, x.y * y.y);
#endif
}

// --- Products of a warpgroup ---

// Matrices in shared memory are made of columns of 64 16-bit elements, or 128 codes: rows of 128
// bytes, the 16-byte pieces of row r permuted by piece ^ r % 8, columns from multiples of 1024
// bytes.
//
// A matrix whose rows are contiguous along k: `at` is the first row at the first of 32 bytes.
KVB_DEVICE uint64_t RowsAlongK(uint32_t at) {
  return uint64_t{(at & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
// One whose rows are values of k: `at` is the first of 16 rows, columns of 64 with a stride of
// `column_bytes`.
KVB_DEVICE uint64_t RowsAcrossK(uint32_t at, uint32_t column_bytes) {
  return uint64_t{(at & 0x3ffff) >> 4} | uint64_t{column_bytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// One whose rows are contiguous along k for 16 bytes: 8 rows of so many lie together, the next 8
// rows and the next 16 bytes along k at these distances.
KVB_DEVICE uint64_t BricksAlongK(uint32_t at, uint32_t next_along_k, uint32_t next_rows) {
  return uint64_t{(at & 0x3ffff) >> 4} | uint64_t{next_along_k >> 4} << 16 |
         uint64_t{next_rows >> 4} << 32;
}
// One of rows of 32 bytes along k, whose two pieces change places by row / 4 % 2; from a multiple
// of 256 bytes.
KVB_DEVICE uint64_t ShortRowsAlongK(uint32_t at) {
  return uint64_t{(at & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{256 >> 4} << 32 |
         uint64_t{3} << 62;
}

// The same `bytes` further on, a multiple of 16: one addition of 32 bits.
KVB_DEVICE uint64_t Advanced(uint64_t matrix, uint32_t bytes) {
  const uint32_t address = static_cast<uint32_t>(matrix) + bytes / 16;
  return (matrix >> 32 << 32) | address;
}

// Before the first product that uses registers which other instructions wrote.
KVB_DEVICE void BeginProducts() {
#ifndef KVBLOCKS_CUDA_EMULATION
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Closes a group of products.
KVB_DEVICE void CommitProducts() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::CommitProducts();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most kPending groups are under way.
template <int kPending>
KVB_DEVICE void WaitProducts() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::FinishProducts(kPending);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// Keeps the compiler from moving uses of accumulators across what is before this.
template <int kTiles>
KVB_DEVICE void PinAccumulators(float (&d)[kTiles][4]) {
#ifndef KVBLOCKS_CUDA_EMULATION
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i])::"memory");
  }
#endif
}

#ifdef KVBLOCKS_CUDA_EMULATION

namespace internal {

struct Descriptor {
  uint32_t start, leading, stride, row_bytes;
  explicit Descriptor(uint64_t bits)
      : start((bits & 0x3fff) << 4),
        leading((bits >> 16 & 0x3fff) << 4),
        stride((bits >> 32 & 0x3fff) << 4),
        row_bytes(std::array<uint32_t, 4>{16, 128, 64, 32}[bits >> 62]) {}
  template <typename T>
  float Load(uint32_t at) const {
    typename T::Bits value;
    std::memcpy(&value, SharedPointer(at ^ (at >> 7 & (row_bytes / 16 - 1)) << 4), sizeof(value));
    return T::ToFloat(value);
  }
  template <typename T>
  float AlongK(unsigned row, unsigned k) const {
    constexpr unsigned kBytes = sizeof(typename T::Bits);
    const uint32_t at = start + row / 8 * stride + row % 8 * row_bytes;
    return Load<T>(at + (row_bytes == 16 ? kBytes * k / 16 * leading + kBytes * k % 16
                                         : kBytes * k));
  }
  template <typename T>
  float AcrossK(unsigned k, unsigned column) const {
    return Load<T>(start + column / 64 * leading + k / 8 * stride + k % 8 * 128 +
                   2 * (column % 64));
  }
};

// a: this thread's two rows; b(k, column).
template <int kTiles, unsigned kDepth, typename B>
void MultiplyRows(float (&d)[kTiles][4], const float (&a)[2][kDepth], const B& b, bool accumulate) {
  const unsigned t = emulation::Lane() % 4;
  for (unsigned j = 0; j < kTiles; ++j) {
    for (unsigned i = 0; i < 2; ++i) {
      float low = accumulate ? d[j][i] : 0, high = accumulate ? d[j][2 + i] : 0;
      for (unsigned k = 0; k < kDepth; ++k) {
        const float value = b(k, 8 * j + 2 * t + i);
        low += a[0][k] * value;
        high += a[1][k] * value;
      }
      d[j][i] = low, d[j][2 + i] = high;
    }
  }
}
// When this thread waits for it.
template <int kTiles, typename Multiply>
void QueueProduct(float (&d)[kTiles][4], const Multiply& multiply) {
  emulation::QueueProduct(&d[0][0], 4 * kTiles, [multiply](float* values) {
    multiply(*reinterpret_cast<float(*)[kTiles][4]>(values));
  });
}

}  // namespace internal

// d = A B or d += A B; A 64 x 16 with rows along k, B 16 x 8 kTiles, both in shared memory, B as
// rows of its columns along k. Of T = E4m3 both have 32 values of k; its sums are of some 14 bits,
// which the emulation does not show.
template <typename T, int kTiles>
void MultiplyGroupShared(float (&d)[kTiles][4], uint64_t a, uint64_t b, bool accumulate) {
  emulation::MeetWarpgroup("MultiplyGroupShared", &a, sizeof(a));
  internal::QueueProduct(d, [=](float(&later)[kTiles][4]) {
    const internal::Descriptor rows(a), columns(b);
    const unsigned first = emulation::LinearThread() / 32 % 4 * 16 + emulation::Lane() / 4;
    constexpr unsigned kDepth = 32 / sizeof(typename T::Bits);
    float values[2][kDepth];
    for (unsigned k = 0; k < kDepth; ++k) {
      values[0][k] = rows.template AlongK<T>(first, k);
      values[1][k] = rows.template AlongK<T>(first + 8, k);
    }
    internal::MultiplyRows(
        later, values,
        [&](unsigned k, unsigned column) { return columns.template AlongK<T>(column, k); },
        accumulate);
  });
}

namespace internal {
// A 64 x 16 as fragments of MultiplyM16N8K16; b(k, column).
template <typename T, int kTiles, typename B>
void QueueFragments(float (&d)[kTiles][4], const uint32_t (&a)[4], const B& b, bool accumulate) {
  struct Fragment {
    uint32_t a[4];
  };
  const Fragment mine{{a[0], a[1], a[2], a[3]}};
  const emulation::Payloads<Fragment> all(
      emulation::MeetWarpgroup("MultiplyGroupRegisters", &mine, sizeof(mine)));
  const unsigned first = emulation::LinearThread() / 32 % 4 * 32 + emulation::Lane() / 4 * 4;
  std::array<Fragment, 4> row;
  for (unsigned t = 0; t < 4; ++t) row[t] = all[first + t];
  QueueProduct(d, [=](float(&later)[kTiles][4]) {
    float values[2][16];
    for (unsigned t = 0; t < 4; ++t) {
      for (unsigned i = 0; i < 4; ++i) {
        const float2 pair = T::Unpack(row[t].a[i]);
        values[i % 2][i / 2 * 8 + 2 * t] = pair.x;
        values[i % 2][i / 2 * 8 + 2 * t + 1] = pair.y;
      }
    }
    MultiplyRows(later, values, b, accumulate);
  });
}
}  // namespace internal

// d += A B; A 64 x 16 as fragments of MultiplyM16N8K16, B 16 x 8 kTiles in shared memory, rows of
// k.
template <typename T, int kTiles>
void MultiplyGroupRegisters(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  const internal::Descriptor rows(b);
  internal::QueueFragments<T>(
      d, a, [=](unsigned k, unsigned column) { return rows.template AcrossK<T>(k, column); }, true);
}

// d = A B or d += A B; A the same, B as rows of its columns along k.
template <typename T, int kTiles>
void MultiplyGroupRegistersAlongK(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b,
                                  bool accumulate) {
  const internal::Descriptor columns(b);
  internal::QueueFragments<T>(
      d, a, [=](unsigned k, unsigned column) { return columns.template AlongK<T>(column, k); },
      accumulate);
}

#else

#define KVB_TILE(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define KVB_TILES_8(j)                                                             \
  KVB_TILE(j), KVB_TILE(j + 1), KVB_TILE(j + 2), KVB_TILE(j + 3), KVB_TILE(j + 4), \
      KVB_TILE(j + 5), KVB_TILE(j + 6), KVB_TILE(j + 7)
#define KVB_REGISTERS_32                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KVB_REGISTERS_64                                                               \
  KVB_REGISTERS_32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// KVB_PRODUCT_64 or _128, as a function defines them, of its T and kTiles.
#define KVB_PRODUCT_OF_16_BITS               \
  if constexpr (kTiles == 8 && T::kIsBf16) { \
    KVB_PRODUCT_64("bf16");                  \
  } else if constexpr (kTiles == 8) {        \
    KVB_PRODUCT_64("f16");                   \
  } else if constexpr (T::kIsBf16) {         \
    KVB_PRODUCT_128("bf16");                 \
  } else {                                   \
    KVB_PRODUCT_128("f16");                  \
  }

template <typename T, int kTiles>
KVB_DEVICE void MultiplyGroupShared(float (&d)[kTiles][4], uint64_t a, uint64_t b,
                                    bool accumulate) {
  static_assert(kTiles == 8 || kTiles == 16);
#define KVB_PRODUCT_64(type)                                                            \
  asm volatile(                                                                         \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" KVB_REGISTERS_32 \
      "}, %32, %33, p, 1, 1, 0, 0;\n}"                                                  \
      : KVB_TILES_8(0)                                                                  \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define KVB_PRODUCT_128(type)                                                            \
  asm volatile(                                                                          \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" KVB_REGISTERS_64 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}"                                                   \
      : KVB_TILES_8(0), KVB_TILES_8(8)                                                   \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
  if constexpr (sizeof(typename T::Bits) == 1) {
    static_assert(kTiles == 16);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" KVB_REGISTERS_64
        "}, %64, %65, p, 1, 1;\n}"
        : KVB_TILES_8(0), KVB_TILES_8(8)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  } else {
    KVB_PRODUCT_OF_16_BITS
  }
#undef KVB_PRODUCT_64
#undef KVB_PRODUCT_128
}

template <typename T, int kTiles>
KVB_DEVICE void MultiplyGroupRegisters(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kTiles == 8 || kTiles == 16);
#define KVB_PRODUCT_64(type)                                                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" KVB_REGISTERS_32 \
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                       \
               : KVB_TILES_8(0)                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define KVB_PRODUCT_128(type)                                                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" KVB_REGISTERS_64 \
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                        \
               : KVB_TILES_8(0), KVB_TILES_8(8)                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
  KVB_PRODUCT_OF_16_BITS
#undef KVB_PRODUCT_64
#undef KVB_PRODUCT_128
}

template <typename T, int kTiles>
KVB_DEVICE void MultiplyGroupRegistersAlongK(float (&d)[kTiles][4], const uint32_t (&a)[4],
                                             uint64_t b, bool accumulate) {
  static_assert(kTiles == 8 || kTiles == 16);
#define KVB_PRODUCT_64(type)                                                            \
  asm volatile(                                                                         \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" KVB_REGISTERS_32 \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"                                    \
      : KVB_TILES_8(0)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
#define KVB_PRODUCT_128(type)                                                            \
  asm volatile(                                                                          \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" KVB_REGISTERS_64 \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"                                     \
      : KVB_TILES_8(0), KVB_TILES_8(8)                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)))
  KVB_PRODUCT_OF_16_BITS
#undef KVB_PRODUCT_64
#undef KVB_PRODUCT_128
}

#undef KVB_PRODUCT_OF_16_BITS
#undef KVB_TILE
#undef KVB_TILES_8
#undef KVB_REGISTERS_32
#undef KVB_REGISTERS_64

#endif

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_HOPPER_H_
