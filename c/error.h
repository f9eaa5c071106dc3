// How the C interface reports failures: a status for the caller, a text per thread, and no
// exception that leaves the library.

#ifndef KVBLOCKS_C_ERROR_H_
#define KVBLOCKS_C_ERROR_H_

#include <exception>
#include <new>
#include <string_view>

#include "absl/status/status.h"
#include "kvblocks/c/kvblocks.h"

namespace kvblocks::c {

// Remember the text for kvb_last_error() and return the status.
kvb_status Fail(kvb_status status, std::string_view text) noexcept;
// KVB_OK for an OK status.
kvb_status Fail(const absl::Status& status) noexcept;
kvb_status FailNull(const char* function, const char* argument) noexcept;

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

}  // namespace kvblocks::c

// Returns KVB_INVALID_ARGUMENT from a function whose argument is NULL.
#define KVB_REQUIRE(argument) \
  if ((argument) == nullptr) return ::kvblocks::c::FailNull(__func__, #argument)

#endif  // KVBLOCKS_C_ERROR_H_
