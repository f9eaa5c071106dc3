#include "c/error.h"

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

kvb_status FailNull(const char* function, const char* argument) noexcept {
  return Guard([&] {
    return Fail(KVB_INVALID_ARGUMENT, absl::StrCat(function, ": ", argument, " is NULL"));
  });
}

}  // namespace kvblocks::c

extern "C" {

const char* kvb_last_error(void) { return kvblocks::c::last_error; }

const char* kvb_status_name(int32_t status) {
  switch (status) {
    case KVB_OK:
      return "KVB_OK";
    case KVB_NO_SPACE:
      return "KVB_NO_SPACE";
    case KVB_IN_USE:
      return "KVB_IN_USE";
    case KVB_INVALID_ARGUMENT:
      return "KVB_INVALID_ARGUMENT";
    case KVB_NOT_FOUND:
      return "KVB_NOT_FOUND";
    case KVB_OUT_OF_MEMORY:
      return "KVB_OUT_OF_MEMORY";
    case KVB_INTERNAL:
      return "KVB_INTERNAL";
  }
  return "unknown kvb_status";
}

}  // extern "C"
