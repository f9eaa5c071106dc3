// KVCacheManager: construction and the step path.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <tuple>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_cache_manager_config.h"
#include "python/src/binding.h"

namespace kvblocks::python {
namespace {

using CopyTuple = std::tuple<GroupId, BlockId, BlockId>;

PyManager Wrap(std::unique_ptr<KvCacheManager> core) {
  PyManager manager;
  PyBlocks none;
  none.lists.resize(static_cast<size_t>(core->num_groups()));
  manager.no_blocks = nb::cast(std::move(none));
  manager.core = std::move(core);
  return manager;
}

void CreateManager(KvCacheManagerOptions options, PyManager* self, const KvCacheConfig& config) {
  new (self) PyManager(Wrap(Value(KvCacheManager::Create(config, options))));
}

BlockCountFormula FormulaByName(const std::string& name) {
  return Value(ParseWord("block_count_formula", name, "exact", BlockCountFormula::kExact,
                         "upstream", BlockCountFormula::kUpstream));
}

PyManager FromConfig(const std::string& text) {
  const auto read = Value(ReadKvCacheManagerConfig(text, "config", ConfigSyntax::kDetect));
  return Wrap(Value(KvCacheManager::Create(read.cache, read.options)));
}

ComputedBlocks GetComputedBlocks(const PyManager& self, const PyRequest& request,
                                 std::optional<int64_t> max_tokens) {
  CheckUse(self, request);
  ComputedBlocks computed;
  absl::Status status;
  {
    // A look-up takes 2 ns per block.
    const ManagerUse use(self, request.core->num_tokens() > 16 * kManyTokens);
    status = self.core->GetComputedBlocks(*request.core, computed, max_tokens.value_or(kMaxTokens));
  }
  Check(status);
  return computed;
}

PyBlocks Copy(const NewBlocks& blocks) {
  PyBlocks copy;
  copy.lists.resize(blocks.num_groups());
  for (size_t g = 0; g < blocks.num_groups(); ++g) {
    const auto taken = blocks.blocks(static_cast<GroupId>(g));
    copy.lists[g].assign(taken.begin(), taken.end());
  }
  return copy;
}

Result<"Blocks | None"> AllocateSlots(AllocateSlotsParams params, PyManager& self,
                                      PyRequest& request) {
  CheckUse(self, request);
  request.LetGoOfTables();
  absl::StatusOr<std::optional<NewBlocks>> slots;
  {
    const ComputedBlocks* hits = params.computed_blocks;
    const int64_t num_hits = hits == nullptr ? 0 : hits->num_tokens();
    const ManagerUse use(self, params.num_new_tokens > kManyTokens || num_hits > kManyTokens);
    slots = self.core->AllocateSlots(*request.core, params);
  }
  Check(slots.status());
  if (!slots->has_value()) return nb::none();
  if ((*slots)->num_blocks() == 0) return self.no_blocks;
  return nb::cast(Copy(**slots));
}

void Free(PyManager& self, PyRequest& request) {
  CheckUse(self, request);
  request.EndTables();
  absl::Status status;
  {
    const ManagerUse use(self, request.core->num_tokens() > 8 * kManyTokens);
    status = self.core->Free(*request.core);
  }
  Check(status);
}

ListPerGroup GetBlockIds(const PyManager& self, const PyRequest& request) {
  CheckUse(self, request);
  return ToLists(static_cast<size_t>(self.core->num_groups()), [&](size_t g) {
    return self.core->GetBlocks(*request.core, static_cast<GroupId>(g));
  });
}

ListPerGroup ListsOf(const std::vector<std::vector<BlockId>>& lists) {
  return ToLists(lists.size(), [&](size_t g) { return absl::MakeConstSpan(lists[g]); });
}

// Methods of the core: its state, the state of a request, and what it does with blocks.
template <auto kGetter>
auto OfManager(const PyManager& self) {
  return std::invoke(kGetter, *self.core);
}
template <auto kQuestion>
auto AboutRequest(const PyManager& self, const PyRequest& request) {
  CheckUse(self, request);
  return std::invoke(kQuestion, *self.core, *request.core);
}
template <auto kAction>
void WithBlocks(PyManager& self, Int32Like ids) {
  CheckUse(self);
  const Int32Argument list(ids, "block_ids");
  Check(std::invoke(kAction, *self.core, list.values()));
}

std::vector<CopyTuple> TakeBlockCopies(PyManager& self) {
  CheckUse(self);
  std::vector<CopyTuple> copies;
  for (const BlockCopy& copy : self.core->TakeBlockCopies()) {
    copies.emplace_back(copy.group, copy.source, copy.target);
  }
  return copies;
}

void ReleaseBlockCopies(PyManager& self, const std::vector<CopyTuple>& tuples) {
  CheckUse(self);
  std::vector<BlockCopy> copies;
  for (const auto& [group, source, target] : tuples) {
    copies.push_back({.group = group, .source = source, .target = target});
  }
  Check(self.core->ReleaseBlockCopies(copies));
}

bool ResetPrefixCache(PyManager& self) {
  CheckUse(self);
  const ManagerUse use(self, true);
  return self.core->ResetPrefixCache();
}

void CheckInvariants(const PyManager& self) {
  CheckUse(self);
  absl::Status status;
  {
    const ManagerUse use(self, true);
    status = self.core->CheckInvariants();
  }
  Check(status);
}

void BindConstruction(nb::class_<PyManager>& c) {
  using O = KvCacheManagerOptions;
  const auto take_semantics = [](O& options, std::variant<Semantics, std::string> given) {
    options.semantics = std::holds_alternative<Semantics>(given)
                            ? std::get<Semantics>(given)
                            : SemanticsByName(std::get<std::string>(given));
  };
  Define(c, "__init__", &CreateManager,
         R"(max_model_len: tokens of the longest sequence. semantics: whose rules, and switches of
them.

max_in_flight_tokens: most tokens scheduled but not settled, of all requests (default:
max_model_len). use_eagle: draft groups drop the last matched block. num_hash_lookahead_tokens:
tokens behind a block that its hash covers, 0 to 255. prefill_lookahead_tokens: that a drafter reads
after a prefill's part. watermark: share of the pool, 0 to 1, that admissions leave free.
free_order: "unhashed_first" or "append_all". eviction_policy: "lru" or another of docs/policies.md.
hash_algorithm: "sha256", "xxh3_128" (faster, not for untrusted prompts), "sha256_cbor" or
"xxhash_cbor"; hash_seed: equal in processes that exchange hashes. compare_tokens_on_hit: 4 bytes
per token slot of the pool. lookup_history_blocks: removals that explain_lookup remembers, 96 bytes
each. report_new_blocks: collect ids for take_new_block_ids. partial_hits: hits end inside blocks;
run the block copies.

Raises InvalidArgumentError that names the option, its value and the limit.)",
         std::tuple(nb::arg("config")), Parameters(),
         Parameters(Required("max_model_len", &O::max_model_len),
                    Take<std::variant<Semantics, std::string>>(nb::arg("semantics") = "vllm-0.33",
                                                               take_semantics),
                    Field("max_in_flight_tokens", &O::max_in_flight_tokens),
                    Field("enable_caching", &O::enable_caching), Field("use_eagle", &O::use_eagle),
                    Field("num_hash_lookahead_tokens", &O::num_hash_lookahead_tokens),
                    Field("prefill_lookahead_tokens", &O::prefill_lookahead_tokens),
                    Field("enable_events", &O::enable_events), Field("log_stats", &O::log_stats),
                    Field("watermark", &O::watermark),
                    Word("free_order", "unhashed_first", &O::free_order, &FreeOrderByName),
                    Word("eviction_policy", "lru", &O::eviction_policy, &EvictionPolicyByName),
                    Word("hash_algorithm", "sha256", &O::hash_algorithm, &HashAlgorithmByName),
                    Field("hash_seed", &O::hash_seed),
                    Field("compare_tokens_on_hit", &O::compare_tokens_on_hit),
                    Word("block_count_formula", "exact", &O::block_count_formula, &FormulaByName),
                    Field("max_encoder_tokens", &O::max_encoder_tokens),
                    Field("register_unreachable_blocks", &O::register_unreachable_blocks),
                    Field("partial_hits", &O::partial_hits),
                    Field("decode_context_parallel", &O::decode_context_parallel),
                    Field("prefill_context_parallel", &O::prefill_context_parallel),
                    Field("checkpoint_alignment", &O::checkpoint_alignment),
                    Field("lookup_history_blocks", &O::lookup_history_blocks),
                    Field("report_new_blocks", &O::report_new_blocks)));
  c.def_static("from_config", &FromConfig, nb::arg("text"),
               "From a configuration file's text: JSON, or protobuf text format of the message "
               "KvCacheManagerConfig.\n\n"
               "Raises InvalidArgumentError with line, column and field.");
}

void BindStep(nb::class_<PyManager>& c) {
  c.def(
       "new_step_starts",
       [](PyManager& self) {
         CheckUse(self);
         self.core->NewStepStarts();
       },
       "Call it before the first allocation of every step. It matters to models with Mamba layers.")
      .def("get_computed_blocks", &GetComputedBlocks, nb::arg("request"),
           nb::arg("max_tokens") = nb::none(),
           "The longest cached prefix, at most num_tokens - 1 of the request and at most "
           "max_tokens. Pins nothing.\n\n"
           "Takes 2 ns per block. Raises InvalidArgumentError for a request without tokens.");
  using A = AllocateSlotsParams;
  Define(c, "allocate_slots", &AllocateSlots,
         R"(Slots for a request's next tokens: the blocks taken for them, or None if they do not
fit now.

num_new_tokens: to compute now, unverified drafts included. computed_blocks: the answer of
get_computed_blocks, only for a request that holds no blocks. num_lookahead_tokens: further slots
for drafting. num_external_computed_tokens: KV that an external store provides behind the hit.
delay_cache_blocks: register nothing now, cache_blocks does later. full_sequence_must_fit: only if
all known tokens fit. reserved_blocks: free blocks that must remain. has_scheduled_requests: the
step has work already, so the watermark applies.

Reads request.num_computed_tokens and num_inflight_tokens; the scheduler advances them.
Raises InvalidArgumentError that names the argument, its value and the limit.)",
         std::tuple(nb::arg("request")),
         Parameters(Required("num_new_tokens", &A::num_new_tokens),
                    Optional<const ComputedBlocks*>("computed_blocks", &A::computed_blocks)),
         Parameters(Field("num_lookahead_tokens", &A::num_lookahead_tokens),
                    Field("num_external_computed_tokens", &A::num_external_computed_tokens),
                    Field("delay_cache_blocks", &A::delay_cache_blocks),
                    Field("num_encoder_tokens", &A::num_encoder_tokens),
                    Field("full_sequence_must_fit", &A::full_sequence_must_fit),
                    Field("reserved_blocks", &A::reserved_blocks),
                    Field("has_scheduled_requests", &A::has_scheduled_requests)));
  c.def("free", &Free, nb::arg("request"),
        "Gives all blocks back; what is cached of them can still be hit. No-op without blocks.")
      .def(
          "pop_blocks_for_free",
          [](PyManager& self, PyRequest& request) {
            CheckUse(self, request);
            request.EndTables();
            return ToList(Value(self.core->PopBlocksForFree(*request.core)));
          },
          nb::arg("request"),
          "Takes the blocks from the request without freeing them: the tables of all groups in "
          "group order. Free the reversed list with free_blocks.")
      .def("free_blocks", &WithBlocks<&KvCacheManager::FreeBlocks>, nb::arg("block_ids"),
           "Frees, in order, what pop_blocks_for_free, pin_blocks or take_block_copies kept.")
      .def("pin_blocks", &WithBlocks<&KvCacheManager::PinBlocks>, nb::arg("block_ids"),
           "Keeps blocks from reuse while something outside reads them, until free_blocks.")
      .def(
          "remove_skipped_blocks",
          [](PyManager& self, PyRequest& request, int64_t num_processed_tokens) {
            CheckUse(self, request);
            request.LetGoOfTables();
            Check(self.core->RemoveSkippedBlocks(*request.core, num_processed_tokens));
          },
          nb::arg("request"), nb::arg("num_processed_tokens"),
          "Frees blocks that no token behind the first num_processed_tokens needs, as "
          "allocate_slots does by itself.")
      .def(
          "cache_blocks",
          [](PyManager& self, PyRequest& request, int64_t num_tokens) {
            CheckUse(self, request);
            request.OnChange();
            Check(self.core->CacheBlocks(*request.core, num_tokens));
          },
          nb::arg("request"), nb::arg("num_tokens"),
          "Registers what delay_cache_blocks held back, up to num_tokens.")
      .def("evict_blocks", &WithBlocks<&KvCacheManager::EvictBlocks>, nb::arg("block_ids"),
           "Takes blocks out of the prefix cache; those in use stay in use.")
      .def("reset_prefix_cache", &ResetPrefixCache,
           "Forgets all cached content. False, and nothing changed, while a block is referenced.")
      .def("take_block_copies", &TakeBlockCopies,
           "With partial_hits: the copies (group, source, target) to be made, in order, before the "
           "next step computes anything. Both blocks stay referenced until release_block_copies.")
      .def("release_block_copies", &ReleaseBlockCopies, nb::arg("copies"),
           nb::sig("def release_block_copies(self, copies: list[tuple[int, int, int]]) -> None"),
           "The copies have been made.")
      .def(
          "take_new_block_ids",
          [](PyManager& self) {
            CheckUse(self);
            return ToList(self.core->TakeNewBlockIds());
          },
          "With report_new_blocks: the blocks that attention groups took since the last call.");
}

