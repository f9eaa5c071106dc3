// Metadata of a step.

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention_metadata.h"
#include "python/src/attention/op_call.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "attention/cuda/device_metadata.h"
#endif

namespace kvblocks::python {

using attention::AttentionMetadataBuilder;
using attention::CommonAttentionMetadata;
using attention::ConstTensorView;
using attention::DType;

namespace {

constexpr const char* kBuild = "AttentionMetadataBuilder.build";

struct PyBuilder {
  AttentionMetadataBuilder core;
  // Scratch of a build.
  std::vector<attention::RequestInput> requests;
  std::vector<absl::Span<const int32_t>> block_ids;
  std::vector<int32_t> copied;

  explicit PyBuilder(AttentionMetadataBuilder the_core) : core(std::move(the_core)) {}
};

#ifdef KVBLOCKS_WITH_CUDA
using DeviceCore = attention::cuda::DeviceMetadata;
#else
struct DeviceCore {};  // there is none
#endif

struct PyDeviceMetadata {
  nb::object owner;  // of the builder
  PyBuilder* builder;
  attention::ExecContext context;
  std::unique_ptr<DeviceCore> core;
};

// One group of the builder's last batch, with its arrays on the host or on a device.
struct PyMetadata {
  nb::object owner;
  PyBuilder* builder;
  int group;
  const DeviceCore* device = nullptr;

