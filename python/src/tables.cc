// BlockTable: a request's live block table as Python sees it; Blocks and ComputedBlocks: lists of
// ids that are values.
//
// A BlockTable copies nothing. An array made from it shows the table's own memory and stays
// readable: before the table changes, the request gets other memory (PyRequest::LetGoOfTables), so
// an array is a picture of its moment and never shows another request's blocks. The BlockTable
// itself goes on with the request, and raises once the request has given its blocks back.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "python/src/binding.h"

namespace kvblocks::python {
namespace {

// REQUIRES of all: the request is alive; `owner` keeps it so.
struct PyBlockTable {
  Result<"Request"> owner;
  PyRequest* request;
  GroupId group;
  uint64_t generation;

  absl::Span<const BlockId> blocks() const {
    CheckUse(*request->manager);
    if (generation != request->generation) {
      Raise("StaleBlockTableError", absl::StrCat("block table of request ", request->core->id(),
                                                 ": the request has given its blocks back; "
                                                 "get_blocks again after the next allocate_slots"));
    }
    return request->manager->core->GetBlocks(*request->core, group);
  }
};

PyBlockTable GetBlocks(const PyManager& self, nb::handle_t<PyRequest> owner, GroupId group) {
  auto& request = nb::cast<PyRequest&>(owner);
  CheckUse(self, request);
  CheckGroup(self, group, "get_blocks: ");
  return {nb::borrow(owner), &request, group, request.generation};
}

// --- The buffer protocol: what keeps the memory is a shared_ptr in buffer->internal. ---

struct Export {
  std::shared_ptr<TableMemory> memory;
  Py_ssize_t shape[2], strides[2];
};

// Of one row, or of two dimensions.
int FillBuffer(PyObject* self, Py_buffer* buffer, absl::Span<const int32_t> numbers, size_t columns,
               int flags, std::shared_ptr<TableMemory> memory) {
  if ((flags & PyBUF_WRITABLE) != 0) {
    buffer->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, "block tables are read-only");
    return -1;
  }
  static int32_t nothing = 0;
  const auto size = static_cast<Py_ssize_t>(numbers.size());
  const auto row = columns == 0 ? size : static_cast<Py_ssize_t>(columns);
  auto* exported = new Export{std::move(memory), {size, row}, {sizeof(int32_t), sizeof(int32_t)}};
  if (columns != 0) {
    exported->shape[0] = size / row;
    exported->strides[0] = row * static_cast<Py_ssize_t>(sizeof(int32_t));
  }
  buffer->buf = size == 0 ? &nothing : const_cast<int32_t*>(numbers.data());
  buffer->obj = self;
  Py_INCREF(self);
  buffer->len = size * static_cast<Py_ssize_t>(sizeof(int32_t));
  buffer->readonly = 1;
  buffer->itemsize = sizeof(int32_t);
  buffer->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>("i") : nullptr;
  buffer->ndim = columns == 0 ? 1 : 2;
  buffer->shape = exported->shape;
  buffer->strides = exported->strides;
  buffer->suboffsets = nullptr;
  buffer->internal = exported;
  return 0;
}

void ReleaseBuffer(PyObject*, Py_buffer* buffer) { delete static_cast<Export*>(buffer->internal); }

int GetTableBuffer(PyObject* self, Py_buffer* buffer, int flags) {
  auto* table = nb::inst_ptr<PyBlockTable>(self);
  try {
    const absl::Span<const BlockId> blocks = table->blocks();
    std::vector<std::shared_ptr<TableMemory>>& shown = table->request->shown;
    const auto g = static_cast<size_t>(table->group);
    if (shown.empty())
      shown.resize(static_cast<size_t>(table->request->manager->core->num_groups()));
    if (shown[g] == nullptr) shown[g] = std::make_shared<TableMemory>();
    return FillBuffer(self, buffer, blocks, 0, flags, shown[g]);
  } catch (nb::python_error& error) {
    error.restore();
    buffer->obj = nullptr;
    return -1;
  }
}

PyType_Slot table_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetTableBuffer)},
                             {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
                             {0, nullptr}};

// Numbers that another object keeps.
struct PyNumbers {
  nb::object owner;
  absl::Span<const int32_t> numbers;
  size_t columns;
};

int GetNumbersBuffer(PyObject* self, Py_buffer* buffer, int flags) {
  const auto* list = nb::inst_ptr<PyNumbers>(self);
  return FillBuffer(self, buffer, list->numbers, list->columns, flags, nullptr);
}

PyType_Slot numbers_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetNumbersBuffer)},
                               {Py_bf_releasebuffer, reinterpret_cast<void*>(ReleaseBuffer)},
                               {0, nullptr}};

nb::object AsArray(nb::handle object) {
  return nb::module_::import_("numpy").attr("asarray")(object);
}

Int32Array TableArray(nb::handle_t<PyBlockTable> self) {
  (void)nb::cast<const PyBlockTable&>(self).blocks();  // numpy would hide why there is no buffer
  return AsArray(self);
}

