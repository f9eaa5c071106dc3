// CublasProducts: matrix products by cuBLASLt, and of few rows by StreamProduct.
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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/engine/cuda/device_array.h"
#include "examples/engine/cuda/products.h"
#include "examples/engine/cuda/stream_product.h"

namespace kvblocks::engine {

class CublasProducts final : public Products {
 public:
  // Internal, with the library's word, if it cannot be used on this device.
  static absl::StatusOr<std::unique_ptr<CublasProducts>> Create();
  ~CublasProducts() override;

  absl::Status Multiply(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight, void* y,
                        void* stream) override;
  // From now on, for comparison.
  void set_library_alone(bool alone) { library_alone_ = alone; }

 private:
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
    bool streams = false;  // by StreamProduct
  };

  CublasProducts() = default;
  static void Destroy(const Plan& plan);
  absl::StatusOr<Plan*> PlanOf(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight,
                               void* y, void* stream);
  absl::Status Run(const Shape& shape, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                   const Bf16Bits* x, const Bf16Bits* weight, void* y, void* stream) const;
  // Milliseconds of a product whose weights are in no cache, or an error.
  absl::StatusOr<float> Time(absl::FunctionRef<absl::Status()> product, void* stream) const;
  absl::Status Stream(const StreamProductParams& params, void* stream) const;

  std::vector<cublasLtMatmulAlgo_t> CandidatesOf(
      const Plan& plan, absl::Span<const cublasLtMatmulHeuristicResult_t> found) const;

  cublasLtHandle_t handle_ = nullptr;
  DeviceArray workspace_, cold_;  // the latter to write over what the cache holds
  attention::cuda::LaunchContext launch_;
  bool library_alone_ = false;
  std::map<Shape, Plan> plans_;
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_CUDA_CUBLAS_PRODUCTS_H_
