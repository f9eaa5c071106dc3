// What a manager says about itself: statistics, explanations, its pool.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "absl/strings/str_cat.h"
#include "kvblocks/managers/lookup_explanation.h"
#include "kvblocks/python/src/binding.h"

namespace kvblocks::python {
namespace {

nb::dict ToDict(const MissCounts& counts) {
  nb::dict dict;
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    if (counts[i] == 0) continue;
    dict[nb::cast(MissReasonName(static_cast<MissReason>(i)))] = counts[i];
  }
  return dict;
}

std::string NameOf(MissReason reason) { return std::string(MissReasonName(reason)); }

nb::object Explain(const PyManager& self, const PyRequest& request) {
  CheckUse(self);
  CheckOwner(self, request);
  absl::StatusOr<LookupExplanation> why;
  {
    const ManagerUse use(self, true);
    why = ExplainLookup(*self.core, *request.core);
  }
  return nb::cast(Value(std::move(why)));
}

// A manager's pool, to look at.
struct PyPoolView {
  nb::object owner;
  PyManager* manager;
  const BlockPool& pool() const {
    CheckUse(*manager);
    return manager->core->pool();
  }
};

struct BlockInfo {
  BlockId block_id;
  int32_t ref_count;
  bool is_null;
  bool is_permanent;
  std::optional<GroupId> cached_group;
  nb::object block_hash;
};

BlockInfo InfoOf(const PyPoolView& view, BlockId id) {
  const BlockPool& pool = view.pool();
  if (id < 0 || id >= pool.num_blocks()) {
    Raise("NotFoundError",
          absl::StrCat("block is ", id, ", expected 0 to ", pool.num_blocks() - 1));
  }
  const KvCacheBlock& block = pool.block(id);
  BlockInfo info{id, block.ref_count, block.is_null, block.is_permanent, std::nullopt, nb::none()};
  if (block.has_key()) {
    info.cached_group = block.key_group;
    info.block_hash = ToBytes(*view.manager->core, pool.hash(id));
  }
  return info;
}

void BindStats(nb::module_& module) {
  nb::class_<PrefixCacheStats>(module, "PrefixCacheStats",
                               "Counts at admission since the last take_prefix_cache_stats, in tokens.")
      .def_ro("requests", &PrefixCacheStats::requests, "First admissions.")
      .def_ro("queries", &PrefixCacheStats::queries, "Tokens looked up.")
      .def_ro("hits", &PrefixCacheStats::hits, "Tokens hit.")
      .def_ro("preempted_requests", &PrefixCacheStats::preempted_requests, "Admissions after preemption.")
      .def_ro("preempted_queries", &PrefixCacheStats::preempted_queries)
      .def_ro("preempted_hits", &PrefixCacheStats::preempted_hits)
      .def_ro("reset", &PrefixCacheStats::reset, "The prefix cache was reset in between.")
      .def_prop_ro("missed", [](const PrefixCacheStats& s) { return ToDict(s.missed); },
                   nb::sig("def missed(self) -> dict[str, int]"),
                   "Missed tokens by reason, of admissions that were recorded with an explanation.")
      .def_prop_ro("preempted_missed", [](const PrefixCacheStats& s) { return ToDict(s.preempted_missed); },
                   nb::sig("def preempted_missed(self) -> dict[str, int]"))
      .def("__repr__", [](const PrefixCacheStats& s) {
        return absl::StrCat("PrefixCacheStats(requests=", s.requests, ", queries=", s.queries,
                            ", hits=", s.hits, ", preempted_requests=", s.preempted_requests, ")");
      });

  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def("record_prefix_cache_stats",
           [](PyManager& self, const PyRequest& request, int64_t num_hit_tokens,
              const LookupExplanation* why) {
             CheckUse(self);
             CheckOwner(self, request);
             const MissCounts missed = why == nullptr ? MissCounts{} : why->TokensByReason();
             self.core->RecordPrefixCacheStats(*request.core, num_hit_tokens,
                                               why == nullptr ? nullptr : &missed);
           },
           nb::arg("request"), nb::arg("num_hit_tokens"), nb::arg("explanation").none() = nb::none(),
           nb::sig("def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int, "
                   "explanation: LookupExplanation | None = None) -> None"),
           "Counts an admission; with an explanation, also why the other tokens were missed.")
      .def("take_prefix_cache_stats",
           [](PyManager& self) {
             CheckUse(self);
             return self.core->MakePrefixCacheStats();
           },
           "The counters, which then start again from zero.")
      .def("explain_lookup", &Explain, nb::arg("request"),
           nb::sig("def explain_lookup(self, request: Request) -> LookupExplanation"),
           "Where the tokens went that a look-up does not hit. Call it before allocate_slots. With "
           "lookup_history_blocks it tells evicted blocks from content never seen. O(tokens) probes.");
}

void BindExplanation(nb::module_& module) {
  nb::class_<Absence>(module, "Absence", "Why one block of one group is not in the cache.")
      .def_prop_ro("reason", [](const Absence& a) { return NameOf(a.reason); })
      .def_ro("num_blocks_since", &Absence::num_blocks_since,
              "Blocks the pool has handed out since it was removed, or None.")
      .def("__repr__", [](const Absence& a) { return absl::StrCat("Absence('", Describe(a), "')"); });
  nb::class_<MissedRun>(module, "MissedRun", "Consecutive tokens that were missed for one reason.")
      .def_prop_ro("reason", [](const MissedRun& r) { return NameOf(r.reason); })
      .def_prop_ro("meaning",
                   [](const MissedRun& r) { return std::string(MissReasonMeaning(r.reason)); })
      .def_ro("first_token", &MissedRun::first_token)
      .def_ro("num_tokens", &MissedRun::num_tokens)
      .def_prop_ro("group",
                   [](const MissedRun& r) {
                     return r.group < 0 ? std::nullopt : std::optional<GroupId>(r.group);
                   },
                   "The group that decided, or None.")
      .def_prop_ro("block",
                   [](const MissedRun& r) {
                     return r.block < 0 ? std::nullopt : std::optional<int64_t>(r.block);
                   },
                   "Position in its block table, or None.")
      .def_ro("absence", &MissedRun::absence)
      .def("__repr__", [](const MissedRun& r) {
        return absl::StrCat("MissedRun(reason='", NameOf(r.reason), "', first_token=", r.first_token,
                            ", num_tokens=", r.num_tokens, ")");
      });
  nb::class_<GroupReach>(module, "GroupReach", "What one group would hit if it were the only one.")
      .def_ro("group", &GroupReach::group)
      .def_ro("kind", &GroupReach::kind)
      .def_ro("num_hit_tokens", &GroupReach::num_hit_tokens)
      .def_ro("stop_block", &GroupReach::stop_block, "The first block that a longer hit lacks, or None.")
      .def_ro("absence", &GroupReach::absence);
  nb::class_<LookupExplanation>(module, "LookupExplanation",
                                "How many tokens of a look-up were hit, and why each other was not. "
                                "str() says it in a few lines.")
      .def_ro("num_tokens", &LookupExplanation::num_tokens)
      .def_ro("num_hit_tokens", &LookupExplanation::num_hit_tokens)
      .def_ro("hit_alignment", &LookupExplanation::hit_alignment)
      .def_ro("missed", &LookupExplanation::missed)
      .def_ro("groups", &LookupExplanation::groups)
      .def_ro("has_history", &LookupExplanation::has_history)
      .def_ro("num_removals_remembered", &LookupExplanation::num_removals_remembered)
      .def_prop_ro("tokens_by_reason",
                   [](const LookupExplanation& e) { return ToDict(e.TokensByReason()); },
                   nb::sig("def tokens_by_reason(self) -> dict[str, int]"))
      .def("__str__", &LookupExplanation::ToString);
}

void BindPool(nb::module_& module) {
  nb::class_<BlockInfo>(module, "BlockInfo", "What the pool knows about one block, at that moment.")
      .def_ro("block_id", &BlockInfo::block_id)
      .def_ro("ref_count", &BlockInfo::ref_count)
      .def_ro("is_null", &BlockInfo::is_null)
      .def_ro("is_permanent", &BlockInfo::is_permanent, "An attention sink's.")
      .def_ro("cached_group", &BlockInfo::cached_group, "Under which it is cached, or None.")
      .def_prop_ro("block_hash", [](const BlockInfo& b) { return b.block_hash; },
                   nb::sig("def block_hash(self) -> bytes | None"))
      .def("__repr__", [](const BlockInfo& b) {
        return absl::StrCat("BlockInfo(block_id=", b.block_id, ", ref_count=", b.ref_count, ")");
      });
  nb::class_<PyPoolView>(module, "BlockPool",
                         "The blocks of a manager, to look at: who references them, which are free, "
                         "which are cached. KVCacheManager.pool.")
      .def_prop_ro("num_blocks", [](const PyPoolView& p) { return p.pool().num_blocks(); },
                   "The null block included.")
      .def_prop_ro("num_free", [](const PyPoolView& p) { return p.pool().num_free(); },
                   "Unreferenced, cached ones included.")
      .def_prop_ro("num_live", [](const PyPoolView& p) { return p.pool().num_live(); }, "Referenced.")
      .def_prop_ro("num_permanent", [](const PyPoolView& p) { return p.pool().num_permanent(); })
      .def_prop_ro("num_cached", [](const PyPoolView& p) { return p.pool().num_keyed_blocks(); })
      .def_prop_ro("num_cached_unreferenced",
                   [](const PyPoolView& p) { return p.pool().num_cached_unreferenced(); })
      .def_prop_ro("num_keys", [](const PyPoolView& p) { return p.pool().num_keys(); },
                   "Distinct contents that are cached.")
      .def_prop_ro("num_evictions", [](const PyPoolView& p) { return p.pool().num_evictions(); },
                   "Cached blocks lost to reuse since the manager was made.")
      .def_prop_ro("usage", [](const PyPoolView& p) { return p.pool().usage(); }, "0 to 1.")
      .def("__len__", [](const PyPoolView& p) { return p.pool().num_blocks(); })
      .def("__getitem__", &InfoOf, nb::arg("block_id"))
      .def("find_cached",
           [](const PyPoolView& p, nb::handle hash, GroupId group) -> std::optional<BlockId> {
             const BlockId id = p.pool().FindCached(HashFrom(hash), group);
             return id == kNullBlockId ? std::nullopt : std::optional<BlockId>(id);
           },
           nb::arg("block_hash"), nb::arg("group") = 0,
           nb::sig("def find_cached(self, block_hash: bytes, group: int = 0) -> int | None"),
           "The earliest cached block of a group whose content has this hash, or None.")
      .def("free_list", [](const PyPoolView& p) { return ToList(p.pool().WalkFree()); },
           nb::sig("def free_list(self) -> list[int]"),
           "Free blocks in the order of their reuse under lru. O(blocks).")
      .def("check_invariants",
           [](const PyPoolView& p) { Check(p.pool().CheckInvariants()); });
  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def_prop_ro("pool",
                   [](nb::handle_t<PyManager> self) {
                     return PyPoolView{nb::borrow(self), &nb::cast<PyManager&>(self)};
                   },
                   nb::sig("def pool(self) -> BlockPool"));
}

}  // namespace

void BindReports(nb::module_& module) {
  BindExplanation(module);
  BindStats(module);
  BindPool(module);
}

}  // namespace kvblocks::python
