// Describes emulated threads to ThreadSanitizer, so that it finds races of kernels: emulated
// threads are threads to it, ordered by what orders threads of a GPU and by nothing else.
//
// Nothing in a program that is not built with it. Files that use this are compiled without
// instrumentation (BUILD.bazel), so that it does not see the emulation's own state, which threads
// share without being ordered; but it sees their copies through memcpy, on behalf of the thread
// that runs.

#ifndef KVBLOCKS_ATTENTION_CUDA_EMULATION_RACES_H_
#define KVBLOCKS_ATTENTION_CUDA_EMULATION_RACES_H_

#include <sanitizer/tsan_interface.h>

extern "C" {
#pragma weak __tsan_create_fiber
#pragma weak __tsan_destroy_fiber
#pragma weak __tsan_get_current_fiber
#pragma weak __tsan_switch_to_fiber
#pragma weak __tsan_acquire
#pragma weak __tsan_release
__attribute__((weak)) void __tsan_read8(void* at);
__attribute__((weak)) void __tsan_write8(void* at);
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char* file, int line);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace kvblocks::attention::cuda::emulation::races {

inline bool Watched() { return &__tsan_create_fiber != nullptr; }

// --- Threads; null where nobody watches ---

inline void* CurrentThread() { return Watched() ? __tsan_get_current_fiber() : nullptr; }
inline void* CreateThread() { return Watched() ? __tsan_create_fiber(0) : nullptr; }
inline void DestroyThread(void* thread) {
  if (Watched()) __tsan_destroy_fiber(thread);
}
// Right before its stack is switched to; orders nothing.
inline void SwitchTo(void* thread) {
  if (Watched()) __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync);
}

// --- Order: what was before a release is before what comes after a later acquire of the address
// ---

inline void Release(const void* at) {
  if (Watched()) __tsan_release(const_cast<void*>(at));
}
inline void Acquire(const void* at) {
  if (Watched()) __tsan_acquire(const_cast<void*>(at));
}

// --- Accesses of the running thread to 8 bytes ---

inline void Read8(const void* at) {
  if (Watched()) __tsan_read8(const_cast<void*>(at));
}
inline void Write8(void* at) {
  if (Watched()) __tsan_write8(at);
}

// While it lives, accesses of the running thread do not count.
class Unwatched {
 public:
  Unwatched() {
    if (!Watched()) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    if (!Watched()) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace kvblocks::attention::cuda::emulation::races

#endif  // KVBLOCKS_ATTENTION_CUDA_EMULATION_RACES_H_
