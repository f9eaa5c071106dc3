#include "python/src/attention/arrays.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "python/src/errors.h"

// DLPack 1.3's structures that nanobind does not declare: managed tensors, and the table by which a
// library describes its tensors without a Python call. Layouts are DLPack's ABI.
namespace kvblocks::python::dlpack {

using Tensor = nanobind::dlpack::dltensor;

struct Version {
  uint32_t major, minor;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};
inline constexpr uint64_t kReadOnlyFlag = 1;

// What a type's __dlpack_c_exchange_api__ points to. Functions return 0, or -1 with a Python error.
struct ExchangeTable {
  Version version;
  ExchangeTable* older;
  void* allocate;
  void* managed_from_object;
  void* object_from_managed;
  int (*describe)(void* object, Tensor* out);  // may be null
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace kvblocks::python::dlpack

namespace kvblocks::python {

using attention::DeviceId;
using attention::DeviceKind;
using attention::DType;
using attention::kMaxRank;
using attention::TensorView;

namespace {

using Code = nb::dlpack::dtype_code;

// DLPack's numbers.
enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct NamedType {
  const char* name;
  DType dtype;
  Code code;
  uint8_t bits;
};
constexpr NamedType kTypes[] = {
    {"float64", DType::kF64, Code::Float, 64},
    {"float32", DType::kF32, Code::Float, 32},
    {"float16", DType::kF16, Code::Float, 16},
    {"bfloat16", DType::kBF16, Code::Bfloat, 16},
    {"float8_e4m3fn", DType::kF8E4M3, Code::Float8_E4M3FN, 8},
    {"float8_e5m2", DType::kF8E5M2, Code::Float8_E5M2, 8},
    {"float8_e8m0fnu", DType::kF8E8M0, Code::Float8_E8M0FNU, 8},
    {"int8", DType::kI8, Code::Int, 8},
    {"uint8", DType::kU8, Code::UInt, 8},
    {"bool", DType::kBool, Code::Bool, 8},
    {"int32", DType::kI32, Code::Int, 32},
    {"int64", DType::kI64, Code::Int, 64},
};

[[noreturn]] void RaiseFor(const char* op, const char* name, absl::string_view problem) {
  Raise("InvalidArgumentError", absl::StrCat(op, ": ", name, " ", problem));
}

// What an importer found; strides in elements, or null for row-major.
struct Description {
  void* data;
  nb::dlpack::dtype dtype;
  int32_t device_type = kCpu, device_id = 0;
  int rank;
  const int64_t *shape, *strides;
};

// `wanted`: another type of the same size.
TensorView MakeView(const char* op, const char* name, const Description& from,
                    const DType* wanted) {
  const NamedType* type = nullptr;
  for (const NamedType& known : kTypes) {
    if (static_cast<uint8_t>(known.code) == from.dtype.code && known.bits == from.dtype.bits)
      type = &known;
  }
  if (from.dtype.lanes != 1 || (type == nullptr && wanted == nullptr)) {
    RaiseFor(op, name,
             absl::StrCat("has elements of DLPack type code ", int{from.dtype.code}, " with ",
                          int{from.dtype.bits}, " bits and ", int{from.dtype.lanes},
                          " lanes; float64 to float8, int8 to int64, uint8 or bool, or wrap it in "
                          "Tensor(array, dtype)"));
  }
  const DType dtype = wanted != nullptr ? *wanted : type->dtype;
  if (attention::ElementBytes(dtype) * 8 != from.dtype.bits) {
    RaiseFor(
        op, name,
        absl::StrCat("has elements of ", int{from.dtype.bits}, " bits, and ", DTypeName(dtype),
                     " has ", attention::ElementBytes(dtype) * 8, "; the sizes must be equal"));
  }
  DeviceId device;
  switch (from.device_type) {
    case kCpu:
      break;
    case kCudaHost:
      device.kind = DeviceKind::kPinnedHost;
      break;
    case kCuda:
    case kCudaManaged:
      device = {DeviceKind::kCuda, static_cast<int8_t>(from.device_id)};
      break;
    default:
      RaiseFor(op, name,
               absl::StrCat("is on a device of DLPack type ", from.device_type,
                            "; host memory or CUDA only"));
  }
  const auto rank = static_cast<size_t>(from.rank);
  absl::StatusOr<TensorView> view =
      TensorView::Make(static_cast<std::byte*>(from.data), dtype, {from.shape, rank},
                       from.strides == nullptr ? absl::Span<const int64_t>()
                                               : absl::MakeConstSpan(from.strides, rank),
                       device);
  if (!view.ok()) RaiseFor(op, name, absl::StrCat("cannot be used: ", view.status().message()));
  return *view;
}

TensorView MakeView(const char* op, const char* name, const dlpack::Tensor& tensor,
                    const DType* wanted) {
  Description from;
  from.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  from.dtype = tensor.dtype;
  from.device_type = tensor.device.device_type, from.device_id = tensor.device.device_id;
  from.rank = tensor.ndim;
  from.shape = tensor.shape, from.strides = tensor.strides;
  if (tensor.data == nullptr) from.data = nullptr;
  return MakeView(op, name, from, wanted);
}

// The type of a buffer's elements by its format, in the machine's byte order.
nb::dlpack::dtype TypeOf(const Py_buffer& buffer) {
  const char* format = buffer.format == nullptr ? "B" : buffer.format;
  if (*format == '@' || *format == '=' || *format == '<' || *format == '|') ++format;
  nb::dlpack::dtype dtype = {static_cast<uint8_t>(Code::UInt),
                             static_cast<uint8_t>(buffer.itemsize * 8), 1};
  if (*format == '\0' || format[1] != '\0') return dtype.lanes = 0, dtype;
  if (std::strchr("efd", *format) != nullptr) {
    dtype.code = static_cast<uint8_t>(Code::Float);
  } else if (std::strchr("bhilqn", *format) != nullptr) {
    dtype.code = static_cast<uint8_t>(Code::Int);
  } else if (*format == '?') {
    dtype.code = static_cast<uint8_t>(Code::Bool);
  } else if (std::strchr("BHILQN", *format) == nullptr) {
    dtype.lanes = 0;
  }
  return dtype;
}

TensorView FromBuffer(const char* op, const char* name, const Py_buffer& buffer,
                      const DType* wanted) {
  // The size must fit the 8 bits of DLPack's type; elements of no bytes are possible, too.
  if (buffer.itemsize < 1 || buffer.itemsize > 31) {
    RaiseFor(op, name,
             absl::StrCat("has elements of ", buffer.itemsize, " bytes; expected 1 to 8"));
  }
  Description from;
  from.data = buffer.buf;
  from.dtype = TypeOf(buffer);
  from.rank = buffer.ndim;
  std::array<int64_t, kMaxRank> shape, strides;
  if (buffer.ndim > kMaxRank)
    RaiseFor(op, name, absl::StrCat("has ", buffer.ndim, " dimensions; at most ", kMaxRank));
  for (int i = 0; i < buffer.ndim; ++i) {
    if (buffer.suboffsets != nullptr && buffer.suboffsets[i] >= 0) {
      RaiseFor(op, name,
               absl::StrCat("has rows behind pointers (a suboffset in dimension ", i,
                            "); expected one piece of memory, such as a copy of it"));
    }
    shape[i] = buffer.shape[i];
    if (buffer.strides[i] % buffer.itemsize != 0) {
      RaiseFor(op, name,
               absl::StrCat("has a stride of ", buffer.strides[i], " bytes in dimension ", i,
                            "; a multiple of the element size ", buffer.itemsize));
    }
    strides[i] = buffer.strides[i] / buffer.itemsize;
  }
  from.shape = shape.data(), from.strides = strides.data();
  return MakeView(op, name, from, wanted);
}

// --- Exchange tables by type; types are few, and none is ever given up. ---

struct KnownType {
  PyTypeObject* type;
  const dlpack::ExchangeTable* table;  // null: it has none
};
constexpr int kMaxKnownTypes = 16;
KnownType known_types[kMaxKnownTypes];
int num_known_types = 0;

const dlpack::ExchangeTable* FindTable(PyTypeObject* type) {
  const nb::object capsule = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)),
                                         "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  auto* table = static_cast<dlpack::ExchangeTable*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->version.major != 1) table = table->older;
  return table == nullptr || table->describe == nullptr ? nullptr : table;
}

const dlpack::ExchangeTable* TableOf(nb::handle array) {
  PyTypeObject* type = Py_TYPE(array.ptr());
  for (int i = 0; i < num_known_types; ++i) {
    if (known_types[i].type == type) return known_types[i].table;
  }
  const dlpack::ExchangeTable* table = FindTable(type);
  if (num_known_types < kMaxKnownTypes) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known_types[num_known_types++] = {type, table};
  }
  return table;
}

// --- __dlpack__ ---

int64_t DeviceTypeOf(nb::handle array) {
  const nb::object device = array.attr("__dlpack_device__")();
  return nb::cast<int64_t>(device[0]);
}

// The array's capsule, without a stream to wait for.
nb::object CapsuleOf(nb::handle array) {
  nb::dict options;
  if (DeviceTypeOf(array) != kCpu) options["stream"] = -1;
  options["max_version"] = nb::make_tuple(1, 1);
  const nb::object method = array.attr("__dlpack__");
  try {
    return method(**options);
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  PyObject* key = PyUnicode_InternFromString("max_version");  // a library from before versions
  PyDict_DelItem(options.ptr(), key);
  Py_DECREF(key);
  return method(**options);
}

ImportedArray FromCapsule(const char* op, const char* name, const nb::object& capsule, Held* held,
                          const DType* wanted) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    auto* managed = static_cast<dlpack::ManagedVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) {
      RaiseFor(
          op, name,
          absl::StrCat("comes as DLPack ", managed->version.major, "; version 1 is understood"));
    }
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    held->kind = Held::Kind::kManagedVersioned, held->managed = managed;
    return {MakeView(op, name, managed->tensor, wanted),
            (managed->flags & dlpack::kReadOnlyFlag) != 0};
  }
  auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) nb::raise_python_error();
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  held->kind = Held::Kind::kManaged, held->managed = managed;
  return {MakeView(op, name, managed->tensor, wanted), false};
}

