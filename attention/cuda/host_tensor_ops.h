// HostTensorOps: operations of a device for callers whose tensors are in host memory.
//
// Each call copies the tensors of its arguments to the device, runs the operation there with a
// workspace and error flags of its own, waits, and copies back what may have been written. Tensors
// that overlap in host memory (K and V in one allocation, outputs in place) overlap in the same way
// there, and keep their alignment. Memory named by Share is not copied: the device reads and writes
// it where it is, over the bus; so caches that host code looks into between calls stay in one
// place.
//
// For checks: the suites that hold the CPU backends to their behaviour hold a device to it through
// this, and so does kvsim verify. Engines hand tensors in device memory to the backend itself.
//
// Copies lie in one arena, between them 0xFF bytes, NaN in every floating type. With emulated
// kernels each has an allocation just as long as its tensors, for sanitizers to watch. Not
// thread-safe.

#ifndef KVBLOCKS_ATTENTION_CUDA_HOST_TENSOR_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_HOST_TENSOR_OPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention::cuda {

class HostTensorOps final : public AttentionOps {
 public:
  struct Options {
    int64_t workspace_bytes = int64_t{64} << 20;
    int64_t arena_bytes = int64_t{1} << 30;
  };

  // `ops` run on device 0 and must outlive this. Unavailable, with the reason, if there is no
  // device; ResourceExhausted if it has no memory for arena and workspace.
  static absl::StatusOr<std::unique_ptr<HostTensorOps>> Create(const AttentionOps* ops,
                                                               const Options& options);
  ~HostTensorOps() override;
  HostTensorOps(const HostTensorOps&) = delete;
  HostTensorOps& operator=(const HostTensorOps&) = delete;

  // Page-locks memory and maps it for the device, until this is destroyed; it must live as long.
  absl::Status Share(absl::Span<std::byte> memory);

  // Calls that are more than an operation: `visit` calls its argument with every view that `call`
  // looks at; during the call these are views of the copies. Tensors that are visited as ones that
  // may be written are copied back.
  struct Visitor {
    absl::FunctionRef<void(ConstTensorView&)> read;
    absl::FunctionRef<void(TensorView&)> written;
    void operator()(ConstTensorView& view) const { read(view); }
    void operator()(TensorView& view) const { written(view); }
  };
  absl::Status RunOnDevice(const ExecContext& context,
                           absl::FunctionRef<void(const Visitor&)> visit,
                           absl::FunctionRef<absl::Status(const ExecContext&)> call) const;

  const char* name() const override { return ops_->name(); }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_OVERRIDE_RUN)

 protected:
  // Nothing: the device's operations look at the copies, and at no more than they could of tensors
  // that were on the device from the first.
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_OVERRIDE_REFUSE)

 private:
  struct Shared {
    std::byte* begin;
    std::byte* end;
    std::byte* device;
  };

  HostTensorOps(const AttentionOps* ops, const Options& options) : ops_(ops), options_(options) {}
  template <typename Args>
  absl::Status RunOperation(const ExecContext& context, Args args) const;

  const AttentionOps* ops_;
  Options options_;
  void* stream_ = nullptr;
  std::byte* arena_ = nullptr;
  std::byte* workspace_ = nullptr;
  uint32_t* flags_ = nullptr;
  std::vector<Shared> shared_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_HOST_TENSOR_OPS_H_
