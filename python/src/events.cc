// KV events as Python objects: the fields of vLLM's, plus the reason of a removal. And their bytes.

#include "python/src/events.h"

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvblocks::python {
namespace {

using events::EventBatch;

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
  for (const std::optional<ExtraKeys>& keys : stored.event->extra_keys) {
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

// --- Events made in Python ---

ExtraKey ExtraKeyFrom(nb::handle entry) {
  const auto text = [](nb::handle value) -> std::string {
    if (PyBytes_Check(value.ptr())) {
      const auto bytes = nb::borrow<nb::bytes>(value);
      return {bytes.c_str(), bytes.size()};
    }
    return nb::cast<std::string>(value);
  };
  const auto parts = nb::cast<nb::tuple>(entry);
  if (parts.size() >= 2) {
    const auto name = nb::cast<std::string>(parts[0]);
    for (const auto kind : {ExtraKey::Kind::kLora, ExtraKey::Kind::kMultimodal,
                            ExtraKey::Kind::kSalt, ExtraKey::Kind::kPromptEmbedding}) {
      const bool has_offset = kind == ExtraKey::Kind::kMultimodal;
      if (name != KindOf(kind) || parts.size() != (has_offset ? 3 : 2)) continue;
      return {.kind = kind,
              .value = text(parts[1]),
              .offset = has_offset ? nb::cast<int64_t>(parts[2]) : 0};
    }
  }
  Raise("InvalidArgumentError",
        absl::StrCat(
            "BlockStored: extra_keys has ", nb::repr(entry).c_str(),
            ", expected (\"lora\", name), (\"mm\", identifier, offset), (\"cache_salt\", salt) or "
            "(\"prompt_embeds\", digest)"));
}

// Hashes of one length.
class HashReader {
 public:
  explicit HashReader(const char* what) : what_(what) {}
  BlockHash Read(nb::handle bytes) {
    const BlockHash hash = HashFrom(bytes);
    const auto size = static_cast<size_t>(PyBytes_Size(bytes.ptr()));
    if (size_ != 0 && size != size_) {
      Raise("InvalidArgumentError",
            absl::StrCat(what_, ": a hash has ", size, " bytes and another ", size_,
                         ", expected the same of all"));
    }
    size_ = size;
    return hash;
  }
  size_t size() const { return size_ == 0 ? sizeof(BlockHash) : size_; }

 private:
  const char* what_;
  size_t size_ = 0;
};

// Texts that an event points to, beside the event.
template <typename Event>
struct WithTexts {
  Event event;
  std::string medium, kind;
};
template <typename Event>
std::shared_ptr<const Event> Share(std::shared_ptr<WithTexts<Event>> made) {
  const Event* event = &made->event;
  return {std::move(made), event};
}

void MakeStored(PyStored* self, nb::iterable block_hashes, int64_t block_size,
                nb::handle parent_block_hash, nb::handle token_ids, std::optional<int64_t> lora_id,
                std::string lora_name, std::string medium, nb::iterable extra_keys,
                GroupId group_idx, std::string kv_cache_spec_kind,
                std::optional<int64_t> kv_cache_spec_sliding_window,
                std::optional<std::string> session_id,
                std::optional<std::vector<std::vector<TokenId>>> lookahead_token_ids,
                std::optional<std::string> locality, std::optional<std::string> ownership) {
  auto made = std::make_shared<WithTexts<BlockStored>>();
  made->medium = std::move(medium);
  made->kind = std::move(kv_cache_spec_kind);
  HashReader reader("BlockStored");
  BlockStored& event = made->event;
  for (nb::handle hash : block_hashes) event.block_hashes.push_back(reader.Read(hash));
  if (!parent_block_hash.is_none()) event.parent_block_hash = reader.Read(parent_block_hash);
  const Int32Argument tokens(token_ids, "token_ids");
  event.token_ids.assign(tokens.values().begin(), tokens.values().end());
  event.block_size = block_size;
  const auto num_hashes = static_cast<int64_t>(event.block_hashes.size());
  if (block_size < 1 || block_size > kMaxTokens) {
    Raise("InvalidArgumentError",
          absl::StrCat("BlockStored: block_size is ", block_size, ", expected 1 to ", kMaxTokens));
  }
  const auto num_tokens = static_cast<int64_t>(event.token_ids.size());
  if (num_tokens > 0 && (num_tokens % block_size != 0 || num_tokens / block_size != num_hashes)) {
    Raise("InvalidArgumentError",
          absl::StrCat("BlockStored: ", num_tokens, " token_ids, expected none or ", block_size,
                       " for each of ", num_hashes, " hashes"));
  }
  for (nb::handle keys : extra_keys) {
    event.extra_keys.emplace_back();
    if (keys.is_none()) continue;
    event.extra_keys.back().emplace();
    for (nb::handle entry : nb::iter(keys)) event.extra_keys.back()->push_back(ExtraKeyFrom(entry));
  }
  if (!event.extra_keys.empty() && event.extra_keys.size() != event.block_hashes.size()) {
    Raise("InvalidArgumentError",
          absl::StrCat("BlockStored: ", event.extra_keys.size(),
                       " entries in extra_keys, expected none or ", num_hashes));
  }
  event.lora_id = lora_id;
  event.lora_name = std::move(lora_name);
  event.medium = made->medium;
  event.group_idx = group_idx;
  event.kv_cache_spec_kind = made->kind;
  event.kv_cache_spec_sliding_window = kv_cache_spec_sliding_window;
  event.session_id = std::move(session_id);
  event.lookahead_token_ids = std::move(lookahead_token_ids);
  event.locality = std::move(locality);
  event.ownership = std::move(ownership);
  new (self) PyStored{Share(std::move(made)), reader.size()};
}

void MakeRemoved(PyRemoved* self, nb::handle block_hash, std::string medium, GroupId group_idx,
                 const std::string& reason, std::optional<std::string> locality,
                 std::optional<std::string> ownership) {
  auto made = std::make_shared<WithTexts<BlockRemoved>>();
  made->medium = std::move(medium);
  HashReader reader("BlockRemoved");
  BlockRemoved& event = made->event;
  event.block_hash = reader.Read(block_hash);
  event.medium = made->medium;
  event.group_idx = group_idx;
  const RemovalReason reasons[] = {RemovalReason::kReused, RemovalReason::kEvicted,
                                   RemovalReason::kReplaced};
  const auto* const found =
      std::find_if(std::begin(reasons), std::end(reasons),
                   [&](RemovalReason r) { return RemovalReasonName(r) == reason; });
  if (found == std::end(reasons)) {
    Raise("InvalidArgumentError", absl::StrCat("BlockRemoved: reason is \"", reason,
                                               "\", expected reused, evicted or replaced"));
  }
  event.reason = *found;
  event.locality = std::move(locality);
  event.ownership = std::move(ownership);
  new (self) PyRemoved{Share(std::move(made)), reader.size()};
}

// --- Bytes ---

// From so many bytes or hashes on coding may take 10 us.
constexpr size_t kManyBytes = 4096;
constexpr size_t kManyEvents = 64;

nb::bytes Encode(nb::handle list, std::optional<double> timestamp,
                 std::optional<int64_t> data_parallel_rank, bool as_integers, bool join_removals) {
  const EventsArgument argument(list);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const events::EncodeOptions options{
      .timestamp = timestamp.value_or(now.count()),
      .data_parallel_rank = data_parallel_rank,
      .hash_form = {.digest_size = argument.hash_bytes(), .as_integers = as_integers},
      .join_removals = join_removals};
  if (as_integers && argument.hash_bytes() < 8) {
    Raise("InvalidArgumentError", absl::StrCat("encode: hashes have ", argument.hash_bytes(),
                                               " bytes, expected at least 8 for as_integers"));
  }
  std::string payload;
  {
    const ReleaseIf released(argument.events().size() > kManyEvents);
    events::EncodeEvents(argument.events(), options, &payload);
  }
  return nb::bytes(payload.data(), payload.size());
}

nb::object Decode(nb::handle payload) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(payload.ptr(), &buffer, PyBUF_SIMPLE) != 0) nb::raise_python_error();
  absl::StatusOr<EventBatch> batch;
  {
    const ReleaseIf released(static_cast<size_t>(buffer.len) > kManyBytes);
    batch = events::DecodeEvents(
        {static_cast<const char*>(buffer.buf), static_cast<size_t>(buffer.len)});
  }
  PyBuffer_Release(&buffer);
  Check(batch.status());
  return ToPython(std::make_shared<const EventBatch>(*std::move(batch)));
}

nb::list EventsOf(const PyEventBatch& self) {
  const size_t hash_bytes = self.batch->hash_form.digest_size;
  nb::list list;
  for (const KvEvent& event : self.batch->events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      list.append(nb::cast(PyStored{{self.batch, stored}, hash_bytes}));
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      list.append(nb::cast(PyRemoved{{self.batch, removed}, hash_bytes}));
    } else {
      list.append(nb::cast(AllBlocksCleared()));
    }
  }
  return list;
}

