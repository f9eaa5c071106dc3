// Structs that grow: how the library reads and writes a struct whose caller was compiled with an
// older or newer header.
//
// The first field says how many bytes the caller's struct has. Older callers have fewer: what they
// lack is zero, which is the default of every field. Newer callers have more: what this library
// does not know must be zero on input, and is set to zero on output.
//
// Always: a struct has no padding at its end, where a later field would begin.

#ifndef KVBLOCKS_C_GROWING_STRUCT_H_
#define KVBLOCKS_C_GROWING_STRUCT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "c/error.h"

namespace kvblocks::c {

// No struct will ever be larger: a larger struct_size is garbage.
inline constexpr size_t kMaxStructSize = 4096;

// InvalidArgument for a size that no version of a struct has. `name` is that of the argument.
inline kvb_status CheckStructSize(size_t size, const char* function, const char* name) {
  if (size >= sizeof(size_t) && size <= kMaxStructSize) return KVB_OK;
  return Fail(KVB_INVALID_ARGUMENT,
              absl::StrCat(function, ": ", name, ".struct_size is ", size, ", expected ",
                           sizeof(size_t), " to ", kMaxStructSize, "; set it with KVB_INIT"));
}

// Copies what the caller has of `in` over the zeroes of `out`.
template <typename T>
kvb_status ReadStruct(const T* in, const char* function, const char* name, T* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = in->struct_size;
  if (kvb_status status = CheckStructSize(size, function, name); status != KVB_OK) return status;
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return Fail(KVB_INVALID_ARGUMENT,
                absl::StrCat(function, ": byte ", i, " of ", name,
                             " is set, a field that this version of the library, which knows ",
                             sizeof(T), " bytes, does not have"));
  }
  *out = T{};
  std::memcpy(out, in, std::min(size, sizeof(T)));
  return KVB_OK;
}

// Copies `value` to what the caller has room for, but for struct_size, which stays.
template <typename T>
kvb_status WriteStruct(const T& value, const char* function, const char* name, T* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = out->struct_size;
  if (kvb_status status = CheckStructSize(size, function, name); status != KVB_OK) return status;
  auto* bytes = reinterpret_cast<unsigned char*>(out);
  constexpr size_t kHead = sizeof(size_t);
  std::memcpy(bytes + kHead, reinterpret_cast<const unsigned char*>(&value) + kHead,
              std::min(size, sizeof(T)) - kHead);
  if (size > sizeof(T)) std::memset(bytes + sizeof(T), 0, size - sizeof(T));
  return KVB_OK;
}

}  // namespace kvblocks::c

#endif  // KVBLOCKS_C_GROWING_STRUCT_H_
