#include "tests/allocation_counter/allocation_counter.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
int64_t num_allocations = 0;
bool is_counting = false;

void* Allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  if (is_counting) ++num_allocations;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size == 0 ? 1 : size) != 0) std::abort();
  return memory;
}
}  // namespace

// All forms, so that none frees what another kind of allocator made.
void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace kvblocks {

int64_t NumAllocations() { return num_allocations; }

CountAllocations::CountAllocations(bool on) : before_(is_counting) { is_counting = on; }
CountAllocations::~CountAllocations() { is_counting = before_; }

}  // namespace kvblocks