  CommonAttentionMetadata core() const {
#ifdef KVBLOCKS_WITH_CUDA
    if (device != nullptr) return device->metadata(group);
#endif
    return builder->core.metadata(group);
  }
};

PyMetadata MetadataOf(nb::handle owner, PyBuilder* builder, int group, const DeviceCore* device) {
  if (group < 0 || group >= builder->core.num_groups()) {
    Raise("NotFoundError", absl::StrCat("metadata: group is ", group, ", expected 0 to ",
                                        builder->core.num_groups() - 1));
  }
  return {nb::borrow(owner), builder, group, device};
}

template <typename T>
nb::object ArrayOfType(nb::handle owner, const ConstTensorView& view) {
  size_t shape[attention::kMaxRank];
  int64_t strides[attention::kMaxRank];
  for (int i = 0; i < view.rank; ++i) {
    shape[i] = static_cast<size_t>(view.extent[i]), strides[i] = view.stride[i];
  }
  const auto rank = static_cast<size_t>(view.rank);
  if (!view.device.on_host()) {
    // An object with __dlpack__: without a framework it would be a capsule, good for one reader.
    return nb::cast(nb::ndarray<nb::array_api, T, nb::device::cuda>(
        const_cast<std::byte*>(view.data), rank, shape, owner, strides, nb::dtype<T>(),
        nb::device::cuda::value, view.device.ordinal));
  }
  return nb::cast(nb::ndarray<nb::numpy, const T>(view.data, rank, shape, owner, strides));
}

nb::object ArrayOf(nb::handle owner, const ConstTensorView& view) {
  if (view.absent()) return nb::none();
  return view.dtype == DType::kI64 ? ArrayOfType<int64_t>(owner, view)
                                   : ArrayOfType<int32_t>(owner, view);
}

// Integers of an array or a sequence.
std::vector<int64_t> Numbers(const char* name, nb::handle object) {
  std::vector<int64_t> numbers;
  if (PyObject_CheckBuffer(object.ptr()) == 0) {
    if (!nb::try_cast(object, numbers)) {
      PyErr_Format(PyExc_TypeError, "%s: %s must be an array or a sequence of integers, got %S",
                   kBuild, name, reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
      nb::raise_python_error();
    }
    return numbers;
  }
  Held held;
  const ImportedArray array = Import(kBuild, name, object, &held);
  const bool wide = array.view.dtype == DType::kI64;
  const bool good = array.view.rank == 1 && (wide || array.view.dtype == DType::kI32);
  if (good) {
    numbers.resize(static_cast<size_t>(array.view.extent[0]));
    for (size_t i = 0; i < numbers.size(); ++i) {
      int32_t narrow;
      if (wide) {
        std::memcpy(&numbers[i], array.view.At(i), sizeof(int64_t));
      } else {
        std::memcpy(&narrow, array.view.At(i), sizeof(narrow)), numbers[i] = narrow;
      }
    }
  }
  Release(&held);
  if (!good) {
    Raise("InvalidArgumentError", absl::StrCat(kBuild, ": ", name, " is ", array.view.DebugString(),
                                               "; i32 or i64 of one dimension"));
  }
  return numbers;
}

// Block ids of one build: spans of the caller's memory, or of copies where that is no dense int32.
class BlockIds {
 public:
  BlockIds(nb::handle groups, size_t num_groups, size_t num_reqs,
           std::vector<absl::Span<const int32_t>>* ids)
      : num_groups_(num_groups), ids_(*ids) {
    const auto refuse_count = [&](const char* what, size_t is, size_t expected) {
      Raise("InvalidArgumentError",
            absl::StrCat(kBuild, ": block_ids has ", is, " ", what, ", expected ", expected));
    };
    ids_.assign(num_groups * num_reqs, {});
    if (nb::len(groups) != num_groups) refuse_count("groups", nb::len(groups), num_groups);
    for (size_t g = 0; g < num_groups; ++g) {
      const nb::object group = groups[g];
      Held held;
      if (PyObject_CheckBuffer(group.ptr()) != 0) {
        const ImportedArray table = Take(group, &held);
        if (table.view.rank != 2) RefuseArray(table.view, "a table of a group has 2 dimensions");
        if (table.view.extent[0] < static_cast<int64_t>(num_reqs)) {
          refuse_count("rows", static_cast<size_t>(table.view.extent[0]), num_reqs);
        }
        for (size_t b = 0; b < num_reqs; ++b)
          Set(g, b, table.view.At(b), table.view.extent[1], table.view.stride[1]);
        continue;
      }
      if (nb::len(group) != num_reqs) refuse_count("requests in a group", nb::len(group), num_reqs);
      for (size_t b = 0; b < num_reqs; ++b) {
        const nb::object row = group[b];
        if (PyObject_CheckBuffer(row.ptr()) != 0) {
          const ImportedArray list = Take(row, &held);
          if (list.view.rank != 1) RefuseArray(list.view, "a request's list has 1 dimension");
          Set(g, b, list.view.data, list.view.extent[0], list.view.stride[0]);
        } else {
          copies_.push_back(
              std::make_unique<std::vector<int32_t>>(nb::cast<std::vector<int32_t>>(row)));
          ids_[b * num_groups_ + g] = *copies_.back();
        }
      }
    }
  }
  ~BlockIds() {
    for (Held& held : held_) Release(&held);
  }
  BlockIds(const BlockIds&) = delete;
  BlockIds& operator=(const BlockIds&) = delete;

 private:
  [[noreturn]] static void RefuseArray(const ConstTensorView& view, const char* expected) {
    Raise("InvalidArgumentError",
          absl::StrCat(kBuild, ": block_ids has ", view.DebugString(), "; ", expected));
  }

  ImportedArray Take(nb::handle object, Held* held) {
    const ImportedArray array = Import(kBuild, "block_ids", object, held);
    held_.push_back(*held);
    if (array.view.dtype != DType::kI32 || !array.view.device.on_host())
      RefuseArray(array.view, "int32 on the host");
    return array;
  }

  void Set(size_t group, size_t request, const std::byte* data, int64_t size, int64_t stride) {
    const auto* ids = reinterpret_cast<const int32_t*>(data);
    absl::Span<const int32_t>& span = ids_[request * num_groups_ + group];
    if (stride == 1 || size <= 1) {
      span = {ids, static_cast<size_t>(size)};
      return;
    }
    auto copy = std::make_unique<std::vector<int32_t>>(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) (*copy)[i] = ids[i * stride];
    span = *copy;
    copies_.push_back(std::move(copy));
  }

  size_t num_groups_;
  std::vector<absl::Span<const int32_t>>& ids_;
  std::vector<Held> held_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> copies_;
};

using Any = Argument<"Any">;
void Build(PyBuilder& self, Any computed, Any scheduled, Any block_ids, Any prompt, bool causal,
           Any common_prefix, int64_t padded_num_reqs, int64_t padded_num_tokens) {
  const std::vector<int64_t> num_computed = Numbers("num_computed_tokens", computed);
  const std::vector<int64_t> num_scheduled = Numbers("num_scheduled_tokens", scheduled);
  std::vector<int64_t> num_prompt, prefix_blocks;
  if (!prompt.is_none()) num_prompt = Numbers("num_prompt_tokens", prompt);
  if (!common_prefix.is_none()) prefix_blocks = Numbers("num_common_prefix_blocks", common_prefix);
  const size_t num_reqs = num_computed.size();
  if (num_scheduled.size() != num_reqs || (!prompt.is_none() && num_prompt.size() != num_reqs)) {
    Raise("InvalidArgumentError",
          absl::StrCat(kBuild, ": num_computed_tokens has ", num_reqs,
                       " requests, num_scheduled_tokens ", num_scheduled.size(),
                       prompt.is_none() ? "" : " and num_prompt_tokens ",
                       prompt.is_none() ? "" : absl::StrCat(num_prompt.size()), "; give one each"));
  }
  self.requests.resize(num_reqs);
  for (size_t b = 0; b < num_reqs; ++b) {
    self.requests[b] = {num_computed[b], num_scheduled[b], num_prompt.empty() ? 0 : num_prompt[b]};
  }
  const BlockIds held(block_ids, static_cast<size_t>(self.core.num_groups()), num_reqs,
                      &self.block_ids);
  attention::BatchInput input;
  input.requests = self.requests;
  input.block_ids = self.block_ids;
  input.causal = causal;
  input.num_common_prefix_blocks = prefix_blocks;
  input.padded_num_reqs = padded_num_reqs;
  input.padded_num_tokens = padded_num_tokens;
  Check(self.core.Build(input));
}

// The metadata's array into the beginning of a larger or equal one of the same type.
void CopyTo(const char* name, const ConstTensorView& from, nb::handle to) {
  if (to.is_none()) return;
  Held held;
  const ImportedArray target = Import("copy_to", name, to, &held);
  std::string problem;
  if (target.is_read_only) {
    problem = " is read-only";
  } else if (from.absent()) {
    problem = " is given, and this metadata has none";
  } else if (!from.device.on_host()) {
    problem = " is given, and this metadata is on a device; take the builder's";
  } else if (!target.view.device.on_host()) {
    problem = absl::StrCat(" is on ", attention::Name(target.view.device),
                           "; host memory, pinned or not");
  } else if (target.view.dtype != from.dtype || target.view.rank != from.rank) {
    problem =
        absl::StrCat(" is ", target.view.DebugString(), "; as the metadata's ", from.DebugString());
  } else {
    for (int i = 0; i < from.rank; ++i) {
      if (target.view.extent[i] < from.extent[i]) {
        problem =
            absl::StrCat(" is ", target.view.DebugString(), "; at least ", from.DebugString());
      }
    }
  }
  if (problem.empty()) {
    const int64_t rows = from.rank == 2 ? from.extent[0] : 1, columns = from.extent[from.rank - 1];
    const auto size = static_cast<size_t>(attention::ElementBytes(from.dtype));
    const int last = from.rank - 1;
    for (int64_t i = 0; i < rows; ++i) {
      const std::byte* source = from.rank == 2 ? from.At(i) : from.data;
      std::byte* target_row = from.rank == 2 ? target.view.At(i) : target.view.data;
      if (target.view.stride[last] == 1 || columns <= 1) {
        std::memcpy(target_row, source, static_cast<size_t>(columns) * size);
        continue;
      }
      for (int64_t j = 0; j < columns; ++j) {
        std::memcpy(target_row + static_cast<size_t>(j * target.view.stride[last]) * size,
                    source + static_cast<size_t>(j) * size, size);
      }
    }
  }
  Release(&held);
  if (!problem.empty()) Raise("InvalidArgumentError", absl::StrCat("copy_to: ", name, problem));
}

// What a group's metadata says of the step, by a member.
template <auto kMember>
auto OfStep(const PyMetadata& m) {
  return m.core().*kMember;
}
template <auto kMember>
Int32Array ArrayOfStep(const PyMetadata& m) {
  return ArrayOf(m.owner, m.core().*kMember);
}

}  // namespace

CommonAttentionMetadata MetadataFrom(nb::handle metadata) {
  if (!nb::isinstance<PyMetadata>(metadata)) {
    PyErr_Format(PyExc_TypeError, "set_metadata: an AttentionMetadata is expected, got %S",
                 reinterpret_cast<PyObject*>(Py_TYPE(metadata.ptr())));
    nb::raise_python_error();
  }
  return nb::cast<const PyMetadata&>(metadata).core();
}

void BindMetadata(nb::module_& module) {
  using Group = attention::KvGroupConfig;
  nb::class_<Group>(module, "KVGroup", "One KV-cache group, as metadata sees it.")
      .def(
          "__init__",
          [](Group* self, int64_t num_blocks, int64_t manager_block_size,
             std::optional<int64_t> kernel_block_size, int64_t window, int64_t compression_ratio,
             int32_t null_block) {
            new (self) Group{.manager_block_size = manager_block_size,
                             .kernel_block_size = kernel_block_size.value_or(manager_block_size),
                             .num_blocks = num_blocks,
                             .window = window,
                             .compression_ratio = compression_ratio,
                             .null_block = null_block};
          },
          nb::arg("num_blocks"), nb::kw_only(), nb::arg("manager_block_size") = 16,
          nb::arg("kernel_block_size") = nb::none(), nb::arg("window") = 0,
          nb::arg("compression_ratio") = 1, nb::arg("null_block") = 0,
          R"(num_blocks: of the manager; ids are below it. manager_block_size: tokens per id;
kernel_block_size: cache rows per block of the kernel, a divisor of it (None: the same). window:
tokens, the query included; 0 is full attention. compression_ratio: tokens per cache row.
null_block: never stored to; -1: there is none.)");

  using Step = CommonAttentionMetadata;
  nb::class_<PyMetadata>(module, "AttentionMetadata",
                         R"(One group of a builder's last batch of R requests and T new tokens.

Arrays are numpy's, read-only, over the builder's memory: the next build changes them in place.
Those of a DeviceMetadata are on its device.)")
      .def_prop_ro("query_start_loc", &ArrayOfStep<&Step::query_start_loc>, "[R + 1], from 0 to T.")
      .def_prop_ro("seq_lens", &ArrayOfStep<&Step::seq_lens>, "[R], new tokens included.")
      .def_prop_ro("block_table", &ArrayOfStep<&Step::block_table>,
                   "[R, columns] of kernel blocks.")
      .def_prop_ro("slot_mapping", &ArrayOfStep<&Step::slot_mapping>,
                   nb::sig("def slot_mapping(self) -> NDArray[numpy.int64]"),
                   "[T, padded]; -1 stores nothing.")
      .def_prop_ro("positions", &ArrayOfStep<&Step::positions>, "[T, padded].")
      .def_prop_ro(
          "token_to_req",
          [](const PyMetadata& m) -> Int32Array {
            return ArrayOf(m.owner, m.builder->core.token_to_req());
          },
          "[T, padded]: the row of each token.")
      .def_prop_ro("block_size", &OfStep<&Step::block_size>, "Of the kernel.")
      .def_prop_ro("num_reqs", &OfStep<&Step::num_reqs>)
      .def_prop_ro("num_actual_tokens", &OfStep<&Step::num_actual_tokens>, "T.")
      .def_prop_ro("max_query_len", &OfStep<&Step::max_query_len>)
      .def_prop_ro("max_seq_len", &OfStep<&Step::max_seq_len>)
      .def_prop_ro("causal", &OfStep<&Step::causal>)
      .def_prop_ro("num_decodes", &OfStep<&Step::num_decodes>, "Requests that come first.")
      .def_prop_ro("num_decode_tokens", &OfStep<&Step::num_decode_tokens>)
      .def_prop_ro("num_extends", &OfStep<&Step::num_extends>,
                   "Prefills with cached tokens, which come next.")
      .def_prop_ro("num_prefills", &OfStep<&Step::num_prefills>, "Extends included.")
      .def_prop_ro("num_prefill_tokens", &OfStep<&Step::num_prefill_tokens>)
      .def_prop_ro("common_prefix_len", &OfStep<&Step::common_prefix_len>,
                   "Tokens, a multiple of block_size, or 0: what cascade takes.")
      .def_prop_ro("attn_state",
                   [](const PyMetadata& m) { return attention::Name(m.core().attn_state); })
      .def(
          "copy_to",
          [](const PyMetadata& m, Array query_start_loc, Array seq_lens, Array block_table,
             Array slot_mapping, Array positions) {
            const Step step = m.core();
            CopyTo("query_start_loc", step.query_start_loc, query_start_loc);
            CopyTo("seq_lens", step.seq_lens, seq_lens);
            CopyTo("block_table", step.block_table, block_table);
            CopyTo("slot_mapping", step.slot_mapping, slot_mapping);
            CopyTo("positions", step.positions, positions);
          },
          nb::kw_only(), nb::arg("query_start_loc") = nb::none(), nb::arg("seq_lens") = nb::none(),
          nb::arg("block_table") = nb::none(), nb::arg("slot_mapping") = nb::none(),
          nb::arg("positions") = nb::none(),
          R"(Writes arrays into the beginning of the caller's, which are on the host (pinned or
not), of the same type and at least as large; what lies behind stays.)");