// numpy's arrays of ml_dtypes have neither a buffer format nor a DLPack type, but bytes and a name.
// Of numpy alone: a view of other libraries may be a copy.
nb::object BytesOf(nb::handle array, DType* dtype) {
  const nb::object numpy = nb::module_::import_("numpy").attr("ndarray");
  if (PyObject_IsInstance(array.ptr(), numpy.ptr()) != 1) return nb::object();
  const nb::object type = array.attr("dtype");
  const auto name = nb::cast<std::string>(nb::str(nb::handle(type)));
  for (const NamedType& known : kTypes) {
    if (name != known.name) continue;
    *dtype = known.dtype;
    return array.attr("view")(known.bits == 8 ? "uint8" : "uint16");
  }
  return nb::object();
}

[[noreturn]] void RaiseNoArray(const char* op, const char* name, nb::handle object) {
  PyErr_Format(PyExc_TypeError,
               "%s: %s must be an array of numpy, torch or any library with __dlpack__, got %S", op,
               name, reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  nb::raise_python_error();
}

ImportedArray ImportAs(const char* op, const char* name, nb::handle array, Held* held,
                       const DType* wanted) {
  held->kind = Held::Kind::kNothing;
  if (const dlpack::ExchangeTable* table = TableOf(array); table != nullptr) {
    dlpack::Tensor tensor;
    if (table->describe(array.ptr(), &tensor) != 0) nb::raise_python_error();
    return {MakeView(op, name, tensor, wanted), false};
  }
  if (PyObject_CheckBuffer(array.ptr()) != 0) {
    if (PyObject_GetBuffer(array.ptr(), &held->buffer, PyBUF_FULL_RO) == 0) {
      held->kind = Held::Kind::kBuffer;
      return {FromBuffer(op, name, held->buffer, wanted), held->buffer.readonly != 0};
    }
    PyErr_Clear();
    DType dtype;
    if (const nb::object bytes = BytesOf(array, &dtype); bytes.is_valid()) {
      return ImportAs(op, name, bytes, held, wanted != nullptr ? wanted : &dtype);
    }
  }
  if (!nb::hasattr(array, "__dlpack__")) RaiseNoArray(op, name, array);
  return FromCapsule(op, name, CapsuleOf(array), held, wanted);
}

}  // namespace

