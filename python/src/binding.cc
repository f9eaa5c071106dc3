#include "python/src/binding.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kvblocks/eviction.h"

namespace kvblocks::python {
namespace {

int32_t ToInt32(long long value, size_t index, const char* what) {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    Raise("InvalidArgumentError",
          absl::StrCat(what, "[", index, "] is ", value, ", expected a 32-bit integer"));
  }
  return static_cast<int32_t>(value);
}

// Integers of this size and machine byte order.
bool IsInteger(const Py_buffer& buffer, Py_ssize_t size) {
  const char* format = buffer.format == nullptr ? "B" : buffer.format;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  return buffer.itemsize == size && std::strchr("ilq", *format) != nullptr && format[1] == '\0';
}

}  // namespace

Int32Argument::Int32Argument(nb::handle object, const char* what) {
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    const bool is_list = PyList_Check(object.ptr());
    const auto size = static_cast<size_t>(PySequence_Size(object.ptr()));
    copy_.resize(size);
    for (size_t i = 0; i < size; ++i) {
      PyObject* item = is_list ? NB_LIST_GET_ITEM(object.ptr(), static_cast<Py_ssize_t>(i))
                               : NB_TUPLE_GET_ITEM(object.ptr(), static_cast<Py_ssize_t>(i));
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(item, &overflow);
      if (value == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
      if (overflow != 0) {
        Raise("InvalidArgumentError",
              absl::StrCat(what, "[", i, "] is beyond 64 bits, expected a 32-bit integer"));
      }
      copy_[i] = ToInt32(value, i, what);
    }
    values_ = copy_;
    return;
  }
  // a range, for one
  if (!PyObject_CheckBuffer(object.ptr()) && PySequence_Check(object.ptr()) != 0) {
    const auto list = nb::steal<nb::list>(PySequence_List(object.ptr()));
    if (!list.is_valid()) nb::raise_python_error();
    const Int32Argument items(list, what);
    copy_.assign(items.values().begin(), items.values().end());
    values_ = copy_;
    return;
  }
  if (PyObject_CheckBuffer(object.ptr())) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
      nb::raise_python_error();
    }
    has_buffer_ = true;
    try {
      ReadBuffer(what);
    } catch (...) {
      PyBuffer_Release(&buffer_);
      throw;
    }
    return;
  }
  PyErr_Format(
      PyExc_TypeError,
      "%s: expected a list, another sequence, or a contiguous buffer of int32 or int64, got %S",
      what, reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  nb::raise_python_error();
}

void Int32Argument::ReadBuffer(const char* what) {
  const auto size =
      buffer_.itemsize == 0 ? size_t{0} : static_cast<size_t>(buffer_.len / buffer_.itemsize);
  if (buffer_.ndim != 1) {
    PyErr_Format(PyExc_TypeError, "%s: the buffer has %d dimensions, expected 1", what,
                 buffer_.ndim);
    nb::raise_python_error();
  }
  if (IsInteger(buffer_, 4)) {
    values_ = {static_cast<const int32_t*>(buffer_.buf), size};
  } else if (IsInteger(buffer_, 8)) {
    const auto* wide = static_cast<const int64_t*>(buffer_.buf);
    copy_.resize(size);
    for (size_t i = 0; i < size; ++i) copy_[i] = ToInt32(wide[i], i, what);
    values_ = copy_;
  } else {
    PyErr_Format(PyExc_TypeError,
                 "%s: the buffer has elements of format '%s', expected int32 or int64", what,
                 buffer_.format == nullptr ? "B" : buffer_.format);
    nb::raise_python_error();
  }
}

Int32Argument::~Int32Argument() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

BlockHash HashFrom(nb::handle object) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object.ptr(), &data, &size) != 0) nb::raise_python_error();
  BlockHash hash;
  if (size < 1 || size > static_cast<Py_ssize_t>(sizeof(hash.words))) {
    Raise("InvalidArgumentError",
          absl::StrCat("block hash has ", size, " bytes, expected 1 to ", sizeof(hash.words)));
  }
  std::memcpy(hash.words.data(), data, static_cast<size_t>(size));
  return hash;
}

