#include "kvblocks/attention/cuda/cuda_checker.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

}  // namespace

template <typename... Text>
void CudaChecker::Invalid(const Text&... text) {
  Take(absl::InvalidArgumentError(absl::StrCat(op_, ": ", text...)));
}

template <typename... Text>
void CudaChecker::NotBuilt(const Text&... text) {
  Take(absl::UnimplementedError(absl::StrCat(op_, ": ", text...)));
}

void CudaChecker::Stride(const char* name, const ConstTensorView& view, int dim, int64_t wanted) {
  if (view.empty() || view.extent[dim] <= 1 || view.stride[dim] == wanted) return;
  Invalid(name, " has stride ", view.stride[dim], " in dimension ", dim, "; on CUDA ", wanted);
}

CudaChecker& CudaChecker::Values(const char* name, const ConstTensorView& view) {
  if (view.absent() || !status_.ok()) return *this;
  if (view.dtype == DType::kF64) {
    Invalid(name, " is f64; CUDA computes in f32, f16 and bf16");
  }
  Dense(name, view);
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] > kMaxRows) {
      Invalid(name, " has extent ", view.extent[i], " in dimension ", i, "; below 2^31 on CUDA");
    }
  }
  return *this;
}

CudaChecker& CudaChecker::Dense(const char* name, const ConstTensorView& view) {
  if (!view.absent() && status_.ok() && view.rank > 0) Stride(name, view, view.rank - 1, 1);
  return *this;
}

CudaChecker& CudaChecker::KvCache(const char* name, const ConstKvCacheView& cache) {
  if (cache.absent() || !status_.ok()) return *this;
  Values(name, cache.k);
  Values(name, cache.v);
  if (cache.num_blocks() > kMaxRows || cache.block_size() > kMaxRows) {
    Invalid(name, " has ", cache.num_blocks(), " blocks of ", cache.block_size(),
            " tokens; below 2^31 on CUDA");
  }
  if (cache.layout == KvLayout::kPagedX) {
    Stride(name, cache.k, 3, cache.k.extent[4]);
    Stride(name, cache.k, 2, cache.k.extent[3] * cache.k.extent[4]);
    Stride(name, cache.v, 2, cache.v.extent[3]);
  }
  return HeadDims(cache.key_dim(), cache.value_dim());
}

CudaChecker& CudaChecker::Params(const AttnParams& params) {
  Dense("params.alibi_slopes", params.alibi_slopes);
  Dense("params.sinks", params.sinks);
  const ConstTensorView& mask = params.mask.tensor;
  if (!mask.absent() && mask.dtype == DType::kF64) {
    Invalid("params.mask is f64; CUDA takes f32, f16, bf16 and bytes");
  }
  return *this;
}

CudaChecker& CudaChecker::HeadDims(int64_t key_dim, int64_t value_dim) {
  if (std::max(key_dim, value_dim) > kMaxHeadDim) {
    NotBuilt("heads of ", key_dim, " and ", value_dim, " values; CUDA is built for at most ",
             kMaxHeadDim);
  }
  return *this;
}

CudaChecker& CudaChecker::Moved(const char* name, const ConstTensorView& view) {
  if (!view.absent() && view.dtype == DType::kF64) {
    NotBuilt(name, " is f64; the CUDA backend has f32, f16 and bf16");
  }
  return *this;
}

}  // namespace kvblocks::attention::cuda