  nb::class_<PyBuilder> builder(
      module, "AttentionMetadataBuilder",
      R"(Makes the metadata of each step from what scheduler and block manager say.

Rows are ordered: decodes (at most decode_threshold new tokens), extends, fresh prefills;
`permutation` tells which request each row is. Padded rows have length 0 and slot -1. Memory is
taken once, here.)");
  using Options = attention::MetadataBuilderOptions;
  Define(
      builder, "__init__",
      +[](Options options, PyBuilder* self, std::vector<Group> groups) {
        options.groups = std::move(groups);
        new (self) PyBuilder(Value(AttentionMetadataBuilder::Create(options)));
      },
      R"(max_num_reqs, max_num_tokens: of a batch, padding included. max_seq_len: tokens.
decode_threshold: new tokens of a decode, 1 + speculative ones. require_uniform: all decodes have
the same number of them. short_extends_are_decodes: otherwise a request inside its prompt is a
prefill, however short.)",
      std::tuple(nb::arg("groups")), Parameters(),
      Parameters(
          Required("max_num_reqs", &Options::max_num_reqs),
          Required("max_num_tokens", &Options::max_num_tokens),
          Required("max_seq_len", &Options::max_seq_len),
          Number("decode_threshold", KVBLOCKS_AT(split.decode_threshold), int32_t{1}),
          Number("require_uniform", KVBLOCKS_AT(split.require_uniform), false),
          Number("short_extends_are_decodes", KVBLOCKS_AT(split.short_extends_are_decodes), true)));
  builder
      .def("build", &Build, nb::arg("num_computed_tokens"), nb::arg("num_scheduled_tokens"),
           nb::arg("block_ids"), nb::kw_only(), nb::arg("num_prompt_tokens") = nb::none(),
           nb::arg("causal") = true, nb::arg("num_common_prefix_blocks") = nb::none(),
           nb::arg("padded_num_reqs") = 0, nb::arg("padded_num_tokens") = 0,
           R"(One step. What fails leaves the last batch as it was.

num_computed_tokens: per request, in the cache before; num_scheduled_tokens: new, at least 1; arrays
or sequences. block_ids: per group either a table int32 [requests or more, columns], or per request
a BlockTable, an int32 array or a list; ids behind what the tokens need are not looked at.
num_prompt_tokens: only with short_extends_are_decodes=False. num_common_prefix_blocks: per group,
of the manager. padded_num_reqs and padded_num_tokens: what a captured graph wants; 0 is no
padding.)")
      .def(
          "metadata",
          [](nb::handle_t<PyBuilder> self, int group) {
            return MetadataOf(self, &nb::cast<PyBuilder&>(self), group, nullptr);
          },
          nb::arg("group") = 0)
      .def_prop_ro(
          "permutation",
          [](nb::handle_t<PyBuilder> self) -> Int32Array {
            const absl::Span<const int32_t> rows = nb::cast<PyBuilder&>(self).core.permutation();
            return ArrayOf(self, attention::ViewOf(rows));
          },
          "[R]: row i is the build's request permutation[i].");