nb::list TakeEvents(PyManager& self) {
  CheckUse(self);
  const size_t hash_bytes = HashBytesOf(*self.core);
  nb::list list;
  for (KvEvent& event : self.core->TakeEvents())
    list.append(ToPython(std::move(event), hash_bytes));
  return list;
}

void BindCodec(nb::module_& module) {
  nb::class_<PyEventBatch>(module, "EventBatch",
                           "The events of one engine step, as they came from the wire.")
      .def_prop_ro(
          "timestamp", [](const PyEventBatch& b) { return b.batch->timestamp; },
          "Seconds; engines send Unix time.")
      .def_prop_ro(
          "events", &EventsOf,
          nb::sig("def events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]"),
          "Objects made anew at each use; they share the batch's memory. A removal of several "
          "hashes is that many events.")
      .def_prop_ro("data_parallel_rank",
                   [](const PyEventBatch& b) { return b.batch->data_parallel_rank; })
      .def_prop_ro(
          "as_integers", [](const PyEventBatch& b) { return b.batch->hash_form.as_integers; },
          "Hashes travelled as integers: each is then 24 zero bytes and the 8 of its integer.")
      .def_prop_ro(
          "num_unknown_extra_keys",
          [](const PyEventBatch& b) { return b.batch->num_unknown_extra_keys; },
          "Of kinds that are not known; left out.")
      .def(
          "__len__", [](const PyEventBatch& b) { return b.batch->events.size(); }, "Events.")
      .def("__repr__", [](const PyEventBatch& b) {
        return absl::StrCat("EventBatch(", b.batch->events.size(),
                            " events, timestamp=", b.batch->timestamp, ")");
      });
  module.def("encode_events", &Encode, nb::arg("events"), nb::kw_only(),
             nb::arg("timestamp") = nb::none(), nb::arg("data_parallel_rank") = nb::none(),
             nb::arg("as_integers") = false, nb::arg("join_removals") = false,
             nb::sig("def encode_events(events: Events, *, timestamp: float | None = None, "
                     "data_parallel_rank: int | None = None, as_integers: bool = False, "
                     "join_removals: bool = False) -> bytes"),
             R"(The MessagePack bytes of a batch, as vLLM 0.33's publisher writes them.

timestamp: Unix seconds, default now. as_integers: hashes as the integer of their last 8 bytes.
join_removals: consecutive removals as one event. The reason of a removal does not travel.
Some 15 ns per hash or token. Raises InvalidArgumentError for hashes of different lengths.)");
  module.def("decode_events", &Decode, nb::arg("payload"),
             nb::sig("def decode_events(payload: bytes | bytearray | memoryview) -> EventBatch"),
             "The batch that these bytes are, from vLLM or us; safe for bytes from anywhere.\n\n"
             "Raises InvalidArgumentError that says at which event, field and byte it is none.");
}

}  // namespace

