// The Python side of VllmManager: classes, arguments, events.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "kvblocks/check.h"
#include "python/src/vllm_manager.h"

namespace kvblocks::python {
namespace {

using namespace nb::literals;

absl::Span<const BlockId> ListOf(const VllmBlocks& blocks, size_t group) {
  if (group >= blocks.num_groups) {
    throw nb::index_error("group_ids has a group that the model does not have");
  }
  return group < blocks.lists.num_groups() ? blocks.lists.blocks(static_cast<GroupId>(group))
                                           : absl::Span<const BlockId>();
}

nb::object GetBlockIds(const VllmBlocks& blocks, bool allow_none, nb::handle group_ids) {
  std::vector<size_t> groups;
  if (!group_ids.is_none()) {
    for (nb::handle group : nb::iter(group_ids)) groups.push_back(nb::cast<size_t>(group));
  } else {
    for (size_t g = 0; g < blocks.num_groups; ++g) groups.push_back(g);
  }
  bool any = false;
  for (size_t g : groups) any = any || !ListOf(blocks, g).empty();
  if (!any && allow_none) return nb::none();
  PyObject* lists = PyTuple_New(static_cast<Py_ssize_t>(groups.size()));
  if (lists == nullptr) nb::raise_python_error();
  for (size_t i = 0; i < groups.size(); ++i) {
    PyTuple_SetItem(lists, static_cast<Py_ssize_t>(i),
                    ToList(ListOf(blocks, groups[i])).release().ptr());
  }
  return nb::steal(lists);
}

VllmManager& ManagerOf(nb::handle self) { return *nb::inst_ptr<VllmManager>(self); }

// Lists of vLLM's blocks; tuples where there are none.
nb::tuple BlocksOf(const VllmBlocks& blocks) {
  nb::list lists;
  for (size_t g = 0; g < blocks.num_groups; ++g) {
    const auto ids = ListOf(blocks, g);
    if (blocks.owner.is_valid()) {
      nb::list list;
      for (BlockId id : ids) {
        list.append(nb::cast(VllmBlock{blocks.owner, &ManagerOf(blocks.owner), id}));
      }
      lists.append(list);
    } else {
      lists.append(nb::tuple());
    }
  }
  return nb::tuple(lists);
}

nb::list GetUnhashed(const VllmBlocks& blocks) {
  nb::list lists;
  for (size_t g = 0; g < blocks.num_groups; ++g) {
    std::vector<BlockId> ids;
    for (BlockId id : ListOf(blocks, g)) {
      if (id == kNullBlockId) continue;
      if (!ManagerOf(blocks.owner).core().pool().block(id).has_key()) ids.push_back(id);
    }
    lists.append(ToList(ids));
  }
  return lists;
}

VllmBlocks Join(const VllmBlocks& a, const VllmBlocks& b) {
  HitLists lists;
  for (size_t g = 0; g < a.num_groups; ++g) {
    const auto first = ListOf(a, g);
    const auto second = ListOf(b, g);
    lists.emplace_back(first.begin(), first.end());
    lists.back().insert(lists.back().end(), second.begin(), second.end());
  }
  return {a.owner.is_valid() ? a.owner : b.owner, ComputedBlocks(std::move(lists), 0),
          a.num_groups};
}

// The key of a block as vLLM writes it: the hash, then the group in four bytes.
nb::object KeyOf(const VllmBlock& block) {
  const BlockPool& pool = block.manager->core().pool();
  const KvCacheBlock& record = pool.block(block.id);
  if (!record.has_key()) return nb::none();
  const nb::bytes hash = block.manager->HashBytes(pool.hash(block.id));
  std::string key(hash.c_str(), hash.size());
  for (int shift = 24; shift >= 0; shift -= 8) {
    key += static_cast<char>((static_cast<uint32_t>(record.key_group) >> shift) & 0xff);
  }
  return nb::bytes(key.data(), key.size());
}

// One group: kind, tokens per block, a number that groups with equal specs share, window or chunk,
// tokens kept below a window, Mamba mode, speculative blocks, checkpoint blocks, and whether it
// holds draft layers.
using GroupArguments = std::tuple<std::string, int64_t, int64_t, std::optional<int64_t>, int64_t,
                                  std::string, int64_t, int64_t, bool>;

KvCacheGroup GroupFrom(const GroupArguments& arguments) {
  const auto& [kind, block_size, spec_number, window, num_retained, mode, num_speculative,
               num_checkpoints, is_draft] = arguments;
  KvCacheSpecOptions options;
  options.block_size = block_size;
  // Bytes do not matter to a manager, but specs that differ must not look equal.
  options.num_kv_heads = 1 + spec_number;
  options.head_size = 1;
  absl::StatusOr<KvCacheSpec> spec = InvalidArgument("kind ", kind, " is not known");
  if (kind == "full_attention") {
    spec = FullAttentionSpec::Create(options);
  } else if (kind == "sliding_window") {
    options.sliding_window = window;
    options.extra_retained_tokens = num_retained;
    spec = SlidingWindowSpec::Create(options);
  } else if (kind == "chunked_local_attention") {
    options.attention_chunk_size = window;
    spec = ChunkedLocalAttentionSpec::Create(options);
  } else if (kind == "cross_attention") {
    spec = CrossAttentionSpec::Create(options);
  } else if (kind == "mamba" || kind == "ring") {
    options.num_kv_heads = 0;
    options.head_size = 0;
    if (kind == "ring") {
      options.head_size = 1 + spec_number;
      spec = RingSpec::Create(options);
    } else {
      const auto cache_mode = ParseMambaCacheMode(mode);
      CheckVllm(cache_mode.status());
      options.cache_mode = *cache_mode;
      options.states = {{.shape = {1 + spec_number}}};
      options.num_speculative_blocks = num_speculative;
      options.num_checkpoint_blocks = num_checkpoints;
      spec = MambaSpec::Create(options);
    }
  }
  CheckVllm(spec.status());
  return {.spec = *std::move(spec), .is_draft = is_draft};
}

constexpr int64_t kMostEncoderTokens = int64_t{1} << 30;

template <typename T>
T Take(nb::dict& options, const char* name) {
  if (!options.contains(name)) throw nb::value_error("the native manager lacks an option");
  return nb::cast<T>(options[name]);
}

void NewManager(VllmManager* self, int64_t num_blocks, const std::vector<GroupArguments>& groups,
                nb::dict options) {
  KvCacheConfig config{.num_blocks = num_blocks};
  for (const GroupArguments& group : groups) config.groups.push_back(GroupFrom(group));
  config.scheduler_block_size = Take<int64_t>(options, "scheduler_block_size");
  config.hash_block_size = Take<int64_t>(options, "hash_block_size");
  KvCacheManagerOptions core{
      .max_model_len = Take<int64_t>(options, "max_model_len"),
      .max_in_flight_tokens = Take<int64_t>(options, "max_in_flight_tokens"),
      .enable_caching = Take<bool>(options, "enable_caching"),
      .use_eagle = Take<bool>(options, "use_eagle"),
      .num_hash_lookahead_tokens = Take<int64_t>(options, "num_hash_lookahead_tokens"),
      .prefill_lookahead_tokens = Take<int64_t>(options, "num_prefill_lookahead"),
      .enable_events = Take<bool>(options, "enable_events"),
      .log_stats = false,
      .watermark = Take<double>(options, "watermark"),
      .hash_algorithm = HashAlgorithm::kSha256,
      .block_count_formula = BlockCountFormula::kUpstream,
      .partial_hits = Take<bool>(options, "partial_hits"),
      .decode_context_parallel = Take<int64_t>(options, "dcp_world_size"),
      .checkpoint_alignment = Take<int64_t>(options, "checkpoint_alignment"),
      .report_new_blocks = Take<bool>(options, "report_new_blocks")};
  // vLLM's scheduler knows how many an encoder may take, and its manager does not ask.
  core.max_encoder_tokens = kMostEncoderTokens;
  const auto name = Take<std::string>(options, "semantics");
  const auto semantics = Semantics::ByName(name);
  if (!semantics) CheckVllm(InvalidArgument("semantics \"", name, "\" are not known"));
  core.semantics = *semantics;
  core.semantics.retention_interval = Take<std::optional<int64_t>>(options, "retention_interval");
  auto manager = KvCacheManager::Create(config, core);
  CheckVllm(manager.status());

  VllmManager::Settings settings{.keeps_tokens = core.enable_events,
                                 .waiting_status = Take<int64_t>(options, "waiting_status"),
                                 .preempted_status = Take<int64_t>(options, "preempted_status"),
                                 .has_watermark = core.watermark > 0};
  settings.events.stored = Take<nb::object>(options, "block_stored");
  settings.events.removed = Take<nb::object>(options, "block_removed");
  settings.events.cleared = Take<nb::object>(options, "all_blocks_cleared");
  settings.events.embedding_digest = Take<nb::object>(options, "embedding_digest");
  settings.events.uses_int_hashes = Take<bool>(options, "uses_int_hashes");
  for (nb::handle group : Take<nb::list>(options, "event_groups")) {
    settings.events.groups.emplace_back(nb::borrow(group[0]), nb::borrow(group[1]));
  }
  new (self) VllmManager(*std::move(manager), std::move(settings));
}

}  // namespace

// --- Events ---

nb::object VllmManager::ToPython(const BlockHash& hash) const {
  const nb::bytes bytes = HashBytes(hash);
  if (!settings_.events.uses_int_hashes) return bytes;
  // The last eight bytes, the first of them the highest.
  uint64_t value = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.c_str());
  for (size_t i = bytes.size() < 8 ? 0 : bytes.size() - 8; i < bytes.size(); ++i) {
    value = value << 8 | data[i];
  }
  return nb::int_(value);
}

