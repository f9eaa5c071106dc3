// Arrays of other libraries as TensorViews: what is read of them, and what is held meanwhile.
//
// Nothing is copied and no stream is waited for. In this order an array is asked for
//   DLPack's exchange table of its type (torch 2.13 has one): a look-up and a call, nothing held;
//   the buffer protocol (numpy, memoryview): the buffer is held, so numpy cannot move the memory;
//   __dlpack__ (CuPy, JAX, older torch), on a GPU with stream=-1, "do not synchronise".
// nanobind's own ndarray is not used: its import asks GPU libraries to synchronise with the default
// stream, which a stream that is being captured refuses.
//
// REQUIRES of all: the interpreter lock.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_ARRAYS_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_ARRAYS_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kvblocks/tensor_view.h"
#include "python/src/errors.h"
#include "python/src/parameters.h"

namespace kvblocks::python {

// What keeps a description valid; Release gives it back. Trivial, so that a call may have many
// unused.
struct Held {
  enum class Kind : uint8_t { kNothing, kBuffer, kManaged, kManagedVersioned };
  Kind kind;
  union {
    Py_buffer buffer;
    void* managed;
  };
};
void Release(Held* held);

struct ImportedArray {
  attention::TensorView view;
  bool is_read_only = false;
};
// `op` and `name` are for messages. Raises TypeError for what is no array, InvalidArgumentError for
// one that no view can describe.
ImportedArray Import(const char* op, const char* name, nb::handle array, Held* held);

// The stream that the array's library works on now, on the array's device: of torch and CuPy; of
// others null (the legacy default stream).
void* CurrentStream(nb::handle array, attention::DeviceId device);

Result<"tuple[int, ...]"> TupleOf(absl::Span<const int64_t> numbers);

// The entry that `name_of` gives this name. Raises what the names are: "WHAT is NAME; one of ...".
template <typename Entries, typename NameOf>
const auto& EntryNamed(std::string_view name, const Entries& entries, NameOf name_of,
                       std::string_view what) {
  const auto found = std::ranges::find(entries, name, name_of);
  if (found != std::end(entries)) return *found;
  const auto append = [&](std::string* out, const auto& entry) {
    absl::StrAppend(out, std::invoke(name_of, entry));
  };
  Raise("InvalidArgumentError", absl::StrCat(std::string(what), " is ", std::string(name),
                                             "; one of ", absl::StrJoin(entries, ", ", append)));
}

// Of "bfloat16", "float8_e4m3fn" and so on, or of a library's own dtype object.
attention::DType DTypeFrom(const char* op, nb::handle dtype);
const char* DTypeName(attention::DType dtype);

// Python's Tensor: an array that was described once, perhaps with another element type of the same
// size.
struct PyTensor {
  AnyObject array;
  ImportedArray imported;
  Held held = {};

  PyTensor(Argument<"Array"> the_array, Argument<"Any"> dtype);
  PyTensor(const PyTensor&) = delete;
  PyTensor& operator=(const PyTensor&) = delete;
  ~PyTensor() { Release(&held); }
};
void BindTensor(nb::module_& module);

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_ARRAYS_H_