int64_t Milliseconds(double seconds, const char* what) {
  constexpr double kMost = 86'400;
  if (!(seconds >= 0 && seconds <= kMost)) {
    Raise("InvalidArgumentError", absl::StrCat(what, " is ", seconds, " s, expected 0 to ", kMost));
  }
  return static_cast<int64_t>(std::ceil(seconds * 1000));
}

nb::object ToPython(KvEvent event, size_t hash_bytes) {
  if (auto* stored = std::get_if<BlockStored>(&event)) {
    return nb::cast(PyStored{std::make_shared<const BlockStored>(std::move(*stored)), hash_bytes});
  }
  if (auto* removed = std::get_if<BlockRemoved>(&event)) {
    return nb::cast(
        PyRemoved{std::make_shared<const BlockRemoved>(std::move(*removed)), hash_bytes});
  }
  return nb::cast(AllBlocksCleared());
}

nb::object ToPython(std::shared_ptr<const EventBatch> batch) {
  return nb::cast(PyEventBatch{std::move(batch)});
}

void EventsArgument::SetHashBytes(size_t hash_bytes) {
  if (has_hashes_ && hash_bytes != hash_bytes_) {
    Raise("InvalidArgumentError", absl::StrCat("events: hashes of ", hash_bytes_, " and of ",
                                               hash_bytes, " bytes, expected one length"));
  }
  hash_bytes_ = hash_bytes;
  has_hashes_ = true;
}

