#include "examples/engine/cuda/cublas_products.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_call.h"
#include "checks/status_macros.h"
#include "examples/engine/cuda/cuda_place.h"

namespace kvblocks::engine {
namespace {

using attention::cuda::StatusOf;

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t kColdBytes = int64_t{160} << 20;  // more than the second-level cache holds
constexpr int kCandidates = 48, kTimedRounds = 4;
constexpr int kVaried = 12;  // of them, also with their sums split over blocks
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
  KVBLOCKS_ASSIGN_OR_RETURN(made->cold_, DeviceArray::Create("timing of products", kColdBytes));
  return made;
}

CublasProducts::~CublasProducts() {
  for (const auto& [shape, plan] : plans_) Destroy(plan);
  if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
}

void CublasProducts::Destroy(const Plan& plan) {
  for (cublasLtMatrixLayout_t layout : {plan.weight, plan.x, plan.y}) {
    if (layout != nullptr) (void)cublasLtMatrixLayoutDestroy(layout);
  }
  if (plan.product != nullptr) (void)cublasLtMatmulDescDestroy(plan.product);
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

absl::StatusOr<double> CublasProducts::Time(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                            const Bf16Bits* x, const Bf16Bits* weight, void* y,
                                            void* stream) const {
  const auto run = [&] {
    const cublasStatus_t ran = Run(plan, algorithm, x, weight, y, stream);
    return ran == CUBLAS_STATUS_SUCCESS ? absl::OkStatus()
                                        : absl::InternalError(cublasLtGetStatusString(ran));
  };
  KVBLOCKS_RETURN_IF_ERROR(run());  // loads the kernel
  double best = HUGE_VAL;
  for (int i = 0; i < kTimedRounds; ++i) {
    // A step finds its weights in memory, not in the cache.
    KVBLOCKS_RETURN_IF_ERROR(StatusOf(
        "timing a product",
        attention::cuda::FillAsync(cold_.as<void>(), i, static_cast<size_t>(kColdBytes), stream)));
    KVBLOCKS_ASSIGN_OR_RETURN(const double ms, TimeOnDevice(stream, run));
    best = std::min(best, ms);
  }
  return best;
}

// Those found, and the first ones with sums that several blocks share, where that is allowed.
std::vector<cublasLtMatmulAlgo_t> CublasProducts::CandidatesOf(
    const Plan& plan, absl::Span<const cublasLtMatmulHeuristicResult_t> found) const {
  std::vector<cublasLtMatmulAlgo_t> candidates;
  for (const auto& result : found) {
    if (result.state == CUBLAS_STATUS_SUCCESS) candidates.push_back(result.algo);
  }
  const size_t num_varied = std::min<size_t>(candidates.size(), kVaried);
  const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  for (size_t i = 0; i < num_varied; ++i) {
    for (const int32_t splits : {2, 3, 4, 6, 8}) {
      cublasLtMatmulAlgo_t split = candidates[i];
      cublasLtMatmulHeuristicResult_t checked = {};
      if (cublasLtMatmulAlgoConfigSetAttribute(&split, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                               sizeof(splits)) == CUBLAS_STATUS_SUCCESS &&
          cublasLtMatmulAlgoConfigSetAttribute(&split, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                               &scheme, sizeof(scheme)) == CUBLAS_STATUS_SUCCESS &&
          cublasLtMatmulAlgoCheck(handle_, plan.product, plan.weight, plan.x, plan.y, plan.y,
                                  &split, &checked) == CUBLAS_STATUS_SUCCESS &&
          checked.workspaceSize <= static_cast<size_t>(kWorkspaceBytes)) {
        candidates.push_back(split);
      }
    }
  }
  return candidates;
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
  // In this order; behind one that fails the others do nothing.
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  for (const cublasStatus_t one :
       {cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof(transposed)),
        cublasLtMatrixLayoutCreate(&plan.weight, CUDA_R_16BF, in, out, static_cast<int64_t>(in)),
        cublasLtMatrixLayoutCreate(&plan.x, CUDA_R_16BF, in, rows, static_cast<int64_t>(in)),
        cublasLtMatrixLayoutCreate(&plan.y, shape.float_out ? CUDA_R_32F : CUDA_R_16BF, out, rows,
                                   static_cast<int64_t>(out)),
        cublasLtMatmulPreferenceCreate(&preference),
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof(workspace)),
        cublasLtMatmulAlgoGetHeuristic(handle_, plan.product, plan.weight, plan.x, plan.y, plan.y,
                                       preference, kCandidates, found, &num_found)}) {
    if (status == CUBLAS_STATUS_SUCCESS) status = one;
  }
  if (preference != nullptr) (void)cublasLtMatmulPreferenceDestroy(preference);
  Plan& kept = plans_[shape] = plan;
  absl::Status result = CublasStatus("no algorithm", shape, status);
  if (result.ok() && num_found == 0) {
    result = CublasStatus("no algorithm", shape, CUBLAS_STATUS_NOT_SUPPORTED);
  }
  if (!result.ok()) {
    Destroy(kept);
    plans_.erase(shape);
    return result;
  }
  kept.algorithm = found[0].algo;
  if (shape.rows > kMostTimedRows) return &kept;
  double best = HUGE_VAL;
  for (const cublasLtMatmulAlgo_t& candidate :
       CandidatesOf(kept, absl::MakeConstSpan(found).first(static_cast<size_t>(num_found)))) {
    const auto ms = Time(kept, candidate, x, weight, y, stream);
    if (!ms.ok() || *ms >= best) continue;
    best = *ms;
    kept.algorithm = candidate;
  }
  return &kept;
}

}  // namespace kvblocks::engine
