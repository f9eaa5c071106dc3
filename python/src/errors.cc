#include "python/src/errors.h"

namespace kvblocks::python {

const char* ErrorClass(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "InvalidArgumentError";
    case absl::StatusCode::kNotFound:
      return "NotFoundError";
    case absl::StatusCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case absl::StatusCode::kInternal:
      return "InvariantError";
    default:
      return "KVBlocksError";
  }
}

void Raise(const char* error_class, std::string_view message) {
  const nb::object type = nb::module_::import_("kvblocks.errors").attr(error_class);
  PyErr_SetObject(type.ptr(), nb::str(message.data(), message.size()).ptr());
  nb::raise_python_error();
}

void Raise(const absl::Status& status) {
  const absl::string_view message = status.message();
  Raise(ErrorClass(status.code()), {message.data(), message.size()});
}

}  // namespace kvblocks::python
