// KVCacheManager: construction and the step path.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <variant>

#include "absl/strings/str_cat.h"
#include "kvblocks/eviction.h"
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

void Create(PyManager* self, const KvCacheConfig& config, int64_t max_model_len,
            std::variant<std::string, Semantics> semantics,
            std::optional<int64_t> max_in_flight_tokens, bool enable_caching, bool use_eagle,
            int64_t num_hash_lookahead_tokens, int64_t prefill_lookahead_tokens, bool enable_events,
            bool log_stats, double watermark, const std::string& free_order,
            const std::string& eviction_policy, const std::string& hash_algorithm,
            std::optional<std::string> hash_seed, bool compare_tokens_on_hit,
            const std::string& block_count_formula, std::optional<int64_t> max_encoder_tokens,
            bool register_unreachable_blocks, bool partial_hits, int64_t decode_context_parallel,
            int64_t prefill_context_parallel, int64_t checkpoint_alignment,
            int64_t lookup_history_blocks, bool report_new_blocks) {
  const KvCacheManagerOptions options{
      .max_model_len = max_model_len,
      .semantics = std::holds_alternative<Semantics>(semantics)
                       ? std::get<Semantics>(semantics)
                       : SemanticsByName(std::get<std::string>(semantics)),
      .max_in_flight_tokens = max_in_flight_tokens,
      .enable_caching = enable_caching,
      .use_eagle = use_eagle,
      .num_hash_lookahead_tokens = num_hash_lookahead_tokens,
      .prefill_lookahead_tokens = prefill_lookahead_tokens,
      .enable_events = enable_events,
      .log_stats = log_stats,
      .watermark = watermark,
      .free_order = FreeOrderByName(free_order),
      .eviction_policy = Value(ParseEvictionPolicy(eviction_policy)),
      .hash_algorithm = Value(ParseHashAlgorithm(hash_algorithm)),
      .hash_seed = std::move(hash_seed),
      .compare_tokens_on_hit = compare_tokens_on_hit,
      .block_count_formula =
          Value(ParseWord("block_count_formula", block_count_formula, "exact",
                          BlockCountFormula::kExact, "upstream", BlockCountFormula::kUpstream)),
      .max_encoder_tokens = max_encoder_tokens,
      .register_unreachable_blocks = register_unreachable_blocks,
      .partial_hits = partial_hits,
      .decode_context_parallel = decode_context_parallel,
      .prefill_context_parallel = prefill_context_parallel,
      .checkpoint_alignment = checkpoint_alignment,
      .lookup_history_blocks = lookup_history_blocks,
      .report_new_blocks = report_new_blocks};
  new (self) PyManager(Wrap(Value(KvCacheManager::Create(config, options))));
}

PyManager FromConfig(const std::string& text) {
  const auto read = Value(ReadKvCacheManagerConfig(text, "config", ConfigSyntax::kDetect));
  return Wrap(Value(KvCacheManager::Create(read.cache, read.options)));
}

