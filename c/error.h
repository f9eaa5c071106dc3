// How the C interface reports failures: a status for the caller, a text per thread, and no
// exception that leaves the library.

#ifndef KVBLOCKS_C_ERROR_H_
#define KVBLOCKS_C_ERROR_H_

#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>

#include "absl/status/status.h"
#include "kvblocks/c/kvblocks.h"

namespace kvblocks::c {

// Remember the text for kvb_last_error() and return the status.
kvb_status Fail(kvb_status status, std::string_view text) noexcept;
// KVB_OK for an OK status.
kvb_status Fail(const absl::Status& status) noexcept;
// Of a list of arguments as it stands in the source, "request, blocks", that at `index` is NULL.
kvb_status FailNull(const char* function, std::string_view arguments, size_t index = 0) noexcept;

// What `body` returns, or the status of the exception that it throws. Only the standard library
// throws below this interface, and in practice only for want of memory.
template <typename Body>
[[gnu::always_inline]] inline kvb_status Guard(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(KVB_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return Fail(KVB_INTERNAL, e.what());
  } catch (...) {
    return Fail(KVB_INTERNAL, "unknown exception");
  }
}

[[gnu::always_inline]] inline kvb_status RequireAll(
    const char* function, const char* names,
    std::initializer_list<const void*> arguments) noexcept {
  for (const void* const& argument : arguments) {
    if (argument == nullptr) [[unlikely]]
      return FailNull(function, names, static_cast<size_t>(&argument - arguments.begin()));
  }
  return KVB_OK;
}

}  // namespace kvblocks::c

// Returns KVB_INVALID_ARGUMENT from a function one of whose arguments is NULL.
#define KVB_REQUIRE(...)                                                                         \
  if (const kvb_status given = ::kvblocks::c::RequireAll(__func__, #__VA_ARGS__, {__VA_ARGS__}); \
      given != KVB_OK)                                                                           \
  return given

#endif  // KVBLOCKS_C_ERROR_H_
