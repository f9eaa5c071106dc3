// KV events as Python objects: the fields of vLLM's, plus the reason of a removal.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "kvblocks/python/src/binding.h"

namespace kvblocks::python {
namespace {

// Hashes know how many of their bytes count.
struct PyStored {
  BlockStored event;
  size_t hash_bytes;
};
struct PyRemoved {
  BlockRemoved event;
  size_t hash_bytes;
};

nb::bytes BytesOf(const BlockHash& hash, size_t size) {
  return nb::bytes(reinterpret_cast<const char*>(hash.words.data()), size);
}

const char* KindOf(ExtraKey::Kind kind) {
  switch (kind) {
    case ExtraKey::Kind::kLora:
      return "lora";
    case ExtraKey::Kind::kMultimodal:
      return "mm";
    case ExtraKey::Kind::kSalt:
      return "cache_salt";
    case ExtraKey::Kind::kPromptEmbedding:
      return "prompt_embeds";
  }
  return "unknown";
}

nb::object ExtraKeysOf(const PyStored& stored) {
  nb::list blocks;
  for (const std::optional<ExtraKeys>& keys : stored.event.extra_keys) {
    if (!keys) {
      blocks.append(nb::none());
      continue;
    }
    nb::list list;
    for (const ExtraKey& key : *keys) {
      nb::object value = key.kind == ExtraKey::Kind::kPromptEmbedding
                             ? nb::object(nb::bytes(key.value.data(), key.value.size()))
                             : nb::object(nb::str(key.value.data(), key.value.size()));
      list.append(key.kind == ExtraKey::Kind::kMultimodal
                      ? nb::make_tuple(KindOf(key.kind), value, key.offset)
                      : nb::make_tuple(KindOf(key.kind), value));
    }
    blocks.append(nb::tuple(list));
  }
  return blocks;
}

nb::list TakeEvents(PyManager& self) {
  CheckUse(self);
  const size_t hash_bytes = self.core->hashing() == nullptr
                                ? sizeof(BlockHash)
                                : self.core->hashing()->hasher.digest_size();
  nb::list events;
  for (KvEvent& event : self.core->TakeEvents()) {
    if (auto* stored = std::get_if<BlockStored>(&event)) {
      events.append(nb::cast(PyStored{std::move(*stored), hash_bytes}));
    } else if (auto* removed = std::get_if<BlockRemoved>(&event)) {
      events.append(nb::cast(PyRemoved{std::move(*removed), hash_bytes}));
    } else {
      events.append(nb::cast(AllBlocksCleared()));
    }
  }
  return events;
}

}  // namespace

void BindEvents(nb::module_& module) {
  nb::class_<PyStored>(module, "BlockStored",
                       "A run of consecutive blocks of one request entered the prefix cache.")
      .def_prop_ro("block_hashes",
                   [](const PyStored& s) {
                     nb::list hashes;
                     for (const BlockHash& h : s.event.block_hashes) hashes.append(BytesOf(h, s.hash_bytes));
                     return hashes;
                   },
                   nb::sig("def block_hashes(self) -> list[bytes]"))
      .def_prop_ro("parent_block_hash",
                   [](const PyStored& s) -> nb::object {
                     if (!s.event.parent_block_hash) return nb::none();
                     return BytesOf(*s.event.parent_block_hash, s.hash_bytes);
                   },
                   nb::sig("def parent_block_hash(self) -> bytes | None"),
                   "Of the content before the run; None at token 0.")
      .def_prop_ro("token_ids", [](const PyStored& s) { return ToList(s.event.token_ids); },
                   nb::sig("def token_ids(self) -> list[int]"),
                   "block_size of them per hash; none for a request made from hashes.")
      .def_prop_ro("block_size", [](const PyStored& s) { return s.event.block_size; }, "Tokens.")
      .def_prop_ro("lora_id", [](const PyStored& s) { return s.event.lora_id; })
      .def_prop_ro("lora_name", [](const PyStored& s) { return s.event.lora_name; }, "Empty: none.")
      .def_prop_ro("medium", [](const PyStored& s) { return std::string(s.event.medium); })
      .def_prop_ro("extra_keys", &ExtraKeysOf,
                   nb::sig("def extra_keys(self) -> list[tuple[tuple[Any, ...], ...] | None]"),
                   "Per block (kind, value[, offset]) of what else makes its content, or None.")
      .def_prop_ro("group_idx", [](const PyStored& s) { return s.event.group_idx; })
      .def_prop_ro("kv_cache_spec_kind",
                   [](const PyStored& s) { return std::string(s.event.kv_cache_spec_kind); })
      .def_prop_ro("kv_cache_spec_sliding_window",
                   [](const PyStored& s) { return s.event.kv_cache_spec_sliding_window; })
      .def_prop_ro("session_id", [](const PyStored& s) { return s.event.session_id; },
                   "Of the request that caused the event, or None.")
      .def_prop_ro("lookahead_token_ids", [](const PyStored& s) { return s.event.lookahead_token_ids; },
                   "Per hash the tokens behind the block that it covers, or None.")
      .def("__repr__", [](const PyStored& s) {
        return absl::StrCat("BlockStored(", s.event.block_hashes.size(), " blocks of ",
                            s.event.block_size, " tokens, group_idx=", s.event.group_idx, ")");
      });
  nb::class_<PyRemoved>(module, "BlockRemoved", "One block lost one key.")
      .def_prop_ro("block_hash", [](const PyRemoved& r) { return BytesOf(r.event.block_hash, r.hash_bytes); },
                   nb::sig("def block_hash(self) -> bytes"))
      .def_prop_ro("medium", [](const PyRemoved& r) { return std::string(r.event.medium); })
      .def_prop_ro("group_idx", [](const PyRemoved& r) { return r.event.group_idx; })
      .def_prop_ro("reason",
                   [](const PyRemoved& r) { return std::string(RemovalReasonName(r.event.reason)); },
                   "\"reused\", \"evicted\" or \"replaced\".")
      .def("__repr__", [](const PyRemoved& r) {
        return absl::StrCat("BlockRemoved(reason='",
                            std::string(RemovalReasonName(r.event.reason)), "', group_idx=",
                            r.event.group_idx, ")");
      });
  nb::class_<AllBlocksCleared>(module, "AllBlocksCleared", "The prefix cache was reset.")
      .def("__repr__", [](const AllBlocksCleared&) { return "AllBlocksCleared()"; });

  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def("take_events", &TakeEvents,
           nb::sig("def take_events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]"),
           "What changed in the prefix cache since the last call, in order; needs enable_events.");
}

}  // namespace kvblocks::python
