// DeviceMirror: operations of a device for callers whose tensors are in host memory. Testonly.
//
// Each call copies every tensor of its arguments to the device, runs the operation there with a
// workspace and error flags of its own, waits, and copies back what may have been written. Tensors
// that overlap in host memory (K and V in one allocation, outputs in place) overlap in the same way
// there, and keep their alignment. So the suites that hold the CPU backends to their behaviour hold a
// device to it, too.
//
// Under emulation each allocation is just as long as its tensors, for sanitizers to watch; on a GPU
// pieces of one arena, between which there are 0xFF bytes, NaN in every floating type.

#ifndef KVBLOCKS_ATTENTION_CUDA_CHECK_DEVICE_MIRROR_H_
#define KVBLOCKS_ATTENTION_CUDA_CHECK_DEVICE_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "attention/ops/attention_ops.h"
#include "attention/ops/op_list.h"

namespace kvblocks::attention::cuda {

class DeviceMirror final : public AttentionOps {
 public:
  // `ops` run on device 0 and must outlive this. Aborts if the device has no memory for it.
  explicit DeviceMirror(const AttentionOps* ops, int64_t workspace_bytes = int64_t{64} << 20,
                        int64_t arena_bytes = int64_t{1} << 30);
  ~DeviceMirror() override;
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  const char* name() const override { return ops_->name(); }

KVBLOCKS_ATTENTION_OPS(KVBLOCKS_OVERRIDE_OP)

 private:
  template <typename Args>
  absl::Status Run(absl::Status (AttentionOps::*op)(const ExecContext&, const Args&) const,
                   const ExecContext& context, Args args) const;

  const AttentionOps* ops_;
  void* stream_ = nullptr;
  std::byte* arena_ = nullptr;
  int64_t arena_bytes_;
  std::byte* workspace_ = nullptr;
  int64_t workspace_bytes_;
  uint32_t* flags_ = nullptr;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CHECK_DEVICE_MIRROR_H_
