// Clusters of blocks (compute capability 9.0): blocks that run at the same time, meet, and read
// each other's shared memory. Launched by LaunchConfig::cluster; each with its emulation.
//
// Elsewhere these functions exist, so that sources built for 8.0, too, may name them, but must not
// be reached: there they stop the kernel.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_CLUSTER_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_CLUSTER_H_

#include "attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KVB_HAS_CLUSTERS 1
#endif

// All threads of all blocks of the cluster: what they wrote before is seen by all after. A block
// must not end while others read its shared memory.
KVB_DEVICE void ClusterSync() {
#ifdef KVBLOCKS_CUDA_EMULATION
  emulation::ClusterSync();
#elif defined(KVB_HAS_CLUSTERS)
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#elif defined(__CUDA_ARCH__)
  __trap();
#endif
}

// 16 or 8 bytes of the shared memory of block `rank` of the cluster, at the address (SharedAddress)
// that they have in that block's.
KVB_DEVICE float4 LoadFromCluster16(uint32_t address, int rank) {
#ifdef KVBLOCKS_CUDA_EMULATION
  float4 value;
  std::memcpy(&value, emulation::ClusterShared(rank, address, sizeof(value)), sizeof(value));
  return value;
#elif defined(KVB_HAS_CLUSTERS)
  float4 value;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
#else
  static_cast<void>(address), static_cast<void>(rank);
  return make_float4(0, 0, 0, 0);
#endif
}
KVB_DEVICE float2 LoadFromCluster8(uint32_t address, int rank) {
#ifdef KVBLOCKS_CUDA_EMULATION
  float2 value;
  std::memcpy(&value, emulation::ClusterShared(rank, address, sizeof(value)), sizeof(value));
  return value;
#elif defined(KVB_HAS_CLUSTERS)
  float2 value;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %2, %3;\n"
      "ld.shared::cluster.v2.f32 {%0, %1}, [there];\n"
      "}"
      : "=f"(value.x), "=f"(value.y)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
#else
  static_cast<void>(address), static_cast<void>(rank);
  return make_float2(0, 0);
#endif
}

#undef KVB_HAS_CLUSTERS

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_CLUSTER_H_