nb::object VllmManager::ToPython(const BlockStored& event) const {
  nb::list hashes;
  for (const BlockHash& hash : event.block_hashes) hashes.append(ToPython(hash));
  nb::object all_extra_keys = nb::none();
  if (!event.extra_keys.empty()) {
    nb::list extra_keys;
    for (const std::optional<ExtraKeys>& keys : event.extra_keys) {
      if (!keys) {
        extra_keys.append(nb::none());
        continue;
      }
      nb::list entries;
      for (const ExtraKey& key : *keys) {
        switch (key.kind) {
          case ExtraKey::Kind::kMultimodal:
            entries.append(nb::make_tuple(key.value, key.offset));
            break;
          case ExtraKey::Kind::kPromptEmbedding:
            entries.append(nb::bytes(key.value.data(), key.value.size()));
            break;
          default:
            entries.append(nb::str(key.value.c_str(), key.value.size()));
        }
      }
      extra_keys.append(nb::tuple(entries));
    }
    all_extra_keys = std::move(extra_keys);
  }
  nb::object lookahead = nb::none();
  if (num_lookahead_tokens_ > 0) {
    nb::list lists;
    if (event.lookahead_token_ids) {
      for (const auto& tokens : *event.lookahead_token_ids) lists.append(ToList(tokens));
    }
    lookahead = std::move(lists);
  }
  const auto& [kind, window] = settings_.events.groups[static_cast<size_t>(event.group_idx)];
  nb::dict fields;
  fields["block_hashes"] = hashes;
  fields["parent_block_hash"] =
      event.parent_block_hash ? ToPython(*event.parent_block_hash) : nb::none();
  fields["token_ids"] = ToList(event.token_ids);
  fields["block_size"] = event.block_size;
  fields["lora_id"] = event.lora_id;
  fields["medium"] = "GPU";
  fields["lora_name"] = event.lora_id ? nb::object(nb::str(event.lora_name.c_str())) : nb::none();
  fields["extra_keys"] = all_extra_keys;
  fields["group_idx"] = event.group_idx;
  fields["kv_cache_spec_kind"] = kind;
  fields["kv_cache_spec_sliding_window"] = window;
  fields["session_id"] = event.session_id;
  // vLLM 0.32 does not have the field.
  if (!lookahead.is_none()) fields["lookahead_token_ids"] = lookahead;
  return settings_.events.stored(**fields);
}

