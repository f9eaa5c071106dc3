#include "attention/cuda/kernels/runtime.h"

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#ifndef KVBLOCKS_CUDA_EMULATION
#include <cuda.h>
#endif

#include "attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

#ifdef KVBLOCKS_CUDA_EMULATION

namespace {
constexpr Error kNotSupported = 801;  // cudaErrorNotSupported
}  // namespace

const char* ErrorName(Error error) {
  switch (error) {
    case 0:
      return "cudaSuccess";
    case 2:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case kNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "an error of the emulation";
  }
}
bool IsEmulation() { return true; }
Error CountDevices(int* count) {
  *count = 1;
  return 0;
}
Error PropertiesOf(int, DeviceProperties* properties) {
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated GPU");
  // Few multiprocessors: plans cut work as they would on a large GPU with large batches.
  properties->num_multiprocessors = 4;
  properties->compute_capability = 80;
  properties->total_bytes = int64_t{1} << 32;
  properties->l2_bytes = 1 << 20;
  return 0;
}
void LimitComputeCapability(int) {}
Error SetDevice(int) { return 0; }
Error CopyAsync(void* to, const void* from, size_t bytes, void*) {
  if (bytes > 0) std::memmove(to, from, bytes);
  return 0;
}
Error FillAsync(void* to, int byte, size_t bytes, void*) {
  if (bytes > 0) std::memset(to, byte, bytes);
  return 0;
}
Error AllocateDevice(size_t bytes, void** memory) {
  // As aligned as cudaMalloc's, and not a byte longer than a multiple of that.
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory == nullptr && bytes > 0 ? 2 : 0;
}
Error FreeDevice(void* memory) {
  std::free(memory);
  return 0;
}
Error AllocatePinned(size_t bytes, void** memory) { return AllocateDevice(bytes, memory); }
Error FreePinned(void* memory) { return FreeDevice(memory); }
Error RegisterHost(void* memory, size_t, void** device) {
  *device = memory;
  return 0;
}
Error UnregisterHost(void*) { return 0; }
Error Synchronize(void*) { return 0; }
Error CreateStream(void** stream) {
  *stream = nullptr;
  return 0;
}
Error DestroyStream(void*) { return 0; }
// Everything has happened when it is enqueued.
Error CreateEvent(void** event) {
  *event = nullptr;
  return 0;
}
Error DestroyEvent(void*) { return 0; }
Error RecordEvent(void*, void*) { return 0; }
Error WaitForEvent(void*) { return 0; }
Error ElapsedMs(void*, void*, float*) { return kNotSupported; }
Error MakeTensorMap(const BoxedTensor& tensor, TensorMap* map) {
  if (!FitsTensorMap(tensor)) return 1;
  std::memcpy(map->opaque, &tensor, sizeof(tensor));
  return 0;
}
Error BeginCapture(void*) { return kNotSupported; }
Error EndCapture(void*, void**) { return kNotSupported; }
Error LaunchGraph(void*, void*) { return kNotSupported; }
Error DestroyGraph(void*) { return kNotSupported; }

#else

namespace {
std::atomic<int> most_capability = INT_MAX;
// Whether this program has machine code for compute capability 9.0 (KVBLOCKS_CUDA_ARCHS). Without
// it such a device runs what was compiled for an older one, which neither waits for the kernel
// before it nor knows clusters, and so must not be launched as if it did.
constexpr bool HasCodeFor90() {
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch == 900) return true;
  }
  return false;
}
cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }

// The driver's own, found once: programs do not link the driver, which may be missing.
using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
EncodeTiled FindEncodeTiled() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  const bool usable = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return usable ? reinterpret_cast<EncodeTiled>(found) : nullptr;
}
}  // namespace

