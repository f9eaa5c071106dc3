#include "python/src/attention/op_call.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "attention/backends/workspace.h"
#include "kvblocks/attention_cpu.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "kvblocks/attention_cuda.h"
#endif

namespace kvblocks::python {

using attention::ConstTensorView;
using attention::DeviceId;
using attention::DType;
using attention::TensorView;

namespace {

// A backend that use_backend chose for this thread; null: CPU on the host and CUDA there.
enum class Backend : uint8_t { kByDevice, kCpu, kCpuReference, kCuda };
struct BackendName {
  const char* name;
  Backend backend;
};
constexpr BackendName kBackends[] = {
    {"cpu", Backend::kCpu}, {"cpu_reference", Backend::kCpuReference}, {"cuda", Backend::kCuda}};
thread_local Backend chosen_backend = Backend::kByDevice;

std::optional<const char*> NameOf(Backend backend) {
  for (const BackendName& one : kBackends) {
    if (one.backend == backend) return one.name;
  }
  return std::nullopt;
}
// Returns the name of the one before.
std::optional<const char*> SetBackend(std::optional<const char*> name) {
  Backend next = Backend::kByDevice;
  if (name) next = EntryNamed(*name, kBackends, &BackendName::name, "use_backend: name").backend;
  return NameOf(std::exchange(chosen_backend, next));
}

// Scratch memory as one run of bytes.
absl::Span<std::byte> BytesOf(const char* name, const ImportedArray& array) {
  if (array.is_read_only) {
    Raise("InvalidArgumentError",
          absl::StrCat("Workspace: ", name, " is read-only; operations write to it"));
  }
  if (!array.view.contiguous()) {
    Raise("InvalidArgumentError",
          absl::StrCat("Workspace: ", name, " is ", array.view.DebugString(),
                       "; it must be contiguous"));
  }
  return {array.view.data, static_cast<size_t>(array.view.num_elements() *
                                               attention::ElementBytes(array.view.dtype))};
}

}  // namespace

void* StreamFrom(const char* op, nb::handle stream) {
  nb::object value = nb::borrow(stream);
  if (!PyLong_Check(value.ptr())) {
    if (nb::hasattr(value, "cuda_stream")) {  // torch
      value = value.attr("cuda_stream");
    } else if (nb::hasattr(value, "__cuda_stream__")) {  // (version, handle)
      value = value.attr("__cuda_stream__")()[1];
    } else if (nb::hasattr(value, "ptr")) {  // CuPy
      value = value.attr("ptr");
    }
  }
  if (!PyLong_Check(value.ptr())) {
    PyErr_Format(PyExc_TypeError,
                 "%s: stream must be a number or a stream of torch or CuPy, got %S", op,
                 reinterpret_cast<PyObject*>(Py_TYPE(stream.ptr())));
    nb::raise_python_error();
  }
  void* pointer = PyLong_AsVoidPtr(value.ptr());
  if (pointer == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return pointer;
}

// --- Workspace ---

PyWorkspace::PyWorkspace(Array the_memory, Array the_error_flags)
    : memory(nb::borrow(the_memory)), error_flags(nb::borrow(the_error_flags)) {
  try {
    ImportedArray bytes, bits;
    if (!memory.is_none()) {
      bytes = Import("Workspace", "memory", memory, &held[0]);
      workspace.device = BytesOf("memory", bytes);
      device = bytes.view.device;
    }
    if (!error_flags.is_none()) {
      bits = Import("Workspace", "error_flags", error_flags, &held[1]);
      if (BytesOf("error_flags", bits).size() != 4) {
        Raise("InvalidArgumentError",
              absl::StrCat("Workspace: error_flags is ", bits.view.DebugString(),
                           "; one element of 32 bits"));
      }
      if (!memory.is_none() && bits.view.device != device) {
        Raise("InvalidArgumentError",
              absl::StrCat("Workspace: error_flags is on ", attention::Name(bits.view.device),
                           "; memory is on ", attention::Name(device)));
      }
      device = bits.view.device;
      flags.bits = reinterpret_cast<uint32_t*>(bits.view.data);
    }
  } catch (...) {
    for (Held& one : held) Release(&one);
    throw;
  }
}

PyWorkspace::~PyWorkspace() {
  for (Held& one : held) Release(&one);
}

// --- OpCall ---

ImportedArray OpCall::Take(const char* name, nb::handle array) {
  Held& held = held_[num_held_];
  ImportedArray imported = Import(name_, name, array, &held);
  num_held_ += held.kind != Held::Kind::kNothing;
  if (!device_) {
    device_ = imported.view.device.on_host() ? DeviceId{} : imported.view.device;
    first_ = array;
  }
  return imported;
}

ConstTensorView OpCall::In(const char* name, nb::handle array) {
  return array.is_none() ? ConstTensorView() : Take(name, array).view;
}

ConstTensorView OpCall::Scale(const char* name, nb::handle value) {
  if (!PyFloat_Check(value.ptr()) && !PyLong_Check(value.ptr())) return In(name, value);
  if (!device_ || !device_->on_host()) {
    Refuse(absl::StrCat(name, " is a number; on CUDA it must be an array of float32 there"));
  }
  float& number = numbers_[num_numbers_++];
  number = static_cast<float>(nb::cast<double>(value));
  return ConstTensorView::Contiguous(reinterpret_cast<const std::byte*>(&number), DType::kF32, {1});
}

TensorView OpCall::Out(const char* name, nb::handle array) {
  if (array.is_none()) return {};
  const ImportedArray imported = Take(name, array);
  if (imported.is_read_only)
    Refuse(absl::StrCat(name, " is read-only; the operation writes to it"));
  return imported.view;
}

nb::object OpCall::Out(const char* name, nb::handle array, nb::handle like,
                       absl::Span<const int64_t> shape, TensorView* view, bool float32) {
  nb::object out = nb::borrow(array);
  if (out.is_none()) {
    nb::list extents;
    for (const int64_t extent : shape) {
      if (extent < 0) return out;
      extents.append(extent);
    }
    static const nb::handle empty =
        nb::object(nb::module_::import_("kvblocks.attention").attr("_empty")).release();
    out = empty(name_, name, like, nb::tuple(extents), float32);
  }
  *view = Out(name, out);
  return out;
}

attention::ConstKvCacheView OpCall::In(const PyKvCache& cache) {
  if (!device_) {
    device_ = cache.view.k.device.on_host() ? DeviceId{} : cache.view.k.device;
    first_ = cache.k;
  }
  return cache.view;
}

attention::KvCacheView OpCall::Out(const char* name, const PyKvCache& cache) {
  In(cache);
  if (cache.is_read_only) Refuse(absl::StrCat(name, " is read-only; the operation writes to it"));
  return cache.view;
}

int64_t OpCall::MaxLength(const char* name, std::optional<int64_t> given,
                          const ConstTensorView& lengths) {
  if (given) return *given;
  if (!device_->on_host())
    Refuse(absl::StrCat(name, " is None; on CUDA, where lengths are not read, give a bound"));
  if (lengths.rank != 1 || lengths.dtype != DType::kI32 || !lengths.device.on_host()) return 0;
  int32_t most = 0, length;
  for (int64_t i = 0; i < lengths.extent[0]; ++i) {
    std::memcpy(&length, lengths.At(i), sizeof(length));
    most = std::max(most, length);
  }
  return most;
}

int64_t OpCall::MaxDifference(const char* name, std::optional<int64_t> given,
                              const ConstTensorView& starts) {
  if (given) return *given;
  if (!device_->on_host())
    Refuse(absl::StrCat(name, " is None; on CUDA, where offsets are not read, give a bound"));
  if (starts.rank != 1 || starts.dtype != DType::kI32 || !starts.device.on_host()) return 0;
  int64_t most = 0;
  int32_t begin, end;
  for (int64_t i = 0; i + 1 < starts.extent[0]; ++i) {
    std::memcpy(&begin, starts.At(i), sizeof(begin));
    std::memcpy(&end, starts.At(i + 1), sizeof(end));
    most = std::max<int64_t>(most, int64_t{end} - begin);
  }
  return most;
}

const attention::AttentionOps& OpCall::ops() const {
  const bool on_host = device_->on_host();
  if (chosen_backend != Backend::kByDevice && on_host == (chosen_backend == Backend::kCuda)) {
    Refuse(absl::StrCat("the backend is ", *NameOf(chosen_backend), ", the arrays are on ",
                        attention::Name(*device_), "; use_backend(None) goes by the arrays"));
  }
  if (chosen_backend == Backend::kCpuReference) return attention::CpuReference();
  if (on_host) return attention::Cpu();
#ifdef KVBLOCKS_WITH_CUDA
  return attention::Cuda();
#else
  Raise("KVBlocksError", absl::StrCat(name_, ": the arrays are on ", attention::Name(*device_),
                                      ", and this package was built without CUDA; docs/python.md "
                                      "says how to build it with CUDA"));
#endif
}

attention::ExecContext OpCall::Context() {
  attention::ExecContext context;
  if (!device_) Refuse("no array is given");
  (void)ops();  // whether there are any
  context.device = *device_;
  const bool on_host = device_->on_host();
  if (!options_.stream.is_none()) {
    if (on_host) Refuse("stream is given; operations on host memory have none");
    context.stream = StreamFrom(name_, options_.stream);
  } else if (!on_host) {
    context.stream = CurrentStream(first_, *device_);
  }
  if (options_.threads != nullptr) {
    if (!on_host) Refuse("threads is given; operations on CUDA have none");
    context.threads = &options_.threads->pool;
  }
  if (options_.workspace != nullptr) {
    PyWorkspace& workspace = *options_.workspace;
    if (workspace.device.on_host() ? !on_host : workspace.device != *device_) {
      Refuse(absl::StrCat("workspace is on ", attention::Name(workspace.device),
                          "; the arrays are on ", attention::Name(*device_)));
    }
    context.workspace = &workspace.workspace;
    if (workspace.flags.bits != nullptr) context.error_flags = &workspace.flags;
  }
  return context;
}

void OpCall::Refuse(const absl::Status& status) const {
  // Members of the C++ structures, as Python's arguments are called.
  std::string text = absl::StrReplaceAll({status.message().data(), status.message().size()},
                                         {{"params.scale", "scale"},
                                          {"params.", ""},
                                          {"scales.k", "k_scale"},
                                          {"scales.v", "v_scale"},
                                          {"scales.q", "q_scale"},
                                          {"main.cache", "cache"},
                                          {"extra.cache", "extra_cache"},
                                          {"extra.indices", "extra_indices"},
                                          {"GatherRows: in ", "GatherRows: rows "},
                                          {"must be those of in, ", "must be those of rows, "},
                                          {"params.scales is given", "k_scale or v_scale is given"},
                                          {"call ReshapeAndCache", "call reshape_and_cache"}});
  if (const size_t colon = text.find(": "); colon != text.npos) text.erase(0, colon + 2);
  Raise(ErrorClass(status.code()), absl::StrCat(name_, ": ", text));
}

void OpCall::Refuse(absl::string_view problem) const {
  Raise("InvalidArgumentError", absl::StrCat(name_, ": ", problem));
}

// --- Python's classes ---

namespace {

struct OpName {
  const char* name;
  attention::OpKind op;
};
constexpr OpName kOpNames[] = {
    {"paged_decode", attention::OpKind::kPagedDecode},
    {"paged_prefill", attention::OpKind::kPagedPrefill},
    {"varlen_self_attention", attention::OpKind::kVarlenSelfAttention},
    {"cascade", attention::OpKind::kCascade},
    {"mla_decode", attention::OpKind::kMlaDecode},
    {"sparse_mla_decode", attention::OpKind::kSparseMlaDecode},
    {"sparse_mla_prefill", attention::OpKind::kSparseMlaPrefill},
    {"merge_states", attention::OpKind::kMergeStates},
    {"reshape_and_cache", attention::OpKind::kReshapeAndCache},
    {"concat_and_cache_mla", attention::OpKind::kConcatAndCacheMla},
    {"compute_kv_scales", attention::OpKind::kComputeKvScales},
    {"scale_and_cache", attention::OpKind::kScaleAndCache},
    {"quantize_queries", attention::OpKind::kQuantizeQueries},
    {"gather_cache", attention::OpKind::kGatherCache},
    {"gather_rows", attention::OpKind::kGatherRows},
    {"rotate_keys", attention::OpKind::kRotateKeys},
    {"index_topk", attention::OpKind::kIndexTopk},
};

int64_t WorkspaceBytes(const char* op, int64_t max_reqs, int64_t max_tokens, int64_t num_heads,
                       int64_t num_kv_heads, int64_t value_head_size, int64_t max_parts,
                       int64_t max_rows) {
  const OpName& known = EntryNamed(op, kOpNames, &OpName::name, "workspace_bytes: op");
  return Value(attention::WorkspaceBytes(known.op, {max_reqs, max_tokens, num_heads, num_kv_heads,
                                                    value_head_size, max_parts, max_rows}))
      .device;
}

}  // namespace

void BindOpCall(nb::module_& module) {
  nb::class_<PyWorkspace>(
      module, "Workspace",
      R"(Scratch memory of operations on a GPU, and where they report bad indices.

One per stream, used by all layers and operations in turn; workspace_bytes says how much. Operations
on host memory need none. Bits of error_flags: 1 a slot outside of the cache (not stored), 2 a block
id outside of it (its keys unseen), 4 a sparse index (ignored), 8 a bad scale, 16 a state of
infinity, 32 an input that is not finite where a maximum is taken, 64 a length beyond the block
table. Operations set bits and never clear any.)")
      .def(nb::init<Array, Array>(), nb::arg("memory") = nb::none(), nb::kw_only(),
           nb::arg("error_flags") = nb::none(),
           "memory: any contiguous array, which should begin at a multiple of 256 bytes. "
           "error_flags: one element of 32 bits, where the arrays of the operations are.")
      .def_ro("memory", &PyWorkspace::memory)
      .def_ro("error_flags", &PyWorkspace::error_flags)
      .def_prop_ro("nbytes", [](const PyWorkspace& w) { return w.workspace.device.size(); });

  nb::class_<PyThreadPool>(module, "ThreadPool",
                           R"(Threads for operations on host memory; results do not depend on them.

Calls from several threads take turns. A child after fork has none of its threads: make it there.)")
      .def(
          "__init__",
          [](PyThreadPool* self, int num_threads) {
            if (num_threads < 0 || num_threads > 4096) {
              Raise("InvalidArgumentError", absl::StrCat("ThreadPool: num_threads is ", num_threads,
                                                         "; 0 to 4096, 0 is one per processor"));
            }
            new (self) PyThreadPool(num_threads);
          },
          nb::arg("num_threads") = 0,
          "num_threads: in all, the caller included; 0 means one per processor.")
      .def_prop_ro("num_threads", [](const PyThreadPool& p) { return p.pool.num_threads(); });

  module.def(
      "workspace_bytes", &WorkspaceBytes, nb::arg("op"), nb::kw_only(), nb::arg("max_reqs") = 0,
      nb::arg("max_tokens") = 0, nb::arg("num_heads") = 0, nb::arg("num_kv_heads") = 0,
      nb::arg("value_head_size") = 0, nb::arg("max_parts") = 512, nb::arg("max_rows") = 0,
      R"(Bytes of a Workspace that serves a function of this module within these bounds on a GPU.

They follow from bounds alone, never from lengths, so a captured graph finds room at every replay.
max_parts: of work that run at a time; 512 is enough for GPUs of up to 170 multiprocessors.
max_rows: of an indexer's cache, that a token sees.)");
  module.def("set_backend", &SetBackend, nb::arg("name").none(),
             "Of this thread; returns the one before. use_backend is the interface.");
}

}  // namespace kvblocks::python