void Release(Held* held) {
  const Held::Kind kind = std::exchange(held->kind, Held::Kind::kNothing);
  if (kind == Held::Kind::kBuffer) {
    PyBuffer_Release(&held->buffer);
  } else if (kind == Held::Kind::kManaged) {
    auto* managed = static_cast<dlpack::Managed*>(held->managed);
    if (managed->deleter != nullptr) managed->deleter(managed);
  } else if (kind == Held::Kind::kManagedVersioned) {
    auto* managed = static_cast<dlpack::ManagedVersioned*>(held->managed);
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
}

ImportedArray Import(const char* op, const char* name, nb::handle array, Held* held) {
  static const nb::handle tensor_type = nb::type<PyTensor>();
  held->kind = Held::Kind::kNothing;
  if (array.type().is(tensor_type)) return nb::inst_ptr<PyTensor>(array)->imported;
  try {
    return ImportAs(op, name, array, held, nullptr);
  } catch (...) {
    Release(held);
    throw;
  }
}

void* CurrentStream(nb::handle array, DeviceId device) {
  if (array.type().is(nb::type<PyTensor>())) {
    return CurrentStream(nb::inst_ptr<PyTensor>(array)->array, device);
  }
  void* stream = nullptr;
  const dlpack::ExchangeTable* table = TableOf(array);
  if (table != nullptr && table->current_stream != nullptr) {
    if (table->current_stream(kCuda, device.ordinal, &stream) != 0) nb::raise_python_error();
    return stream;
  }
  static const nb::handle ask =
      nb::object(nb::module_::import_("kvblocks.attention").attr("_current_stream")).release();
  const nb::object number = ask(array, static_cast<int>(device.ordinal));
  stream = PyLong_AsVoidPtr(number.ptr());
  if (stream == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return stream;
}

DType DTypeFrom(const char* op, nb::handle dtype) {
  const auto text = nb::cast<std::string>(nb::str(dtype));
  std::string_view name = text;
  if (const size_t dot = name.rfind('.'); dot != name.npos)
    name.remove_prefix(dot + 1);  // torch.bfloat16
  return EntryNamed(name, kTypes, &NamedType::name, absl::StrCat(op, ": dtype")).dtype;
}

const char* DTypeName(DType dtype) {
  for (const NamedType& known : kTypes) {
    if (known.dtype == dtype) return known.name;
  }
  return "?";
}

PyTensor::PyTensor(Argument<"Array"> the_array, Argument<"Any"> dtype)
    : array(nb::borrow(the_array)) {
  if (dtype.is_none()) {
    imported = Import("Tensor", "array", array, &held);
    return;
  }
  const DType wanted = DTypeFrom("Tensor", dtype);
  try {
    if (array.type().is(nb::type<PyTensor>())) array = nb::inst_ptr<PyTensor>(array)->array;
    imported = ImportAs("Tensor", "array", array, &held, &wanted);
  } catch (...) {
    Release(&held);
    throw;
  }
}

Result<"tuple[int, ...]"> TupleOf(absl::Span<const int64_t> numbers) {
  nb::list list;
  for (const int64_t number : numbers) list.append(number);
  return nb::tuple(list);
}

namespace {
template <typename Member>
auto ExtentsOf(const PyTensor& tensor, Member member) {
  const TensorView& view = tensor.imported.view;
  return TupleOf(absl::MakeConstSpan(view.*member).first(static_cast<size_t>(view.rank)));
}
}  // namespace

void BindTensor(nb::module_& module) {
  nb::class_<PyTensor>(module, "Tensor",
                       R"(An array that was described once: memory, shape, strides, type, device.

Every function takes one in place of an array; that saves the look at the array (0.1 to 1 us) for
caches, workspaces and the fixed buffers of a captured graph. With `dtype` the same memory is read
as another type of the same size: a uint8 array as "float8_e4m3fn", a uint16 array as "bfloat16".
Keeps the array alive, and copies nothing. The array must not be given other memory meanwhile
(torch's resize_ and set_).)")
      .def(nb::init<Argument<"Array">, Argument<"Any">>(), nb::arg("array"),
           nb::arg("dtype") = nb::none(),
           "dtype: a name, as numpy and torch have them, or a dtype object. Raises "
           "InvalidArgumentError for negative strides, other devices, types that no operation "
           "takes, or another element size.")
      .def_ro("array", &PyTensor::array)
      .def_prop_ro("shape", [](const PyTensor& t) { return ExtentsOf(t, &TensorView::extent); })
      .def_prop_ro(
          "strides", [](const PyTensor& t) { return ExtentsOf(t, &TensorView::stride); },
          "In elements.")
      .def_prop_ro("dtype", [](const PyTensor& t) { return DTypeName(t.imported.view.dtype); })
      .def_prop_ro(
          "device", [](const PyTensor& t) { return attention::Name(t.imported.view.device); },
          "\"host\", \"pinned host\", \"cuda:0\".")
      .def_prop_ro("is_read_only", [](const PyTensor& t) { return t.imported.is_read_only; })
      .def("__repr__", [](const PyTensor& t) {
        return absl::StrCat("Tensor(", t.imported.view.DebugString(), ", ",
                            attention::Name(t.imported.view.device), ")");
      });
}

}  // namespace kvblocks::python