EventsArgument::EventsArgument(nb::handle list) {
  PyEventBatch* batch = nullptr;
  if (nb::try_cast(list, batch) && batch != nullptr) {
    batch_ = batch->batch;
    hash_bytes_ = batch_->hash_form.digest_size;
    return;
  }
  for (nb::handle item : nb::iter(list)) {
    PyStored* stored = nullptr;
    PyRemoved* removed = nullptr;
    AllBlocksCleared* cleared = nullptr;
    if (nb::try_cast(item, stored) && stored != nullptr) {
      SetHashBytes(stored->hash_bytes);
      copies_.emplace_back(*stored->event);
      kept_.push_back(stored->event);
    } else if (nb::try_cast(item, removed) && removed != nullptr) {
      SetHashBytes(removed->hash_bytes);
      copies_.emplace_back(*removed->event);
      kept_.push_back(removed->event);
    } else if (nb::try_cast(item, cleared) && cleared != nullptr) {
      copies_.emplace_back(AllBlocksCleared());
    } else {
      PyErr_Format(PyExc_TypeError,
                   "events: got %S, expected an EventBatch, or BlockStored, BlockRemoved and "
                   "AllBlocksCleared",
                   reinterpret_cast<PyObject*>(Py_TYPE(item.ptr())));
      nb::raise_python_error();
    }
  }
}