nb::list VllmManager::TakeEvents() {
  nb::list events;
  for (const KvEvent& event : core_->TakeEvents()) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      events.append(ToPython(*stored));
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      nb::list hashes;
      hashes.append(ToPython(removed->block_hash));
      events.append(settings_.events.removed("block_hashes"_a = hashes, "medium"_a = "GPU",
                                             "group_idx"_a = removed->group_idx));
    } else {
      events.append(settings_.events.cleared());
    }
  }
  return events;
}

namespace {

// --- Decode steps ---

// allocate_slots as vLLM calls it for a running request: (request, n, num_lookahead_tokens=k). Most
// of these calls are no-op steps, and Python's own calling convention costs them less than the
// general one; everything else goes on to _allocate_slots.
PyObject* AllocateSlots(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                        PyObject* names) {
  static PyObject* const lookahead = PyUnicode_InternFromString("num_lookahead_tokens");
  static PyObject* const general = PyUnicode_InternFromString("_allocate_slots");
  const Py_ssize_t num_names = names == nullptr ? 0 : PyTuple_Size(names);
  if (num_args == 2 && num_names == 1 && PyTuple_GetItem(names, 0) == lookahead) {
    const long long num_new = PyLong_AsLongLong(args[1]);
    const long long num_lookahead = PyLong_AsLongLong(args[2]);
    if (num_new < 0 || num_lookahead < 0) PyErr_Clear();  // the general way says what is wrong
    VllmManager& manager = *nb::inst_ptr<VllmManager>(self);
    if (manager.IsNoopStep(args[0], num_new, num_lookahead)) {
      return nb::object(manager.no_blocks()).release().ptr();
    }
  }
  absl::InlinedVector<PyObject*, 16> with_self{self};
  with_self.insert(with_self.end(), args, args + num_args + num_names);
  return PyObject_VectorcallMethod(general, with_self.data(), static_cast<size_t>(num_args + 1),
                                   names);
}

PyMethodDef manager_methods[] = {
    {"allocate_slots", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&AllocateSlots)),
     METH_FASTCALL | METH_KEYWORDS,
     "Slots for a request's next tokens, as blocks that are new, or None: see _allocate_slots."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot manager_slots[] = {{Py_tp_methods, manager_methods}, {0, nullptr}};

}  // namespace