size_t IndexIn(Py_ssize_t index, size_t size) {
  if (index < 0) index += static_cast<Py_ssize_t>(size);
  if (index < 0 || index >= static_cast<Py_ssize_t>(size)) {
    throw nb::index_error("block table index out of range");
  }
  return static_cast<size_t>(index);
}

// --- Values ---

absl::Span<const BlockId> ListOf(const PyBlocks& value, size_t g) { return value.lists[g]; }
absl::Span<const BlockId> ListOf(const ComputedBlocks& value, size_t g) {
  return value.blocks(static_cast<GroupId>(g));
}
size_t NumGroups(const PyBlocks& value) { return value.lists.size(); }
size_t NumGroups(const ComputedBlocks& value) { return value.num_groups(); }

template <typename T>
nb::class_<T> BindValue(nb::module_& module, const char* name, const char* doc) {
  return nb::class_<T>(module, name, doc)
      .def(
          "__len__", [](const T& value) { return NumGroups(value); }, "Groups.")
      .def(
          "__getitem__",
          [](nb::handle_t<T> self, Py_ssize_t group) {
            const T& value = nb::cast<const T&>(self);
            const size_t g = IndexIn(group, NumGroups(value));
            return MakeArray(self, ListOf(value, g));
          },
          nb::arg("group"), nb::sig("def __getitem__(self, group: int, /) -> NDArray[numpy.int32]"),
          "The ids of one group as a read-only array, without a copy.")
      .def(
          "block_ids",
          [](const T& value) {
            return ToLists(NumGroups(value), [&](size_t g) { return ListOf(value, g); });
          },
          "Per group a list of ids.")
      .def_prop_ro(
          "num_blocks",
          [](const T& value) {
            size_t sum = 0;
            for (size_t g = 0; g < NumGroups(value); ++g) sum += ListOf(value, g).size();
            return sum;
          },
          "Over all groups.");
}

}  // namespace

Int32Array MakeArray(nb::handle owner, absl::Span<const int32_t> numbers, size_t columns) {
  return AsArray(nb::cast(PyNumbers{nb::borrow(owner), numbers, columns}));
}

void BindTables(nb::module_& module) {
  nb::class_<PyNumbers>(module, "_Numbers", nb::type_slots(numbers_slots));
  BindValue<PyBlocks>(
      module, "Blocks",
      "The blocks that one allocate_slots took, per group: a value that stays as it is.");
  BindValue<ComputedBlocks>(module, "ComputedBlocks",
                            "The answer of a prefix look-up, for allocate_slots of the same "
                            "request. Pins nothing: a list gone stale is refused.")
      .def(
          "__init__",
          [](ComputedBlocks* self, const std::vector<std::vector<BlockId>>& lists,
             int64_t num_tokens) {
            new (self) ComputedBlocks(HitLists(lists.begin(), lists.end()), num_tokens);
          },
          nb::arg("lists") = nb::tuple(), nb::arg("num_tokens") = 0,
          "Lists put together by the caller, one per group; allocate_slots checks every block of "
          "them.")
      .def_prop_ro("num_tokens", &ComputedBlocks::num_tokens, "Tokens that need not be computed.")
      .def_prop_ro(
          "shared_prefix_boundary", &ComputedBlocks::shared_prefix_boundary,
          "Tokens of a longer prefix that others share but a sparsely kept group lacks; 0: none.");

  nb::class_<PyBlockTable>(
      module, "BlockTable", nb::type_slots(table_slots),
      R"(One group's block table of a request, without a copy; null blocks are 0.

Follows the request while it grows. Once the request has given its blocks back, every use raises
StaleBlockTableError. numpy.asarray(table) and memoryview(table) show the memory itself, read-only:
they stay as the table was at that moment and readable for ever.)")
      .def("__len__", [](const PyBlockTable& t) { return t.blocks().size(); })
      .def(
          "__getitem__",
          [](const PyBlockTable& t, Py_ssize_t index) {
            const auto blocks = t.blocks();
            return blocks[IndexIn(index, blocks.size())];
          },
          nb::arg("index"))
      .def("numpy", &TableArray, "numpy.asarray(self).")
      // numpy takes the buffer; it comes here where there is none, and would make an array of one
      // object.
      .def(
          "__array__",
          [](nb::handle_t<PyBlockTable> self, AnyObject dtype,
             std::optional<bool>) -> Result<"NDArray[Any]"> {
            return TableArray(self).attr("astype")(dtype.is_none() ? nb::cast("int32") : dtype);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def("tolist", [](const PyBlockTable& t) { return ToList(t.blocks()); })
      .def_prop_ro("is_stale",
                   [](const PyBlockTable& t) { return t.generation != t.request->generation; })
      .def_ro("request", &PyBlockTable::owner)
      .def_ro("group", &PyBlockTable::group);

  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def("get_blocks", &GetBlocks, nb::arg("request"), nb::arg("group") = 0,
           "One group's block table, without a copy. Raises NotFoundError for no such group.");
}

}  // namespace kvblocks::python