ComputedBlocks GetComputedBlocks(const PyManager& self, const PyRequest& request,
                                 std::optional<int64_t> max_tokens) {
  CheckUse(self);
  CheckOwner(self, request);
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

nb::object AllocateSlots(PyManager& self, PyRequest& request, int64_t num_new_tokens,
                         const ComputedBlocks* computed_blocks, int64_t num_lookahead_tokens,
                         int64_t num_external_computed_tokens, bool delay_cache_blocks,
                         int64_t num_encoder_tokens, bool full_sequence_must_fit,
                         int64_t reserved_blocks, bool has_scheduled_requests) {
  CheckUse(self);
  CheckOwner(self, request);
  Request& core = *request.core;
  const AllocateSlotsParams params{.num_new_tokens = num_new_tokens,
                                   .computed_blocks = computed_blocks,
                                   .num_lookahead_tokens = num_lookahead_tokens,
                                   .num_external_computed_tokens = num_external_computed_tokens,
                                   .delay_cache_blocks = delay_cache_blocks,
                                   .full_sequence_must_fit = full_sequence_must_fit,
                                   .reserved_blocks = reserved_blocks,
                                   .has_scheduled_requests = has_scheduled_requests,
                                   .num_encoder_tokens = num_encoder_tokens};
  request.LetGoOfTables();
  absl::StatusOr<std::optional<NewBlocks>> slots;
  {
    const int64_t num_hits = computed_blocks == nullptr ? 0 : computed_blocks->num_tokens();
    const ManagerUse use(self, num_new_tokens > kManyTokens || num_hits > kManyTokens);
    slots = self.core->AllocateSlots(core, params);
  }
  Check(slots.status());
  if (!slots->has_value()) return nb::none();
  if ((*slots)->num_blocks() == 0) return self.no_blocks;
  return nb::cast(Copy(**slots));
}

void Free(PyManager& self, PyRequest& request) {
  CheckUse(self);
  CheckOwner(self, request);
  request.EndTables();
  absl::Status status;
  {
    const ManagerUse use(self, request.core->num_tokens() > 8 * kManyTokens);
    status = self.core->Free(*request.core);
  }
  Check(status);
}

nb::tuple GetBlockIds(const PyManager& self, const PyRequest& request) {
  CheckUse(self);
  CheckOwner(self, request);
  nb::list lists;
  for (GroupId g = 0; g < self.core->num_groups(); ++g) {
    lists.append(ToList(self.core->GetBlocks(*request.core, g)));
  }
  return nb::tuple(lists);
}

nb::tuple ListsOf(const std::vector<std::vector<BlockId>>& lists) {
  nb::list out;
  for (const auto& list : lists) out.append(ToList(list));
  return nb::tuple(out);
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
  c.def(
       "__init__", &Create, nb::arg("config"), nb::kw_only(), nb::arg("max_model_len"),
       nb::arg("semantics") = "vllm-0.33", nb::arg("max_in_flight_tokens") = nb::none(),
       nb::arg("enable_caching") = true, nb::arg("use_eagle") = false,
       nb::arg("num_hash_lookahead_tokens") = 0, nb::arg("prefill_lookahead_tokens") = 0,
       nb::arg("enable_events") = false, nb::arg("log_stats") = true, nb::arg("watermark") = 0.0,
       nb::arg("free_order") = "unhashed_first", nb::arg("eviction_policy") = "lru",
       nb::arg("hash_algorithm") = "sha256", nb::arg("hash_seed") = nb::none(),
       nb::arg("compare_tokens_on_hit") = false, nb::arg("block_count_formula") = "exact",
       nb::arg("max_encoder_tokens") = nb::none(), nb::arg("register_unreachable_blocks") = false,
       nb::arg("partial_hits") = false, nb::arg("decode_context_parallel") = 1,
       nb::arg("prefill_context_parallel") = 1, nb::arg("checkpoint_alignment") = 1,
       nb::arg("lookup_history_blocks") = 0, nb::arg("report_new_blocks") = false,
       nb::sig("def __init__(self, config: KVCacheConfig, *, max_model_len: int, "
               "semantics: Semantics | str = 'vllm-0.33', max_in_flight_tokens: int | None = None, "
               "enable_caching: bool = True, use_eagle: bool = False, "
               "num_hash_lookahead_tokens: int = 0, prefill_lookahead_tokens: int = 0, "
               "enable_events: bool = False, log_stats: bool = True, watermark: float = 0.0, "
               "free_order: str = 'unhashed_first', eviction_policy: str = 'lru', "
               "hash_algorithm: str = 'sha256', hash_seed: str | None = None, "
               "compare_tokens_on_hit: bool = False, block_count_formula: str = 'exact', "
               "max_encoder_tokens: int | None = None, register_unreachable_blocks: bool = False, "
               "partial_hits: bool = False, decode_context_parallel: int = 1, "
               "prefill_context_parallel: int = 1, checkpoint_alignment: int = 1, "
               "lookup_history_blocks: int = 0, report_new_blocks: bool = False) -> None"),
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

Raises InvalidArgumentError that names the option, its value and the limit.)")
      .def_static("from_config", &FromConfig, nb::arg("text"),
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
           "max_tokens. Pins "
           "nothing.\n\n"
           "Takes 2 ns per block. Raises InvalidArgumentError for a request without tokens.")
      .def(
          "allocate_slots", &AllocateSlots, nb::arg("request"), nb::arg("num_new_tokens"),
          nb::arg("computed_blocks").none() = nb::none(), nb::kw_only(),
          nb::arg("num_lookahead_tokens") = 0, nb::arg("num_external_computed_tokens") = 0,
          nb::arg("delay_cache_blocks") = false, nb::arg("num_encoder_tokens") = 0,
          nb::arg("full_sequence_must_fit") = false, nb::arg("reserved_blocks") = 0,
          nb::arg("has_scheduled_requests") = false,
          nb::sig(
              "def allocate_slots(self, request: Request, num_new_tokens: int, computed_blocks: "
              "ComputedBlocks | None = None, *, num_lookahead_tokens: int = 0, "
              "num_external_computed_tokens: int = 0, delay_cache_blocks: bool = False, "
              "num_encoder_tokens: int = 0, full_sequence_must_fit: bool = False, "
              "reserved_blocks: int = 0, has_scheduled_requests: bool = False) -> Blocks | None"),
          R"(Slots for a request's next tokens: the blocks taken for them, or None if they do not
fit now.

num_new_tokens: to compute now, unverified drafts included. computed_blocks: the answer of
get_computed_blocks, only for a request that holds no blocks. num_lookahead_tokens: further slots
for drafting. num_external_computed_tokens: KV that an external store provides behind the hit.
delay_cache_blocks: register nothing now, cache_blocks does later. full_sequence_must_fit: only if
all known tokens fit. reserved_blocks: free blocks that must remain. has_scheduled_requests: the
step has work already, so the watermark applies.

Reads request.num_computed_tokens and num_inflight_tokens; the scheduler advances them.
Raises InvalidArgumentError that names the argument, its value and the limit.)")
      .def("free", &Free, nb::arg("request"),
           "Gives all blocks back; what is cached of them can still be hit. No-op without blocks.")
      .def(
          "pop_blocks_for_free",
          [](PyManager& self, PyRequest& request) {
            CheckUse(self);
            CheckOwner(self, request);
            request.EndTables();
            return ToList(Value(self.core->PopBlocksForFree(*request.core)));
          },
          nb::arg("request"),
          nb::sig("def pop_blocks_for_free(self, request: Request) -> list[int]"),
          "Takes the blocks from the request without freeing them: the tables of all groups in "
          "group "
          "order. Free the reversed list with free_blocks.")
      .def(
          "free_blocks",
          [](PyManager& self, nb::handle ids) {
            CheckUse(self);
            const Int32Argument list(ids, "block_ids");
            Check(self.core->FreeBlocks(list.values()));
          },
          nb::arg("block_ids"), nb::sig("def free_blocks(self, block_ids: Int32Like) -> None"),
          "Frees, in order, what pop_blocks_for_free, pin_blocks or take_block_copies kept.")
      .def(
          "pin_blocks",
          [](PyManager& self, nb::handle ids) {
            CheckUse(self);
            const Int32Argument list(ids, "block_ids");
            Check(self.core->PinBlocks(list.values()));
          },
          nb::arg("block_ids"), nb::sig("def pin_blocks(self, block_ids: Int32Like) -> None"),
          "Keeps blocks from reuse while something outside reads them, until free_blocks.")
      .def(
          "remove_skipped_blocks",
          [](PyManager& self, PyRequest& request, int64_t num_processed_tokens) {
            CheckUse(self);
            CheckOwner(self, request);
            request.LetGoOfTables();
            Check(self.core->RemoveSkippedBlocks(*request.core, num_processed_tokens));
          },
          nb::arg("request"), nb::arg("num_processed_tokens"),
          "Frees blocks that no token behind the first num_processed_tokens needs, as "
          "allocate_slots "
          "does by itself.")
      .def(
          "cache_blocks",
          [](PyManager& self, PyRequest& request, int64_t num_tokens) {
            CheckUse(self);
            CheckOwner(self, request);
            request.OnChange();
            Check(self.core->CacheBlocks(*request.core, num_tokens));
          },
          nb::arg("request"), nb::arg("num_tokens"),
          "Registers what delay_cache_blocks held back, up to num_tokens.")
      .def(
          "evict_blocks",
          [](PyManager& self, nb::handle ids) {
            CheckUse(self);
            const Int32Argument list(ids, "block_ids");
            Check(self.core->EvictBlocks(list.values()));
          },
          nb::arg("block_ids"), nb::sig("def evict_blocks(self, block_ids: Int32Like) -> None"),
          "Takes blocks out of the prefix cache; those in use stay in use.")
      .def("reset_prefix_cache", &ResetPrefixCache,
           "Forgets all cached content. False, and nothing changed, while a block is referenced.")
      .def("take_block_copies", &TakeBlockCopies,
           nb::sig("def take_block_copies(self) -> list[tuple[int, int, int]]"),
           "With partial_hits: the copies (group, source, target) to be made, in order, before the "
           "next "
           "step computes anything. Both blocks stay referenced until release_block_copies.")
      .def("release_block_copies", &ReleaseBlockCopies, nb::arg("copies"),
           nb::sig("def release_block_copies(self, copies: list[tuple[int, int, int]]) -> None"),
           "The copies have been made.")
      .def(
          "take_new_block_ids",
          [](PyManager& self) {
            CheckUse(self);
            return ToList(self.core->TakeNewBlockIds());
          },
          nb::sig("def take_new_block_ids(self) -> list[int]"),
          "With report_new_blocks: the blocks that attention groups took since the last call.");
}

void BindQueries(nb::class_<PyManager>& c) {
  c.def("get_block_ids", &GetBlockIds, nb::arg("request"),
        nb::sig("def get_block_ids(self, request: Request) -> tuple[list[int], ...]"),
        "Copies of the block tables of all groups, null blocks as 0. get_blocks copies nothing.")
      .def(
          "get_block_ids_for_computed_tokens",
          [](const PyManager& self, const PyRequest& request, int64_t num_tokens) {
            CheckUse(self);
            CheckOwner(self, request);
            return ListsOf(self.core->GetBlockIds(*request.core, num_tokens));
          },
          nb::arg("request"), nb::arg("num_tokens"),
          nb::sig("def get_block_ids_for_computed_tokens(self, request: Request, num_tokens: int) "
                  "-> tuple[list[int], ...]"),
          "The same, clipped to the blocks that cover num_tokens.")
      .def(
          "get_unhashed_block_ids",
          [](const PyManager& self, const PyRequest& request) {
            CheckUse(self);
            CheckOwner(self, request);
            return ListsOf(self.core->GetUnhashedBlockIds(*request.core));
          },
          nb::arg("request"),
          nb::sig("def get_unhashed_block_ids(self, request: Request) -> tuple[list[int], ...]"),
          "Real blocks without a key, per group.")
      .def(
          "get_num_common_prefix_blocks",
          [](const PyManager& self, const PyRequest& request) {
            CheckUse(self);
            CheckOwner(self, request);
            return self.core->GetNumCommonPrefixBlocks(*request.core);
          },
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
            CheckUse(self);
            CheckOwner(self, request);
            const auto checkpoint = self.core->GetStateCheckpoint(*request.core, group);
            if (!checkpoint) return std::nullopt;
            return std::tuple(checkpoint->num_tokens, checkpoint->block);
          },
          nb::arg("request"), nb::arg("group"),
          "Of a Mamba group with checkpoint blocks: (tokens, block) where the step must export the "
          "state, or None.")
      .def(
          "holds_blocks",
          [](const PyManager& self, const PyRequest& request) {
            CheckUse(self);
            CheckOwner(self, request);
            return self.core->HoldsBlocks(*request.core);
          },
          nb::arg("request"))
      .def("check_invariants", &CheckInvariants,
           "Raises InvariantError, in words, unless pool, tables and references agree. O(blocks).")
      .def_prop_ro(
          "usage", [](const PyManager& self) { return self.core->usage(); },
          "Referenced share of the pool, 0 to 1.")
      .def_prop_ro(
          "num_blocks", [](const PyManager& self) { return self.core->pool().num_blocks(); },
          "Of the pool, the null block included.")
      .def_prop_ro(
          "num_free_blocks", [](const PyManager& self) { return self.core->num_free_blocks(); },
          "Unreferenced blocks, cached ones included.")
      .def_prop_ro("num_requests_holding_blocks",
                   [](const PyManager& self) { return self.core->num_requests_holding_blocks(); })
      .def_prop_ro("num_groups", [](const PyManager& self) { return self.core->num_groups(); })
      .def_prop_ro(
          "max_model_len", [](const PyManager& self) { return self.core->options().max_model_len; },
          "Tokens.")
      .def_prop_ro("enable_caching",
                   [](const PyManager& self) { return self.core->options().enable_caching; })
      .def_prop_ro("config", [](const PyManager& self) { return self.core->config(); })
      .def_prop_ro(
          "scheduler_block_size",
          [](const PyManager& self) { return self.core->scheduler_block_size(); }, "Tokens.")
      .def_prop_ro(
          "hash_block_size", [](const PyManager& self) { return self.core->hash_block_size(); },
          "Tokens per block hash.")
      .def_prop_ro(
          "hit_alignment", [](const PyManager& self) { return self.core->hit_alignment(); },
          "Hits end at multiples of so many tokens.");
  c.def(
      "block_size",
      [](const PyManager& self, GroupId group) {
        if (group < 0 || group >= self.core->num_groups()) {
          Raise("NotFoundError",
                absl::StrCat("group is ", group, ", expected 0 to ", self.core->num_groups() - 1));
        }
        return self.core->group(group).block_size();
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
