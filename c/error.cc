#include "c/error.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvblocks::c {
namespace {

// Texts are cut so that keeping one needs no memory.
constexpr size_t kMaxText = 2047;
thread_local char last_error[kMaxText + 1] = "";

kvb_status StatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return KVB_OK;
    case absl::StatusCode::kNotFound:
      return KVB_NOT_FOUND;
    case absl::StatusCode::kResourceExhausted:
      return KVB_OUT_OF_MEMORY;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss:
      return KVB_INTERNAL;
    default:
      return KVB_INVALID_ARGUMENT;
  }
}

}  // namespace

kvb_status Fail(kvb_status status, std::string_view text) noexcept {
  last_error[text.copy(last_error, kMaxText)] = '\0';
  return status;
}

kvb_status Fail(const absl::Status& status) noexcept {
  if (status.ok()) return KVB_OK;
  return Fail(StatusOf(status.code()),
              std::string_view(status.message().data(), status.message().size()));
}

kvb_status FailNull(const char* function, std::string_view arguments, size_t index) noexcept {
  return Guard([&] {
    for (; index > 0; --index) arguments.remove_prefix(arguments.find(", ") + 2);
    const std::string name(arguments.substr(0, arguments.find(", ")));
    return Fail(KVB_INVALID_ARGUMENT, absl::StrCat(function, ": ", name, " is NULL"));
  });
}

}  // namespace kvblocks::c

extern "C" {

const char* kvb_last_error(void) { return kvblocks::c::last_error; }

const char* kvb_status_name(int32_t status) {
  constexpr const char* kNames[] = {
      "KVB_OK",        "KVB_NO_SPACE",      "KVB_IN_USE",  "KVB_INVALID_ARGUMENT",
      "KVB_NOT_FOUND", "KVB_OUT_OF_MEMORY", "KVB_INTERNAL"};
  static_assert(std::size(kNames) == KVB_INTERNAL + 1);
  return status >= KVB_OK && status <= KVB_INTERNAL ? kNames[status] : "unknown kvb_status";
}

}  // extern "C"
