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

Result<"list[tuple[tuple[Any, ...], ...] | None]"> ExtraKeysOf(const PyStored& stored) {
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
        absl::StrCat("BlockStored: extra_keys has ", nb::repr(entry).c_str(),
                     ", expected (\"lora\", name), (\"mm\", identifier, offset), (\"cache_salt\", "
                     "salt) or (\"prompt_embeds\", digest)"));
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
  std::string medium = std::string(kGpuMedium), kind = {};
};
template <typename Event>
std::shared_ptr<const Event> Share(std::shared_ptr<WithTexts<Event>> made) {
  const Event* event = &made->event;
  return {std::move(made), event};
}

struct NewStored : WithTexts<BlockStored> {
  nb::handle parent_block_hash, token_ids = nb::none(), extra_keys = nb::none();
};

void MakeStored(NewStored from, PyStored* self, Argument<"Iterable[bytes]"> block_hashes) {
  auto made = std::make_shared<WithTexts<BlockStored>>(from);
  HashReader reader("BlockStored");
  BlockStored& event = made->event;
  for (nb::handle hash : nb::iter(block_hashes)) event.block_hashes.push_back(reader.Read(hash));
  if (!from.parent_block_hash.is_none()) {
    event.parent_block_hash = reader.Read(from.parent_block_hash);
  }
  event.token_ids = TokensFrom(from.token_ids);
  const int64_t block_size = event.block_size;
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
  for (nb::handle keys : nb::iter(from.extra_keys)) {
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
  event.medium = made->medium;
  event.kv_cache_spec_kind = made->kind;
  new (self) PyStored{Share(std::move(made)), reader.size()};
}

RemovalReason ReasonByName(const std::string& name) {
  const RemovalReason reasons[] = {RemovalReason::kReused, RemovalReason::kEvicted,
                                   RemovalReason::kReplaced};
  const auto* const found =
      std::find_if(std::begin(reasons), std::end(reasons),
                   [&](RemovalReason reason) { return RemovalReasonName(reason) == name; });
  if (found == std::end(reasons)) {
    Raise("InvalidArgumentError", absl::StrCat("BlockRemoved: reason is \"", name,
                                               "\", expected reused, evicted or replaced"));
  }
  return *found;
}

void MakeRemoved(WithTexts<BlockRemoved> from, PyRemoved* self, nb::bytes block_hash) {
  auto made = std::make_shared<WithTexts<BlockRemoved>>(std::move(from));
  HashReader reader("BlockRemoved");
  made->event.block_hash = reader.Read(block_hash);
  made->event.medium = made->medium;
  new (self) PyRemoved{Share(std::move(made)), reader.size()};
}

// --- Bytes ---

// From so many bytes or hashes on coding may take 10 us.
constexpr size_t kManyBytes = 4096;
constexpr size_t kManyEvents = 64;

nb::bytes Encode(Events list, std::optional<double> timestamp,
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

PyEventBatch Decode(Argument<"bytes | bytearray | memoryview"> payload) {
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
  return {std::make_shared<const EventBatch>(*std::move(batch))};
}

EventList EventsOf(const PyEventBatch& self) {
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

EventList TakeEvents(PyManager& self) {
  CheckUse(self);
  return ToPython(self.core->TakeEvents(), HashBytesOf(*self.core));
}

// Members of events and batches.
template <auto kMember>
auto OfBatch(const PyEventBatch& batch) {
  return (*batch.batch).*kMember;
}
template <auto kMember, typename Event>
auto OfEvent(const PyEvent<Event>& event) {
  return (*event.event).*kMember;
}

void BindCodec(nb::module_& module) {
  nb::class_<PyEventBatch>(module, "EventBatch",
                           "The events of one engine step, as they came from the wire.")
      .def_prop_ro("timestamp", &OfBatch<&EventBatch::timestamp>,
                   "Seconds; engines send Unix time.")
      .def_prop_ro("events", &EventsOf,
                   "Objects made anew at each use; they share the batch's memory. A removal of "
                   "several hashes is that many events.")
      .def_prop_ro("data_parallel_rank", &OfBatch<&EventBatch::data_parallel_rank>)
      .def_prop_ro(
          "as_integers", [](const PyEventBatch& b) { return b.batch->hash_form.as_integers; },
          "Hashes travelled as integers: each is then 24 zero bytes and the 8 of its integer.")
      .def_prop_ro("num_unknown_extra_keys", &OfBatch<&EventBatch::num_unknown_extra_keys>,
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
             R"(The MessagePack bytes of a batch, as vLLM 0.33's publisher writes them.

timestamp: Unix seconds, default now. as_integers: hashes as the integer of their last 8 bytes.
join_removals: consecutive removals as one event. The reason of a removal does not travel.
Some 15 ns per hash or token. Raises InvalidArgumentError for hashes of different lengths.)");
  module.def("decode_events", &Decode, nb::arg("payload"),
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

EventList ToPython(std::vector<KvEvent> events, size_t hash_bytes) {
  nb::list list;
  for (KvEvent& event : events) list.append(ToPython(std::move(event), hash_bytes));
  return list;
}

void EventsArgument::SetHashBytes(size_t hash_bytes) {
  if (has_hashes_ && hash_bytes != hash_bytes_) {
    Raise("InvalidArgumentError", absl::StrCat("events: hashes of ", hash_bytes_, " and of ",
                                               hash_bytes, " bytes, expected one length"));
  }
  hash_bytes_ = hash_bytes;
  has_hashes_ = true;
}

EventsArgument::EventsArgument(Events list) {
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
  nb::class_<PyStored> stored(
      module, "BlockStored",
      "A run of consecutive blocks of one request entered the prefix cache.");
  const auto event = [](const char* name, auto member) {
    using Member = std::remove_cvref_t<decltype(BlockStored().*member)>;
    return Assign<Member>(nb::arg(name) = BlockStored().*member,
                          [=](NewStored& a) -> Member& { return a.event.*member; });
  };
  Define(
      stored, "__init__", &MakeStored,
      "For engines with a cache of their own. Raises InvalidArgumentError for lists whose lengths "
      "do not fit together.",
      std::tuple(nb::arg("block_hashes")), Parameters(),
      Parameters(
          Number<int64_t>("block_size", KVBLOCKS_AT(event.block_size)),
          Optional<Argument<"bytes">>("parent_block_hash", &NewStored::parent_block_hash),
          Assign<Int32Like>(nb::arg("token_ids") = nb::tuple(), &NewStored::token_ids),
          event("lora_id", &BlockStored::lora_id), event("lora_name", &BlockStored::lora_name),
          Text("medium", &NewStored::medium, "GPU"),
          Assign<Argument<"Iterable[tuple[tuple[Any, ...], ...] | None]">>(
              nb::arg("extra_keys") = nb::tuple(), &NewStored::extra_keys),
          event("group_idx", &BlockStored::group_idx),
          Text("kv_cache_spec_kind", &NewStored::kind, ""),
          event("kv_cache_spec_sliding_window", &BlockStored::kv_cache_spec_sliding_window),
          event("session_id", &BlockStored::session_id),
          event("lookahead_token_ids", &BlockStored::lookahead_token_ids),
          event("locality", &BlockStored::locality), event("ownership", &BlockStored::ownership)));
  stored
      .def_prop_ro(
          "block_hashes",
          [](const PyStored& s) { return ToBytesList(s.event->block_hashes, s.hash_bytes); })
      .def_prop_ro(
          "parent_block_hash",
          [](const PyStored& s) -> std::optional<nb::bytes> {
            if (!s.event->parent_block_hash) return std::nullopt;
            return ToBytes(*s.event->parent_block_hash, s.hash_bytes);
          },
          "Of the content before the run; None at token 0.")
      .def_prop_ro(
          "token_ids", [](const PyStored& s) { return ToList(s.event->token_ids); },
          "block_size of them per hash; none for a request made from hashes.")
      .def_prop_ro("block_size", &OfEvent<&BlockStored::block_size, BlockStored>, "Tokens.")
      .def_prop_ro("lora_id", &OfEvent<&BlockStored::lora_id, BlockStored>)
      .def_prop_ro("lora_name", &OfEvent<&BlockStored::lora_name, BlockStored>, "Empty: none.")
      .def_prop_ro("medium", [](const PyStored& s) { return std::string(s.event->medium); })
      .def_prop_ro("extra_keys", &ExtraKeysOf,
                   "Per block (kind, value[, offset]) of what else makes its content, or None.")
      .def_prop_ro("group_idx", &OfEvent<&BlockStored::group_idx, BlockStored>)
      .def_prop_ro("kv_cache_spec_kind",
                   [](const PyStored& s) { return std::string(s.event->kv_cache_spec_kind); })
      .def_prop_ro("kv_cache_spec_sliding_window",
                   &OfEvent<&BlockStored::kv_cache_spec_sliding_window, BlockStored>)
      .def_prop_ro("session_id", &OfEvent<&BlockStored::session_id, BlockStored>,
                   "Of the request that caused the event, or None.")
      .def_prop_ro("lookahead_token_ids", &OfEvent<&BlockStored::lookahead_token_ids, BlockStored>,
                   "Per hash the tokens behind the block that it covers, or None.")
      .def_prop_ro("locality", &OfEvent<&BlockStored::locality, BlockStored>,
                   "Of secondary tiers, or None.")
      .def_prop_ro("ownership", &OfEvent<&BlockStored::ownership, BlockStored>)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__repr__", [](const PyStored& s) {
        return absl::StrCat("BlockStored(", s.event->block_hashes.size(), " blocks of ",
                            s.event->block_size, " tokens, group_idx=", s.event->group_idx, ")");
      });
  using Removed = WithTexts<BlockRemoved>;
  nb::class_<PyRemoved> removed(module, "BlockRemoved", "One block lost one key.");
  Define(
      removed, "__init__", &MakeRemoved, "For engines with a cache of their own.",
      std::tuple(nb::arg("block_hash")), Parameters(),
      Parameters(Text("medium", &Removed::medium, "GPU"),
                 Number("group_idx", KVBLOCKS_AT(event.group_idx), GroupId{0}),
                 Word("reason", "reused", KVBLOCKS_AT(event.reason), &ReasonByName),
                 Optional<std::optional<std::string>>("locality", KVBLOCKS_AT(event.locality)),
                 Optional<std::optional<std::string>>("ownership", KVBLOCKS_AT(event.ownership))));
  removed
      .def_prop_ro("block_hash",
                   [](const PyRemoved& r) { return ToBytes(r.event->block_hash, r.hash_bytes); })
      .def_prop_ro("medium", [](const PyRemoved& r) { return std::string(r.event->medium); })
      .def_prop_ro("group_idx", &OfEvent<&BlockRemoved::group_idx, BlockRemoved>)
      .def_prop_ro(
          "reason",
          [](const PyRemoved& r) { return std::string(RemovalReasonName(r.event->reason)); },
          "\"reused\", \"evicted\" or \"replaced\"; \"reused\" of what came from a wire.")
      .def_prop_ro("locality", &OfEvent<&BlockRemoved::locality, BlockRemoved>,
                   "Of secondary tiers, or None.")
      .def_prop_ro("ownership", &OfEvent<&BlockRemoved::ownership, BlockRemoved>)
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
           "What changed in the prefix cache since the last call, in order; needs enable_events.");
  BindCodec(module);
  BindEventIndex(module);
  BindEventCheck(module);
  BindEventSockets(module);
}

}  // namespace kvblocks::python
