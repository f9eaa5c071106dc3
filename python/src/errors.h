// How a status becomes a Python exception, and which calls release the interpreter lock: what both
// extension modules share.

#ifndef KVBLOCKS_PYTHON_SRC_ERRORS_H_
#define KVBLOCKS_PYTHON_SRC_ERRORS_H_

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblocks::python {

namespace nb = nanobind;

// Raises the class of kvblocks.errors of this name.
[[noreturn]] void Raise(const char* error_class, std::string_view message);
// Raises the class that the status' code stands for, with its message.
[[noreturn]] void Raise(const absl::Status& status);
// The name of that class.
const char* ErrorClass(absl::StatusCode code);
inline void Check(const absl::Status& status) {
  if (!status.ok()) [[unlikely]]
    Raise(status);
}
template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) [[unlikely]]
    Raise(value.status());
  return *std::move(value);
}

// Lets go of the interpreter lock for a call that takes long.
class ReleaseIf {
 public:
  explicit ReleaseIf(bool is_long) {
    if (is_long) released_.emplace();
  }
  ReleaseIf(const ReleaseIf&) = delete;
  ReleaseIf& operator=(const ReleaseIf&) = delete;

 private:
  std::optional<nb::gil_scoped_release> released_;
};

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_ERRORS_H_
