// CublasProducts: matrix products by cuBLASLt.
//
// The library's heuristic names algorithms for a shape when it is first met. Of few rows, where the
// weights are read once and the choice is worth a fifth of the time, each is timed, which takes
// some 50 ms; of many the first is taken. The choice is kept, so that results do not change from
// step to step.
// Single-threaded; one stream.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUBLAS_PRODUCTS_H_
#define KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUBLAS_PRODUCTS_H_

#include <cublasLt.h>

#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/cuda/device_array.h"
#include "examples/engine/cuda/products.h"

namespace kvblocks::engine {

class CublasProducts final : public Products {
 public:
  // Internal, with the library's word, if it cannot be used on this device.
  static absl::StatusOr<std::unique_ptr<CublasProducts>> Create();
  ~CublasProducts() override;

  absl::Status Multiply(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight, void* y,
                        void* stream) override;

 private:
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  CublasProducts() = default;
  static void Destroy(const Plan& plan);
  absl::StatusOr<Plan*> PlanOf(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight,
                               void* y, void* stream);
  cublasStatus_t Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Bf16Bits* x,
                     const Bf16Bits* weight, void* y, void* stream) const;
  // Milliseconds of a product whose weights are in no cache, or an error.
  absl::StatusOr<double> Time(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                              const Bf16Bits* x, const Bf16Bits* weight, void* y,
                              void* stream) const;

  std::vector<cublasLtMatmulAlgo_t> CandidatesOf(
      const Plan& plan, absl::Span<const cublasLtMatmulHeuristicResult_t> found) const;

  cublasLtHandle_t handle_ = nullptr;
  DeviceArray workspace_, cold_;  // the latter to write over what the cache holds
  std::map<Shape, Plan> plans_;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUBLAS_PRODUCTS_H_
