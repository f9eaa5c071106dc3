#include "examples/engine/cuda/cublas_products.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_call.h"
#include "checks/status_macros.h"

namespace kvblocks::engine {
namespace {

using attention::cuda::Error;
using attention::cuda::StatusOf;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr int kCandidates = 8, kTimedRounds = 4;
constexpr int64_t kMostTimedRows = 512;

absl::Status CublasStatus(const char* what, const Products::Shape& shape, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuBLASLt: ", what, " for a product of ", shape.rows,
                                          " rows, ", shape.in, " to ", shape.out, ": ",
                                          cublasLtGetStatusString(status)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CublasProducts>> CublasProducts::Create() {
  std::unique_ptr<CublasProducts> made(new CublasProducts());
  if (const cublasStatus_t status = cublasLtCreate(&made->handle_);
      status != CUBLAS_STATUS_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("cuBLASLt: cublasLtCreate: ", cublasLtGetStatusString(status)));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(made->workspace_,
                            DeviceArray::Create("products' workspace", kWorkspaceBytes));
  return made;
}

CublasProducts::~CublasProducts() {
  for (auto& [shape, plan] : plans_) {
    for (cublasLtMatrixLayout_t layout : {plan.weight, plan.x, plan.y}) {
      if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
    }
    if (plan.product != nullptr) (void)cublasLtMatmulDescDestroy(plan.product);
  }
  if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

absl::Status CublasProducts::Multiply(const Shape& shape, const Bf16Bits* x, const Bf16Bits* weight,
                                      void* y, void* stream) {
  if (shape.rows == 0) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(const Plan* plan, PlanOf(shape, x, weight, y, stream));
  return CublasStatus("cublasLtMatmul", shape, Run(*plan, plan->algorithm, x, weight, y, stream));
}

cublasStatus_t CublasProducts::Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                   const Bf16Bits* x, const Bf16Bits* weight, void* y,
                                   void* stream) const {
  const float one = 1, zero = 0;
  return cublasLtMatmul(handle_, plan.product, &one, weight, plan.weight, x, plan.x, &zero, y,
                        plan.y, y, plan.y, &algorithm, workspace_.as<void>(),
                        static_cast<size_t>(kWorkspaceBytes), static_cast<cudaStream_t>(stream));
}

absl::StatusOr<float> CublasProducts::Time(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                           const Bf16Bits* x, const Bf16Bits* weight, void* y,
                                           void* stream) const {
  namespace cuda = attention::cuda;
  void *begin = nullptr, *end = nullptr;
  float ms = 0;
  cublasStatus_t ran = Run(plan, algorithm, x, weight, y, stream);  // loads the kernel
  Error error = cuda::CreateEvent(&begin);
  if (error == 0) error = cuda::CreateEvent(&end);
  if (error == 0) error = cuda::RecordEvent(begin, stream);
  for (int i = 0; i < kTimedRounds && ran == CUBLAS_STATUS_SUCCESS; ++i) {
    ran = Run(plan, algorithm, x, weight, y, stream);
  }
  if (error == 0) error = cuda::RecordEvent(end, stream);
  if (error == 0) error = cuda::Synchronize(stream);
  if (error == 0) error = cuda::ElapsedMs(begin, end, &ms);
  if (begin != nullptr) (void)cuda::DestroyEvent(begin);
  if (end != nullptr) (void)cuda::DestroyEvent(end);
  if (ran != CUBLAS_STATUS_SUCCESS) return absl::InternalError(cublasLtGetStatusString(ran));
  if (error != 0) return StatusOf("timing a product", error);
  return ms;
}

// To the library, which thinks in columns, y^T [out, rows] is weight, read transposed, times x^T.
absl::StatusOr<CublasProducts::Plan*> CublasProducts::PlanOf(const Shape& shape, const Bf16Bits* x,
                                                             const Bf16Bits* weight, void* y,
                                                             void* stream) {
  if (const auto it = plans_.find(shape); it != plans_.end()) return &it->second;
  Plan plan;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto rows = static_cast<uint64_t>(shape.rows), in = static_cast<uint64_t>(shape.in);
  const auto out = static_cast<uint64_t>(shape.out);
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t found[kCandidates];
  int num_found = 0;
  const size_t workspace = static_cast<size_t>(kWorkspaceBytes);
  const auto set_up = [&]() -> cublasStatus_t {
    cublasStatus_t status = cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&status](auto&& call) {
      if (status == CUBLAS_STATUS_SUCCESS) status = call();
    };
    then([&] {
      return cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                            sizeof(transposed));
    });
    then([&] {
      return cublasLtMatrixLayoutCreate(&plan.weight, CUDA_R_16BF, in, out,
                                        static_cast<int64_t>(in));
    });
    then([&] {
      return cublasLtMatrixLayoutCreate(&plan.x, CUDA_R_16BF, in, rows, static_cast<int64_t>(in));
    });
    then([&] {
      return cublasLtMatrixLayoutCreate(&plan.y, shape.float_out ? CUDA_R_32F : CUDA_R_16BF, out,
                                        rows, static_cast<int64_t>(out));
    });
    then([&] { return cublasLtMatmulPreferenceCreate(&preference); });
    then([&] {
      return cublasLtMatmulPreferenceSetAttribute(
          preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    });
    then([&] {
      return cublasLtMatmulAlgoGetHeuristic(handle_, plan.product, plan.weight, plan.x, plan.y,
                                            plan.y, preference, kCandidates, found, &num_found);
    });
    return status;
  };
  const cublasStatus_t status = set_up();
  if (preference != nullptr) (void)cublasLtMatmulPreferenceDestroy(preference);
  Plan& kept = plans_[shape] = plan;  // whatever comes: it is destroyed with the others
  absl::Status result = CublasStatus("no algorithm", shape, status);
  if (result.ok() && num_found == 0) {
    result = CublasStatus("no algorithm", shape, CUBLAS_STATUS_NOT_SUPPORTED);
  }
  if (!result.ok()) return result;
  kept.algorithm = found[0].algo;
  if (shape.rows > kMostTimedRows) return &kept;
  float best = 0;
  for (int i = 0; i < num_found; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const auto ms = Time(kept, found[i].algo, x, weight, y, stream);
    if (!ms.ok() || (best > 0 && *ms >= best)) continue;
    best = *ms;
    kept.algorithm = found[i].algo;
  }
  return &kept;
}

}  // namespace kvblocks::engine
