#include "kvblocks/attention/cuda/cuda_call.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

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
  if (absl::Status status = RefuseHost(op, context); !status.ok()) return status;
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

}  // namespace kvblocks::attention::cuda