  nb::class_<PyDeviceMetadata>(
      module, "DeviceMetadata",
      R"(A builder's metadata on a CUDA device, by one asynchronous copy per step.

Addresses stay the same from step to step, so a captured graph reads what the last upload enqueued.
The arrays of its metadata have DLPack: this module takes them, and torch.from_dlpack.)")
      .def(
          "__init__",
          [](PyDeviceMetadata* self, nb::handle_t<PyBuilder> builder, int device) {
            PyDeviceMetadata made{nb::borrow(builder), &nb::cast<PyBuilder&>(builder), {}, nullptr};
#ifdef KVBLOCKS_WITH_CUDA
            made.context.device = {attention::DeviceKind::kCuda, static_cast<int8_t>(device)};
            made.core = Value(DeviceCore::Create(made.context, &made.builder->core));
#else
            Raise("KVBlocksError", absl::StrCat("DeviceMetadata: device is ", device,
                                                ", and this package was built without CUDA; "
                                                "docs/python.md says how to build it with CUDA"));
#endif
            new (self) PyDeviceMetadata(std::move(made));
          },
          nb::arg("builder"), nb::arg("device") = 0,
          "device: the number of the CUDA device, which must be the current one. Takes memory "
          "there and pinned memory.")
      .def(
          "upload",
          [](PyDeviceMetadata& self, Stream stream) {
#ifdef KVBLOCKS_WITH_CUDA
            self.context.stream = stream.is_none() ? nullptr : StreamFrom("upload", stream);
            absl::Status status;
            {
              const nb::gil_scoped_release release;
              status = self.core->Upload(self.context);
            }
            Check(status);
#else
            (void)self, (void)stream;
#endif
          },
          nb::arg("stream").none(),
          "Enqueues the copy of the builder's arrays as they are now. None is the legacy default "
          "stream. It waits for the copy before the last only.")
      .def(
          "metadata",
          [](nb::handle_t<PyDeviceMetadata> self, int group) {
            auto& device = nb::cast<PyDeviceMetadata&>(self);
            return MetadataOf(self, device.builder, group, device.core.get());
          },
          nb::arg("group") = 0, "The builder's metadata, with arrays on the device.");
}

}  // namespace kvblocks::python
