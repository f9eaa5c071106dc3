// The CUDA runtime as host code of this folder uses it: errors by name, what the device is, memory.
//
// Properties are asked once per device and kept; no function but those that say so synchronises. In
// a build with emulated kernels device memory is host memory and there is one device.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_RUNTIME_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#include "attention/cuda/device/tensor_map.h"

namespace kvblocks::attention::cuda {

// A cudaError_t; 0 is success.
using Error = int;
const char* ErrorName(Error error);  // "cudaErrorInvalidValue"

bool IsEmulation();

struct DeviceProperties {
  char name[256] = "";
  int num_multiprocessors = 0;
  // 10 * major + minor; 80 for 90 in a program built without code for it.
  int compute_capability = 0;
  int64_t total_bytes = 0;
  int64_t l2_bytes = 0;
};
// Devices that can be used, or 0 and why there is none.
Error CountDevices(int* count);
// Of a device; thread-safe, O(1) after the first call.
Error PropertiesOf(int ordinal, DeviceProperties* properties);
// From now on PropertiesOf reports at most this compute capability, so that kernels for older
// devices run on newer ones: for tests.
void LimitComputeCapability(int most);
Error SetDevice(int ordinal);

// Enqueue only. Copies from and to pageable host memory synchronise with the copy.
Error CopyAsync(void* to, const void* from, size_t bytes, void* stream);
Error FillAsync(void* to, int byte, size_t bytes, void* stream);

// Not for the step path: these allocate or synchronise.
Error AllocateDevice(size_t bytes, void** memory);
Error FreeDevice(void* memory);
Error AllocatePinned(size_t bytes, void** memory);
Error FreePinned(void* memory);
// Page-locks host memory; `device` is where the device sees it.
Error RegisterHost(void* memory, size_t bytes, void** device);
Error UnregisterHost(void* memory);
Error Synchronize(void* stream);

// What a kernel gets of a tensor to copy boxes of it (device/bulk.h): zeros for what is outside,
// rows permuted as it says. REQUIRES: FitsTensorMap(tensor). Host work of about a microsecond.
Error MakeTensorMap(const BoxedTensor& tensor, TensorMap* map);

// Non-blocking streams, events, graphs.
Error CreateStream(void** stream);
Error DestroyStream(void* stream);
Error CreateEvent(void** event);
Error DestroyEvent(void* event);
Error RecordEvent(void* event, void* stream);
Error WaitForEvent(void* event);  // synchronises
// Milliseconds between two events that were reached.
Error ElapsedMs(void* begin, void* end, float* ms);
Error BeginCapture(void* stream);
// Ends a capture and makes it ready to run.
Error EndCapture(void* stream, void** graph);
Error LaunchGraph(void* graph, void* stream);
Error DestroyGraph(void* graph);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_RUNTIME_H_