void BindVllm(nb::module_& module) {
  nb::class_<VllmBlock>(
      module, "Block", "One block of the pool; the fields of vLLM's KVCacheBlock that can be read.")
      .def_ro("block_id", &VllmBlock::id)
      .def_prop_ro("is_null", [](const VllmBlock& b) { return b.id == kNullBlockId; })
      .def_prop_ro("ref_cnt",
                   [](const VllmBlock& b) {
                     return b.id == kNullBlockId ? 0
                                                 : b.manager->core().pool().block(b.id).ref_count;
                   })
      .def_prop_ro("block_hash", &KeyOf, "The key that the block is cached under, or None.")
      .def("__eq__", [](const VllmBlock& a,
                        const VllmBlock& b) { return a.manager == b.manager && a.id == b.id; })
      .def("__hash__", [](const VllmBlock& b) { return b.id; })
      .def("__repr__", [](const VllmBlock& b) { return "Block(" + std::to_string(b.id) + ")"; });

  nb::class_<VllmBlocks>(module, "Blocks", "Blocks per group: vLLM's KVCacheBlocks.")
      .def_prop_ro("blocks", &BlocksOf)
      .def("get_block_ids", &GetBlockIds, "allow_none"_a = false, nb::kw_only(),
           "group_ids"_a = nb::none())
      .def("new_empty",
           [](const VllmBlocks& b) {
             return VllmBlocks{{}, {}, b.num_groups};
           })
      .def("get_unhashed_block_ids",
           [](const VllmBlocks& b) {
             if (b.num_groups != 1) throw nb::value_error("several groups, expected one");
             return nb::list(GetUnhashed(b)[0]);
           })
      .def("get_unhashed_block_ids_all_groups", &GetUnhashed)
      .def("__add__", &Join);

  nb::class_<VllmManager>(module, "Manager", nb::type_slots(manager_slots))
      .def("__init__", &NewManager, "num_blocks"_a, "groups"_a, "options"_a)
      .def_prop_ro("empty_kv_cache_blocks", &VllmManager::no_blocks)
      .def(
          "get_computed_blocks",
          [](nb::handle_t<VllmManager> self, nb::handle request, nb::handle max_tokens) {
            return ManagerOf(self).GetComputedBlocks(self, request, max_tokens);
          },
          "request"_a, "max_cache_hit_length"_a = nb::none())
      .def(
          "_allocate_slots",
          [](nb::handle_t<VllmManager> self, nb::handle request, int64_t num_new_tokens,
             int64_t num_new_computed_tokens, nb::handle new_computed_blocks,
             int64_t num_lookahead_tokens, int64_t num_external_computed_tokens,
             bool delay_cache_blocks, int64_t num_encoder_tokens, bool full_sequence_must_fit,
             int64_t reserved_blocks, bool has_scheduled_reqs, nb::handle) {
            return ManagerOf(self).AllocateSlots(
                self, request,
                {.num_new_tokens = num_new_tokens,
                 .num_lookahead_tokens = num_lookahead_tokens,
                 .num_external_computed_tokens = num_external_computed_tokens,
                 .delay_cache_blocks = delay_cache_blocks,
                 .full_sequence_must_fit = full_sequence_must_fit,
                 .reserved_blocks = reserved_blocks,
                 .has_scheduled_requests = has_scheduled_reqs,
                 .num_encoder_tokens = num_encoder_tokens},
                num_new_computed_tokens, new_computed_blocks);
          },
          "request"_a, "num_new_tokens"_a, "num_new_computed_tokens"_a = 0,
          "new_computed_blocks"_a = nb::none(), "num_lookahead_tokens"_a = 0,
          "num_external_computed_tokens"_a = 0, "delay_cache_blocks"_a = false,
          "num_encoder_tokens"_a = 0, "full_sequence_must_fit"_a = false, "reserved_blocks"_a = 0,
          "has_scheduled_reqs"_a = true, "skip_zeroing_group_ids"_a = nb::none())
      .def("cache_blocks", &VllmManager::CacheBlocks, "request"_a, "num_computed_tokens"_a)
      .def("free", &VllmManager::Free, "request"_a)
      .def(
          "pop_blocks_for_free",
          [](nb::handle_t<VllmManager> self, nb::handle request) {
            return ManagerOf(self).PopBlocksForFree(self, request);
          },
          "request"_a)
      .def(
          "remove_skipped_blocks",
          [](VllmManager& self, std::string_view request_id, int64_t processed_computed_tokens,
             nb::handle) {
            self.RemoveSkippedBlocks({request_id.data(), request_id.size()},
                                     processed_computed_tokens);
          },
          "request_id"_a, "processed_computed_tokens"_a, "num_prompt_tokens"_a = nb::none())
      .def(
          "get_blocks",
          [](nb::handle_t<VllmManager> self, std::string_view request_id) {
            return ManagerOf(self).GetBlocks(self, {request_id.data(), request_id.size()});
          },
          "request_id"_a)
      .def(
          "get_block_ids",
          [](nb::handle_t<VllmManager> self, std::string_view request_id) {
            const nb::object blocks =
                ManagerOf(self).GetBlocks(self, {request_id.data(), request_id.size()});
            return GetBlockIds(nb::cast<const VllmBlocks&>(blocks), false, nb::none());
          },
          "request_id"_a)
      .def("estimate_cached_tokens", &VllmManager::EstimateCachedTokens, "request"_a)
      .def(
          "truncate_computed_blocks",
          [](nb::handle_t<VllmManager> self, const VllmBlocks& blocks, int64_t num_tokens) {
            return ManagerOf(self).Truncate(self, blocks, num_tokens);
          },
          "blocks"_a, "num_computed_tokens"_a)
      .def("new_step_starts", [](VllmManager& self) { self.core().NewStepStarts(); })
      .def("take_events", &VllmManager::TakeEvents)
      .def_prop_ro("usage", [](const VllmManager& self) { return self.core().usage(); })
      .def(
          "evict_blocks",
          [](VllmManager& self, nb::handle block_ids) {
            // One by one, since events come in the order of the argument.
            for (nb::handle id : nb::iter(block_ids)) {
              CheckVllm(self.core().EvictBlocks({nb::cast<BlockId>(id)}));
            }
          },
          "block_ids"_a)
      .def("_has_block_copies", [](VllmManager& self) { return self.core().has_block_copies(); })
      .def("_take_block_copies",
           [](nb::handle_t<VllmManager> self) {
             nb::list copies;
             nb::list blocks;
             for (const BlockCopy& copy : ManagerOf(self).core().TakeBlockCopies()) {
               copies.append(nb::make_tuple(copy.source, copy.target));
               for (BlockId id : {copy.source, copy.target}) {
                 blocks.append(nb::cast(VllmBlock{nb::borrow(self), &ManagerOf(self), id}));
               }
             }
             return nb::make_tuple(copies, blocks);
           })
      .def("_take_new_block_ids",
           [](VllmManager& self) { return ToList(self.core().TakeNewBlockIds()); })
      .def("_reset_prefix_cache", [](VllmManager& self) { return self.core().ResetPrefixCache(); })
      .def("_free_blocks", &VllmManager::FreeBlocks)
      .def("_num_blocks_needed",
           [](VllmManager& self, std::string_view request_id, int64_t num_tokens,
              int64_t num_computed, bool apply_cap) {
             return self.NumBlocksNeeded({request_id.data(), request_id.size()}, num_tokens,
                                         num_computed, apply_cap);
           })
      .def("_block",
           [](nb::handle_t<VllmManager> self, BlockId id) {
             if (id < 0 || id >= ManagerOf(self).core().pool().num_blocks()) {
               throw nb::index_error("no block has this id");
             }
             return VllmBlock{nb::borrow(self), &ManagerOf(self), id};
           })
      .def("_num_free_blocks", [](VllmManager& self) { return self.core().num_free_blocks(); })
      .def("_num_blocks", [](VllmManager& self) { return self.core().pool().num_blocks(); })
      .def("_free_block_ids",
           [](VllmManager& self) { return ToList(self.core().pool().WalkFree()); })
      .def("_find_cached",
           [](VllmManager& self, nb::bytes hash, GroupId group) {
             BlockHash key;
             std::memcpy(key.words.data(), hash.c_str(), std::min(hash.size(), sizeof(key)));
             return self.core().pool().FindCached(key, group);
           })
      .def("check_invariants", [](VllmManager& self) { CheckVllm(self.core().CheckInvariants()); });
}

}  // namespace kvblocks::python
