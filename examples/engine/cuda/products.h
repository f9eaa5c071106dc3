// Products: matrix products on the device, by whichever library the program brings.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_PRODUCTS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_PRODUCTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "examples/engine/cuda/step_kernels.h"

namespace kvblocks::engine {

class Products {
 public:
  // x [rows, in] and weight [out, in] of bf16.
  struct Shape {
    int64_t rows = 0, in = 0, out = 0;
    bool float_out = false;  // else bf16

    auto operator<=>(const Shape&) const = default;
  };

  virtual ~Products() = default;
  // Enqueues y [rows, out] = x * weight^T, with sums of float. The first call of a shape may wait;
  // later ones can be captured.
  virtual absl::Status Multiply(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight,
                                void* y, void* stream) = 0;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_PRODUCTS_H_