void BindQueries(nb::class_<PyManager>& c) {
  c.def("get_block_ids", &GetBlockIds, nb::arg("request"),
        "Copies of the block tables of all groups, null blocks as 0. get_blocks copies nothing.")
      .def(
          "get_block_ids_for_computed_tokens",
          [](const PyManager& self, const PyRequest& request, int64_t num_tokens) {
            CheckUse(self, request);
            return ListsOf(self.core->GetBlockIds(*request.core, num_tokens));
          },
          nb::arg("request"), nb::arg("num_tokens"),
          "The same, clipped to the blocks that cover num_tokens.")
      .def(
          "get_unhashed_block_ids",
          [](const PyManager& self, const PyRequest& request) {
            CheckUse(self, request);
            return ListsOf(self.core->GetUnhashedBlockIds(*request.core));
          },
          nb::arg("request"), "Real blocks without a key, per group.")
      .def("get_num_common_prefix_blocks", &AboutRequest<&KvCacheManager::GetNumCommonPrefixBlocks>,
           nb::arg("request"),
           "Leading blocks that all requests holding blocks share, per group; 0 for windowed "
           "groups.")
      .def(
          "truncate_computed_blocks",
          [](const PyManager& self, const ComputedBlocks& computed, int64_t num_tokens) {
            CheckUse(self);
            return Value(self.core->TruncateComputedBlocks(computed, num_tokens));
          },
          nb::arg("computed_blocks"), nb::arg("num_tokens"),
          "The first num_tokens of a hit: a multiple of every group's block size.")
      .def(
          "get_state_checkpoint",
          [](const PyManager& self, const PyRequest& request,
             GroupId group) -> std::optional<std::tuple<int64_t, BlockId>> {
            CheckUse(self, request);
            const auto checkpoint = self.core->GetStateCheckpoint(*request.core, group);
            if (!checkpoint) return std::nullopt;
            return std::tuple(checkpoint->num_tokens, checkpoint->block);
          },
          nb::arg("request"), nb::arg("group"),
          "Of a Mamba group with checkpoint blocks: (tokens, block) where the step must export the "
          "state, or None.")
      .def("holds_blocks", &AboutRequest<&KvCacheManager::HoldsBlocks>, nb::arg("request"))
      .def("check_invariants", &CheckInvariants,
           "Raises InvariantError, in words, unless pool, tables and references agree. O(blocks).")
      .def_prop_ro("usage", &OfManager<&KvCacheManager::usage>,
                   "Referenced share of the pool, 0 to 1.")
      .def_prop_ro(
          "num_blocks", [](const PyManager& self) { return self.core->pool().num_blocks(); },
          "Of the pool, the null block included.")
      .def_prop_ro("num_free_blocks", &OfManager<&KvCacheManager::num_free_blocks>,
                   "Unreferenced blocks, cached ones included.")
      .def_prop_ro("num_requests_holding_blocks",
                   &OfManager<&KvCacheManager::num_requests_holding_blocks>)
      .def_prop_ro("num_groups", &OfManager<&KvCacheManager::num_groups>)
      .def_prop_ro(
          "max_model_len", [](const PyManager& self) { return self.core->options().max_model_len; },
          "Tokens.")
      .def_prop_ro("enable_caching",
                   [](const PyManager& self) { return self.core->options().enable_caching; })
      .def_prop_ro("config", &OfManager<&KvCacheManager::config>)
      .def_prop_ro("scheduler_block_size", &OfManager<&KvCacheManager::scheduler_block_size>,
                   "Tokens.")
      .def_prop_ro("hash_block_size", &OfManager<&KvCacheManager::hash_block_size>,
                   "Tokens per block hash.")
      .def_prop_ro("hit_alignment", &OfManager<&KvCacheManager::hit_alignment>,
                   "Hits end at multiples of so many tokens.");
  c.def(
      "block_size",
      [](const PyManager& self, GroupId group) {
        return self.core->group(CheckGroup(self, group)).block_size();
      },
      nb::arg("group"), "Tokens that one entry of the group's block tables covers.");
}

}  // namespace

void BindManager(nb::module_& module) {
  nb::class_<PyManager> manager(
      module, "KVCacheManager",
      "What a scheduler calls: prefix look-up, slots, freeing, over all KV-cache groups of a "
      "model.\n\n"
      "Semantics are those of vLLM V1. One thread at a time; calls of more than 10 us release the "
      "interpreter lock, and another thread's call then raises ConcurrentUseError.");
  BindConstruction(manager);
  BindStep(manager);
  BindQueries(manager);
}

}  // namespace kvblocks::python
