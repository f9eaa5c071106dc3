#include "attention/cuda/cuda_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "checks/status_macros.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kGap = 256;  // pieces of an arena begin at multiples of it

}  // namespace

absl::Status StatusOf(const char* op, Error error) {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(op, ": CUDA reports ", ErrorName(error)));
}

void MustSucceed(Error error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, ErrorName(error));
  std::abort();
}

absl::Status RefuseHost(const char* op, const ExecContext& context) {
  if (!context.device.on_host() || IsEmulation()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": the context is on ", Name(context.device),
                                                 "; CUDA operations take a CUDA device"));
}

absl::StatusOr<CudaCall> CudaCall::Begin(const char* op, const ExecContext& context) {
  KVBLOCKS_RETURN_IF_ERROR(RefuseHost(op, context));
  DeviceProperties properties;
  const Error error = PropertiesOf(context.device.ordinal, &properties);
  if (error != 0) return StatusOf(op, error);
  LaunchContext launch;
  launch.stream = context.stream;
  if (context.error_flags != nullptr) launch.error_flags = context.error_flags->bits;
  if (context.workspace != nullptr) {
    launch.workspace = reinterpret_cast<unsigned char*>(context.workspace->device.data());
    launch.workspace_bytes = context.workspace->device.size();
  }
  launch.num_multiprocessors = properties.num_multiprocessors;
  launch.compute_capability = properties.compute_capability;
  return CudaCall(op, launch);
}

CudaCall::CudaCall(const char* op, const LaunchContext& launch)
    : op_(op),
      launch_(launch),
      arena_(absl::MakeSpan(reinterpret_cast<std::byte*>(launch.workspace),
                            launch.workspace_bytes)) {}

absl::StatusOr<std::byte*> CudaCall::TakeBytes(int64_t bytes) {
  const absl::StatusOr<absl::Span<std::byte>> piece = arena_.Take(bytes);
  if (piece.ok()) return piece->data();
  return absl::Status(piece.status().code(),
                      absl::StrCat(op_, ": ", std::string(piece.status().message())));
}

absl::Status CudaCall::RequireWorkspace(int64_t bytes) const {
  if (static_cast<int64_t>(launch_.workspace_bytes) >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      op_, ": the workspace has ", launch_.workspace_bytes, " bytes; needs ", bytes));
}

int64_t CudaCall::RoomFor(int pieces) const {
  return static_cast<int64_t>(launch_.workspace_bytes) - arena_.used() - pieces * kGap;
}

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
