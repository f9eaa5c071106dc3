// The bulk copy engine of compute capability 9.0, with its emulation: boxes of tensors to shared
// memory, rows of shared memory to global memory. One thread asks for many bytes.
//
// The engine is another proxy than plain loads and stores: what these wrote to shared memory it
// sees behind FenceForAsyncProxy() (hopper.h); what it wrote is seen by all who waited at the
// barrier that counted its bytes. In the emulation a box holds 0xFF bytes until the phase of its
// barrier is over, and a row is read when it is waited for. Include only in sources built for
// sm_90a.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_BULK_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_BULK_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/hopper.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/device/tensor_map.h"

namespace kvblocks::attention::cuda {

// True for one lane of a warp, always the same; all lanes ask together.
KVB_DEVICE bool ElectOne() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::Exchange(kFullWarp, "ElectOne", 0);
  return emulation::Lane() == 31;  // not the one that one would guess
#else
  uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n"
      "}"
      : "=r"(chosen)::"memory");
  return chosen != 0;
#endif
}

// Arrives at a barrier in shared memory, whose phase now lasts until `bytes` more have come, too.
KVB_DEVICE void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::ArriveExpecting(internal::PhasesAt(barrier), bytes);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}

// Starts copying the box of the tensor at these coordinates, innermost first, to shared memory. A
// row's pieces are permuted as the tensor says, those of 128 bytes as in wgmma's operands
// (hopper.h). `to` is a multiple of 128 and x0 of 8. What is outside of the tensor is zeros, and
// all bytes of the box count at the barrier.
KVB_DEVICE void CopyBox(uint32_t to, const TensorMap& map, int32_t x0, int32_t x1, int32_t x2,
                        int32_t x3, uint32_t barrier) {
#ifdef KVBLOCKS_CUDA_EMULATION
  BoxedTensor tensor;
  std::memcpy(&tensor, map.opaque, sizeof(tensor));
  emulation::QueueBox({tensor.data,
                       tensor.extents,
                       tensor.strides,
                       tensor.box,
                       {x0, x1, x2, x3},
                       tensor.permuted},
                      internal::SharedPointer(to), internal::PhasesAt(barrier));
#else
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(barrier)
      : "memory");
#endif
}

// The first box will not have to wait for the map itself.
KVB_DEVICE void PrefetchMap(const TensorMap& map) {
#ifdef KVBLOCKS_CUDA_EMULATION
  static_cast<void>(map);
#else
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Starts copying bytes of shared memory to global memory; both addresses and `bytes` are multiples
// of 16. A thread's stores since the last commit are a group.
KVB_DEVICE void StoreBulk(void* to, uint32_t from, uint32_t bytes) {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::QueueStore(to, internal::SharedPointer(from), bytes);
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
#endif
}
KVB_DEVICE void CommitStores() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::CommitStores();
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Until all groups of this thread have read shared memory, which then may change; also before the
// thread ends.
KVB_DEVICE void WaitStoresHaveRead() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::FinishStores();
#else
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_BULK_H_
