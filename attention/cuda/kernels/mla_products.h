// Instructions of tiles of 64 rows and 64 keys: scores, by a warpgroup, and rows brought nearer.
// Device code of sm_90a.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_PRODUCTS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_PRODUCTS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/numbers.h"

namespace kvblocks::attention::cuda {

// Has the line of 128 bytes with this address brought to the second-level cache.
KVB_DEVICE void PrefetchLine(const void* from) {
#ifndef KVBLOCKS_CUDA_EMULATION
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
#endif
}

// d = A B or d += A B; A 64 x 16 and B as rows of its 64 columns, both along k in shared memory.
#ifdef KVBLOCKS_CUDA_EMULATION

template <typename T>
void MultiplyGroupShared64(float (&d)[8][4], uint64_t a, uint64_t b, bool accumulate) {
  emulation::MeetWarpgroup("MultiplyGroupShared64", &a, sizeof(a));
  const internal::Descriptor rows(a), columns(b);
  const unsigned first = emulation::LinearThread() / 32 % 4 * 16 + emulation::Lane() / 4;
  float values[2][16];
  for (unsigned k = 0; k < 16; ++k) {
    values[0][k] = T::ToFloat(rows.AlongK(first, k));
    values[1][k] = T::ToFloat(rows.AlongK(first + 8, k));
  }
  internal::EmulateProduct(
      d, values, [&](unsigned k, unsigned column) { return T::ToFloat(columns.AlongK(column, k)); },
      accumulate);
}

#else

template <typename T>
KVB_DEVICE void MultiplyGroupShared64(float (&d)[8][4], uint64_t a, uint64_t b, bool accumulate) {
#define KVB_TILE(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define KVB_PRODUCT(type)                                                                          \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "          \
      "%32, %33, p, 1, 1, 0, 0;\n}"                                                                \
      : KVB_TILE(0), KVB_TILE(1), KVB_TILE(2), KVB_TILE(3), KVB_TILE(4), KVB_TILE(5), KVB_TILE(6), \
        KVB_TILE(7)                                                                                \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
  if constexpr (T::kIsBf16) {
    KVB_PRODUCT("bf16");
  } else {
    KVB_PRODUCT("f16");
  }
#undef KVB_PRODUCT
#undef KVB_TILE
}

#endif

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_PRODUCTS_H_
