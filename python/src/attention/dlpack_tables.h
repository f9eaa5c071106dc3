// DLPack 1.3's structures that nanobind does not declare: managed tensors, and the table by which a
// library describes its tensors without a Python call. Layouts are DLPack's ABI.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_DLPACK_TABLES_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_DLPACK_TABLES_H_

#include <nanobind/ndarray.h>

#include <cstdint>

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

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_DLPACK_TABLES_H_
