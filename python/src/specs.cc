// KVCacheSpec, KVCacheGroup, KVCacheConfig, Semantics.
//
// A spec's fields come from the table that the core has (specs/spec_fields.h): a new field needs a
// line in kvblocks/specs.py, for its type and its words, and none here.

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "python/src/binding.h"
#include "specs/spec_fields.h"

namespace kvblocks::python {
namespace {

template <typename T>
T Cast(nb::handle value, std::string_view field) {
  T out;
  if (!nb::try_cast<T>(value, out)) {
    PyErr_SetString(PyExc_TypeError, absl::StrCat(std::string(field), ": unexpected type ",
                                                  nb::type_name(value.type()).c_str())
                                         .c_str());
    nb::raise_python_error();
  }
  return out;
}

void Read(nb::handle value, std::string_view field, int64_t& out) {
  out = Cast<int64_t>(value, field);
}
void Read(nb::handle value, std::string_view field, std::optional<int64_t>& out) {
  out = Cast<std::optional<int64_t>>(value, field);
}
void Read(nb::handle value, std::string_view field, bool& out) { out = Cast<bool>(value, field); }
void Read(nb::handle value, std::string_view field, DataType& out) {
  out = Value(ParseDataType(Cast<std::string>(value, field)));
}
void Read(nb::handle value, std::string_view field, QuantMode& out) {
  out = Value(ParseQuantMode(Cast<std::string>(value, field)));
}
void Read(nb::handle value, std::string_view field, ModelVersion& out) {
  out = Value(ParseModelVersion(Cast<std::string>(value, field)));
}
void Read(nb::handle value, std::string_view field, MambaCacheMode& out) {
  out = Value(ParseMambaCacheMode(Cast<std::string>(value, field)));
}
void Read(nb::handle value, std::string_view field, PageBytesFormula& out) {
  out = Cast<bool>(value, field) ? PageBytesFormula::kUpstreamCompatible : PageBytesFormula::kExact;
}
void Read(nb::handle value, std::string_view field, std::vector<MambaState>& out) {
  for (nb::handle state : value) {
    const auto pair = Cast<nb::tuple>(state, field);
    if (pair.size() != 2) {
      Raise("InvalidArgumentError", "states: expected pairs of shape and dtype");
    }
    out.push_back({Cast<std::vector<int64_t>>(pair[0], field),
                   Value(ParseDataType(Cast<std::string>(pair[1], field)))});
  }
}

template <typename T>
nb::object Write(const T& value) {
  if constexpr (std::is_same_v<T, PageBytesFormula>) {
    return nb::cast(value == PageBytesFormula::kUpstreamCompatible);
  } else if constexpr (std::is_same_v<T, std::vector<MambaState>>) {
    nb::list states;
    for (const MambaState& state : value) {
      states.append(nb::make_tuple(nb::tuple(nb::cast(state.shape)), DataTypeName(state.dtype)));
    }
    return nb::tuple(states);
  } else if constexpr (std::is_enum_v<T>) {
    return nb::cast(FieldText(value));
  } else {
    return nb::cast(value);
  }
}

KvCacheSpecKind ParseKind(const std::string& name) {
  for (int i = 0; i < kNumSpecKinds; ++i) {
    const auto kind = static_cast<KvCacheSpecKind>(i);
    if (KindName(kind) == name) return kind;
  }
  Raise("InvalidArgumentError",
        absl::StrCat("kind is \"", name, "\", expected ", SupportedKinds()));
}

KvCacheSpec MakeSpec(const std::string& kind_name, const nb::kwargs& fields) {
  const KvCacheSpecKind kind = ParseKind(kind_name);
  KvCacheSpecOptions options;
  std::set<std::string> unknown;
  for (auto [name, value] : fields) unknown.insert(nb::cast<std::string>(name));
  ForEachSpecField([&](const SpecField& field, auto) { unknown.erase(std::string(field.name)); });
  if (!unknown.empty()) {
    PyErr_SetString(PyExc_TypeError,
                    absl::StrCat("KVCacheSpec: unknown field ", *unknown.begin()).c_str());
    nb::raise_python_error();
  }
  ForEachSpecField([&](const SpecField& field, auto member) {
    const std::string name(field.name);
    if (!fields.contains(name.c_str())) {
      if (field.RequiredIn(kind)) {
        Raise("InvalidArgumentError", absl::StrCat(kind_name, ": ", name, " is missing, expected ",
                                                   std::string(field.expected)));
      }
      return;
    }
    Read(fields[name.c_str()], field.name, options.*member);
  });
  return Value(KvCacheSpec::Create(kind, options));
}

Result<"dict[str, Any]"> FieldsOf(const KvCacheSpec& spec) {
  nb::dict fields;
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (field.In(spec.kind()))
      fields[std::string(field.name).c_str()] = Write(spec.options().*member);
  });
  return fields;
}

}  // namespace

Semantics SemanticsByName(const std::string& name) {
  const auto known = Semantics::ByName(name);
  if (!known) {
    Raise("InvalidArgumentError",
          absl::StrCat("semantics is \"", name,
                       "\", expected vllm-0.33, vllm-0.25 or vllm-0.33-exactly"));
  }
  return *known;
}