std::vector<BlockHash> HashesFrom(nb::handle object, size_t first) {
  std::vector<BlockHash> hashes;
  const bool is_list = PyList_Check(object.ptr());
  if (is_list || PyTuple_Check(object.ptr())) {
    const auto size = static_cast<size_t>(PySequence_Size(object.ptr()));
    hashes.reserve(size - std::min(first, size));
    for (size_t i = first; i < size; ++i) {
      hashes.push_back(HashFrom(is_list
                                    ? NB_LIST_GET_ITEM(object.ptr(), static_cast<Py_ssize_t>(i))
                                    : NB_TUPLE_GET_ITEM(object.ptr(), static_cast<Py_ssize_t>(i))));
    }
    return hashes;
  }
  Py_buffer buffer;
  if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) nb::raise_python_error();
  const auto bytes = static_cast<size_t>(buffer.len);
  if (bytes % sizeof(BlockHash) == 0 && first <= bytes / sizeof(BlockHash)) {
    hashes.resize(bytes / sizeof(BlockHash) - first);
    if (!hashes.empty()) {
      std::memcpy(hashes.data(), static_cast<const char*>(buffer.buf) + first * sizeof(BlockHash),
                  hashes.size() * sizeof(BlockHash));
    }
    PyBuffer_Release(&buffer);
    return hashes;
  }
  PyBuffer_Release(&buffer);
  Raise("InvalidArgumentError", absl::StrCat("block hashes: ", bytes,
                                             " bytes, expected a multiple of ", sizeof(BlockHash)));
}

nb::bytes ToBytes(const BlockHash& hash, size_t size) {
  return nb::bytes(reinterpret_cast<const char*>(hash.words.data()), size);
}

size_t HashBytesOf(const KvCacheManager& manager) {
  return manager.hashing() == nullptr ? sizeof(BlockHash) : manager.hashing()->hasher.digest_size();
}

nb::bytes ToBytes(const KvCacheManager& manager, const BlockHash& hash) {
  return ToBytes(hash, HashBytesOf(manager));
}

Result<"list[bytes]"> ToBytesList(absl::Span<const BlockHash> hashes, size_t size) {
  nb::list list;
  for (const BlockHash& hash : hashes) list.append(ToBytes(hash, size));
  return list;
}

std::vector<TokenId> TokensFrom(nb::handle object) {
  const Int32Argument tokens(object, "token_ids");
  return {tokens.values().begin(), tokens.values().end()};
}

EvictionPolicyFactory EvictionPolicyByName(const std::string& name) {
  return Value(ParseEvictionPolicy(name));
}

HashAlgorithm HashAlgorithmByName(const std::string& name) {
  return Value(ParseHashAlgorithm(name));
}

FreeOrder FreeOrderByName(const std::string& name) {
  return Value(ParseWord("free_order", name, "unhashed_first", FreeOrder::kUnhashedFirst,
                         "append_all", FreeOrder::kAppendAll));
}

Result<"list[int]"> ToList(absl::Span<const BlockId> ids) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(ids.size()));
  if (list == nullptr) nb::raise_python_error();
  for (size_t i = 0; i < ids.size(); ++i) {
    PyObject* item = PyLong_FromLong(ids[i]);
    if (item == nullptr) {
      Py_DECREF(list);
      nb::raise_python_error();
    }
    NB_LIST_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
  }
  return nb::steal(list);
}

void CheckOwner(const PyManager& manager, const PyRequest& request) {
  if (request.manager != &manager) [[unlikely]] {
    Raise("InvalidArgumentError",
          absl::StrCat("request ", request.core->id(),
                       " belongs to another KVCacheManager, expected this one's"));
  }
}

GroupId CheckGroup(const PyManager& manager, GroupId group, const char* call) {
  const int64_t num_groups = manager.core->num_groups();
  if (group >= 0 && group < num_groups) return group;
  Raise("NotFoundError",
        absl::StrCat(call, "group is ", group, ", expected 0 to ", num_groups - 1));
}

void PyRequest::MoveShownTables() {
  for (size_t g = 0; g < shown.size(); ++g) {
    // One owner is this list: then nobody shows the memory any more.
    if (shown[g] != nullptr && shown[g].use_count() > 1) {
      shown[g]->kept = manager->core->MoveBlockTable(*core, static_cast<GroupId>(g));
    }
  }
  shown.clear();
}

}  // namespace kvblocks::python