const char* ErrorName(Error error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }
bool IsEmulation() { return false; }
Error CountDevices(int* count) {
  *count = 0;
  return cudaGetDeviceCount(count);
}
Error PropertiesOf(int ordinal, DeviceProperties* properties) {
  constexpr int kKept = 64;
  static std::mutex mutex;
  static DeviceProperties known[kKept];
  static bool is_known[kKept];
  if (ordinal < 0 || ordinal >= kKept) return cudaErrorInvalidDevice;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!is_known[ordinal]) {
    cudaDeviceProp from;
    const cudaError_t error = cudaGetDeviceProperties(&from, ordinal);
    if (error != cudaSuccess) return error;
    DeviceProperties& to = known[ordinal];
    std::snprintf(to.name, sizeof(to.name), "%s", from.name);
    to.num_multiprocessors = from.multiProcessorCount;
    to.compute_capability = from.major * 10 + from.minor;
    if (to.compute_capability == 90 && !HasCodeFor90()) to.compute_capability = 80;
    to.total_bytes = static_cast<int64_t>(from.totalGlobalMem);
    to.l2_bytes = from.l2CacheSize;
    is_known[ordinal] = true;
  }
  *properties = known[ordinal];
  const int most = most_capability.load(std::memory_order_relaxed);
  if (properties->compute_capability > most) properties->compute_capability = most;
  return 0;
}
void LimitComputeCapability(int most) {
  most_capability.store(most, std::memory_order_relaxed);
}
Error SetDevice(int ordinal) { return cudaSetDevice(ordinal); }
Error CopyAsync(void* to, const void* from, size_t bytes, void* stream) {
  return bytes == 0 ? cudaSuccess
                    : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, StreamOf(stream));
}
Error FillAsync(void* to, int byte, size_t bytes, void* stream) {
  return bytes == 0 ? cudaSuccess : cudaMemsetAsync(to, byte, bytes, StreamOf(stream));
}
Error AllocateDevice(size_t bytes, void** memory) { return cudaMalloc(memory, bytes); }
Error FreeDevice(void* memory) { return cudaFree(memory); }
Error AllocatePinned(size_t bytes, void** memory) { return cudaMallocHost(memory, bytes); }
Error FreePinned(void* memory) { return cudaFreeHost(memory); }
Error RegisterHost(void* memory, size_t bytes, void** device) {
  const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterMapped);
  return error != cudaSuccess ? error : cudaHostGetDevicePointer(device, memory, 0);
}
Error UnregisterHost(void* memory) { return cudaHostUnregister(memory); }
Error Synchronize(void* stream) { return cudaStreamSynchronize(StreamOf(stream)); }
Error CreateStream(void** stream) {
  cudaStream_t made = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  *stream = made;
  return error;
}
Error DestroyStream(void* stream) { return cudaStreamDestroy(StreamOf(stream)); }
Error CreateEvent(void** event) {
  cudaEvent_t made = nullptr;
  const cudaError_t error = cudaEventCreate(&made);
  *event = made;
  return error;
}
Error DestroyEvent(void* event) { return cudaEventDestroy(EventOf(event)); }
Error RecordEvent(void* event, void* stream) {
  return cudaEventRecord(EventOf(event), StreamOf(stream));
}
Error WaitForEvent(void* event) { return cudaEventSynchronize(EventOf(event)); }
Error ElapsedMs(void* begin, void* end, float* ms) {
  return cudaEventElapsedTime(ms, EventOf(begin), EventOf(end));
}
Error MakeTensorMap(const BoxedTensor& tensor, TensorMap* map) {
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) return cudaErrorNotSupported;
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  cuuint64_t extents[4], strides[3];
  cuuint32_t box[4], steps[4];
  for (int i = 0; i < 4; ++i) {
    extents[i] = static_cast<cuuint64_t>(tensor.extents[i]);
    box[i] = static_cast<cuuint32_t>(tensor.box[i]);
    steps[i] = 1;
  }
  for (int i = 0; i < 3; ++i) strides[i] = static_cast<cuuint64_t>(tensor.strides[i]) * 2;
  const CUtensorMapSwizzle swizzle = tensor.permuted == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : tensor.permuted == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                             : CU_TENSOR_MAP_SWIZZLE_NONE;
  // Zeros have the same bits in both types of 16 bits.
  const CUresult result = encode(
      reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
      const_cast<void*>(tensor.data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
Error BeginCapture(void* stream) {
  return cudaStreamBeginCapture(StreamOf(stream), cudaStreamCaptureModeThreadLocal);
}
Error EndCapture(void* stream, void** graph) {
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(StreamOf(stream), &captured);
  if (error != cudaSuccess) return error;
  cudaGraphExec_t made = nullptr;
  error = cudaGraphInstantiate(&made, captured, 0);
  const cudaError_t destroyed = cudaGraphDestroy(captured);
  *graph = made;
  return error != cudaSuccess ? error : destroyed;
}
Error LaunchGraph(void* graph, void* stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), StreamOf(stream));
}
Error DestroyGraph(void* graph) {
  return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

#endif

}  // namespace kvblocks::attention::cuda