void BindSpecs(nb::module_& module) {
  nb::class_<KvCacheSpec>(
      module, "KVCacheSpec",
      "What one layer stores. Immutable, hashable. Made by the functions of kvblocks.specs.")
      .def_static("create", &MakeSpec, nb::arg("kind"), nb::arg("fields"),
                  nb::sig("def create(kind: str, **fields: Any) -> KVCacheSpec"),
                  "A spec of a kind by its name, \"full_attention\" for one; fields as the "
                  "functions of kvblocks.specs have them.\n\nRaises InvalidArgumentError that "
                  "names the field, its value and the limit.")
      .def_prop_ro("kind", [](const KvCacheSpec& s) { return std::string(s.kind_name()); })
      .def_prop_ro("fields", &FieldsOf, "The fields of its kind, defaults filled in.")
      .def_prop_ro("block_size", &KvCacheSpec::block_size, "Tokens per block.")
      .def_prop_ro("num_kv_heads", &KvCacheSpec::num_kv_heads)
      .def_prop_ro("head_size", &KvCacheSpec::head_size)
      .def_prop_ro("dtype",
                   [](const KvCacheSpec& s) { return std::string(DataTypeName(s.dtype())); })
      .def_prop_ro("sliding_window", &KvCacheSpec::sliding_window, "Tokens, or None.")
      .def_prop_ro("attention_chunk_size", &KvCacheSpec::attention_chunk_size, "Tokens, or None.")
      .def_prop_ro("page_bytes", &KvCacheSpec::page_bytes, "Bytes of one block in one layer.")
      .def("__repr__", &KvCacheSpec::ToString)
      .def("__hash__", [](const KvCacheSpec& s) { return absl::HashOf(s); })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));

  nb::class_<KvCacheGroup>(module, "KVCacheGroup", "Layers that share one block table. Immutable.")
      .def(
          "__init__",
          [](KvCacheGroup* self, const KvCacheSpec& spec, std::vector<std::string> layer_names,
             bool is_draft) {
            new (self) KvCacheGroup{spec, std::move(layer_names), is_draft};
          },
          nb::arg("spec"), nb::arg("layer_names") = nb::tuple(), nb::arg("is_draft") = false,
          "is_draft: has layers of a speculative drafter (EAGLE, MTP).")
      .def_ro("spec", &KvCacheGroup::spec)
      .def_ro("layer_names", &KvCacheGroup::layer_names)
      .def_ro("is_draft", &KvCacheGroup::is_draft)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));

  nb::class_<NativeLayout>(module, "NativeLayout",
                           "Memory in chunks, each lent to one class of pages at a time.")
      .def(
          "__init__",
          [](NativeLayout* self, int64_t num_chunks, std::vector<int64_t> pages,
             std::vector<int32_t> classes) {
            new (self) NativeLayout{num_chunks, std::move(pages), std::move(classes)};
          },
          nb::arg("num_chunks"), nb::arg("pages_per_chunk"), nb::arg("class_of_group"))
      .def_ro("num_chunks", &NativeLayout::num_chunks)
      .def_ro("pages_per_chunk", &NativeLayout::pages_per_chunk, "Per class of pages.")
      .def_ro("class_of_group", &NativeLayout::class_of_group, "Per group.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));

  nb::class_<KvCacheConfig>(module, "KVCacheConfig",
                            "A pool of blocks and the groups that share it. Immutable.")
      .def(
          "__init__",
          [](KvCacheConfig* self, int64_t num_blocks, std::vector<KvCacheGroup> groups,
             std::optional<int64_t> scheduler_block_size, std::optional<int64_t> hash_block_size,
             std::optional<NativeLayout> native) {
            KvCacheConfig config{num_blocks, std::move(groups), scheduler_block_size,
                                 hash_block_size, std::move(native)};
            Check(Validate(config));
            new (self) KvCacheConfig(std::move(config));
          },
          nb::arg("num_blocks"), nb::arg("groups"), nb::arg("scheduler_block_size") = nb::none(),
          nb::arg("hash_block_size") = nb::none(), nb::arg("native") = nb::none(),
          "num_blocks: of the pool, the null block included. Block sizes, in tokens: by default "
          "derived from the groups.\n\nRaises InvalidArgumentError that names the field.")
      .def_ro("num_blocks", &KvCacheConfig::num_blocks)
      .def_ro("groups", &KvCacheConfig::groups)
      .def_ro("scheduler_block_size", &KvCacheConfig::scheduler_block_size)
      .def_ro("hash_block_size", &KvCacheConfig::hash_block_size)
      .def_ro("native", &KvCacheConfig::native)
      .def_prop_ro("needs_zeroed_blocks", &NeedsZeroedBlocks,
                   "Whether a block's memory must be zeroed when a request gets it.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));

  nb::class_<Semantics> semantics(module, "Semantics",
                                  "Whose rules a KV-cache manager follows.\n\n"
                                  "Semantics(\"vllm-0.33\"), \"vllm-0.25\" or "
                                  "\"vllm-0.33-exactly\"; switches may then be set.");
  semantics
      .def(
          "__init__",
          [](Semantics* self, const std::string& name) {
            new (self) Semantics(SemanticsByName(name));
          },
          nb::arg("name") = "vllm-0.33")
      .def_prop_ro("name", [](const Semantics& s) { return std::string(s.name); })
      .def_rw("retention_interval", &Semantics::retention_interval, nb::arg().none(),
              "Tokens; 0: the ends of prompts only; None: whatever some hit can use.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
  for (const auto& [name, member] : kSemanticsSwitches) semantics.def_rw(name, member);
}

}  // namespace kvblocks::python