void BindEvents(nb::module_& module) {
  nb::class_<PyStored>(module, "BlockStored",
                       "A run of consecutive blocks of one request entered the prefix cache.")
      .def("__init__", &MakeStored, nb::arg("block_hashes"), nb::kw_only(), nb::arg("block_size"),
           nb::arg("parent_block_hash") = nb::none(), nb::arg("token_ids") = nb::tuple(),
           nb::arg("lora_id") = nb::none(), nb::arg("lora_name") = "", nb::arg("medium") = "GPU",
           nb::arg("extra_keys") = nb::tuple(), nb::arg("group_idx") = 0,
           nb::arg("kv_cache_spec_kind") = "", nb::arg("kv_cache_spec_sliding_window") = nb::none(),
           nb::arg("session_id") = nb::none(), nb::arg("lookahead_token_ids") = nb::none(),
           nb::arg("locality") = nb::none(), nb::arg("ownership") = nb::none(),
           nb::sig(
               "def __init__(self, block_hashes: Iterable[bytes], *, block_size: int, "
               "parent_block_hash: bytes | None = None, token_ids: Int32Like = (), "
               "lora_id: int | None = None, lora_name: str = '', medium: str = 'GPU', "
               "extra_keys: Iterable[tuple[tuple[Any, ...], ...] | None] = (), group_idx: int = 0, "
               "kv_cache_spec_kind: str = '', kv_cache_spec_sliding_window: int | None = None, "
               "session_id: str | None = None, lookahead_token_ids: Sequence[Sequence[int]] | None "
               "= None, "
               "locality: str | None = None, ownership: str | None = None) -> None"),
           "For engines with a cache of their own. Raises InvalidArgumentError for lists whose "
           "lengths do "
           "not fit together.")
      .def_prop_ro(
          "block_hashes",
          [](const PyStored& s) {
            nb::list hashes;
            for (const BlockHash& h : s.event->block_hashes)
              hashes.append(ToBytes(h, s.hash_bytes));
            return hashes;
          },
          nb::sig("def block_hashes(self) -> list[bytes]"))
      .def_prop_ro(
          "parent_block_hash",
          [](const PyStored& s) -> nb::object {
            if (!s.event->parent_block_hash) return nb::none();
            return ToBytes(*s.event->parent_block_hash, s.hash_bytes);
          },
          nb::sig("def parent_block_hash(self) -> bytes | None"),
          "Of the content before the run; None at token 0.")
      .def_prop_ro(
          "token_ids", [](const PyStored& s) { return ToList(s.event->token_ids); },
          nb::sig("def token_ids(self) -> list[int]"),
          "block_size of them per hash; none for a request made from hashes.")
      .def_prop_ro(
          "block_size", [](const PyStored& s) { return s.event->block_size; }, "Tokens.")
      .def_prop_ro("lora_id", [](const PyStored& s) { return s.event->lora_id; })
      .def_prop_ro(
          "lora_name", [](const PyStored& s) { return s.event->lora_name; }, "Empty: none.")
      .def_prop_ro("medium", [](const PyStored& s) { return std::string(s.event->medium); })
      .def_prop_ro("extra_keys", &ExtraKeysOf,
                   nb::sig("def extra_keys(self) -> list[tuple[tuple[Any, ...], ...] | None]"),
                   "Per block (kind, value[, offset]) of what else makes its content, or None.")
      .def_prop_ro("group_idx", [](const PyStored& s) { return s.event->group_idx; })
      .def_prop_ro("kv_cache_spec_kind",
                   [](const PyStored& s) { return std::string(s.event->kv_cache_spec_kind); })
      .def_prop_ro("kv_cache_spec_sliding_window",
                   [](const PyStored& s) { return s.event->kv_cache_spec_sliding_window; })
      .def_prop_ro(
          "session_id", [](const PyStored& s) { return s.event->session_id; },
          "Of the request that caused the event, or None.")
      .def_prop_ro(
          "lookahead_token_ids", [](const PyStored& s) { return s.event->lookahead_token_ids; },
          "Per hash the tokens behind the block that it covers, or None.")
      .def_prop_ro(
          "locality", [](const PyStored& s) { return s.event->locality; },
          "Of secondary tiers, or None.")
      .def_prop_ro("ownership", [](const PyStored& s) { return s.event->ownership; })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__repr__", [](const PyStored& s) {
        return absl::StrCat("BlockStored(", s.event->block_hashes.size(), " blocks of ",
                            s.event->block_size, " tokens, group_idx=", s.event->group_idx, ")");
      });
  nb::class_<PyRemoved>(module, "BlockRemoved", "One block lost one key.")
      .def("__init__", &MakeRemoved, nb::arg("block_hash"), nb::kw_only(),
           nb::arg("medium") = "GPU", nb::arg("group_idx") = 0, nb::arg("reason") = "reused",
           nb::arg("locality") = nb::none(), nb::arg("ownership") = nb::none(),
           nb::sig(
               "def __init__(self, block_hash: bytes, *, medium: str = 'GPU', group_idx: int = 0, "
               "reason: str = 'reused', locality: str | None = None, ownership: str | None = None) "
               "-> None"))
      .def_prop_ro(
          "block_hash",
          [](const PyRemoved& r) { return ToBytes(r.event->block_hash, r.hash_bytes); },
          nb::sig("def block_hash(self) -> bytes"))
      .def_prop_ro("medium", [](const PyRemoved& r) { return std::string(r.event->medium); })
      .def_prop_ro("group_idx", [](const PyRemoved& r) { return r.event->group_idx; })
      .def_prop_ro(
          "reason",
          [](const PyRemoved& r) { return std::string(RemovalReasonName(r.event->reason)); },
          "\"reused\", \"evicted\" or \"replaced\"; \"reused\" of what came from a wire.")
      .def_prop_ro(
          "locality", [](const PyRemoved& r) { return r.event->locality; },
          "Of secondary tiers, or None.")
      .def_prop_ro("ownership", [](const PyRemoved& r) { return r.event->ownership; })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__repr__", [](const PyRemoved& r) {
        return absl::StrCat("BlockRemoved(reason='",
                            std::string(RemovalReasonName(r.event->reason)),
                            "', group_idx=", r.event->group_idx, ")");
      });
  nb::class_<AllBlocksCleared>(module, "AllBlocksCleared", "The prefix cache was reset.")
      .def(nb::init<>())
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__repr__", [](const AllBlocksCleared&) { return "AllBlocksCleared()"; });

  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def("take_events", &TakeEvents,
           nb::sig("def take_events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]"),
           "What changed in the prefix cache since the last call, in order; needs enable_events.");
  BindCodec(module);
  BindEventIndex(module);
  BindEventCheck(module);
  BindEventSockets(module);
}

}  // namespace kvblocks::python
