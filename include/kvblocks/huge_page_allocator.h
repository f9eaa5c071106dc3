// An allocator that asks for huge pages.

#ifndef KVBLOCKS_HUGE_PAGE_ALLOCATOR_H_
#define KVBLOCKS_HUGE_PAGE_ALLOCATOR_H_

#include <cstddef>
#include <cstdlib>
#include <new>

// HugePageAllocator: memory for arrays that are read at random, in pages of 2 MiB where the system
// gives them, because with pages of 4 KiB nearly every access to a large pool's book-keeping also
// misses the address translation cache.
//
// Small arrays come from the ordinary heap. Linux gives huge pages if
// /sys/kernel/mm/transparent_hugepage/enabled says "madvise" or "always"; elsewhere the memory is
// ordinary and all else the same.

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace kvblocks {

template <typename T>
class HugePageAllocator {
 public:
  using value_type = T;

  HugePageAllocator() = default;
  template <typename U>
  HugePageAllocator(const HugePageAllocator<U>&) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes < kHugePage) {
      return static_cast<T*>(::operator new (bytes, std::align_val_t{kAlignment}));
    }
    void* memory = nullptr;
    while (posix_memalign(&memory, kHugePage, bytes) != 0) {
      if (std::get_new_handler() == nullptr) throw std::bad_alloc();
      std::get_new_handler()();
    }
#ifdef __linux__
    madvise(memory, bytes, MADV_HUGEPAGE);  // a wish; pages stay small if it is not granted
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    if (count * sizeof(T) < kHugePage) {
      ::operator delete (memory, std::align_val_t{kAlignment});
    } else {
      std::free(memory);
    }
  }

  friend bool operator==(const HugePageAllocator&, const HugePageAllocator&) { return true; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kAlignment = 64;  // of cache lines
  static_assert(alignof(T) <= kAlignment);
};

}  // namespace kvblocks

#endif  // KVBLOCKS_HUGE_PAGE_ALLOCATOR_H_
