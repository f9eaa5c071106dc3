// Kernels that measure the machine and make data: what benchmarks of a GPU need beside their
// subject.

#ifndef KVBLOCKS_ATTENTION_CUDA_CHECK_BENCH_KERNELS_H_
#define KVBLOCKS_ATTENTION_CUDA_CHECK_BENCH_KERNELS_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

// Reads `bytes` (a multiple of 16) once; adds up to something that keeps the reads. `sink`: 4
// bytes.
Error LaunchReadAll(const LaunchContext& context, const void* from, int64_t bytes, uint32_t* sink);

// Copies `bytes` (a multiple of 16), 16 at a time, as kernels that move rows do.
Error LaunchCopyAll(const LaunchContext& context, void* to, const void* from, int64_t bytes);

// A kernel that does nothing: what a launch costs by itself.
Error LaunchEmpty(const LaunchContext& context);

// `count` elements, about normal with mean 0 and variance 1 times `factor`, from a hash of seed and
// index. Codes are rounded from it, too.
Error LaunchFillNormal(const LaunchContext& context, void* to, int64_t count, Element element,
                       uint32_t seed, float factor);

// Matrix products of bf16 fragments that stay in registers, by mma.sync: `rounds` per warp. The
// operations done are MatrixFlops(). `sink`: a float.
Error LaunchMatrixLoop(const LaunchContext& context, int rounds, float* sink);
double MatrixLoopFlops(const LaunchContext& context, int rounds);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CHECK_BENCH_KERNELS_H_
